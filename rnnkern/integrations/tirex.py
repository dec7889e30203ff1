"""Makes TiRex (tirex-ts), which forecasts time series with sLSTMs, faster on a CPU."""

import functools

import torch
from torch import Tensor

from rnnkern import cells, ops


def patch(model: torch.nn.Module) -> int:
    """Makes a TiRex model run its sLSTMs by rnnkern, with one call per sequence instead of a loop over time.

    Inputs and states are float32, where the loop of tirex-ts rounds them to bfloat16 at each step. So forecasts are
    those of the loop in float32, and differ from the published ones by the rounding. Parameters do not change.
    Tested with tirex-ts 1.4.2.

    Args:
        model: a model that ``tirex.load_model`` returned, with ``backend="torch"``; it is changed in place.

    Returns:
        The number of sLSTMs that were changed.

    Raises:
        ValueError: ``model`` has no sLSTM of tirex-ts, or one whose backend is ``"cuda"``.
    """
    found = [module for module in model.modules() if hasattr(module, "_impl_torch")]
    if not found:
        raise ValueError(f"patch: `model` must have sLSTMs of tirex-ts, got {type(model).__name__} without one")
    if any(cell.backend != "torch" for cell in found):
        raise ValueError("patch: `model` must have been loaded with backend='torch', got backend='cuda'")
    for cell in found:
        cell._impl_torch = functools.partial(_forward, cell)
    return len(found)


def _forward(cell: torch.nn.Module, x: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
    """As the sLSTM's method: x (T, B, 4, K, D) is the input of K heads to the gates i, f, z and o, and states
    (4, B, K*D) are h, c, n and m. Returns all h (T, B, K*D) and the last states. Without a past n is 0, and m begins
    with the first i."""
    R, bias = cell._recurrent_kernel_.float(), cell._bias_.float()  # (K, D, 4*D) and (K*4*D)
    bias = bias.view(x.shape[3], 4, -1).transpose(0, 1).flatten()
    h, c, n, m = states.float()
    state = h, c, n, m.where(n != 0, -torch.inf)
    output, last = ops.recurrence(cells.slstm, x.flatten(2).float(), R.transpose(1, 2).contiguous(), state, bias=bias)
    return output, torch.stack(last)
