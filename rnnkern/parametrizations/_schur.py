"""Weights in real Schur form: their parametrization, the Schur form of a matrix, and the penalty on the moduli."""

import math

import torch
from torch import Tensor
from torch.nn import Module

from rnnkern import ops
from rnnkern.parametrizations._orthogonal import Orthogonal
from rnnkern.parametrizations._parametrization import parametrizations, register


class Schur(Orthogonal):
    """Parametrization of a weight in Schur form, registered by :func:`schur`. The orthogonal P is B exp(A)."""

    function = "schur"

    def __init__(self, like: Tensor, init: str, base: str, rebase_every: int, gamma: float | None) -> None:
        super().__init__(like, "exp", init, base, rebase_every)
        self.gamma = gamma

    def assembled(self, V: Tensor, theta: Tensor, gamma: Tensor, T: Tensor) -> Tensor:
        return ops.schur_weight(V, theta, gamma, T)

    def draw(self) -> tuple[Tensor, ...]:
        A = super().draw()
        *batch, size = self.base.shape[:-1]
        theta = 2 * math.pi * torch.rand(*batch, size // 2, dtype=A.dtype, device=A.device)
        return A, theta, self._moduli(A.new_ones(*batch, (size + 1) // 2)), torch.zeros_like(A)

    def _moduli(self, gamma: Tensor) -> Tensor:
        return gamma if self.gamma is None else torch.full_like(gamma, self.gamma)

    def right_inverse(self, weight: Tensor) -> tuple[Tensor, ...]:
        """Computes the Schur form of a matrix.

        Raises:
            ValueError: the matrix has the wrong shape, is not finite, or its Schur form is not accurate to six digits.
        """
        self.check(self.function, weight)
        matrices = weight.detach().double().reshape(-1, *weight.shape[-2:])
        found = zip(*map(schur_form, matrices), strict=True)
        P, theta, gamma, T = (torch.stack(x).reshape(*weight.shape[:-2], *x[0].shape).to(self.base) for x in found)
        return self._assigned(P), theta, self._moduli(gamma), T


def schur_form(V: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Computes P, theta, gamma and T of :func:`rnnkern.ops.schur_weight` for a matrix (N, N) in float64.

    Pairs of eigenvectors of V^T span its invariant planes. In an orthonormal basis P of nested sums of these planes,
    V^T is block upper triangular and V is block lower triangular. In each plane, P is rotated so that the two diagonal
    entries are equal.

    Raises:
        ValueError: the form reproduces V to less than six digits, because its eigenvectors are nearly linearly
            dependent.
    """
    size = V.shape[-1]
    values, vectors = torch.linalg.eig(V.mT)
    planes = vectors[:, values.imag > 0]
    basis = torch.stack([planes.real, planes.imag], -1).flatten(-2)
    P, _ = torch.linalg.qr(torch.cat([basis, vectors[:, values.imag == 0].real], -1))
    Theta = P.mT @ V @ P
    a, b, c, d = _blocks(Theta)
    P = P @ _rotations(torch.atan2(d - a, b + c) / 2, size)
    Theta = P.mT @ V @ P
    a, b, c, _ = _blocks(Theta)
    gamma, theta = torch.hypot(a, b), torch.atan2(-b, a)
    T = Theta.tril(-1)
    T.diagonal(-1)[::2] = b + c
    gamma = torch.cat([gamma, Theta.diagonal()[2 * len(theta) :]])
    error = (ops.schur_weight(P, theta, gamma, T) - V).abs()
    if error.numel() and not error.max() <= 1e-6 * V.abs().max():
        raise ValueError(f"schur: eigenvectors must be independent; the Schur form is off by {error.max():.3g}")
    return P, theta, gamma, T


def _blocks(Theta: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The entries a, b, c, d of the blocks (a, b; c, d) along the diagonal."""
    pairs = Theta.shape[-1] // 2
    diagonal = Theta.diagonal()[: 2 * pairs]
    return diagonal[::2], Theta.diagonal(1)[::2], Theta.diagonal(-1)[::2], diagonal[1::2]


def _rotations(angle: Tensor, size: int) -> Tensor:
    """Blocks (cos, -sin; sin, cos) along the diagonal."""
    ones, zeros = angle.new_ones(size - size // 2), torch.zeros(size, size, dtype=angle.dtype, device=angle.device)
    return ops.schur_weight(torch.eye(size, dtype=angle.dtype, device=angle.device), angle, ones, zeros)


def schur(
    module: Module, name: str, init: str = "henaff", base: str = "static", rebase_every: int = 1,
    gamma: float | None = None,
) -> Module:  # fmt: skip
    r"""Parametrizes a square weight of a module by its real Schur form, as in nnRNN.

    .. math::
        W = P (\Lambda + T) P^\top, \quad P = B \exp(A), \quad
        \Lambda_i = \gamma_i \begin{pmatrix} \cos\theta_i & -\sin\theta_i \\ \sin\theta_i & \cos\theta_i \end{pmatrix}

    The parameters under ``module.parametrizations.<name>`` are ``original0``, A (..., N, N); ``original1``, the angles
    theta (..., N // 2), initialized from U(0, 2 pi); ``original2``, the moduli gamma (..., (N + 1) // 2), initialized
    to 1; and ``original3``, T (..., N, N), of which only the strict lower triangle is read, initialized to 0. If N is
    odd, the last block is the 1 x 1 block gamma. If you created an optimizer before, add these parameters to it.

    Args:
        module, name: as in :func:`orthogonal`.
        init: initialization of P, see :func:`orthogonal_matrix`.
        base, rebase_every: for P, as in :func:`orthogonal`.
        gamma: the value that all moduli keep; their parameter then requires no gradient. Kerg et al. (appendix A.6) use
            1 and 0.958. None trains them.

    Returns:
        The module. You can assign any finite matrix, ``module.<name> = V``, at a cost of O(N^3). With ``gamma`` its
        moduli are replaced.

    Raises:
        ValueError, TypeError: an argument has a wrong value or type.

    Source: Kerg et al. 2019, eq. 3.

    >>> linear = rnnkern.parametrizations.schur(torch.nn.Linear(5, 5, bias=False), "weight")
    >>> [tuple(p.shape) for p in linear.parameters()]
    [(5, 5), (2,), (3,), (5, 5)]
    >>> V = torch.randn(5, 5)
    >>> linear.weight = V
    >>> torch.allclose(linear.weight, V, atol=1e-5)
    True
    """
    if gamma is not None and (isinstance(gamma, bool) or not isinstance(gamma, (int, float))):
        raise TypeError(f"schur: `gamma` must be a number or None, got {type(gamma).__name__}")
    if gamma is not None and not 0 <= gamma < math.inf:
        raise ValueError(f"schur: `gamma` must be at least 0 and finite, got {gamma}")
    register("schur", module, name, lambda weight: Schur(weight, init, base, rebase_every, gamma))
    module.parametrizations[name].original2.requires_grad_(gamma is None)
    return module


def schur_penalty(model: Module) -> Tensor:
    r"""The penalty of nnRNN on the moduli, :math:`\sum_i (1 - \gamma_i)^2`, summed over all weights in Schur form.

    Multiply it by a coefficient (delta in Kerg et al. 2019, section 3) and add it to the loss.

    Args:
        model: a module that contains such weights.

    Returns:
        A scalar tensor. Gradients flow to each gamma.

    Raises:
        ValueError: the model contains no weight in Schur form.

    >>> model = rnnkern.nn.NonNormalRNN(10, 20)
    >>> rnnkern.nn.schur_penalty(model).item()
    0.0
    """
    gammas = [p.originals[2] for p in parametrizations(model, Schur)]
    if not gammas:
        raise ValueError("schur_penalty: `model` must contain a weight in Schur form, as of NonNormalRNN, got none")
    return torch.stack([(1 - gamma).square().sum() for gamma in gammas]).sum()
