"""Weights that stay orthogonal, and recurrent weights of gated cells whose rows for the last gate do."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn import Module

from rnnkern import ops
from rnnkern.parametrizations import _held as held
from rnnkern.parametrizations._factors import Givens, Householder
from rnnkern.parametrizations._initial import check_init, orthogonal_matrix
from rnnkern.parametrizations._layout import Layout, complement, orthonormal
from rnnkern.parametrizations._parametrization import Based, Parametrization, register
from rnnkern.reference._orthogonal import skew

MAPS = ("exp", "cayley", "scaled_cayley")
"""Maps that have a base B."""
FACTORS = ("householder", "givens")
"""Maps by products of factors, which have no base."""
PROJECT = 64
"""Number of moves of a base after which a Newton-Schulz step removes accumulated rounding errors."""


class Orthogonal(Based):
    """Parametrization of an orthogonal weight, registered by :func:`orthogonal`. B is the buffer ``base`` and A the
    parameter."""

    function = "orthogonal"
    rotating = (0,)

    def __init__(
        self, like: Tensor, orthogonal_map: str, init: str | None, base: str, rebase_every: int,
        num_negative: int | None = None, layout: Layout | None = None,
    ) -> None:  # fmt: skip
        super().__init__(like, init, base, rebase_every)
        if layout is None:
            check_init(self.function, init)  # None would keep the existing weight
        self.layout = layout or Layout(self.sizes, self.sizes)
        size = self.layout.size
        if num_negative is not None and (orthogonal_map != "scaled_cayley" or not 0 <= num_negative <= size):
            only = f"from 0 to N = {size} and applies only to the map 'scaled_cayley'"
            raise ValueError(f"orthogonal: `num_negative` must be {only}, got {num_negative}")
        self.orthogonal_map, self.num_negative = orthogonal_map, size // 2 if num_negative is None else num_negative
        self.register_buffer("base", like.new_empty(*self.layout.batch, size, size))
        self.register_buffer("scale", None)
        if orthogonal_map == "scaled_cayley":
            self.scale = like.new_empty(size)
            self._reset_scale()
        # On a GPU, where reading A is slow: whether A is 0, and in which version; None if unknown.
        self._zero: tuple[Tensor, int] | None = None

    def weight(self, A: Tensor, *others: Tensor) -> Tensor:
        return self.assembled(self.rotated(A), *others)

    def compute(self, A: Tensor, *others: Tensor) -> Tensor:
        return self.assembled(self.rotated_once(A), *others)

    def assembled(self, V: Tensor, *others: Tensor) -> Tensor:
        """The weight from the orthogonal matrix and the other parameters."""
        return self.layout.weight(self._scaled(V))

    def _scaled(self, V: Tensor) -> Tensor:
        return V if self.scale is None else V * self.scale[: V.shape[-1]]

    def rotated_once(self, A: Tensor) -> Tensor:
        """Like :meth:`rotated`, without support for second derivatives: at A = 0 the value is B, and the gradient takes
        one product."""
        if not self._is_zero(A):
            return self.rotated(A)
        return _AtBase.apply(A, self.base, 1.0 if self.orthogonal_map == "exp" else -2.0)

    def rotated(self, A: Tensor) -> Tensor:
        """B exp(A), or B (I + A)^-1 (I - A), computed as B plus a difference: a small A would be rounded away next to
        1. A of a rectangular weight has k < n columns; those after them are zero."""
        A = F.pad(A, (0, self.layout.size - A.shape[-1]))
        if self.orthogonal_map == "exp":
            added = ops.skew_exp(A, form="expm1")
        else:
            S = skew(A)
            added = -S - ops.cayley(A) @ S
        return self.base + self.base @ added

    def _is_zero(self, A: Tensor) -> bool:
        if held.comparable(A):
            return not A.any()
        if self._zero is None:
            self._zero = A.detach(), -1 if A.any() else A._version
        zero, version = self._zero
        self._zero = zero, -1  # for one use only: writes to A.data change no version
        return A.data_ptr() == zero.data_ptr() and A._version == version

    def _reset_scale(self) -> None:
        if self.scale is not None:
            self.scale[: self.num_negative], self.scale[self.num_negative :] = -1, 1

    def draw(self) -> Tensor:
        self._zero, self.steps = None, 0
        self._reset_scale()
        self.base.copy_(orthogonal_matrix(self.base, self.init or "haar", self.orthogonal_map))
        return torch.zeros_like(self.base[..., : self.layout.columns])

    def keep(self, weight: Tensor) -> Tensor:
        return self._begin_at(self._scaled(orthonormal("orthogonal", self.layout.matrices(weight))))

    def _begin_at(self, V: Tensor) -> Tensor:
        """Sets the first columns of B to V (..., n, k). Returns the new A, zero."""
        self.base[..., : V.shape[-1]] = V
        if V.shape[-1] < self.layout.size:
            self.base[..., V.shape[-1] :] = complement(V)
        self._zero = None
        return torch.zeros_like(V, memory_format=torch.contiguous_format)

    def right_inverse(self, weight: Tensor) -> Tensor:
        """Sets B to an orthogonal matrix and A to zero.

        Raises:
            ValueError: the matrix has the wrong shape or is not orthogonal.
        """
        self.check(self.function, weight, finite=False)
        return self._assigned(weight)

    def _assigned(self, weight: Tensor) -> Tensor:
        V = self._scaled(self.layout.matrices(weight.detach().to(self.base)))
        given = weight.dtype if weight.is_floating_point() else V.dtype
        _check_orthogonal(self.function, V, given)
        A = self._begin_at(V)
        self.refine("base", given)
        return A

    @torch.no_grad()
    def rebase(self) -> None:
        """Moves the base to the current weight: B <- B exp(A), A <- 0. The weight does not change, except for rounding.

        With a dynamic base this happens automatically after every ``rebase_every`` steps of a torch.optim optimizer
        that has A.
        """
        A, *_ = self.originals
        wanted = (*self.layout.batch, self.layout.size, self.layout.columns)
        if type(A) not in held.PLAIN or A.shape != wanted:
            raise RuntimeError(
                f"{self.function}: a dynamic base needs a complete A {wanted}, got {type(A).__name__} "
                f"{tuple(A.shape)}; use base='static' if A is sharded"
            )
        self.base.copy_(self.rotated(A))
        A.zero_()
        self._zero = A.detach(), A._version

    @torch.no_grad()
    def stepped(self, optimised: set[int]) -> None:
        before = self.steps
        super().stepped(optimised)
        if self.steps > before and self.steps % (self.rebase_every * PROJECT) == 0:
            self.base.copy_(ops.project_orthogonal(self.base, steps=1))

    def _load_from_state_dict(self, *args: Any) -> None:
        super()._load_from_state_dict(*args)
        self._zero = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_zero": None}

    def extra_repr(self) -> str:
        return f"{self.sizes}, orthogonal_map={self.orthogonal_map}, {super().extra_repr()}"


class OrthogonalGate(Orthogonal):
    """Parametrization of a weight (..., G*N, N), registered by :func:`orthogonal_gate`."""

    function = "orthogonal_gate"

    def __init__(self, like: Tensor, init: str, base: str, rebase_every: int) -> None:
        super().__init__(like[..., -like.shape[-1] :, :], "exp", init, base, rebase_every)
        self.sizes = tuple(like.shape)

    def assembled(self, V: Tensor, rows: Tensor) -> Tensor:
        return torch.cat([rows, V], -2)

    def draw(self) -> tuple[Tensor, ...]:
        size = self.sizes[-1]
        rows = self.base.new_empty(*self.sizes[:-2], self.sizes[-2] - size, size)
        return super().draw(), rows.uniform_(-(size**-0.5), size**-0.5)

    def right_inverse(self, weight: Tensor) -> tuple[Tensor, ...]:
        """Sets B to the last N rows of a matrix, and A to zero.

        Raises:
            ValueError: the matrix has the wrong shape, or its last N rows are not orthogonal.
        """
        self.check(self.function, weight, finite=False)
        rows, V = weight.detach().split([self.sizes[-2] - self.sizes[-1], self.sizes[-1]], -2)
        return self._assigned(V), rows.to(self.base).clone()


def _check_orthogonal(function: str, V: Tensor, given: torch.dtype) -> None:
    accuracy = max(torch.finfo(dtype).eps for dtype in (V.dtype, given))
    X = V.double()
    distance = (X.mT @ X - torch.eye(X.shape[-1], dtype=X.dtype, device=X.device)).abs()
    if distance.numel() and not distance.max() <= math.sqrt(accuracy):
        raise ValueError(
            f"{function}: the weight must be orthogonal, got max |V^T V - I| = {distance.max():.3g}; "
            "make it orthogonal with rnnkern.ops.project_orthogonal or torch.linalg.qr"
        )


class _AtBase(torch.autograd.Function):
    """The first k columns of B exp(A) at A (..., n, k) = 0: those of B, and the gradient takes one product."""

    @staticmethod
    def forward(ctx: Any, A: Tensor, B: Tensor, slope: float) -> Tensor:
        ctx.save_for_backward(B)
        ctx.slope = slope
        return B[..., : A.shape[-1]].clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (B,) = ctx.saved_tensors
        M = B.mT @ grad
        turned = F.pad(M[..., : M.shape[-1], :].mT, (0, 0, 0, M.shape[-2] - M.shape[-1]))
        return ctx.slope * (M - turned).tril(-1), None, None


def orthogonal(
    module: Module,
    name: str,
    orthogonal_map: str = "exp",
    init: str | None = None,
    base: str = "static",
    rebase_every: int = 1,
    *,
    num_negative: int | None = None,
    reflections: int | None = None,
    layers: int | None = None,
    style: str | None = None,
    gates: int | None = None,
) -> Module:
    r"""Keeps a weight of a module orthogonal during training with any optimizer, starting from the matrix that is
    there.

    .. math::
        W = B \exp(A), \quad B (I + A)^{-1} (I - A), \quad B (I + A)^{-1} (I - A) D, \quad
        H_1 H_2 \cdots H_m \quad \text{or} \quad F_L \cdots F_2 F_1

    In the first three maps, B is an orthogonal buffer, which holds the initial weight; A (..., N, N) is the parameter
    ``module.parametrizations.<name>.original``, whose strict lower triangle defines a skew-symmetric matrix,
    initialized to zero; D is diagonal with entries 1 and -1. In the fourth map the parameter is V (..., N, m), with one
    column per reflection (:func:`rnnkern.ops.householder_product`). In the last map it is angles (..., L, N // 2)
    (:func:`rnnkern.ops.givens_product`). The weight is computed once per optimizer step, however often you access it,
    and its gradient is propagated to the parameter once per ``backward``.

    A weight that is orthogonal up to rounding is kept exactly. Any other is replaced by the Q of its QR decomposition,
    with a positive diagonal of R, as :func:`torch.nn.utils.parametrizations.orthogonal` does. ``init`` draws a new one.

    A matrix (..., M, K) with M > K has orthonormal columns, and with M < K orthonormal rows. It consists of the first
    min(M, K) columns of an N x N matrix as above, N = max(M, K), which is computed in full, in O(N^3); A has as many
    columns. The weight of a convolution is a matrix with one row per output channel (transposed: input channel).

    Args:
        module: a module with a real floating-point parameter or buffer ``name`` (..., M, K) that is not parametrized.
            The parameter stays the same object and becomes A, V or the angles.
        name: name of the weight.
        orthogonal_map: ``"exp"``, ``"cayley"``, ``"scaled_cayley"``, ``"householder"`` or ``"givens"``, in the order of
            the formulas above.
        init: None, the default, keeps the weight; with ``"householder"`` up to rounding, and with fewer than N
            reflections the first columns. ``"givens"`` cannot. Otherwise the weight is drawn, see
            :func:`orthogonal_matrix`; with ``"scaled_cayley"`` it is multiplied by D. With ``"householder"``, the
            reflections produce the first m // 2 planes of ``"henaff"``, ``"cayley"`` and ``"identity"``, and if m is
            odd the last one reflects the last axis; with ``"haar"`` the first m columns are those of a random
            orthogonal matrix. With ``"givens"``, the first layer gets the initialization and the angles of the others
            are zero; ``"uniform"`` draws all angles from U(-pi, pi), and ``"haar"`` is not available.
        base: ``"static"`` keeps B fixed. ``"dynamic"`` sets :math:`B \leftarrow B \exp(A)` and :math:`A \leftarrow 0`
            after every ``rebase_every`` steps of an optimizer that has A. The state of the optimizer (such as momentum)
            is not changed: it refers to A, and left translation of the group transports it to the new base.
        rebase_every: number of optimizer steps between moves of a dynamic base.
        num_negative: the first ``num_negative`` entries of D are -1. The default is half of them.
        reflections: m, from 1 to N. The default is min(M, K). N reflections have the determinant :math:`(-1)^N`. To
            keep a square weight of the other determinant, the last one is the identity, with a vector that stays 0.
        layers: L. The default is N for ``"tunable"``, which reaches every rotation, and :math:`\log_2 N` for
            ``"butterfly"``.
        style: of the layers: ``"tunable"``, the default, or ``"butterfly"``.
        gates: G, to make each of G blocks of M / G rows orthogonal. The default is 4 for ``weight_ih`` and
            ``weight_hh`` of an LSTM, 3 for those of a GRU, the number of groups of a convolution, and otherwise 1.

    Returns:
        The module. With the first three maps you can assign another orthogonal weight: ``module.<name> = V`` sets B to
        V and A to zero. With ``"householder"`` and ``"givens"`` the weight cannot be assigned.

    Raises:
        ValueError, TypeError: an argument has a wrong value or type.

    Source: exp: Lezcano-Casado and Martinez-Rubio 2019; dynamic base: Lezcano-Casado 2019; scaled Cayley: Helfrich et
    al. 2018; householder: Mhammedi et al. 2017; givens: Jing et al. 2017.

    >>> linear = torch.nn.Linear(6, 3)
    >>> V = torch.nn.init.orthogonal_(linear.weight).detach().clone()
    >>> W = rnnkern.parametrizations.orthogonal(linear, "weight", base="dynamic", rebase_every=100).weight
    >>> torch.equal(W, V), torch.allclose(W @ W.T, torch.eye(3), atol=1e-6), linear.weight is W
    (True, True, True)
    """

    def make(weight: Tensor) -> Parametrization:
        layout = Layout.of(module, name, weight, gates)
        if orthogonal_map == "householder":
            return Householder(weight, init, reflections, layout)
        if orthogonal_map == "givens":
            return Givens(weight, init, layers, style, layout)
        return Orthogonal(weight, orthogonal_map, init, base, rebase_every, num_negative, layout)

    if orthogonal_map not in (*MAPS, *FACTORS):
        raise ValueError(f"orthogonal: `orthogonal_map` must be one of {(*MAPS, *FACTORS)}, got {orthogonal_map!r}")
    if orthogonal_map in FACTORS and (base != "static" or rebase_every != 1 or num_negative is not None):
        raise ValueError(
            f"orthogonal: `base`, `rebase_every` and `num_negative` do not apply to the map {orthogonal_map!r}"
        )
    own = {"reflections": ("householder", reflections), "layers": ("givens", layers), "style": ("givens", style)}
    for option, (of, value) in own.items():
        if value is not None and orthogonal_map != of:
            raise ValueError(f"orthogonal: `{option}` applies only to the map {of!r}, got {value!r}")
    return register("orthogonal", module, name, make, gates=None)


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
