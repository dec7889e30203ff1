"""Weights that stay orthogonal."""

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from rnnkern import ops
from rnnkern.parametrizations import _held as held
from rnnkern.parametrizations import _steps as steps
from rnnkern.parametrizations._factors import Givens, Householder
from rnnkern.parametrizations._initial import check_init, orthogonal_matrix
from rnnkern.parametrizations._parametrization import Parametrization, refine, register
from rnnkern.reference._orthogonal import skew

MAPS = ("exp", "cayley", "scaled_cayley")
"""That have a base."""
FACTORS = ("householder", "givens")
"""Those by factors, which have none."""
BASES = ("static", "dynamic")
PROJECT = 64
"""After so many moves of a base a step of Newton and Schulz removes what rounding has added up."""


class Orthogonal(Parametrization):
    """Of an orthogonal weight; see :func:`orthogonal`, which makes one. B is the buffer ``base``, A the parameter."""

    rotating = (0,)
    bases = ("base",)

    def __init__(
        self, like: Tensor, orthogonal_map: str = "exp", init: str = "henaff", base: str = "static",
        rebase_every: int = 1,
        num_negative: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        check_init(init)
        if base not in BASES:
            raise ValueError(f"orthogonal: `base` must be one of {BASES}, got {base!r}")
        if isinstance(rebase_every, bool) or not isinstance(rebase_every, int) or rebase_every < 1:
            raise ValueError(f"orthogonal: `rebase_every` must be a number of steps from 1 on, got {rebase_every!r}")
        size = like.shape[-1]
        if num_negative is not None and (orthogonal_map != "scaled_cayley" or not 0 <= num_negative <= size):
            only = f"from 0 to N = {size}, for the map 'scaled_cayley' alone"
            raise ValueError(f"orthogonal: `num_negative` must be {only}, got {num_negative}")
        self.orthogonal_map, self.init, self.dynamic, self.rebase_every = (
            orthogonal_map,
            init,
            base == "dynamic",
            rebase_every,
        )
        self.steps = 0
        self.register_buffer("base", torch.empty_like(like, requires_grad=False))
        self.register_buffer("scale", None)
        if orthogonal_map == "scaled_cayley":
            self.scale = like.new_ones(size)
            self.scale[: size // 2 if num_negative is None else num_negative] = -1
        # On a GPU, where to look takes time: where A is 0, and in which version; None where nobody knows.
        self._zero: tuple[Tensor, int] | None = None
        if self.dynamic:
            steps.listen(self)

    def weight(self, A: Tensor) -> Tensor:
        return self._scaled(self.rotated(A))

    def compute(self, A: Tensor) -> Tensor:
        return self._scaled(self.rotated_once(A))

    def _scaled(self, V: Tensor) -> Tensor:
        return V if self.scale is None else V * self.scale

    def rotated_once(self, A: Tensor) -> Tensor:
        """As :meth:`rotated`, but for second derivatives: at A = 0 the value is B, and the gradient one product."""
        return (
            _AtBase.apply(A, self.base, 1.0 if self.orthogonal_map == "exp" else -2.0)
            if self._is_zero(A)
            else self.rotated(A)
        )

    def rotated(self, A: Tensor) -> Tensor:
        """B exp(A), or B (I + A)^-1 (I - A), as B and what is added: next to 1 it would be rounded away."""
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
        self._zero = zero, -1  # once: writes by A.data change no version
        return A.data_ptr() == zero.data_ptr() and A._version == version

    def draw(self) -> Tensor:
        self._zero = None
        self.base.copy_(orthogonal_matrix(self.base, self.init, self.orthogonal_map))
        return torch.zeros_like(self.base)

    def right_inverse(self, weight: Tensor) -> Tensor:
        """Sets B to an orthogonal matrix, and A to zero.

        Raises:
            ValueError: the matrix has another shape, or is not orthogonal.
        """
        if weight.shape != self.base.shape:
            raise ValueError(f"orthogonal: the weight must be {tuple(self.base.shape)}, got {tuple(weight.shape)}")
        V = self._scaled(weight.detach().to(self.base))
        given = weight.dtype if weight.is_floating_point() else V.dtype
        _check_orthogonal(V, given)
        refine(V, given)
        self.base.copy_(V)
        self._zero = None
        return torch.zeros_like(self.base)

    # ---- a base that moves

    def stepped(self, optimised: set[int]) -> None:
        if any(id(x) in optimised for x in self.originals[:1]):
            self.steps += 1
            if self.steps % self.rebase_every == 0:
                self.rebase()
            if self.steps % (self.rebase_every * PROJECT) == 0:
                self.base.copy_(ops.project_orthogonal(self.base, steps=1))

    @torch.no_grad()
    def rebase(self) -> None:
        """Moves the base to where the weight is: B <- B exp(A), A <- 0. The weight stays, but for its rounding.

        A dynamic base does it by itself after every K-th step of an optimizer of torch.optim that has A.
        """
        A, *_ = self.originals
        if type(A) not in held.PLAIN or A.shape != self.base.shape:
            wanted, got = tuple(self.base.shape), f"{type(A).__name__} {tuple(A.shape)}"
            raise RuntimeError(
                f"orthogonal: a base moves by a whole A {wanted}, got {got}; where A is sharded take base='static'"
            )
        self.base.copy_(self.rotated(A))
        A.zero_()
        self._zero = A.detach(), A._version

    # ---- checkpoints and copies

    def get_extra_state(self) -> Tensor:
        return torch.tensor(self.steps)

    def set_extra_state(self, state: Tensor) -> None:
        self.steps = int(state)

    def _load_from_state_dict(self, *args: Any) -> None:
        super()._load_from_state_dict(*args)
        self._zero = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_zero": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if self.dynamic:
            steps.listen(self)

    def extra_repr(self) -> str:
        moves = f"dynamic, rebase_every={self.rebase_every}" if self.dynamic else "static"
        return f"{tuple(self.base.shape)}, orthogonal_map={self.orthogonal_map}, init={self.init}, base={moves}"


def _check_orthogonal(V: Tensor, given: torch.dtype) -> None:
    accuracy = max(torch.finfo(dtype).eps for dtype in (V.dtype, given))
    X = V.double()
    distance = (X.mT @ X - torch.eye(X.shape[-1], dtype=X.dtype, device=X.device)).abs()
    if distance.numel() and not distance.max() <= math.sqrt(accuracy):
        raise ValueError(
            f"orthogonal: the weight must be orthogonal, got max |V^T V - I| = {distance.max():.3g}; "
            "rnnkern.ops.project_orthogonal or torch.linalg.qr makes it so"
        )


class _AtBase(torch.autograd.Function):
    """B exp(A) at A = 0: its value is B, its gradient one product."""

    @staticmethod
    def forward(ctx: Any, A: Tensor, B: Tensor, slope: float) -> Tensor:
        ctx.save_for_backward(B)
        ctx.slope = slope
        return B.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (B,) = ctx.saved_tensors
        M = B.mT @ grad
        return ctx.slope * (M - M.mT).tril(-1), None, None


def orthogonal(
    module: Module,
    name: str,
    orthogonal_map: str = "exp",
    init: str = "henaff",
    base: str = "static",
    rebase_every: int = 1,
    *,
    num_negative: int | None = None,
    reflections: int | None = None,
    layers: int | None = None,
    style: str | None = None,
) -> Module:
    r"""Keeps a square weight of a module orthogonal, whatever an optimizer does to its parameter.

    .. math::
        W = B \exp(A), \quad B (I + A)^{-1} (I - A), \quad B (I + A)^{-1} (I - A) D, \quad
        H_1 H_2 \cdots H_m \quad \text{or} \quad F_L \cdots F_2 F_1

    In the first three B is an orthogonal buffer, A the parameter ``module.parametrizations.<name>.original`` (..., N,
    N), of which the strict lower triangle is read as a skew-symmetric matrix, and D diagonal with entries 1 and -1. B
    begins as what is drawn, and A as zero. In the fourth the parameter is V (..., N, m), whose columns stand for a
    reflection each (:func:`rnnkern.ops.householder_product`), in the last angles (..., L, N // 2)
    (:func:`rnnkern.ops.givens_product`). The weight is computed once per optimizer step,
    however often it is asked for, and its gradient goes back to the parameter once per ``backward``.

    Args:
        module: any, with a parameter or buffer ``name`` (..., N, N): real, floating, not parametrized yet. The
            parameter stays the same object and becomes A, V or the angles.
        name: of the weight.
        orthogonal_map: ``"exp"``, ``"cayley"``, ``"scaled_cayley"``, ``"householder"`` or ``"givens"``, for those
            above.
        init: what the weight begins with, see :func:`orthogonal_matrix`; of the scaled map times D. Reflections turn
            the first m // 2 planes of ``"henaff"``, ``"cayley"`` and ``"identity"``, and if m is odd reflect the last
            axis; with ``"haar"`` the first m columns are those of a random orthogonal matrix. Of layers of rotations
            the first begins so and the others with angles of zero, or all angles with ``"uniform"`` as U(-pi, pi);
            they have no ``"haar"``.
        base: ``"static"``, B stays; ``"dynamic"``, after every K-th step of an optimizer that has A, :math:`B
            \leftarrow B \exp(A)` and :math:`A \leftarrow 0`. What the optimizer remembers stays as it is: it is about
            A, and means at the new base what it meant at the old one, transported by the group's left translation.
        rebase_every: K.
        num_negative: how many entries of D are -1, the first ones; half of them if not given.
        reflections: m, from 1 to N; N if not given.
        layers: L; if not given N, which reach every rotation, or :math:`\log_2 N` of a butterfly.
        style: of the layers, ``"tunable"``, which is meant if none is given, or ``"butterfly"``.

    Returns:
        The module. ``module.<name> = V`` takes an orthogonal V: B becomes V, and A zero. Products of reflections
        and of layers take none.

    Raises:
        ValueError, TypeError: an argument is wrong.

    Source: exp Lezcano-Casado and Martinez-Rubio 2019, dynamic Lezcano-Casado 2019, scaled Helfrich et al. 2018,
    householder Mhammedi et al. 2017, givens Jing et al. 2017.

    >>> linear = rnnkern.parametrizations.orthogonal(torch.nn.Linear(6, 6), "weight", base="dynamic", rebase_every=100)
    >>> W = linear.weight
    >>> torch.allclose(W.T @ W, torch.eye(6), atol=1e-6), linear.weight is W
    (True, True)
    """

    def make(weight: Tensor) -> Parametrization:
        if orthogonal_map == "householder":
            return Householder(weight, init, reflections)
        if orthogonal_map == "givens":
            return Givens(weight, init, layers, style)
        return Orthogonal(weight, orthogonal_map, init, base, rebase_every, num_negative)

    if orthogonal_map not in (*MAPS, *FACTORS):
        raise ValueError(f"orthogonal: `orthogonal_map` must be one of {(*MAPS, *FACTORS)}, got {orthogonal_map!r}")
    if orthogonal_map in FACTORS and (base != "static" or rebase_every != 1 or num_negative is not None):
        raise ValueError(
            f"orthogonal: `base`, `rebase_every` and `num_negative` are not for the map {orthogonal_map!r}"
        )
    own = {"reflections": ("householder", reflections), "layers": ("givens", layers), "style": ("givens", style)}
    for option, (of, value) in own.items():
        if value is not None and orthogonal_map != of:
            raise ValueError(f"orthogonal: `{option}` is for the map {of!r} alone, got {value!r}")
    return register("orthogonal", module, name, make)
