"""Orthogonal weights: the public functions, their checks, their choice of implementation and their derivatives."""

import functools
from collections.abc import Callable
from contextlib import nullcontext

import torch
from torch import Tensor

from rnnkern import reference
from rnnkern.ops._orthogonal.skew_exp_triton import KEPT
from rnnkern.ops.checks import FLOATS, check_choice, check_like, check_square
from rnnkern.ops.differentiable import differentiable
from rnnkern.ops.dispatch import Choice, choose, cpu_refusal, no_autocast, operator
from rnnkern.ops.folds import as_batch
from rnnkern.ops.triton_launch import refusal as triton_refusal

DTYPES = (*FLOATS, torch.complex64, torch.complex128)
FORMS = ("exp", "expm1")

LEAST_IN_FLOAT32 = {"cpu": 9}
"""Number of rows below which matrices are computed in float64, by device; 8 on others: with few eigenvalues, the errors
that squarings double do not average out. On a CPU, up to 8 rows float64 is faster too, one matrix per lane."""

MOST_IN_LANES = 16
"""Number of rows up to which a CPU computes float64 matrices one per lane and keeps nothing (csrc/orthogonal/cpu)."""


def without_autocast(function: Callable) -> Callable:
    """Decorator that disables autocast inside a function, because 16-bit products do not keep a matrix orthogonal."""

    @functools.wraps(function)
    def call(*args, **kwargs):
        x = next((y for y in (*args, *kwargs.values()) if isinstance(y, Tensor)), None)
        with nullcontext() if x is None else no_autocast(x.device.type):
            return function(*args, **kwargs)

    return call


def _check_skew_exp(A: Tensor, form: str) -> None:
    check_square("skew_exp", "A", A, DTYPES)
    check_choice("skew_exp", "form", form, FORMS)


def _choose_skew_exp(A: Tensor) -> Choice:
    return choose("skew_exp", {"cpu": cpu_refusal(A), "triton": triton_refusal(A.device)})


@operator(_check_skew_exp, _choose_skew_exp)
@without_autocast
def skew_exp(A: Tensor, *, form: str = "exp") -> Tensor:
    r"""Computes the matrix exponential of a skew-symmetric matrix, which is orthogonal with determinant 1
    (Lezcano-Casado and Martínez-Rubio 2019).

    Only the strict lower triangle of ``A`` is read: :math:`S_{ij} = A_{ij}` and :math:`S_{ji} = -A_{ij}` for i > j, so
    S is exactly skew-symmetric. A complex S is skew-Hermitian, :math:`S_{ji} = -\overline{A_{ij}}`, and its diagonal is
    the imaginary part of the diagonal of ``A``.

    Args:
        A: (..., N, N); float32, float64, complex64 or complex128, or bfloat16 or float16, which are computed in float32
            and rounded once. The 2-norm of S may be up to 1,000; in a batch, each matrix is scaled by its own norm.
        form: ``"exp"`` for exp(S), ``"expm1"`` for exp(S) - I, without cancellation for small S.

    Returns:
        (..., N, N), with the dtype of ``A``. If one of the entries that are read is NaN, the whole matrix is NaN.
        Gradients are zero for entries that are not read. Second derivatives are supported.

    Raises:
        ValueError: ``A`` is not a square matrix or a batch of them, or ``form`` is unknown.
        TypeError: ``A`` is not a tensor or has an unsupported dtype.

    See also: :func:`rnnkern.reference.skew_exp`, the same equations in plain PyTorch.

    >>> V = rnnkern.ops.skew_exp(torch.randn(8, 8))
    >>> torch.allclose(V.T @ V, torch.eye(8), atol=1e-5)
    True
    """
    _check_skew_exp(A, form)
    if _choose_skew_exp(A).implementation == "reference":
        return reference.skew_exp(A, form=form)
    S = _as_real(A) if A.is_complex() else A
    least = LEAST_IN_FLOAT32.get(S.device.type, 8)
    arithmetic = torch.promote_types(S.dtype, torch.float32 if S.shape[-1] >= least else torch.float64)
    V = _skew_exp(S.to(arithmetic), form == "expm1")[0]
    return (_from_real(V) if A.is_complex() else V).to(A.dtype)


