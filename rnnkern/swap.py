"""Takes rnnkern's layers into a model that has torch.nn's, and back: a module changes its class and nothing else. Says
what runs each layer of a model.

rnnkern's classes derive from torch.nn's and read parameters where they lie. So parameters, buffers, hooks, flags and
whoever holds the module stay as they are.
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
from rnnkern.ops._recurrence.checks import DTYPES

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
"""Values of rnnkern's options that are torch.nn's way."""


class Replaced(NamedTuple):
    """A module that changed its class."""

    name: str
    """As ``named_modules`` has it, ``""`` for the model itself; the first where a module stands at several places."""
    old: type[Module]
    new: type[Module]

    def __repr__(self) -> str:
        return f"{self.name or '(model)'}: {_path(self.old)} -> {_path(self.new)}"


class Left(NamedTuple):
    """A recurrent module that stayed as it was."""

    name: str
    """As in :class:`Replaced`."""
    cls: type[Module]
    reason: str

    def __repr__(self) -> str:
        return f"{self.name or '(model)'}: {_path(self.cls)} left: {self.reason}"


class Report(NamedTuple):
    """What :func:`replace` or :func:`restore` did; prints one line per module."""

    replaced: tuple[Replaced, ...]
    left: tuple[Left, ...]

    def __repr__(self) -> str:
        return "\n".join(map(repr, self.replaced + self.left)) or "no recurrent layer"


def replace(model: Module, *, force: bool = False) -> Report:
    """Makes every recurrent layer of torch.nn in a model rnnkern's, in place: RNN, LSTM, GRU and their cells.

    Parameters stay the same objects, so that an optimizer goes on with them; hooks, flags and parametrizations stay
    too. The model itself may be such a layer.

    These are left: subclasses of torch.nn's layers (derive them from rnnkern's), layers whose ``forward`` was set on
    the instance, layers with parameters of another dtype than float32, float64, bfloat16 and float16, quantized layers,
    those of a scripted module, and those that would run in plain PyTorch because rnnkern has no kernel where they are.

    Args:
        model: any module. Submodules that are not registered are not seen.
        force: replace a layer that would run in plain PyTorch, too.

    Returns:
        What was replaced, and what was left and why. A second call finds nothing more to do.

    Raises:
        TypeError: ``model`` is no module.

    >>> model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.LSTM(8, 16))
    >>> rnnkern.replace(model)
    1: torch.nn.LSTM -> rnnkern.nn.LSTM
    """
    return _swap("replace", model, OURS, partial(_why_not_ours, force))


def restore(model: Module) -> Report:
    """Makes every layer of rnnkern in a model torch.nn's, in place: the way back from :func:`replace`.

    So a model can be scripted, exported to ONNX, or loaded where rnnkern is not. A layer that was rnnkern's from the
    beginning goes too, unless it has what torch.nn has not: ``num_heads``, ``layer_norm``, ``reset_gate="before"``,
    other nonlinearities, zoneout, recurrent dropout, of the state or of its gradient, momentum and the like.

    Args:
        model: as for :func:`replace`.

    Returns:
        As for :func:`replace`.

    Raises:
        TypeError: ``model`` is no module.

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
    """Says which implementation each recurrent layer of a model takes, or one call, without running anything.

    Args:
        model: any module; or a function of ``rnnkern.ops`` or a module of ``rnnkern.nn``, with arguments.
        args, kwargs: what a call would be given, as for :func:`rnnkern.ops.explain`. Without any, each layer is asked
            about one step of one sequence, of the dtype and on the device of its parameters.

    Returns:
        Without arguments a dict: under each recurrent layer's name, as ``named_modules`` has it, a
        :class:`rnnkern.ops.Choice` per layer and direction. Layers of ``torch.nn`` are ``"torch.nn"``. With arguments
        what :func:`rnnkern.ops.explain` returns.

    Raises:
        TypeError: ``model`` is neither.

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
    """Empty for what is no recurrent layer."""
    if hasattr(module, "_choose"):
        like = next(p for p in module.parameters() if p.is_floating_point())
        cell = isinstance(module, RNNCellBase)
        return ops.explain(module, like.new_zeros(*(1,) * (1 if cell else 2), module.input_size))
    if isinstance(module, (RNNBase, RNNCellBase)):
        return [Choice("torch.nn", "it is torch.nn's: rnnkern.replace changes that")]
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
    dtypes = {p.dtype for p in module.parameters()}.difference(DTYPES)
    if dtypes:
        return f"its parameters are {dtypes.pop()}"
    return _why_not_swapped(module, cls, OURS) or (None if force else _why_slow(next(module.parameters())))


def _why_slow(parameter: Tensor) -> str | None:
    """Why rnnkern would run a layer in plain PyTorch, which one of torch.nn's cells says for all of them."""
    h0 = parameter.new_zeros(1, 1)
    choice = ops.explain(ops.recurrence, "tanh", h0.unsqueeze(0), h0, (h0,))
    if choice.implementation != "reference" or parameter.is_meta:  # whose device is yet to come
        return None
    return f"rnnkern would run it in plain PyTorch ({choice.reason}); force=True replaces it all the same"


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
    if cls is not old:  # parametrized: a class made for this module, with a property for each weight
        members = {name: value for name, value in vars(cls).items() if name not in ("__dict__", "__weakref__")}
        new = type(f"Parametrized{new.__name__}", (new,), members)
    module.__class__ = new
    # torch.nn's list of weights for cuDNN, which goes stale where nobody reads it; rnnkern has a property in its place.
    vars(module).pop("_flat_weights", None)
    if isinstance(module, RNNBase) and not isinstance(module, RecurrentBase):
        with torch.no_grad():
            module._init_flat_weights()


def _path(cls: type) -> str:
    """As a user imports it."""
    if cls in OURS:
        return f"torch.nn.{cls.__name__}"
    if cls in TORCHS:
        return f"rnnkern.nn.{cls.__name__}"
    return f"{cls.__module__}.{cls.__qualname__}"
