"""skew_exp against eigenvalues in float64: error bounds, derivatives, entries that are read, and its polynomials."""

import re
from pathlib import Path

import pytest
import torch
from mpmath import exp, mpc, workdps

from python_tests.ops import derive_skew_schemes as script
from python_tests.ops.orthogonal_oracle import Spectrum, off_orthogonal
from python_tests.tiers import each_level
from rnnkern import reference
from rnnkern.ops import skew_exp
from rnnkern.ops._orthogonal.schemes import SCHEMES

ROOT = Path(__file__).parents[2]
SIZES = [1, 2, 3, 16, 33, 64, 100, 190, 257]
LIMITS = sorted(limit for _, limit, _ in SCHEMES["float32"])
NORMS = [1e-6, 1e-3, 0.3, 1.0, 2.5, 8.0]
NORMS += [
    below * times * limit for limit in LIMITS for times in (1, 2, 8) for below in (0.999, 1) if times * limit <= 8
]


def relative(found, truth, size=None):
    size = truth if size is None else size
    return ((found.double() - truth).norm() / size.double().norm().clamp_min(1e-300)).item()


# ---- the polynomials


def test_the_coefficients_are_those_that_the_script_derives():
    found = script.derived()
    assert {script.NAMES[dtype]: schemes for dtype, schemes in found.items()} == SCHEMES
    numbers = r"-?\d+(?:\.\d+)?(?:e-?\d+)?"
    for dtype, schemes in found.items():
        header = (ROOT / "csrc/orthogonal/cpu/schemes.h").read_text()
        (text,) = re.findall(rf"{dtype}_schemes\[\] = (.*?);", header, re.S)
        flat = [
            x
            for degree, limit, products in schemes
            for x in (
                degree, len(products), limit,
                *(x for left, right, added in products for x in (*left, *right, *added)),
            )
        ]  # fmt: skip
        assert list(map(float, re.findall(numbers, text))) == flat


@pytest.mark.parametrize("dtype", SCHEMES)
@workdps(40)
def test_a_scheme_is_as_close_as_its_limit_promises(dtype):
    roundoff = torch.finfo(getattr(torch, dtype)).eps / 2
    for _, limit, products in SCHEMES[dtype]:
        for part in (1e-3, 0.1, 0.5, 0.9, 0.999, 1.0):
            z = mpc(0, part * limit)
            basis = [z]
            for left, right, added in products:
                L, R, more = (sum(c * b for c, b in zip(f, basis, strict=False)) for f in (left, right, added))
                basis.append(L * (R + right[-1]) + more)
            rounding = 4 * torch.finfo(torch.float64).eps  # rounding of the coefficients
            assert abs((basis[-1] - (exp(z) - 1)) / z) <= roundoff + rounding


# ---- values and gradients


@pytest.mark.parametrize("size", [*SIZES, 512])
def test_float32_keeps_its_bounds_at_and_under_every_limit(size):
    norms = NORMS if size < 512 else [0.05, 1.0, 8.0]
    spectrum = Spectrum(size)
    factors = [spectrum.factor(rho) for rho in norms]
    A = torch.stack([c * spectrum.matrix for c in factors]).float().requires_grad_()
    assert torch.equal(A.detach().double(), torch.stack([c * spectrum.matrix for c in factors]))
    upstream = torch.randn(size, size)
    V, E = skew_exp(A), skew_exp(A.detach(), form="expm1")
    (grads,) = torch.autograd.grad((V * upstream).sum(), A)
    assert off_orthogonal(V) <= 1e-6
    for k, c in enumerate(factors):
        assert relative(V[k].detach(), spectrum.exp(c)) <= 3e-7, f"value at {norms[k]}"
        assert relative(E[k], spectrum.expm1(c)) <= 5e-7, f"expm1 at {norms[k]}"
        truth = spectrum.gradient(c, upstream.double())
        # For small matrices the gradient may almost cancel; its error is then compared with the norm of the upstream
        # gradient.
        size_of = truth if size >= 16 else max(truth, upstream, key=torch.Tensor.norm)
        assert relative(grads[k], truth, size_of) <= 1e-6, f"gradient at {norms[k]}"


def hold(size, norms, dtype, value, off, gradient):
    """Compares value and gradient with those of eigenvalues, relative to the upstream gradient."""
    spectrum = Spectrum(size)
    factors = [spectrum.factor(rho) for rho in norms]
    A = torch.stack([c * spectrum.matrix for c in factors]).to(dtype).requires_grad_()
    upstream = torch.randn(size, size, dtype=dtype)
    V = skew_exp(A)
    (grads,) = torch.autograd.grad((V * upstream).sum(), A)
    assert off_orthogonal(V) <= off
    for k, c in enumerate(factors):
        assert relative(V[k].detach(), spectrum.exp(c)) <= value
        assert relative(grads[k], spectrum.gradient(c, upstream.double()), upstream) <= gradient


