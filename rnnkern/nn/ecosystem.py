"""Defines how layers appear when they are printed, explained, traced by torch.fx and quantized."""

import inspect
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Proxy
from torch.nn import Module
from torch.nn.utils.parametrize import type_before_parametrizations

from rnnkern.ops import Choice
from rnnkern.ops.dispatch import level_of_caller


class Unquantized(Module):
    """Base class of the layers whose weights quantization does not reach."""

    @property
    def qconfig(self) -> Any:
        """Quantization sets it for every module of a model, to None for those it does not know. It has no effect here,
        and setting it warns."""
        return self._qconfig

    @qconfig.setter
    def qconfig(self, value: Any) -> None:
        self._qconfig = value
        cls = type_before_parametrizations(self)
        ours = cls.__module__.startswith("rnnkern.nn.")
        why = "torch.nn has no such layer to quantize"
        if ours and hasattr(torch.nn, cls.__name__):
            why = "only torch.nn's layers can be quantized; call rnnkern.restore(model) first"
        name = f"rnnkern.nn.{cls.__name__}" if ours else cls.__name__
        warnings.warn(f"{name} stays in floating point: {why}", stacklevel=level_of_caller())

    @qconfig.deleter
    def qconfig(self) -> None:
        del self._qconfig


def spelled(module: Module) -> str:
    """The name that a printed model shows; it tells modules of this package from those of torch.nn with the same
    name."""
    ours = type_before_parametrizations(module).__module__.startswith("rnnkern.nn.")
    return f"{'rnnkern.nn.' if ours else ''}{type(module).__name__}"


def shown(module: Module, plain: dict[str, Any], form: Callable[[Any], str] = str) -> str:
    """The options of a module whose values differ from their defaults in ``plain``, for ``extra_repr``."""
    given = {name: getattr(module, name, default) for name, default in plain.items()}
    return "".join(f", {name}={form(value)}" for name, value in given.items() if value != plain[name])


def said_per_layer(choices: list[Choice], bidirectional: bool) -> list[Choice]:
    """Begins each reason with its layer and direction, if there are several, for :func:`rnnkern.ops.explain`."""
    if len(choices) == 1:
        return choices
    directions = (", forward direction", ", reverse direction") if bidirectional else ("",)
    places = [f"layer {layer}{way}" for layer in range(len(choices) // len(directions)) for way in directions]
    return [choice._replace(reason=f"{place}: {choice.reason}") for place, choice in zip(places, choices, strict=True)]


def refuse_or_trace(layer: Module, unknown: dict[str, Any], *args: Any) -> Proxy:
    """What the ``forward`` of a recurrent layer does if it cannot run: refuses unknown keywords, or is a leaf."""
    if isinstance(unknown, Proxy) or not unknown:  # a Proxy if the layer itself is traced
        return as_leaf(layer, *args)
    parameters = inspect.signature(layer.forward).parameters.values()
    known = [p.name for p in parameters if p.kind is not p.VAR_KEYWORD]
    hint = ""
    if "reset" in known:
        packed = "a PackedSequence (torch.nn.utils.rnn.pack_padded_sequence)"
        hint = f"; pass sequences of different lengths as {packed}, and mark the first steps of new episodes in `reset`"
    name = type_before_parametrizations(layer).__name__
    raise TypeError(f"{name}: unknown argument `{next(iter(unknown))}`; available: {', '.join(known)}{hint}")


def as_leaf(layer: Module, *args: Any) -> Proxy:
    """What ``forward`` returns while torch.fx traces a model symbolically: one call of the layer, as is recorded for
    layers of torch.nn.

    Args:
        layer: the layer.
        args: the arguments of its ``forward``, of which at least one is a Proxy.
    """
    tracer = next(x for x in args if isinstance(x, Proxy)).tracer
    path, leaf = tracer.path_of_module(layer), "use a torch.fx.Tracer whose is_leaf_module names the layer"
    refusals = {
        "trace a model that contains the layer, not the layer itself": not path,
        f"its forward hooks would run twice; {leaf}": layer._forward_hooks or layer._forward_pre_hooks,
        f"its forward is not that of rnnkern; {leaf}": not layer.forward.__module__.startswith("rnnkern.nn."),
    }
    if why := next((why for why, refused in refusals.items() if refused), None):
        raise NotImplementedError(f"{type(layer).__name__}: torch.fx cannot trace this call: {why}")
    while args[-1] is None:
        args = args[:-1]
    return tracer.create_proxy("call_module", path, args, {})
