"""Weights whose singular values stay within a margin around 1."""

import torch
from torch import Tensor
from torch.nn import Module

from rnnkern import ops
from rnnkern.parametrizations._initial import check_init, orthogonal_matrix
from rnnkern.parametrizations._parametrization import Parametrization, register


class SpectralMargin(Parametrization):
    """Parametrization of a weight U diag(s) V^T, registered by :func:`spectral_margin`."""

    rotating = (0, 1)
    bases = ("base_u", "base_v")

    def __init__(self, like: Tensor, margin: float = 0.1, init: str = "henaff") -> None:
        super().__init__(like)
        check_init("spectral_margin", init)
        if isinstance(margin, bool) or not isinstance(margin, (int, float)) or not 0 <= margin <= 1:
            raise ValueError(f"spectral_margin: `margin` must be a number from 0 to 1, got {margin!r}")
        self.margin, self.init = float(margin), init
        self.register_buffer("base_u", torch.empty_like(like, requires_grad=False))
        self.register_buffer("base_v", torch.empty_like(like, requires_grad=False))

    def weight(self, A: Tensor, C: Tensor, p: Tensor) -> Tensor:
        bases = torch.stack([self.base_u, self.base_v])
        U, V = (bases + bases @ ops.skew_exp(torch.stack([A, C]), form="expm1")).unbind()
        return (U * self.singular_values(p).unsqueeze(-2)) @ V.mT

    def singular_values(self, p: Tensor) -> Tensor:
        """The singular values s (..., N), unsorted."""
        return 1 + 2 * self.margin * (p.sigmoid() - 0.5)

    def draw(self) -> tuple[Tensor, ...]:
        self.base_u.copy_(orthogonal_matrix(self.base_u, self.init))
        self.base_v.copy_(torch.eye(self.base_v.shape[-1]).to(self.base_v).expand_as(self.base_v))
        return torch.zeros_like(self.base_u), torch.zeros_like(self.base_u), torch.zeros_like(self.base_u[..., 0])

    def right_inverse(self, weight: Tensor) -> tuple[Tensor, ...]:
        """Computes the singular value decomposition of a matrix; U and V become the bases.

        Raises:
            ValueError: the matrix has the wrong shape, is not finite, or has a singular value outside the margin.
        """
        self.check("spectral_margin", weight)
        U, s, Vh = torch.linalg.svd(weight.detach().double())
        reach = (s - 1) / (2 * self.margin) if self.margin else torch.where((s - 1).abs() <= 1e-6, 0, torch.inf)
        if reach.numel() and not reach.abs().max() < 0.5:
            low, high = 1 - self.margin, 1 + self.margin
            got = f"{s.min():.6g} to {s.max():.6g}"
            raise ValueError(
                f"spectral_margin: singular values must be strictly between {low:g} and {high:g}, got {got}"
            )
        self.base_u.copy_(U)
        self.base_v.copy_(Vh.mT)
        zero = torch.zeros_like(self.base_u)
        return zero, zero.clone(), torch.logit(reach + 0.5).to(zero)


def spectral_margin(module: Module, name: str, margin: float = 0.1, init: str = "henaff") -> Module:
    r"""Keeps the singular values of a square weight of a module within a margin m around 1.

    .. math::
        W = U \operatorname{diag}(s) V^\top, \quad s_i = 2 m \left(\sigma(p_i) - \tfrac12\right) + 1, \quad
        U = B_U \exp(A), \quad V = B_V \exp(C)

    :math:`\sigma` is the sigmoid, so :math:`1 - m < s_i < 1 + m`; with m = 0 the weight is orthogonal. The parameters
    under ``module.parametrizations.<name>`` are ``original0``, A, and ``original1``, C, both (..., N, N), whose strict
    lower triangles define skew-symmetric matrices, and ``original2``, p (..., N). All are initialized to zero. If you
    created an optimizer before, add these parameters to it. The buffer :math:`B_U` holds the initial matrix and
    :math:`B_V` the identity; both stay fixed. In the paper, U and V are updated by Cayley steps on the orthogonal
    matrices; here any optimizer trains A and C.

    Args:
        module, name: as in :func:`orthogonal`.
        margin: m, from 0 to 1.
        init: initialization of the weight, see :func:`orthogonal_matrix`.

    Returns:
        The module. You can assign ``module.<name> = W`` if the singular values of W are within the margin, at a cost of
        O(N^3).

    Raises:
        ValueError, TypeError: an argument has a wrong value or type.

    Source: Vorontsov et al. 2017, section 3.1.

    >>> linear = rnnkern.parametrizations.spectral_margin(torch.nn.Linear(5, 5, bias=False), "weight", margin=0.1)
    >>> [tuple(p.shape) for p in linear.parameters()]
    [(5, 5), (5, 5), (5,)]
    >>> torch.allclose(torch.linalg.svdvals(linear.weight), torch.ones(5))
    True
    """
    return register("spectral_margin", module, name, lambda weight: SpectralMargin(weight, margin, init))
