"""Base classes of the parametrizations, and the functions that register and reset them."""

from collections.abc import Sequence
from typing import Any, Literal
from weakref import ref

import torch
from torch import Tensor
from torch.nn import Module
from torch.nn.utils import parametrize

from rnnkern import ops
from rnnkern._torch_private import parametrize_again
from rnnkern.parametrizations import _steps as steps
from rnnkern.parametrizations._held import Held
from rnnkern.parametrizations._initial import check_init

BASES = ("static", "dynamic")


class Weak:
    """A weak reference to an object, or to None. A deep copy refers to the copy of the object, or to None if the object
    is not copied."""

    def __init__(self, to: Any = None) -> None:
        self._to = None if to is None else ref(to)

    def __call__(self) -> Any:
        return self._to and self._to()

    def __deepcopy__(self, memo: dict) -> "Weak":
        return Weak(memo.get(id(self())))

    def __reduce__(self) -> tuple[Any, ...]:
        return Weak, (self(),)


class Parametrization(Module):
    """Parametrization of a weight (..., N, N), or (N,). A subclass implements ``weight`` and ``draw``."""

    rotating: tuple[int, ...] = ()
    """Indices of the parameters that rotate a matrix; they train with the learning rate of orthogonal weights."""
    bases: tuple[str, ...] = ()
    """Names of the buffers that are orthogonal matrices."""
    init: str | None = ""
    """How the weight is drawn; None keeps the existing one."""

    def __init__(self, like: Tensor) -> None:
        super().__init__()
        self.sizes, self._begun = tuple(like.shape), (like.dtype.to_real(), like.device)
        self._held = Held()
        self._of = Weak()
        steps.watch(self)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        steps.watch(self)

    @property
    def originals(self) -> list[Tensor]:
        """The parameters; an empty list if no module uses this parametrization."""
        of = self._of()
        if of is None:
            return []
        return [of.original] if of.is_tensor else [getattr(of, f"original{k}") for k in range(of.ntensors)]

    def place(self) -> tuple[torch.dtype, torch.device]:
        """The dtype and device of the parameters, which are the weight's until they exist."""
        return next(((x.dtype, x.device) for x in self.originals), self._begun)

    def forward(self, *originals: Tensor) -> Tensor:
        if originals[0].is_meta:
            return self.empty(*originals)  # meta tensors have only a shape
        return self._held(self.compute, self.weight, originals, tuple(self.buffers()), lent=self._lent())

    def _lent(self) -> bool:
        """Whether torch.func.functional_call currently replaces the parameters by other tensors."""
        of = self._of()
        return of is not None and any(type(p) is Tensor for p in of._parameters.values())

    def weight(self, *originals: Tensor) -> Tensor:
        """Computes the weight by its formula, with support for second derivatives."""
        raise NotImplementedError

    def empty(self, *originals: Tensor) -> Tensor:
        """An empty tensor with the shape of the weight."""
        return originals[0].new_empty(self.sizes)

    def compute(self, *originals: Tensor) -> Tensor:
        """Computes the weight if first derivatives suffice."""
        return self.weight(*originals)

    def draw(self) -> Tensor | tuple[Tensor, ...]:
        """New initial values of the parameters; buffers are initialized in place."""
        raise NotImplementedError

    def begin(self, weight: Tensor) -> Tensor | tuple[Tensor, ...]:
        """Initial values of the parameters at the registration: drawn, or from the existing weight."""
        return self.draw() if self.init is not None or weight.is_meta else self.keep(weight.detach())

    def keep(self, weight: Tensor) -> Tensor | tuple[Tensor, ...]:
        """The parameters of an existing weight, for classes whose ``init`` may be None."""
        raise NotImplementedError

    def check(self, function: str, weight: Tensor, finite: bool = True) -> None:
        """Raises ValueError if a weight that is assigned has the wrong shape or is not finite."""
        if tuple(weight.shape) != self.sizes:
            raise ValueError(f"{function}: the weight must be {self.sizes}, got {tuple(weight.shape)}")
        if finite and not weight.isfinite().all():
            raise ValueError(f"{function}: the weight must be finite")

    def matrix(self, name: str) -> Tensor:
        """One of the ``bases`` as a matrix."""
        return getattr(self, name)

    @torch.no_grad()
    def refine(self, name: str, dtype: torch.dtype) -> None:
        """Makes a base that was orthogonal to the precision of a narrower dtype orthogonal to that of its own."""
        buffer = getattr(self, name)
        if torch.finfo(buffer.dtype).eps < torch.finfo(dtype).eps and not buffer.is_meta:
            V = self.matrix(name)
            V.copy_(ops.project_orthogonal(V, steps=3))  # reduces 5e-3, the error in bfloat16, to float64 rounding

    def _apply(self, fn, recurse: bool = True):
        self._held.clear()
        before = [getattr(self, name).dtype for name in self.bases]
        super()._apply(fn, recurse)
        for name, dtype in zip(self.bases, before, strict=True):
            self.refine(name, dtype)
        return self

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        super()._load_from_state_dict(state_dict, prefix, *args)
        for name in self.bases:
            if isinstance(loaded := state_dict.get(prefix + name), Tensor):
                self.refine(name, loaded.dtype)


