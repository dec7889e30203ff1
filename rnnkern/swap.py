"""Replaces torch.nn's recurrent layers in a model by those of rnnkern, and back, and explains what runs each layer.

A module changes only its class. The classes of rnnkern derive from those of torch.nn and read the parameters in place.
Therefore parameters, buffers, hooks, flags and references to the module stay valid.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import Module, RNNBase, RNNCellBase
from torch.nn.utils import parametrize

from rnnkern import nn, ops
from rnnkern.nn.cells import RecurrentCell
from rnnkern.nn.recurrent import RecurrentBase
from rnnkern.ops import Choice
from rnnkern.ops.checks import FLOATS

NAMES = ("RNN", "LSTM", "GRU", "RNNCell", "LSTMCell", "GRUCell")
OURS: dict[type[Module], type[Module]] = {getattr(torch.nn, name): getattr(nn, name) for name in NAMES}
TORCHS = {ours: torchs for torchs, ours in OURS.items()}
KNOWN = {
    "num_heads": (1,),
    "layer_norm": (False,),
    "reset_gate": ("after",),
    "nonlinearity": ("tanh", "relu"),
    "zoneout": (0, (0, 0)),
    "recurrent_dropout": (0,),
    "recurrent_grad_dropout": (0,),
    "filter": (None,),
}
"""Values of rnnkern's options that correspond to torch.nn."""


class Replaced(NamedTuple):
    """A module whose class was changed."""

    name: str
    """Name of the module as in ``named_modules``, ``""`` for the model itself; the first name if the module occurs
    several times."""
    old: type[Module]
    """Its class before."""
    new: type[Module]
    """Its class now."""

    def __repr__(self) -> str:
        return f"{self.name or '(model)'}: {_path(self.old)} -> {_path(self.new)}"


class Left(NamedTuple):
    """A recurrent module that was not changed."""

    name: str
    """As in :class:`Replaced`."""
    cls: type[Module]
    """Its class."""
    reason: str
    """Why it was not changed."""

    def __repr__(self) -> str:
        return f"{self.name or '(model)'}: {_path(self.cls)} left: {self.reason}"


class Report(NamedTuple):
    """The result of :func:`replace` or :func:`restore`; prints one line per module."""

    replaced: tuple[Replaced, ...]
    """The modules that were changed."""
    left: tuple[Left, ...]
    """The recurrent modules that were not changed."""

    def __repr__(self) -> str:
        return "\n".join(map(repr, self.replaced + self.left)) or "no recurrent layer"


def replace(model: Module, *, force: bool = False) -> Report:
    """Replaces every torch.nn RNN, LSTM, GRU and their cells in a model by the layers of rnnkern, in place.

    Parameters stay the same objects, so an existing optimizer remains valid; hooks, flags and parametrizations are
    kept. The model itself may be such a layer.

    The following layers are not replaced:

    - subclasses of torch.nn's layers (derive them from rnnkern's layers instead)
    - layers whose ``forward`` was set on the instance
    - layers with parameters of a dtype other than float32, float64, bfloat16 and float16
    - quantized layers and layers in a scripted module
    - layers that would run in plain PyTorch, because rnnkern has no kernel for their device

    Args:
        model: any module. Only registered submodules are considered.
        force: if True, also replaces layers that would run in plain PyTorch.

    Returns:
        A report of the layers that were replaced, and of those that were not, with the reason. A second call replaces
        nothing.

    Raises:
        TypeError: ``model`` is not a module.

    >>> model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.LSTM(8, 16))
    >>> rnnkern.replace(model)
    1: torch.nn.LSTM -> rnnkern.nn.LSTM
    """
    return _swap("replace", model, OURS, partial(_why_not_ours, force))


def restore(model: Module) -> Report:
    """Replaces rnnkern's layers in a model by those of torch.nn, in place; the inverse of :func:`replace`.

    Use it to script a model, to export it to ONNX, or to load it without rnnkern. Layers that were created as rnnkern
    layers are replaced too, unless they use options that torch.nn lacks: ``num_heads``, ``layer_norm``,
    ``reset_gate="before"``, other nonlinearities, zoneout, ``recurrent_dropout``, ``recurrent_grad_dropout`` or a
    filter.

    Args:
        model: as in :func:`replace`.

    Returns:
        As in :func:`replace`.

    Raises:
        TypeError: ``model`` is not a module.

    >>> model = torch.nn.LSTM(8, 16)
    >>> _ = rnnkern.replace(model)
    >>> rnnkern.restore(model)
    (model): rnnkern.nn.LSTM -> torch.nn.LSTM
    """
    return _swap("restore", model, TORCHS, _why_not_torchs)


def _swap(function: str, model: Module, twins: dict[type, type], why_not: Callable) -> Report:
    if not isinstance(model, Module):
        raise TypeError(f"{function}: `model` must be a torch.nn.Module, got {type(model).__name__}")
    replaced, left = [], []
    for name, module in model.named_modules():
        old = parametrize.type_before_parametrizations(module)
        reason = why_not(module, old)
        if reason is not None:
            left.append(Left(name, old, reason))
        elif old in twins:
            _set_class(module, old, twins[old])
            replaced.append(Replaced(name, old, twins[old]))
    return Report(tuple(replaced), tuple(left))


