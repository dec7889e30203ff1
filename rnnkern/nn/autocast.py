"""Casts arguments and results as torch.autocast does, because operators need all their arguments in one dtype."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import RNNBase

from rnnkern.ops._recurrence.recurrence import Recomputed
from rnnkern.ops.dispatch import autocasts


def cast(x: Tensor, *calls: dict[str, Any]) -> tuple[Any, ...]:
    """Casts the input and the other arguments of each recurrence to the autocast dtype if autocast is enabled, as
    torch.nn casts weights and state."""
    device = x.device.type
    if not autocasts(device) or x.dtype == torch.float64:
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
    """The operator's ``save_u`` for u = function(x, *tensors): u is recomputed instead of saved. Under autocast u is
    saved, because outside of autocast it would be recomputed in another dtype."""
    return autocasts(x.device.type) or Recomputed(function, (x, *tensors))


def cast_results(
    module: RNNBase, packed: bool, given: torch.dtype, output: Tensor, hidden: Sequence[Tensor]
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Casts output and final state to the dtypes that torch.nn returns.

    On a CPU, torch.nn computes some sums in the dtype of the initial state, ``given``, if that is the wider one: all
    results of a GRU, those of a packed LSTM except a projected h, and the c of a projected LSTM. All other results have
    the autocast dtype.
    """
    if not torch.is_autocast_enabled("cpu") or not output.is_cpu or output.dtype == torch.float64:
        return output, tuple(hidden)
    lstm, projected = module.mode == "LSTM", module.proj_size > 0
    wide = torch.promote_types(given, output.dtype)
    h = wide if module.mode == "GRU" or (lstm and packed and not projected) else output.dtype
    c = wide if packed or projected else output.dtype
    plain = 2 if lstm else 1  # the state of a filter keeps its dtype
    return output.to(h), (*(s.to(dtype) for s, dtype in zip(hidden[:plain], (h, c), strict=False)), *hidden[plain:])


def cast_state(cell: str, given: torch.dtype, state: Sequence[Tensor]) -> list[Tensor]:
    """Like :func:`cast_results`, for one step of a torch.nn cell."""
    if torch.is_autocast_enabled("cpu") and state[0].is_cpu and cell in ("lstm", "gru"):
        given = torch.promote_types(given, state[0].dtype)
        return [s.to(given) for s in state]
    return list(state)