def _as_real(A: Tensor) -> Tensor:
    """Writes X + i Y as the real matrix ((X, -Y), (Y, X)), of which skew_exp reads the strict lower triangle: it needs
    all of the symmetric Y, but only the lower triangle of X."""
    X, Y = A.real, A.imag.tril()
    Y = Y + Y.tril(-1).mT
    return torch.cat([torch.cat([X, -Y], -1), torch.cat([Y, X], -1)], -2)


def _from_real(V: Tensor) -> Tensor:
    size = V.shape[-1] // 2
    return torch.complex(V[..., :size, :size], V[..., size:, :size])


@without_autocast
def cayley(A: Tensor, scale: Tensor | None = None) -> Tensor:
    r"""Computes the Cayley transform :math:`(I + S)^{-1} (I - S)` of a skew-symmetric S, or with D = diag(``scale``)
    the scaled Cayley transform :math:`(I + S)^{-1} (I - S) D` of scoRNN (Helfrich et al. 2018, eq. 4).

    Args:
        A: (..., N, N). S is read from it as in :func:`skew_exp`, with the same dtypes.
        scale: diagonal of D, (N,) or (..., N), with the dtype of ``A`` and entries 1 and -1. The result can have as
            many eigenvalues of -1 as D has; without D it has none. No gradient flows to it.

    Returns:
        (..., N, N), orthogonal, or unitary for a complex ``A``. Gradients flow to ``A``, and second derivatives are
        supported.

    Raises:
        ValueError: a tensor has the wrong shape.
        TypeError: an argument has the wrong type, dtype or device.

    >>> V = rnnkern.ops.cayley(torch.randn(3, 3), torch.tensor([1.0, 1.0, -1.0]))
    >>> torch.linalg.det(V).round().item()
    -1.0
    """
    check_square("cayley", "A", A, DTYPES)
    if scale is not None:
        check_like("cayley", "scale", scale, "A", A)
        size, batch = A.shape[-1], A.shape[:-2]
        if tuple(scale.shape) not in ((size,), (*batch, size)):
            raise ValueError(
                f"cayley: `scale` must be (N,) = ({size},) or (..., N) = {(*batch, size)}, got {tuple(scale.shape)}"
            )
        scale = scale.detach()
    S = reference.skew(A.to(torch.promote_types(A.dtype, torch.float32)))
    eye = torch.eye(S.shape[-1], dtype=S.dtype, device=S.device)
    # 2 (I + S)^-1 - I: one inverse, and two products in the backward pass. inv_ex does not synchronize with the device.
    V = 2 * torch.linalg.inv_ex(eye + S).inverse - eye
    return (V if scale is None else V * scale.to(V.dtype).unsqueeze(-2)).to(A.dtype)


