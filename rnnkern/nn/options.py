"""Signatures that editors, ``help()`` and notebooks show in full, and keywords that are no option named."""

import difflib
import functools
import inspect
from typing import Any, TypedDict, TypeVar

import torch

from rnnkern.nn.filters import Filter

Class = TypeVar("Class", bound=type)
"""Type checkers and editors see the decorated class itself."""


class LayerOptions(TypedDict, total=False):
    """What classes derived from a layer that stands in for one of torch.nn pass on to it."""

    batch_first: bool
    dropout: float
    bidirectional: bool
    device: Any
    dtype: torch.dtype | None
    num_heads: int
    zoneout: float | tuple[float, float]
    recurrent_dropout: float
    save_gates: bool | None


class RNNOptions(LayerOptions, total=False):
    """Of :class:`rnnkern.nn.RNN`."""

    nonlinearity: str
    filter: Filter | None


class LSTMOptions(LayerOptions, total=False):
    """Of :class:`rnnkern.nn.LSTM`."""

    bias: bool
    proj_size: int
    layer_norm: bool
    recurrent_grad_dropout: float


class MemoryOptions(TypedDict, total=False):
    """Of layers that attend to their past, however much of it."""

    combine: str
    alignment: str
    output: str
    bias: bool
    batch_first: bool
    device: Any
    dtype: torch.dtype | None


class RelevancyOptions(MemoryOptions, total=False):
    """Of layers that attend to a bounded part of their past."""

    buffer_size: int
    relevant_size: int
    relevance: str


def with_options(cls: Class) -> Class:
    """Decorates a class. Where its ``__init__`` ends with ``**options``, its signature has the base's parameters in
    their place, but for those that the class ``_sets`` itself; a keyword that is none of them raises TypeError with the
    class and the nearest names that there are."""
    init = cls.__init__
    own = inspect.signature(init)
    parameters = [p for p in own.parameters.values() if p.kind is not p.VAR_KEYWORD]
    if len(parameters) < len(own.parameters):
        base = inspect.signature(cls.__mro__[1].__init__).parameters
        missing = [p for name, p in base.items() if name not in own.parameters]
        own_choice = cls.__dict__.get("_sets", ())
        parameters += [p.replace(kind=p.KEYWORD_ONLY) for p in missing if p.name not in own_choice]
    names = [p.name for p in parameters[1:]]

    @functools.wraps(init)
    def checked(self, *args, **kwargs) -> None:
        for name in kwargs:
            if name not in names:
                near = [f"`{n}`" for n in difflib.get_close_matches(name, names)]
                known = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(names)}"
                raise TypeError(f"{type(self).__name__}: unknown argument `{name}`; {known}")
        init(self, *args, **kwargs)

    checked.__signature__ = own.replace(parameters=parameters)
    cls.__init__ = checked
    return cls
