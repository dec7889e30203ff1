"""Gives layers complete signatures for editors, ``help()`` and notebooks, and reports unknown keywords."""

import difflib
import functools
import inspect
from typing import Any, TypedDict, TypeVar, get_args, get_type_hints

import torch

from rnnkern.nn.filters import Filter

Class = TypeVar("Class", bound=type)
"""Lets type checkers and editors see the decorated class itself."""


class SharedOptions(TypedDict, total=False):
    """Options of all recurrences: RNN, LSTM, GRU, GORU, Recurrent and their subclasses."""

    num_heads: int
    recurrent_dropout: float
    save_gates: bool | None


class StepOptions(SharedOptions, total=False):
    """Options of recurrences with one state."""

    zoneout: float


class StatesOptions(SharedOptions, total=False):
    """Options of recurrences with several states: one probability for all, or one for each."""

    zoneout: float | tuple[float, ...]


class LayerOptions(StepOptions, total=False):
    """Options that subclasses of a torch.nn replacement pass on to it."""

    batch_first: bool
    dropout: float
    bidirectional: bool
    device: Any
    dtype: torch.dtype | None


class RNNOptions(LayerOptions, total=False):
    """Options of :class:`rnnkern.nn.RNN`."""

    nonlinearity: str
    bias: bool
    filter: Filter | None


class RebasedOptions(RNNOptions, total=False):
    """Options of layers whose orthogonal weight has a base."""

    base: str
    rebase_every: int


class ExpRNNOptions(RebasedOptions, total=False):
    """Options of :class:`rnnkern.nn.ExpRNN`."""

    init: str


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
    """Class decorator. If ``__init__`` ends with ``**options: Unpack[Options]``, its signature shows the keys of the
    TypedDict ``Options``, with the defaults that they have in the base classes. An unknown keyword raises TypeError
    with the name of the class and similar option names."""
    init = cls.__init__
    own = inspect.signature(init)
    *parameters, last = own.parameters.values()
    if last.kind is last.VAR_KEYWORD:
        bases = [inspect.signature(base.__init__).parameters for base in reversed(cls.__mro__[1:])]
        inherited = {name: parameter for base in bases for name, parameter in base.items()}
        for name, annotation in get_type_hints(*get_args(last.annotation)).items():
            parameters.append(inherited[name].replace(kind=last.KEYWORD_ONLY, annotation=annotation))
    else:
        parameters.append(last)
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
