"""Gives layers complete signatures for editors, ``help()`` and notebooks, and reports unknown keywords."""

import difflib
import functools
import inspect
from typing import Any, TypedDict, TypeVar

import torch

from rnnkern.nn.filters import Filter

Class = TypeVar("Class", bound=type)
"""Lets type checkers and editors see the decorated class itself."""


class LayerOptions(TypedDict, total=False):
    """Options that subclasses of a torch.nn replacement pass on to it."""

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
    """Options of :class:`rnnkern.nn.RNN`."""

    nonlinearity: str
    filter: Filter | None


class ExpRNNOptions(RNNOptions, total=False):
    """Options of :class:`rnnkern.nn.ExpRNN`."""

    init: str
    base: str
    rebase_every: int
    bias: bool


class LSTMOptions(LayerOptions, total=False):
    """Options of :class:`rnnkern.nn.LSTM`."""

    bias: bool
    proj_size: int
    layer_norm: bool
    recurrent_grad_dropout: float


class MemoryOptions(TypedDict, total=False):
    """Options of all layers that attend to their past states."""

    combine: str
    alignment: str
    num_heads: int
    output: str
    bias: bool
    batch_first: bool
    device: Any
    dtype: torch.dtype | None


class RelevancyOptions(MemoryOptions, total=False):
    """Options of layers that attend to a bounded number of past states."""

    buffer_size: int
    relevant_size: int
    relevance: str


def with_options(cls: Class) -> Class:
    """Class decorator. If ``__init__`` ends with ``**options``, its signature shows the parameters of the base class
    instead, except those in ``_sets``, which the class sets itself. An unknown keyword raises TypeError with the name
    of the class and similar option names."""
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
                known = f"did you mean {' or '.join(near)}?" if near else f"available: {', '.join(names)}"
                raise TypeError(f"{type(self).__name__}: unknown argument `{name}`; {known}")
        init(self, *args, **kwargs)

    checked.__signature__ = own.replace(parameters=parameters)
    cls.__init__ = checked
    return cls
