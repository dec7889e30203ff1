"""Recurrent weights of gated cells whose rows for the last gate stay orthogonal."""

import torch
from torch import Tensor
from torch.nn import Module

from rnnkern.parametrizations._orthogonal import Orthogonal
from rnnkern.parametrizations._parametrization import register


class OrthogonalGate(Orthogonal):
    """Parametrization of a weight (..., G*N, N), registered by :func:`orthogonal_gate`."""

    def __init__(self, like: Tensor, init: str = "henaff", base: str = "static", rebase_every: int = 1) -> None:
        super().__init__(like[..., -like.shape[-1] :, :], "exp", init, base, rebase_every)
        self.sizes = tuple(like.shape)

    def empty(self, *originals: Tensor) -> Tensor:
        return originals[0].new_empty(self.sizes)

    def weight(self, A: Tensor, rows: Tensor) -> Tensor:
        return torch.cat([rows, self.rotated(A)], -2)

    def compute(self, A: Tensor, rows: Tensor) -> Tensor:
        return torch.cat([rows, self.rotated_once(A)], -2)

    def draw(self) -> tuple[Tensor, ...]:
        size = self.sizes[-1]
        rows = self.base.new_empty(*self.sizes[:-2], self.sizes[-2] - size, size)
        return super().draw(), rows.uniform_(-(size**-0.5), size**-0.5)

    def right_inverse(self, weight: Tensor) -> tuple[Tensor, ...]:
        """Sets B to the last N rows of a matrix, and A to zero.

        Raises:
            ValueError: the matrix has the wrong shape, or its last N rows are not orthogonal.
        """
        if weight.shape != self.sizes:
            raise ValueError(f"orthogonal_gate: the weight must be {self.sizes}, got {tuple(weight.shape)}")
        rows, V = weight.detach().split([self.sizes[-2] - self.sizes[-1], self.sizes[-1]], -2)
        return super().right_inverse(V), rows.to(self.base).clone()


def orthogonal_gate(
    module: Module, name: str, gates: int = 3, init: str = "henaff", base: str = "static", rebase_every: int = 1
) -> Module:
    r"""Keeps the last N rows of a recurrent weight with G gates orthogonal, as :math:`B \exp(A)`; the other rows stay
    unconstrained. In a GORU the last N rows belong to the new gate.

    The parameters under ``module.parametrizations.<name>`` are ``original0``, A (..., N, N), whose strict lower
    triangle defines a skew-symmetric matrix, initialized to 0; and ``original1``, the other rows (..., (G-1)*N, N),
    initialized from :math:`U(-1/\sqrt N, 1/\sqrt N)`. If you created an optimizer before, add these parameters to it.

    Args:
        module: a module with a real floating-point parameter or buffer ``name`` (..., G*N, N) that is not parametrized.
        name: name of the weight.
        gates: G.
        init, base, rebase_every: as for :func:`orthogonal`.

    Returns:
        The module. You can assign ``module.<name> = W`` if the last N rows of W are orthogonal.

    Raises:
        ValueError, TypeError: an argument has a wrong value or type.

    Source: Jing et al. 2019, with the map of Lezcano-Casado and Martinez-Rubio 2019.

    >>> gru = rnnkern.parametrizations.orthogonal_gate(torch.nn.GRUCell(3, 5), "weight_hh")
    >>> Q = gru.weight_hh[10:]
    >>> torch.allclose(Q.T @ Q, torch.eye(5), atol=1e-6)
    True
    """
    if isinstance(gates, bool) or not isinstance(gates, int) or gates < 1:
        raise ValueError(f"orthogonal_gate: `gates` must be a positive integer, got {gates!r}")
    make = lambda weight: OrthogonalGate(weight, init, base, rebase_every)  # noqa: E731
    return register("orthogonal_gate", module, name, make, gates)
