"""Options that a class passes on to its base: typed for editors, listed in its signature, unknown ones named."""

import difflib
import functools
import inspect
from typing import Any, TypedDict, TypeVar, get_args

import torch

from rnnkern.nn.filters import Filter

Class = TypeVar("Class", bound=type)


class LayerOptions(TypedDict, total=False):
    """What RNN, LSTM and GRU share, but for ``filter``."""

    bias: bool
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
    """Of :class:`rnnkern.nn.RNN`, for the classes derived from it."""

    nonlinearity: str
    filter: Filter | None


def with_all_options(cls: Class) -> Class:
    """Decorates a class, whose ``__init__`` may end with ``**options: Unpack[...]`` for its base.

    Its signature, as ``help()`` and notebooks show it, lists those options with the base's defaults in the place of
    ``**options``. A keyword that is not in the signature raises TypeError with the class and the nearest names.
    """
    init = cls.__init__
    own = inspect.signature(init)
    listed = [p for p in own.parameters.values() if p.kind is not p.VAR_KEYWORD]
    for rest in (p for p in own.parameters.values() if p.kind is p.VAR_KEYWORD):
        (typed,) = get_args(rest.annotation)
        base = inspect.signature(cls.__mro__[1].__init__).parameters
        names = [name for name in typed.__annotations__ if name not in own.parameters]
        listed += [base[name].replace(kind=inspect.Parameter.KEYWORD_ONLY) for name in names]
    signature = own.replace(parameters=listed)

    @functools.wraps(init)
    def checked(self, *args, **kwargs) -> None:
        for name in kwargs:
            if name not in signature.parameters:
                raise TypeError(_unknown(type(self).__name__, name, list(signature.parameters)[1:]))
        init(self, *args, **kwargs)

    checked.__signature__ = signature
    cls.__init__ = checked
    return cls


def _unknown(owner: str, name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, known)
    hint = f"did you mean {' or '.join(f'`{n}`' for n in near)}?" if near else f"it takes {', '.join(known)}"
    return f"{owner}: unknown argument `{name}`; {hint}"