@pytest.mark.parametrize("size", [1, 2, 3, 16, 33, 100])
def test_float64_is_as_good_as_the_eigenvalues(size):
    limits = [below * limit for _, limit, _ in SCHEMES["float64"] for below in (0.999, 1, 8)]
    hold(size, [1e-6, 1.0, *limits], torch.float64, value=1e-14, off=1e-14, gradient=2e-14)


@pytest.mark.parametrize("rho", [30.0, 300.0, 1000.0])
@pytest.mark.parametrize("size", [2, 33, 100])
def test_large_norms_lose_what_their_angles_lose(size, rho):
    """The rounding error of an angle rho is already rho times the roundoff."""
    hold(size, [rho], torch.float32, value=4e-8 * rho, off=1e-7 * rho, gradient=1e-7 * rho)


def test_each_matrix_of_a_batch_has_the_bits_that_it_has_alone():
    A = torch.randn(6, 20, 20) * torch.logspace(-6, 2, 6)[:, None, None]
    together = skew_exp(A)
    for k in range(6):
        assert torch.equal(together[k], skew_exp(A[k]))
    assert torch.equal(skew_exp(A.view(2, 3, 20, 20)), together.view(2, 3, 20, 20))


def test_the_size_of_a_gradient_changes_no_bit():
    A = (torch.randn(40, 40) / 10).requires_grad_()
    upstream = torch.randn(40, 40)
    V = skew_exp(A)
    (wanted,) = torch.autograd.grad(V, A, upstream, retain_graph=True)
    for scale in (2.0**-20, 2.0**-10, 2.0**10, 2.0**20):  # about 1e-6 to 1e6
        assert torch.equal(torch.autograd.grad(V, A, scale * upstream, retain_graph=True)[0], scale * wanted)


@each_level
@pytest.mark.parametrize("size", [1, 2, 3, 5, 8, 12, 16, 17])
def test_small_matrices_in_the_lanes_of_vectors(level, size, simd):
    """A batch with few and many squarings, which does not fill the last vector: values and gradients are those of the
    reference, and the bits of each matrix those that it has alone, also beside NaN."""
    simd(level)
    A = torch.randn(21, size, size, dtype=torch.float64) * torch.logspace(-8, 1.5, 21)[:, None, None]
    upstream = torch.randn(21, size, size, dtype=torch.float64)

    def both(function, A, upstream, **options):
        leaf = A.clone().requires_grad_()
        V = function(leaf, **options)
        return V.detach(), torch.autograd.grad(V, leaf, upstream)[0]

    V, grad = both(skew_exp, A, upstream)
    wanted = both(reference.skew_exp, A, upstream)
    for found, truth, scale in ((V, wanted[0], 1), (grad, wanted[1], upstream.norm())):
        error = (found - truth).flatten(1).norm(dim=1)
        assert (error <= 1e-14 * scale * (1 + A.flatten(1).norm(dim=1))).all()
    assert torch.equal(grad, grad.tril(-1))
    for k in range(21):
        alone = both(skew_exp, A[k], upstream[k])
        assert torch.equal(alone[0], V[k])
        assert torch.equal(alone[1], grad[k])
    small = skew_exp(1e-9 * A[:3], form="expm1")
    torch.testing.assert_close(small, reference.skew_exp(1e-9 * A[:3], form="expm1"), rtol=1e-13, atol=0)
    if size > 1:
        A[5, -1, 0] = torch.nan
        beside, grad_beside = both(skew_exp, A, upstream)
        others = torch.arange(21) != 5
        assert beside[5].isnan().all()
        assert torch.equal(beside[others], V[others])
        assert torch.equal(grad_beside[others], grad[others])


@pytest.mark.parametrize(
    ("dtype", "size", "products"), [(torch.float64, 16, 0), (torch.float64, 17, 3), (torch.float32, 8, 2)]
)
def test_the_smallest_keep_nothing_for_the_backward(dtype, size, products):
    kept = torch.ops.rnnkern.skew_exp(torch.randn(3, size, size, dtype=dtype), False, True)[1]
    assert kept.shape == (3, products, size, size)


# ---- entries that are read, and dtypes


def test_only_the_strict_lower_triangle_is_read():
    A = torch.randn(3, 21, 21)
    marked = A.tril(-1) + torch.full((21, 21), float("nan")).triu()
    V = skew_exp(marked.requires_grad_())
    assert torch.equal(V, skew_exp(A))
    (grad,) = torch.autograd.grad(V.sum(), marked)
    assert torch.equal(grad, grad.tril(-1))


def test_nan_in_nan_out_and_no_further():
    A = torch.randn(3, 9, 9)
    A[1, 5, 2] = float("nan")
    V = skew_exp(A)
    assert V[1].isnan().all()
    assert V[[0, 2]].isfinite().all()
    assert skew_exp(torch.full((9, 9), float("inf"))).isnan().all()
