"""Packed input in every family of recurrences: any memory layout of `batch_sizes`, and no inconsistent sizes."""

import pytest
import torch
from torch.nn.utils.rnn import PackedSequence

from python_tests.samples.recorded import recorded
from rnnkern import nn
from rnnkern.nn.filters import Adam

SIZES = [3, 2, 2, 2]
LAYERS = {
    "recurrence": lambda: nn.RNN(4, 4),
    "relevancy_recurrence": lambda: nn.RelRNN(4, 4),
    "givens_recurrence": lambda: nn.EURNN(4, 4, fused=True),
    "sab_recurrence": lambda: nn.SABLSTM(4, 4),
    "linear_scan": lambda: nn.LRU(4, 4),
    "moment_filter": lambda: nn.RNN(4, 4, filter=Adam(0.6, 0.6, 0.99)),
}
"""A layer that calls each operator."""
each_family = pytest.mark.parametrize("family", LAYERS)


def operator_of(family):
    """The operator as the layer calls it for packed input, as a function of `batch_sizes`."""
    layer, packed = LAYERS[family](), PackedSequence(torch.randn(9, 4), torch.tensor(SIZES))
    with torch.no_grad():
        operator, args = next(call for call in recorded(lambda: layer(packed)) if call[0]._opname == family)
    at = [argument.name for argument in operator._schema.arguments].index("batch_sizes")
    return lambda sizes: operator(*args[:at], sizes, *args[at + 1 :])


@each_family
def test_sizes_that_are_not_contiguous(family):
    operator, apart = operator_of(family), torch.tensor([[size, 0] for size in SIZES])[:, 0]
    assert not apart.is_contiguous()
    for found, wanted in zip(operator(apart), operator(torch.tensor(SIZES)), strict=True):
        assert torch.equal(found, wanted)


@each_family
@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        (torch.tensor(SIZES, dtype=torch.int32), r"must be \(T,\) int64, on the CPU"),
        (torch.tensor([SIZES]), r"must be \(T,\) int64, on the CPU"),
        (torch.tensor([3, 2, 1, 3]), "must not increase from B = 3 or be negative, got 3 at 3"),
        (torch.tensor([4, 2, 2, 1]), "must not increase from B = 3 or be negative, got 4 at 0"),
        (torch.tensor([3, 3, 3, 1, -1]), "must not increase from B = 3 or be negative, got -1 at 4"),
        (torch.tensor([3, 2, 2, 1]), "must sum to the rows of `[ux]`, 9, got a sum of 8"),
    ],
    ids=["int32", "2-dimensional", "growing", "more than B", "negative", "another sum"],
)
def test_sizes_that_do_not_fit(family, sizes, said):
    with pytest.raises(RuntimeError, match=f"{family}: `batch_sizes` {said}"):
        operator_of(family)(sizes)
