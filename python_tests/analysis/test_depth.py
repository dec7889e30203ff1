"""Dependency depth, against a search of all paths."""

import pytest
import torch

from rnnkern.analysis import dependency_depth
from rnnkern.nn import RelRNN


def shortest(ids, event, step):
    """The smallest number of recurrent weights from s of ``step`` to ``event``, over all paths."""
    if event > step:
        return float("inf")
    if event == step or event in ids[step]:
        return 0
    ends = {*range(step + 1)}
    return min(1 + shortest(ids, event, b) for b in ends if b + 1 in ids[step] or b + 1 == step)


@pytest.mark.parametrize("sizes", [(1, 0), (1, 1), (2, 2), (3, 4)])
def test_depth_is_the_shortest_of_all_paths(sizes):
    layer, x = RelRNN(2, 3, buffer_size=sizes[0], relevant_size=sizes[1]), torch.randn(11, 4, 2)
    _, ids = layer.attention(x)
    found = dependency_depth(ids)
    assert found.shape == (11, 4)
    for b in range(4):
        members = [[k for k in row if k >= 0] for row in ids[:, b].tolist()]
        assert found[:, b].tolist() == [shortest(members, event, 10) for event in range(11)]
