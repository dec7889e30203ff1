"""How far weights are from normal, and the transients and the memory that linear networks gain by it."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import Module

from rnnkern.analysis._gains import check_not_negative, check_positive
from rnnkern.ops._orthogonal.orthogonal import DTYPES
from rnnkern.ops.checks import FLOATS, check_square
from rnnkern.reference import schur_weight

ACCURACY = 1e-10
"""Largest entry that schur_parts may neglect, relative to the norm of the matrix."""
DOUBLINGS = 64
"""The most doublings of a sum over time; 2^64 steps suffice for every spectral radius below 1 in float64."""


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
    W = _matrix("henrici_departure", W, DTYPES)
    n, f, K = W.shape[-1], _square(W), commutator(W)
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
    W = _matrix("commutator", W, DTYPES)
    return _square(W @ W.mH - W.mH @ W).sqrt()


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
    W = _single("schur_parts", W)
    P, starts = _deflated(W.mT.clone())
    P = P @ _equalizing(P.mT @ W @ P, starts)
    Theta = P.mT @ W @ P
    beside = torch.zeros_like(Theta)
    beside[starts, starts + 1] = Theta[starts, starts + 1]
    error = (Theta.triu(1) - beside).abs().amax() if len(W) else Theta.sum()
    if not error <= ACCURACY * _square(W).sqrt():
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
    check_not_negative("transient_norms", "steps", steps)
    W = _matrix("transient_norms", W, DTYPES)
    size = W.shape[-1]
    power = torch.eye(size, dtype=W.dtype, device=W.device).expand_as(W)
    found = []
    for _ in range(steps):
        found.append(_square(power) / max(size, 1))
        power = W @ power
    return torch.stack(found, -1).sqrt() if steps else _square(W)[..., None][..., :0]


@torch.no_grad()
def fisher_memory_curve(W: Tensor, v: Tensor, lags: int, noise: float = 1.0) -> Tensor:
    r"""Computes the Fisher information that the state of a linear network has about the input k steps before.

    .. math::
        h_t = W h_{t-1} + v s_t + z_t, \quad z_t \sim \mathcal{N}(0, \epsilon I), \qquad
        J(k) = (W^k v)^\top C^{-1} W^k v, \quad C = \epsilon \sum_{k \ge 0} W^k (W^k)^\top

    The sum over all k is :math:`v^\top J^{(s)} v`, see :func:`spatial_fisher`: 1 / noise if W is normal and v has
    norm 1, and at most n / noise.

    C of a matrix that is far from normal is ill-conditioned (up to 8e25 in table 5 of the thesis), so it is never
    formed. A triangular X with :math:`X X^\top = C / \epsilon` is computed by doubling the number of steps: X is
    replaced by the triangle of the LQ decomposition of [X, A X], and A, initially W, by its square.

    Args:
        W: (n, n), with a spectral radius below 1.
        v: (n,), the direction of the input.
        lags: number of values to return.
        noise: epsilon, the variance of the noise.

    Returns:
        (lags,), float64: J(k) for k = 0, ..., lags - 1.

    Raises:
        ValueError: a shape is wrong, ``W`` or ``v`` is not finite, the spectral radius is not below 1, ``lags`` is
            negative or ``noise`` is not positive.
        TypeError: ``W`` or ``v`` is not a real floating-point tensor.

    Source: Ganguli, Huh and Sompolinsky 2008, eq. 3; Kerg 2022, eq. A.2.2.

    >>> W = torch.diag(torch.ones(3), -1)
    >>> rnnkern.analysis.fisher_memory_curve(W, torch.eye(4)[0], 5)
    tensor([1.0000, 0.5000, 0.3333, 0.2500, 0.0000], dtype=torch.float64)
    """
    W = _stable("fisher_memory_curve", W, noise)
    if not isinstance(v, Tensor) or v.dtype not in FLOATS:
        got = v.dtype if isinstance(v, Tensor) else type(v).__name__
        raise TypeError(f"fisher_memory_curve: `v` must be a real floating-point tensor, got {got}")
    if tuple(v.shape) != (len(W),) or not v.isfinite().all():
        raise ValueError(f"fisher_memory_curve: `v` must be (n,) = ({len(W)},) and finite, got {tuple(v.shape)}")
    check_not_negative("fisher_memory_curve", "lags", lags)
    signal, signals = v.detach().to(W), [W.new_empty(len(W), 0)]
    for _ in range(lags):
        signals.append(signal[:, None])
        signal = W @ signal
    X = _root("fisher_memory_curve", W)
    whitened = torch.linalg.solve_triangular(X, torch.cat(signals, 1), upper=False)
    return whitened.square().sum(0) / noise


@torch.no_grad()
def spatial_fisher(W: Tensor, noise: float = 1.0) -> Tensor:
    r"""Computes the spatial Fisher information of a linear network, the total memory for every input direction.

    .. math::
        J^{(s)} = \sum_{k \ge 0} (W^k)^\top C^{-1} W^k, \qquad J_\mathrm{tot} = v^\top J^{(s)} v

    Its trace is n / noise. The eigenvector of the largest eigenvalue is the input direction v that is remembered best,
    that of the smallest the one that is remembered worst. If W is normal, all directions are equal: it is the identity
    over ``noise``.

    Args:
        W: (n, n), with a spectral radius below 1.
        noise: epsilon, the variance of the noise; see :func:`fisher_memory_curve`.

    Returns:
        (n, n), float64, symmetric.

    Raises:
        ValueError, TypeError: as for :func:`fisher_memory_curve`.

    Source: Ganguli, Huh and Sompolinsky 2008; Kerg 2022, section 2.6.

    >>> J = rnnkern.analysis.spatial_fisher(torch.diag(torch.ones(3), -1))
    >>> J.diagonal()
    tensor([2.0833, 1.0833, 0.5833, 0.2500], dtype=torch.float64)
    >>> round(J.trace().item(), 6)
    4.0
    """
    W = _stable("spatial_fisher", W, noise)
    X, eye = _root("spatial_fisher", W), torch.eye(len(W), dtype=W.dtype, device=W.device)
    # In coordinates in which C is the identity, W never increases a norm and no sum has large terms that cancel.
    whitened = torch.linalg.solve_triangular(X, W @ X, upper=False)
    Z = _doubled("spatial_fisher", eye, whitened, lambda Z, A: torch.cat([Z, Z @ A]))
    Y = torch.linalg.solve_triangular(X, Z, upper=False, left=False)
    J = Y.mT @ Y / noise
    return (J + J.mT) / 2


def _matrix(function: str, W: Tensor, dtypes: tuple[torch.dtype, ...]) -> Tensor:
    """A checked matrix (..., n, n), in float64 or complex128."""
    check_square(function, "W", W, dtypes)
    if not W.isfinite().all():
        raise ValueError(f"{function}: `W` must be finite")
    return W.detach().to(torch.promote_types(W.dtype, torch.float64))


def _single(function: str, W: Tensor) -> Tensor:
    """A checked real matrix (n, n), in float64."""
    W = _matrix(function, W, FLOATS)
    if W.dim() != 2:
        raise ValueError(f"{function}: `W` must be (n, n), got {tuple(W.shape)}")
    return W


def _square(W: Tensor) -> Tensor:
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
        got = type(module).__name__.removeprefix("Parametrized")
        raise ValueError(f"{function}: `W` must have a weight in Schur form, as NonNormalRNN, got {got}")
    name = next(iter(found)) if name is None and len(found) == 1 else name
    if name not in found:
        raise ValueError(f"{function}: `name` must be one of {list(found)}, got {name!r}")
    held = found[name]
    theta, gamma, T = (getattr(held, f"original{k}").detach().double() for k in (1, 2, 3))
    return lambda: held[0].rotated(held.original0).double(), theta, gamma, T


def _departure_of_schur(theta: Tensor, gamma: Tensor, T: Tensor) -> Tensor:
    """|T|_F, except that a block (a, b; c, a) with b c > 0 has real eigenvalues, and then contributes |b - c| in place
    of its entry b + c of T."""
    pairs = theta.shape[-1]
    s, t = gamma[..., :pairs] * theta.sin(), T.diagonal(-1, -2, -1)[..., ::2]
    blocks = torch.where(s * (s + t) < 0, (2 * s + t).square() - t.square(), 0.0)
    return (_square(T.tril(-1)) + blocks.sum(-1)).sqrt()


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


def _stable(function: str, W: Tensor, noise: float) -> Tensor:
    W = _single(function, W)
    check_positive(function, "noise", noise)
    radius = torch.linalg.eigvals(W).abs().amax().item() if len(W) else 0.0
    if not radius < 1:
        raise ValueError(f"{function}: `W` must have a spectral radius below 1, got {radius:.6g}")
    return W


def _root(function: str, W: Tensor) -> Tensor:
    """The lower triangular X with X X^T = sum_k W^k (W^k)^T."""
    eye = torch.eye(len(W), dtype=W.dtype, device=W.device)
    return _doubled(function, eye, W, lambda R, A: torch.cat([R, R @ A.mT])).mT


def _doubled(function: str, R: Tensor, A: Tensor, rows: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """The upper triangular R with R^T R = the sum over all steps, from the R of one step. Each doubling squares A,
    until it underflows to zero."""
    for _ in range(DOUBLINGS):
        if not A.any():
            return R
        R = torch.linalg.qr(rows(R, A), mode="r").R
        A = A @ A
        if not (A.isfinite().all() and R.isfinite().all()):
            break
    raise ValueError(f"{function}: `W` must have powers that decay in float64, got a norm of {A.norm():.3g}")
