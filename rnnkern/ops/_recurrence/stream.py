"""Steps of stacked layers on a CPU, from weights that the kernel packs once and a state that it keeps."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from rnnkern import _extension
from rnnkern.ops._recurrence.autograd import operator_rates
from rnnkern.ops._recurrence.checks import noise

HEAD = 128
"""Bytes of a stream before its states; csrc/recurrence/cpu/stream_operators.cpp decides it."""


def packed(cell: str, x: Tensor, layers: Sequence[dict[str, Any]]) -> tuple[Callable[[Tensor], Tensor], list[Tensor]]:
    """Packs the weights of stacked layers.

    Args:
        cell: name of a cell.
        x: a tensor like the input of one step, (1, B, I), on a CPU.
        layers: for each layer the arguments of :func:`rnnkern.ops.recurrence`: ``R``, ``state``, ``bias``, ``params``,
            ``weight_ih``, ``bias_ih`` and ``zoneout``. The states tell only their shapes; a stream begins with zeros.

    Returns:
        A function that computes the next step from x (B, I), or the next steps from (T, B, I), without gradients; and
        the states of all layers, in order, which it reads and writes: float64, or float32 for all other dtypes.
    """
    states = [s for layer in layers for s in layer["state"]]
    lists = {
        name: [layer[name] for layer in layers if layer[name] is not None]
        for name in ("R", "bias", "weight_ih", "bias_ih")
    }
    rates, _ = noise(layers[0].get("zoneout", 0.0), 0.0, None, len(layers[0]["state"]), x)
    stream = torch.ops.rnnkern.recurrence_stream.default(
        cell, x, lists["R"], states, lists["bias"] or None, [p for layer in layers for p in layer["params"]] or None,
        lists["weight_ih"], lists["bias_ih"] or None, operator_rates(rates)[0], _extension.bfloat16_parts(),
    )  # fmt: skip
    views, at = [], HEAD // stream.element_size()
    for s in states:
        views.append(stream[at : at + s.numel()].view(s.shape))
        at += s.numel()
    return partial(torch.ops.rnnkern.recurrence_stream_step.default, stream), views
