"""Dependency depth, against a search for paths and against gradients of linear recurrences with uniform attention."""

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


def test_depth_is_the_shortest_of_all_paths():
    layer, x = RelRNN(2, 3, buffer_size=2, relevant_size=2), torch.randn(11, 4, 2)
    _, ids = layer.attention(x)
    found = dependency_depth(ids)
    assert found.shape == (11, 4)
    for b in range(4):
        members = [[k for k in row if k >= 0] for row in ids[:, b].tolist()]
        assert found[:, b].tolist() == [shortest(members, event, 10) for event in range(11)]


def linear(weight, **options):
    """A linear recurrence with one unit and uniform attention: inputs and states are positive, and e is 0."""
    layer = RelRNN(1, 1, nonlinearity="relu", combine="sum", output="s", dtype=torch.float64, **options)
    with torch.no_grad():
        layer.weight_hh_l0.fill_(weight)
        layer.weight_ih_l0.fill_(1)
        layer.weight_score_l0.zero_()
    return layer


def gradients(layer, x):
    """|d s_{T-1} / d h_i| of each event."""
    x = x.clone().requires_grad_()
    layer(x)[0][-1].sum().backward()
    return x.grad[..., 0]


@pytest.mark.parametrize("sizes", [(1, 0), (1, 1), (2, 1), (3, 4)])
def test_gradients_have_the_power_of_the_depth_and_its_bound(sizes):
    nu, rho = sizes
    options = {"buffer_size": nu, "relevant_size": rho, "relevance": "fifo" if rho < 3 else "attention"}
    x = torch.rand(14, 2, 1, dtype=torch.float64) + 0.1
    depth = dependency_depth(linear(0.5, **options).attention(x)[1])
    if rho == 0:
        assert torch.equal(depth[:, 0], torch.arange(13, -1, -1))
    small, smaller = (gradients(linear(weight, **options), x) for weight in (1e-7, 1e-8))
    assert torch.equal((small / smaller).log10().round().long(), depth)
    for weight in (0.1, 0.9):
        found = gradients(linear(weight, **options), x)
        assert (found >= weight**depth / (nu + rho) ** (depth + 1.0)).all()
