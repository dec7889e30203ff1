"""The scheme of skew_exp is chosen by a bound on the 2-norm, which must hold for every matrix and be tight."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from python_tests.ops.orthogonal_oracle import whole
from python_tests.ops.skew_kinds import KINDS, of_norm, turned
from rnnkern.ops._orthogonal.schemes import SCHEMES

_operators = torch.ops.rnnkern


def limits(A):
    """For each matrix, the largest 2-norm that the chosen scheme and number of squarings support."""
    plan = _operators.skew_exp(A, False, True)[2]
    schemes = torch.tensor([limit for _, limit, _ in SCHEMES[str(A.dtype).removeprefix("torch.")]], dtype=torch.float64)
    return schemes[plan[..., 0]] * 2.0 ** plan[..., 1]


def check(A):
    norm = torch.linalg.matrix_norm(whole(A.double()), 2)
    assert (norm <= limits(A)).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [1, 2, 3, 16, 33, 100, 257])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.sampled
def test_no_norm_is_above_what_its_scheme_serves(kind, size, dtype):
    S = KINDS[kind](size)
    served = [limit for _, limit, _ in SCHEMES["float32"]]
    norms = [1e-6, 0.05, *(part * limit for limit in served for part in (0.9, 0.999, 1.001, 1.1, 1.9, 8.0)), 100.0]
    check(torch.stack([of_norm(S, rho) for rho in norms]).to(dtype))


@settings(max_examples=100)
@given(
    sigma=st.lists(st.floats(0, 1), min_size=1, max_size=40), log=st.floats(-2, 2), seed=st.integers(0, 2**31),
)  # fmt: skip
def test_no_norm_of_any_spectrum(sigma, log, seed):
    torch.manual_seed(seed)
    S = turned(10**log * torch.tensor(sigma, dtype=torch.float64), 2 * len(sigma) + seed % 2)
    check(S.float())


def ratio(S, dtype):
    """The ratio of the bound to the 2-norm at the largest norm that needs no squaring."""
    limit = max(limit for _, limit, _ in SCHEMES[str(dtype).removeprefix("torch.")])
    low, high = 0.2, 1.01
    while high - low > 1e-3:
        middle = (low + high) / 2
        chosen = limits(of_norm(S, middle * limit).to(dtype))
        low, high = (middle, high) if chosen <= limit else (low, middle)
    return 1 / low


USUAL = {"random": 1.065, "henaff": 1.001, "henaff, turned": 1.07, "cayley": 1.07}
"""Kinds of weights, with an upper limit of their ratio for N up to 512: at norm 1 nothing is squared."""


@pytest.mark.parametrize("size", [32, 128, 512])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.sampled
def test_the_bound_is_close(kind, size):
    S = KINDS[kind](size)
    if kind != "nearly zero":
        assert ratio(S, torch.float32) <= USUAL.get(kind, 1.1)


@pytest.mark.parametrize("kind", USUAL)
@pytest.mark.parametrize("size", [128, 256, 512, 1024])
def test_a_norm_of_1_is_not_squared(kind, size):
    assert limits(of_norm(KINDS[kind](size), 1.0).float()) == max(limit for _, limit, _ in SCHEMES["float32"])