def _check_schur_weight(P: Tensor, theta: Tensor, gamma: Tensor, T: Tensor) -> None:
    check_square("schur_weight", "P", P, FLOATS)
    size, batch = P.shape[-1], tuple(P.shape[:-2])
    wanted = {
        "theta": (theta, "(..., N // 2)", (*batch, size // 2)),
        "gamma": (gamma, "(..., (N + 1) // 2)", (*batch, (size + 1) // 2)),
        "T": (T, "(..., N, N)", (*batch, size, size)),
    }
    for name, (tensor, symbols, shape) in wanted.items():
        check_like("schur_weight", name, tensor, "P", P)
        if tuple(tensor.shape) != shape:
            raise ValueError(f"schur_weight: `{name}` must be {symbols} = {shape}, got {tuple(tensor.shape)}")


def _choose_schur_weight(P: Tensor) -> Choice:
    return choose("schur_weight", {"cpu": cpu_refusal(P)})


@operator(_check_schur_weight, _choose_schur_weight)
@without_autocast
def schur_weight(P: Tensor, theta: Tensor, gamma: Tensor, T: Tensor) -> Tensor:
    r"""Computes the recurrent weight of nnRNN from its real Schur form, :math:`P (\Lambda + T) P^T` (Kerg et al. 2019,
    eq. 3).

    :math:`\Lambda` has blocks :math:`\gamma_i \begin{pmatrix} \cos\theta_i & -\sin\theta_i \\ \sin\theta_i &
    \cos\theta_i \end{pmatrix}` along its diagonal. If N is odd, the last block is the 1 x 1 block :math:`\gamma`,
    without an angle.

    Args:
        P: (..., N, N), orthogonal; float32, float64, bfloat16 or float16; the last two are computed in float32.
        theta: (..., N // 2), angles in radians.
        gamma: (..., (N + 1) // 2), moduli of the eigenvalues if T is zero.
        T: (..., N, N); only the strict lower triangle is read.

    Returns:
        (..., N, N). Gradients flow to all four arguments; the gradient of ``T`` is zero for entries that are not read.

    Raises:
        ValueError: a shape is wrong, or the batch dimensions differ.
        TypeError: an argument has the wrong type, dtype or device.

    >>> V = rnnkern.ops.schur_weight(torch.eye(3), torch.zeros(1), torch.ones(2), torch.zeros(3, 3))
    >>> torch.equal(V, torch.eye(3))
    True
    """
    _check_schur_weight(P, theta, gamma, T)
    if _choose_schur_weight(P).implementation == "reference":
        return reference.schur_weight(P, theta, gamma, T)
    arithmetic = torch.promote_types(P.dtype, torch.float32)
    return _schur_weight(*(x.to(arithmetic) for x in (P, theta, gamma, T)))[0].to(P.dtype)


@without_autocast
def project_orthogonal(B: Tensor, *, steps: int = 2) -> Tensor:
    r"""Computes the orthogonal matrix nearest to an almost orthogonal one, by the Newton-Schulz iteration :math:`B
    \leftarrow B (3 I - B^H B) / 2`.

    One step reduces an error :math:`e = \|B^H B - I\|_2` to :math:`3 e^2 / 4 + e^3 / 4`. It costs two matrix products
    and needs no decomposition. All singular values must be below :math:`\sqrt 3`.

    Args:
        B: (..., N, N), with one of the dtypes of :func:`skew_exp`.
        steps: number of iterations. The default reduces an error of 0.01 to 4e-9, or to the rounding error of the
            dtype.

    Returns:
        (..., N, N), with the dtype of ``B``. Gradients flow to ``B``.

    Raises:
        ValueError: ``B`` is not a square matrix or a batch of them, or ``steps`` is negative.
        TypeError: ``B`` is not a tensor or has an unsupported dtype.

    >>> V = rnnkern.ops.project_orthogonal(torch.eye(3) + 1e-3 * torch.ones(3, 3))
    >>> torch.allclose(V.T @ V, torch.eye(3), atol=1e-6)
    True
    """
    check_square("project_orthogonal", "B", B, DTYPES)
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 0:
        raise ValueError(f"project_orthogonal: `steps` must be a non-negative integer, got {steps!r}")
    return reference.project_orthogonal(B, steps=steps)


# ---- derivatives


def _skew_exp_shapes(A, minus_identity, training):
    results = [A.new_empty(A.shape)]
    if training:
        in_lanes = A.device.type == "cpu" and A.dtype == torch.float64 and A.shape[-1] <= MOST_IN_LANES
        results.append(A.new_empty(*A.shape[:-2], 0 if in_lanes else KEPT[A.dtype], *A.shape[-2:]))
        results.append(A.new_empty(*A.shape[:-2], 2, dtype=torch.int64))
    return results


_skew_exp = differentiable(
    "skew_exp",
    forward=lambda training, *args: torch.ops.rnnkern.skew_exp.default(*args, training),
    results=1,
    saves=lambda args, outputs: (args[0], *outputs[1:]),
    gradients=(0,),
    reference_backward=lambda grad, A, kept, plan: torch.func.vjp(reference.skew_exp, A)[1](grad),
    leaves=(0, 1),
    fold=as_batch,
    shapes=_skew_exp_shapes,
    backward_shapes=lambda grad, A, kept, plan: A.new_empty(A.shape),
)
"""Function of (A, minus_identity), in float32 or float64, by the kernels of its device; the first result is the
exponential."""

_schur_weight = differentiable(
    "schur_weight",
    forward=lambda training, *args: torch.ops.rnnkern.schur_weight.default(*args, training),
    results=1,
    saves=lambda args, outputs: (*args, outputs[1]),
    gradients=range(4),
    reference_backward=lambda grad, *args: torch.func.vjp(reference.schur_weight, *args[:4])[1](grad),
    leaves=range(5),
    fold=as_batch,
    shapes=lambda P, theta, gamma, T, training: [P.new_empty(P.shape) for _ in range(1 + training)],
    backward_shapes=lambda grad, *args: [x.new_empty(x.shape) for x in args[:4]],
)
"""Function of (P, theta, gamma, T), in float32 or float64, by the CPU kernel; the first result is the weight."""
