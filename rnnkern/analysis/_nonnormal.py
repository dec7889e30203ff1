"""How far weights are from normal: Henrici's departure, Schur forms, transients."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import Module

from rnnkern.ops.checks import check_square
from rnnkern.reference import schur_weight

REAL = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
DTYPES = (*REAL, torch.complex64, torch.complex128)
ACCURACY = 1e-10
"""Largest entry that schur_parts may neglect, relative to the norm of the matrix."""


class Departure(NamedTuple):
    """Result of :func:`henrici_departure`; each tensor is (...), float64."""

    d: Tensor
    lower: Tensor
    upper: Tensor


@torch.no_grad()
def henrici_departure(W: Tensor | Module, name: str | None = None) -> Departure:
    r"""Computes how far a matrix is from normal, by Henrici's measure.

    .. math::
        d(W) = \sqrt{\|W\|_F^2 - \sum_i |\lambda_i|^2}

    d is 0 if and only if W is normal, and equals the Frobenius norm of the strict triangle of any Schur form of W. The
    eigenvalues of a matrix that is far from normal are sensitive to rounding errors, and so is d: if a delay line of
    100 units with d = 9.95 is written in another orthonormal basis, its float64 eigenvalues give about 7.2. The result
    therefore contains bounds that use :func:`commutator` in place of the eigenvalues. With :math:`f = \|W\|_F^2` and K,
    the commutator,

    .. math::
        f - \sqrt{f^2 - \|K\|_F^2 / 2} \;\le\; d^2 \;\le\;
        \min\Bigl(f, \sqrt{(n^3 - n) / 12} \; \|K\|_F\Bigr).

    For a weight in Schur form, :func:`rnnkern.parametrizations.schur`, d is computed from the parameters theta, gamma
    and T without eigenvalues, and is exact up to rounding errors of that sum.

    Args:
        W: (..., n, n), real or complex, or a module that has a weight in Schur form.
        name: name of the module's weight, such as ``"weight_hh_l0"``. The default is its only weight in Schur form.

    Returns:
        ``Departure(d, lower, upper)``, each (...) in float64; d lies between the bounds. For a weight in Schur form,
        all three are equal.

    Raises:
        ValueError: ``W`` has a wrong shape or is not finite, or the module has no such weight in Schur form.
        TypeError: ``W`` is not a floating-point tensor or a module.

    Source: Henrici 1962; Kerg 2022, section 2.3.1; the lower bound is that of Kress, de Vries and Wegmann
    1974.

    >>> delay_line = torch.diag(torch.ones(3), -1)
    >>> rnnkern.analysis.henrici_departure(delay_line).d
    tensor(1.7321, dtype=torch.float64)
    """
    if isinstance(W, Module):
        d = _departure_of_schur(*_schur_originals("henrici_departure", W, name)[1:])
        return Departure(d, d, d)
    W = matrix("henrici_departure", W, DTYPES)
    n, f, K = W.shape[-1], square(W), commutator(W)
    # K^2 / 2 over the sum equals the difference of the docstring, without its cancellation.
    half = K.square() / 2
    lower = (half / (f + (f.square() - half).clamp(min=0).sqrt()).clamp(min=torch.finfo(f.dtype).tiny)).sqrt()
    upper = torch.minimum(f, ((n**3 - n) / 12) ** 0.5 * K).sqrt()
    d = (f - torch.linalg.eigvals(W).abs().square().sum(-1)).clamp(min=0).sqrt()
    return Departure(d.clamp(lower, torch.maximum(lower, upper)), lower, upper)


@torch.no_grad()
def commutator(W: Tensor) -> Tensor:
    r"""Computes the Frobenius norm of the commutator :math:`K = W W^\top - W^\top W`, which is 0 if and only if W is
    normal.

    Unlike eigenvalues, K is insensitive to rounding errors, and it gives bounds for :func:`henrici_departure`.

    Args:
        W: (..., n, n); if it is complex, the conjugate transpose takes the place of the transpose.

    Returns:
        (...), float64.

    Raises:
        ValueError: ``W`` has a wrong shape or is not finite.
        TypeError: ``W`` is not a floating-point tensor.

    >>> rnnkern.analysis.commutator(torch.tensor([[0.0, 1.0], [-1.0, 0.0]]))
    tensor(0., dtype=torch.float64)
    """
    W = matrix("commutator", W, DTYPES)
    return square(W @ W.mH - W.mH @ W).sqrt()


@torch.no_grad()
def schur_parts(W: Tensor | Module, name: str | None = None) -> tuple[Tensor, Tensor, Tensor]:
    r"""Computes the parts of the real Schur form, as in nnRNN.

    .. math::
        W = P (\Lambda + T) P^\top

    P is orthogonal. :math:`\Lambda` is normal and block-diagonal, with blocks :math:`\gamma (\cos\theta, -\sin\theta;
    \sin\theta, \cos\theta)` and, for real eigenvalues, numbers. T is strictly lower triangular; it moves activity from
    each mode, a column of P, to later ones. It may have an entry in a block of :math:`\Lambda`; the eigenvalues of W
    are those of the blocks with that entry.

    For a module, these are the parameters of a weight in Schur form, :func:`rnnkern.parametrizations.schur`. For a
    tensor, the form is computed from eigenvectors of :math:`W^\top`: as many at once as are well independent, then
    those of the remaining block. A normal matrix takes one such step, a delay line n. The Frobenius norm of T is
    then the departure from normality, without the cancellation of :func:`henrici_departure`.

    Args:
        W: (n, n), real, or a module that has a weight in Schur form.
        name: name of the module's weight. The default is its only weight in Schur form.

    Returns:
        P, Lambda, T, each (n, n) in float64; of a module, (..., n, n) like its weight.

    Raises:
        ValueError: ``W`` has a wrong shape or is not finite, the module has no such weight in Schur form, or an
            entry that the form neglects exceeds 1e-10 times the norm of ``W``.
        TypeError: ``W`` is not a floating-point tensor or a module.

    Source: Kerg 2022, sections 2.3.2 and 3.4; Kerg et al. 2019, eq. 3.

    >>> P, L, T = rnnkern.analysis.schur_parts(torch.tensor([[1.0, 2.0], [0.0, 3.0]]))
    >>> round(T.norm().item(), 6)
    2.0
    """
    if isinstance(W, Module):
        P, theta, gamma, T = _schur_originals("schur_parts", W, name)
        eye = torch.eye(T.shape[-1], dtype=T.dtype, device=T.device).expand_as(T)
        return P(), schur_weight(eye, theta, gamma, torch.zeros_like(T)), T.tril(-1)
    W = matrix("schur_parts", W, REAL)
    if W.dim() != 2:
        raise ValueError(f"schur_parts: `W` must be (n, n), got {tuple(W.shape)}")
    P, starts = _deflated(W.mT.clone())
    P = P @ _equalizing(P.mT @ W @ P, starts)
    Theta = P.mT @ W @ P
    beside = torch.zeros_like(Theta)
    beside[starts, starts + 1] = Theta[starts, starts + 1]
    error = (Theta.triu(1) - beside).abs().amax() if len(W) else Theta.sum()
    if not error <= ACCURACY * square(W).sqrt():
        raise ValueError(f"schur_parts: the Schur form must be accurate to {ACCURACY:g}, but is off by {error:.3g}")
    Lambda = Theta.diagonal().diag() + beside - beside.mT
    return P, Lambda, (Theta - Lambda).tril(-1)


@torch.no_grad()
def transient_norms(W: Tensor, steps: int) -> Tensor:
    r"""Computes the root mean square of the state norm of a linear network over all initial states on the unit sphere.

    .. math::
        \sqrt{\mathbb{E} |W^t h_0|^2} = \|W^t\|_F / \sqrt{n}, \quad |h_0| = 1

    If W is normal with all eigenvalues within the unit disk, the norm never increases. Otherwise it can increase
    before it decays.

    Args:
        W: (..., n, n), real or complex.
        steps: number of values to return.

    Returns:
        (..., steps), float64: the values for t = 0, ..., steps - 1.

    Raises:
        ValueError: ``W`` has a wrong shape or is not finite, or ``steps`` is negative.
        TypeError: ``W`` is not a floating-point tensor.

    Source: Kerg 2022, section 3.4.1 and figure 1 (b).

    >>> W = torch.tensor([[0.5, 0.0], [4.0, 0.5]])
    >>> rnnkern.analysis.transient_norms(W, 4)
    tensor([1.0000, 2.8723, 2.8395, 2.1250], dtype=torch.float64)
    """
    if steps < 0:
        raise ValueError(f"transient_norms: `steps` must not be negative, got {steps}")
    W = matrix("transient_norms", W, DTYPES)
    size = W.shape[-1]
    power = torch.eye(size, dtype=W.dtype, device=W.device).expand_as(W)
    found = []
    for _ in range(steps):
        found.append(square(power) / max(size, 1))
        power = W @ power
    return torch.stack(found, -1).sqrt() if steps else square(W)[..., None][..., :0]


def matrix(function: str, W: Tensor, dtypes: tuple[torch.dtype, ...]) -> Tensor:
    """A checked matrix (..., n, n), in float64 or complex128."""
    check_square(function, "W", W, dtypes)
    if not W.isfinite().all():
        raise ValueError(f"{function}: `W` must be finite")
    return W.detach().to(torch.promote_types(W.dtype, torch.float64))


def square(W: Tensor) -> Tensor:
    """The squared Frobenius norm (...)."""
    return W.abs().square().sum((-2, -1))


def _schur_originals(
    function: str, module: Module, name: str | None
) -> tuple[Callable[[], Tensor], Tensor, Tensor, Tensor]:
    """A function that computes P, and theta, gamma and T, all in float64. A parametrization in Schur form is recognized
    by its four parameters and by the method that computes P."""
    found = {
        key: held
        for key, held in getattr(module, "parametrizations", {}).items()
        if len(held) == 1 and hasattr(held[0], "rotated") and hasattr(held, "original3")
    }
    if not found:
        raise ValueError(f"{function}: `W` must have a weight in Schur form, as NonNormalRNN, got {_told(module)}")
    name = next(iter(found)) if name is None and len(found) == 1 else name
    if name not in found:
        raise ValueError(f"{function}: `name` must be one of {list(found)}, got {name!r}")
    held = found[name]
    theta, gamma, T = (getattr(held, f"original{k}").detach().double() for k in (1, 2, 3))
    return lambda: held[0].rotated(held.original0).double(), theta, gamma, T


def _told(module: Module) -> str:
    return type(module).__name__.removeprefix("Parametrized")


def _departure_of_schur(theta: Tensor, gamma: Tensor, T: Tensor) -> Tensor:
    """|T|_F, except that a block (a, b; c, a) with b c > 0 has real eigenvalues, and then contributes |b - c| in place
    of its entry b + c of T."""
    pairs = theta.shape[-1]
    s, t = gamma[..., :pairs] * theta.sin(), T.diagonal(-1, -2, -1)[..., ::2]
    blocks = torch.where(s * (s + t) < 0, (2 * s + t).square() - t.square(), 0.0)
    return (square(T.tril(-1)) + blocks.sum(-1)).sqrt()


def _deflated(M: Tensor) -> tuple[Tensor, Tensor]:
    """An orthogonal P for which P^T M P is block upper triangular, and the first indices of its 2 x 2 blocks. M is
    overwritten."""
    size = len(M)
    P, starts, done = torch.eye(size, dtype=M.dtype, device=M.device), [], 0
    while done < size:
        basis, first_of_pair = _real_eigenvectors(M[done:, done:])
        Q, R = torch.linalg.qr(basis)
        good, step = R.diagonal().abs() > 0.1, 0
        while step < len(R):  # the first columns that are independent; at least one eigenvector or pair
            width = 2 if first_of_pair[step] else 1
            if step and not good[step : step + width].all():
                break
            starts += [done + step] * (width - 1)
            step += width
        P[:, done:] = P[:, done:] @ Q
        M[:, done:] = M[:, done:] @ Q
        M[done:] = Q.mT @ M[done:]
        done += step
    return P, torch.tensor(starts, dtype=torch.long, device=M.device)


def _real_eigenvectors(M: Tensor) -> tuple[Tensor, list[bool]]:
    """A real basis of the eigenvectors: of each pair, orthogonal real and imaginary parts. All columns have norm 1."""
    values, vectors = torch.linalg.eig(M)
    # With this phase, the real and the imaginary part are orthogonal.
    phase = (vectors * vectors).sum(0).sgn().sqrt().conj()
    vectors = torch.where(values.imag == 0, vectors, vectors * phase)
    basis = torch.where(values.imag < 0, vectors.imag.roll(1, 1), vectors.real)
    return basis / basis.norm(dim=0).clamp(min=torch.finfo(M.dtype).tiny), (values.imag > 0).tolist()


def _equalizing(Theta: Tensor, starts: Tensor) -> Tensor:
    """The rotations of the planes of 2 x 2 blocks after which the two diagonal entries of a block are equal."""
    a, b = Theta[starts, starts], Theta[starts, starts + 1]
    c, d = Theta[starts + 1, starts], Theta[starts + 1, starts + 1]
    angle = torch.atan2(d - a, b + c) / 2
    G = torch.eye(len(Theta), dtype=Theta.dtype, device=Theta.device)
    G[starts, starts] = G[starts + 1, starts + 1] = angle.cos()
    G[starts + 1, starts] = angle.sin()
    G[starts, starts + 1] = -angle.sin()
    return G