class Based(Parametrization):
    """Parametrization of a weight that is a buffer ``base`` times a function of the parameter A. At A = 0 it is the
    base, which either stays or follows the weight as an optimizer steps."""

    function: str
    """The function of the package that registers it, for error messages."""
    bases = ("base",)

    def __init__(self, like: Tensor, init: str | None, base: str, rebase_every: int) -> None:
        super().__init__(like)
        if init is not None:
            check_init(self.function, init)
        if base not in BASES:
            raise ValueError(f"{self.function}: `base` must be one of {BASES}, got {base!r}")
        if isinstance(rebase_every, bool) or not isinstance(rebase_every, int) or rebase_every < 1:
            raise ValueError(f"{self.function}: `rebase_every` must be a positive integer, got {rebase_every!r}")
        self.init, self.dynamic, self.rebase_every, self.steps = init, base == "dynamic", rebase_every, 0
        if self.dynamic:
            steps.listen(self)

    def rebase(self) -> None:
        """Moves the base to the current weight."""
        raise NotImplementedError

    def stepped(self, optimised: set[int]) -> None:
        if any(id(x) in optimised for x in self.originals[:1]):
            self.steps += 1
            if self.steps % self.rebase_every == 0:
                self.rebase()

    def get_extra_state(self) -> Tensor:
        return torch.tensor(self.steps)

    def set_extra_state(self, state: Tensor) -> None:
        self.steps = int(state)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if self.dynamic:
            steps.listen(self)

    def extra_repr(self) -> str:
        moves = f"dynamic, rebase_every={self.rebase_every}" if self.dynamic else "static"
        return f"init={self.init}, base={moves}"


def register(
    function: str, module: Module, name: str, make, gates: int | None = 1, field: Literal["real", "complex"] = "real",
    diagonal: bool = False,
) -> Module:  # fmt: skip
    """Parametrizes a weight (..., G*N, N) by ``make(weight)`` and initializes it. With ``diagonal``, the weight may be
    a vector; without ``gates``, it may be any matrix.

    Raises:
        ValueError, TypeError: the weight does not exist, has the wrong shape or dtype, or is already parametrized.
    """
    if not isinstance(module, Module):
        raise TypeError(f"{function}: `module` must be a torch.nn.Module, got {type(module).__name__}")
    if parametrize.is_parametrized(module, name):
        raise ValueError(f"{function}: `{name}` is already parametrized")
    weight = getattr(module, name, None)
    if not isinstance(weight, Tensor):
        raise ValueError(f"{function}: `name` must be the name of a parameter or buffer of the module, got {name!r}")
    if not (weight.is_floating_point() if field == "real" else weight.is_complex()):
        wanted = "real and floating-point" if field == "real" else "complex"
        raise TypeError(f"{function}: `{name}` must be {wanted}, got {weight.dtype}")
    fits = weight.dim() > 1 and (gates is None or gates * weight.shape[-1] == weight.shape[-2])
    if not (diagonal and weight.dim() == 1) and not fits:
        wanted = "(..., M, K)" if gates is None else f"(..., {'N' if gates == 1 else f'{gates}*N'}, N)"
        wanted = f"(N,) or {wanted}" if diagonal else wanted
        raise ValueError(f"{function}: `{name}` must be {wanted}, got {tuple(weight.shape)}")
    parametrization = make(weight)
    parametrization.right_inverse = parametrization.begin
    parametrize.register_parametrization(module, name, parametrization)
    del parametrization.right_inverse
    parametrization._of = Weak(module.parametrizations[name])
    type(module).__reduce_ex__ = _reduce  # on the class that parametrize created for this module
    return module


def parametrizations(module: Module, kind: type[Parametrization]) -> list[Any]:
    """All parametrizations of a kind in a module, each once."""
    return [found for found in module.modules() if isinstance(found, kind) and found.originals]


@torch.no_grad()
def reset_parameters(module: Module, name: str) -> None:
    """Draws a parametrized weight anew, as its ``init`` says; one that was registered without ``init`` from
    ``"haar"``.

    Args:
        module, name: as passed to :func:`orthogonal` or another function of this package.

    >>> linear = rnnkern.parametrizations.orthogonal(torch.nn.Linear(4, 4), "weight")
    >>> before = linear.weight.clone()
    >>> rnnkern.parametrizations.reset_parameters(linear, "weight")
    >>> torch.equal(linear.weight, before)
    False
    """
    parametrization = module.parametrizations[name][0]
    drawn = parametrization.draw()
    for old, new in zip(parametrization.originals, drawn if isinstance(drawn, tuple) else (drawn,), strict=True):
        old.copy_(new)


# torch.nn.utils.parametrize creates a class for each module; pickle cannot refer to it by name.


def _reduce(self: Module, protocol: int) -> tuple[Any, ...]:
    cls = parametrize.type_before_parametrizations(self)
    return _rebuild, (cls, list(self.parametrizations)), cls.__getstate__(self)


def _rebuild(cls: type[Module], names: Sequence[str]) -> Module:
    module = cls.__new__(cls)
    parametrize_again(module, names)
    type(module).__reduce_ex__ = _reduce
    return module
