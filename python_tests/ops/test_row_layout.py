"""Packed input in every family: the operators accept any memory layout of `batch_sizes` and reject inconsistent
sizes."""

import pytest
import torch
from torch import Tensor

from rnnkern import reference

B, N, ROWS = 3, 4, 9
SIZES = [3, 2, 2, 2]

_operators = torch.ops.rnnkern


def drawn(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def recurrence(sizes):
    return _operators.recurrence(
        "tanh", drawn(ROWS, N), drawn(N, N), [drawn(B, N)], None, [], sizes, None, True, False, False
    )


def relevancy_recurrence(sizes):
    weights = [drawn(N, N), drawn(N, N), drawn(N, N), drawn(N)]
    state = [x for x in reference.empty_state([drawn(B, N)], 2) if x is not None]
    rest = (4, 0.5, False, "float32", False, False)
    return _operators.relevancy_recurrence("tanh", drawn(ROWS, N), weights, state, [], sizes, None, None, *rest)


def givens_recurrence(sizes):
    u, angles, bias, h0 = drawn(ROWS, N), drawn(2, N // 2), drawn(N), drawn(B, N)
    return _operators.givens_recurrence(u, angles, None, None, bias, h0, sizes, None, True, False)


def sab_recurrence(sizes):
    *state, steps = reference.begin_sab(drawn(B, N), drawn(B, N))
    attention, options = [drawn(2 * N)], (steps, 2, 1, 5, False)
    return _operators.sab_recurrence(drawn(ROWS, 4 * N), drawn(4 * N, N), None, attention, state, sizes, None, *options)


def linear_scan(sizes):
    return _operators.linear_scan(drawn(N), drawn(ROWS, N), drawn(B, N), sizes, None, True, True)


def moment_filter(sizes):
    return _operators.moment_filter(drawn(ROWS, N), drawn(B, N), None, sizes, None, True, 0.5, 1.0, None, 0.01, 0)


FAMILIES = [recurrence, relevancy_recurrence, givens_recurrence, sab_recurrence, linear_scan, moment_filter]
each_family = pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.__name__)


@each_family
def test_sizes_that_are_not_contiguous(family):
    apart = torch.tensor([[size, 0] for size in SIZES])[:, 0]
    assert not apart.is_contiguous()
    for found, wanted in zip(family(apart), family(torch.tensor(SIZES)), strict=True):
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
    family(torch.tensor(SIZES))
    with pytest.raises(RuntimeError, match=f"{family.__name__}: `batch_sizes` {said}"):
        family(sizes)
