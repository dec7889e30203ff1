"""Fisher memory of linear networks: how much a noisy state still knows about past inputs."""

from collections.abc import Callable

import torch
from torch import Tensor

from rnnkern.analysis._nonnormal import REAL, matrix

DOUBLINGS = 64
"""The most doublings of a sum over time; 2^64 steps suffice for every spectral radius below 1 in float64."""


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
    if not isinstance(v, Tensor) or v.dtype not in REAL:
        got = v.dtype if isinstance(v, Tensor) else type(v).__name__
        raise TypeError(f"fisher_memory_curve: `v` must be a real floating-point tensor, got {got}")
    if tuple(v.shape) != (len(W),) or not v.isfinite().all():
        raise ValueError(f"fisher_memory_curve: `v` must be (n,) = ({len(W)},) and finite, got {tuple(v.shape)}")
    if lags < 0:
        raise ValueError(f"fisher_memory_curve: `lags` must not be negative, got {lags}")
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


def _stable(function: str, W: Tensor, noise: float) -> Tensor:
    W = matrix(function, W, REAL)
    if W.dim() != 2:
        raise ValueError(f"{function}: `W` must be (n, n), got {tuple(W.shape)}")
    if not noise > 0:
        raise ValueError(f"{function}: `noise` must be positive, got {noise}")
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
