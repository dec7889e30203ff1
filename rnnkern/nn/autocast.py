"""torch.autocast at the door of the operator, which takes one dtype for all its arguments."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import RNNBase

from rnnkern.ops._recurrence.recurrence import Recomputed


def cast(x: Tensor, *calls: dict[str, Any]) -> tuple[Any, ...]:
    """The input and the operator's other arguments, of each recurrence, in autocast's dtype where it is on, as
    torch.nn's weights and state are."""
    device = x.device.type
    if x.is_meta or not torch.is_autocast_enabled(device) or x.dtype == torch.float64:
        return x, *calls
    dtype = torch.get_autocast_dtype(device)

    def to(value):
        if isinstance(value, tuple):
            return tuple(map(to, value))
        if isinstance(value, dict):
            return {name: to(item) for name, item in value.items()}
        return value.to(dtype) if isinstance(value, Tensor) and value.is_floating_point() else value

    return to((x, *calls))


def recomputed(function: Callable[..., Tensor], x: Tensor, *tensors: Tensor | None) -> bool | Recomputed:
    """The operator's ``save_u`` for u = function(x, *tensors), which need not be kept. Under autocast it is: computed
    again outside it, u would be of another dtype."""
    return torch.is_autocast_enabled(x.device.type) or Recomputed(function, (x, *tensors))


def cast_results(
    module: RNNBase, packed: bool, given: torch.dtype, output: Tensor, hidden: Sequence[Tensor]
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Output and final state in the dtypes that torch.nn has for them.

    On a CPU some of torch.nn's sums are in the dtype of the initial state, ``given``, if that is the wider one:
    all of a GRU, a packed LSTM's but for a projected h, a projected LSTM's c. All else is in autocast's dtype.
    """
    if not torch.is_autocast_enabled("cpu") or not output.is_cpu or output.dtype == torch.float64:
        return output, tuple(hidden)
    lstm, projected = module.mode == "LSTM", module.proj_size > 0
    wide = torch.promote_types(given, output.dtype)
    h = wide if module.mode == "GRU" or (lstm and packed and not projected) else output.dtype
    c = wide if packed or projected else output.dtype
    plain = 2 if lstm else 1  # what a filter keeps is as it is
    return output.to(h), (*(s.to(dtype) for s, dtype in zip(hidden[:plain], (h, c), strict=False)), *hidden[plain:])


def cast_state(cell: str, given: torch.dtype, state: Sequence[Tensor]) -> list[Tensor]:
    """As :func:`cast_results`, the results of one step by one of torch.nn's cells."""
    if torch.is_autocast_enabled("cpu") and state[0].is_cpu and cell in ("lstm", "gru"):
        given = torch.promote_types(given, state[0].dtype)
        return [s.to(given) for s in state]
    return list(state)
