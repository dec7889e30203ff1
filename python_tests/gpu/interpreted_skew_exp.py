"""The Triton kernels of skew_exp on CPU tensors; test_skew_exp.py runs this file with TRITON_INTERPRET=1."""

import pytest
import torch

from python_tests.ops.orthogonal_oracle import Spectrum, whole
from python_tests.ops.skew_kinds import KINDS, of_norm
from rnnkern.ops._orthogonal import skew_exp_triton

# The interpreter passes numbers as arrays with one element, which NumPy 2.4 no longer converts to an index.
skew_exp_triton.kernels().range = lambda start, stop, step: range(start, stop.handle.data.item(), step)

BOUNDS = {torch.float32: 6e-7, torch.float64: 1e-14}


def compare(spectrum, norms, dtype, minus_identity=False):
    factors = [spectrum.factor(rho) for rho in norms]
    size = len(spectrum.matrix)
    A = torch.stack([c * spectrum.matrix for c in factors]).to(dtype)
    upstream = torch.randn(size, size, dtype=dtype)
    V, kept, plan = skew_exp_triton.forward(A, minus_identity, True)
    grads = skew_exp_triton.backward(upstream.expand_as(A), A, kept, plan)
    for k, c in enumerate(factors):
        truth, gradient = spectrum.exp(c), spectrum.gradient(c, upstream.double())
        if minus_identity:
            truth = spectrum.expm1(c)
        assert (V[k] - truth).norm() <= BOUNDS[dtype] * truth.norm()
        assert (grads[k] - gradient).norm() <= BOUNDS[dtype] * upstream.norm()
    return plan


@pytest.mark.parametrize("minus_identity", [False, True])
@pytest.mark.parametrize(
    ("size", "dtype"), [(8, torch.float32), (33, torch.float32), (17, torch.float64), (61, torch.float64)]
)
def test_a_matrix_per_program(size, dtype, minus_identity):
    plan = compare(Spectrum(size), [1e-6, 0.3, 1.0, 3.0, 8.0], dtype, minus_identity)
    assert plan[0, 1] == 0 < plan[-1, 1]


def fewer_squarings(monkeypatch, dtype, fused):
    """Limits the number of squarings and the largest norm, and uses the kernels of large matrices for more than 8
    rows."""
    few = {torch.float32: 2, torch.float64: 1}[dtype]
    monkeypatch.setattr(skew_exp_triton, "LARGEST", 8)
    if fused:
        monkeypatch.setattr(skew_exp_triton, "_tile", lambda size, dtype: (16, 16, 1))  # several tiles, some partial
    else:
        monkeypatch.setattr(skew_exp_triton, "LARGEST_FUSED", 8)
    *facts, most = skew_exp_triton.scheme(dtype)
    assert few < most
    monkeypatch.setattr(skew_exp_triton, "scheme", lambda dtype: (*facts, few))
    return few, facts[1][1] * 2**few


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("fused", [True, False])
def test_products_with_squarings_that_a_matrix_may_not_need(fused, dtype, monkeypatch):
    few, limit = fewer_squarings(monkeypatch, dtype, fused)
    plan = compare(Spectrum(20), [0.05, 0.9 * limit], dtype)
    assert plan[:, 1].tolist() == [0, few]


@pytest.mark.filterwarnings("ignore:divide by zero")  # NumPy warns, a GPU does not
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("one_program", [True, False])
def test_no_norm_is_above_what_its_scheme_serves(one_program, dtype, monkeypatch):
    """In float32, whose schemes are the same on both devices, the choice also equals that of the CPU kernel."""
    limits = skew_exp_triton.scheme(dtype)[1]
    norms = (0.93 * limits[0], 1.001 * 2 * limits[1])
    A = torch.stack([of_norm(KINDS[kind](26), rho) for kind in KINDS for rho in norms]).to(dtype)
    if one_program:
        *_, plan = skew_exp_triton.forward(A, False, True)
    else:
        S, plan = whole(A), torch.empty(len(A), 2, dtype=torch.int64)
        monkeypatch.setattr(skew_exp_triton, "_tile", lambda size, dtype: (32, 32, 1))
        skew_exp_triton._make_plan(S @ S, plan)
    served = torch.where(plan[:, 1] == 0, limits[0], limits[1] * 2.0 ** plan[:, 1])
    assert (torch.linalg.matrix_norm(whole(A.double()), 2) <= served).all()
    if dtype == torch.float32:
        assert torch.equal(plan, torch.ops.rnnkern.skew_exp(A, False, True)[2].clamp_min(torch.tensor([1, 0])))


@pytest.mark.filterwarnings("ignore:All-NaN slice")
def test_nothing_and_nan():
    V, kept, plan = skew_exp_triton.forward(torch.zeros(0, 3, 3), False, True)
    assert skew_exp_triton.backward(torch.zeros(0, 3, 3), torch.zeros(0, 3, 3), kept, plan).shape == V.shape
    A = torch.randn(2, 9, 9)
    A[0, 5, 2] = float("nan")
    V, *_ = skew_exp_triton.forward(A, False, True)
    assert V[0].isnan().all()
    assert V[1].isfinite().all()
