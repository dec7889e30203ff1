"""Steps of stacked layers on a CPU, from weights that are packed once and a state that the kernel keeps."""

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

_operators = torch.ops.rnnkern


def pack(cell: str, x: Tensor, layers: Sequence[dict[str, Any]]) -> Tensor:
    """The packed weights of stacked layers, which any number of streams can share.

    Args:
        cell: name of a cell.
        x: a tensor like the input of one step, (1, B, I), on a CPU.
        layers: for each layer the arguments of :func:`rnnkern.ops.recurrence`: ``R``, ``state``, ``bias``, ``params``,
            ``weight_ih``, ``bias_ih`` and ``zoneout``. The states tell their shapes, (B, H).
    """
    R, weight_ih, bias, bias_ih = (
        [layer[name] for layer in layers if layer[name] is not None] for name in ("R", "weight_ih", "bias", "bias_ih")
    )
    states, params = ([x for layer in layers for x in layer[name]] for name in ("state", "params"))
    rates, _ = noise(layers[0].get("zoneout", 0.0), 0.0, None, len(layers[0]["state"]), x)
    zoneout, parts = operator_rates(rates)[0], _extension.bfloat16_parts()
    return _operators.recurrence_pack.default(
        cell, x, R, states, bias or None, params or None, weight_ih, bias_ih or None, zoneout, parts
    )


def stream(pack: Tensor, shapes: Sequence[torch.Size]) -> tuple[Callable[[Tensor], Tensor], list[Tensor]]:
    """A stream, from states of zeros.

    Args:
        pack: what :func:`pack` returned.
        shapes: the shapes of the states of all layers, in order.

    Returns:
        A function that computes the next step from x (B, I), or the next steps from (T, B, I), without gradients; and
        the states, which it reads and writes: float64, or float32 for all other dtypes.
    """
    memory = _operators.recurrence_stream.default(pack)
    states, at = [], HEAD // memory.element_size()
    for shape in shapes:
        states.append(memory[at : at + shape.numel()].view(shape))
        at += shape.numel()
    return partial(_operators.recurrence_stream_step.default, memory, pack), states