def explain(model: Module | Callable, *args: Any, **kwargs: Any) -> dict[str, list[Choice]] | Any:
    """Returns which implementation each recurrent layer of a model uses, or one call, without running anything.

    Args:
        model: any module; or, with arguments, a function of ``rnnkern.ops`` or one layer of ``rnnkern.nn``.
        args, kwargs: the arguments of the call, as in :func:`rnnkern.ops.explain`. Without arguments, the answer is for
            one step of one sequence, with the dtype and device of each layer's parameters.

    Returns:
        Without arguments a dict that maps the name of each recurrent layer, as in ``named_modules``, to a list of
        :class:`rnnkern.ops.Choice`, one per layer and direction, as :func:`rnnkern.ops.explain` returns. For a layer of
        ``torch.nn`` the list has one choice, whose implementation is ``"torch.nn"``. With arguments, the result of
        :func:`rnnkern.ops.explain`.

    Raises:
        TypeError: ``model`` is neither a module nor an operator.

    >>> model = torch.nn.ModuleDict({"encoder": rnnkern.nn.LSTM(8, 16), "decoder": torch.nn.GRU(16, 8)})
    >>> for name, choices in rnnkern.explain(model).items():
    ...     print(name, choices[0].implementation)
    encoder cpu
    decoder torch.nn
    """
    if args or kwargs or not isinstance(model, Module):
        return ops.explain(model, *args, **kwargs)
    return {name: choices for name, module in model.named_modules() if (choices := _choices(module))}


def _choices(module: Module) -> list[Choice]:
    """The choices for a module; empty if it is not a recurrent layer."""
    if hasattr(module, "_choose"):
        like = next((p for p in module.parameters() if p.is_floating_point()), torch.empty(0))
        without_time = isinstance(module, (RNNCellBase, nn.NeuralODE, nn.HeavyBallODE))
        size = module.d if isinstance(module, nn.Similarity) else module.input_size
        return ops.explain(module, like.new_zeros(*(1,) * (1 if without_time else 2), size))
    if isinstance(module, (RNNBase, RNNCellBase)):
        return [Choice("torch.nn", "it is a torch.nn layer; rnnkern.replace changes that")]
    return []


def _why_not_ours(force: bool, module: Module, cls: type) -> str | None:
    if isinstance(module, torch.jit.ScriptModule):
        return "in a scripted module" if module.original_name in NAMES else None
    if cls.__module__.startswith("torch.ao.nn."):
        return "quantized" if cls.__name__ in NAMES else None
    if not isinstance(module, (RNNBase, RNNCellBase)):
        return None
    if isinstance(module, (RecurrentBase, RecurrentCell)):
        return "rnnkern's already"
    dtypes = {p.dtype for p in module.parameters()}.difference(FLOATS)
    if dtypes:
        return f"its parameters are {dtypes.pop()}"
    return _why_not_swapped(module, cls, OURS) or (None if force else _why_slow(next(module.parameters())))


def _why_slow(parameter: Tensor) -> str | None:
    """Why rnnkern would run a layer in plain PyTorch. The answer is the same for all cells of torch.nn, so one is
    checked."""
    h0 = parameter.new_zeros(1, 1)
    choice = ops.explain(ops.recurrence, "tanh", h0.unsqueeze(0), h0, (h0,))
    if choice.implementation != "reference" or parameter.is_meta:  # its device is not known yet
        return None
    return f"rnnkern would run it in plain PyTorch ({choice.reason}); force=True replaces it anyway"


def _why_not_torchs(module: Module, cls: type) -> str | None:
    if not isinstance(module, (RecurrentBase, RecurrentCell)):
        return None
    for name, known in KNOWN.items():
        value = getattr(module, name, known[0])
        if value not in known:
            return f"torch.nn has no {name}={value!r}"
    return _why_not_swapped(module, cls, TORCHS)


def _why_not_swapped(module: Module, cls: type, twins: dict[type, type]) -> str | None:
    if cls not in twins:
        return "a subclass, which may compute something else"
    return "its forward was set on the instance" if "forward" in vars(module) else None


def _set_class(module: Module, old: type[Module], new: type[Module]) -> None:
    cls = type(module)
    if cls is not old:  # parametrized: a class created for this module, with a property for each weight
        members = {name: value for name, value in vars(cls).items() if name not in ("__dict__", "__weakref__")}
        new = type(f"Parametrized{new.__name__}", (new,), members)
    module.__class__ = new
    # torch.nn's list of weights for cuDNN would become stale; rnnkern has a property in its place.
    vars(module).pop("_flat_weights", None)
    if isinstance(module, RNNBase) and not isinstance(module, RecurrentBase):
        with torch.no_grad():
            module._init_flat_weights()


def _path(cls: type) -> str:
    """The path by which users import the class."""
    if cls in OURS:
        return f"torch.nn.{cls.__name__}"
    if cls in TORCHS:
        return f"rnnkern.nn.{cls.__name__}"
    return f"{cls.__module__}.{cls.__qualname__}"
