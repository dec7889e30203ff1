"""Steps of stacked layers on a CPU, from weights that are packed once and a state that the kernel keeps."""

import threading
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary, WeakValueDictionary

import torch
from torch import Tensor

from rnnkern import _extension
from rnnkern.ops._recurrence.autograd import operator_rates
from rnnkern.ops._recurrence.checks import noise

HEAD = 128
"""Bytes of a stream before its states; csrc/recurrence/cpu/stream_operators.cpp decides it."""

_operators = torch.ops.rnnkern

WEIGHTS = ("R", "weight_ih", "bias", "bias_ih", "params")


class Pack:
    """The packed weights of stacked layers.

    Args:
        cell: name of a cell.
        x: a tensor like the input of one step, (1, B, I), on a CPU.
        layers: for each layer the arguments of :func:`rnnkern.ops.recurrence`: ``R``, ``state``, ``bias``, ``params``,
            ``weight_ih``, ``bias_ih`` and ``zoneout``. The states tell their shapes, (B, H).
    """

    def __init__(self, cell: str, x: Tensor, layers: Sequence[dict[str, Any]]) -> None:
        R, weight_ih, bias, bias_ih, params = (_listed(layers, name) for name in WEIGHTS)
        states = _listed(layers, "state")
        rates, _ = noise(layers[0].get("zoneout", 0.0), 0.0, None, len(layers[0]["state"]), x)
        zoneout, parts = operator_rates(rates)[0], _extension.bfloat16_parts()
        self._memory = _operators.recurrence_pack.default(
            cell, x, R, states, bias or None, params or None, weight_ih, bias_ih or None, zoneout, parts
        )
        self._shapes = [state.shape for state in states]
        self._weights = [weight.clone() for name in WEIGHTS for weight in _listed(layers, name)]

    def is_of(self, layers: Sequence[dict[str, Any]]) -> bool:
        """Whether the weights still have the values that were packed."""
        now = [weight for name in WEIGHTS for weight in _listed(layers, name)]
        return len(now) == len(self._weights) and all(map(torch.equal, now, self._weights))

    def stream(self) -> tuple[Callable[[Tensor], Tensor], list[Tensor]]:
        """A new stream.

        Returns:
            A function that computes the next step from x (B, I), or the next steps from (T, B, I), without gradients;
            and the states of all layers, now zeros, which it reads and writes: float64, or float32 for all other
            dtypes.
        """
        memory = _operators.recurrence_stream.default(self._memory)
        states, at = [], HEAD // memory.element_size()
        for shape in self._shapes:
            states.append(memory[at : at + shape.numel()].view(shape))
            at += shape.numel()
        return partial(_operators.recurrence_stream_step.default, memory, self._memory), states


_packs: WeakKeyDictionary[Any, WeakValueDictionary[Hashable, Pack]] = WeakKeyDictionary()
"""By layer, and by what they depend on besides the weights."""
_packing = threading.Lock()


def shared_pack(owner: Any, cell: str, x: Tensor, layers: Sequence[dict[str, Any]]) -> Pack:
    """The :class:`Pack` of a layer, ``owner``, which is shared as long as a caller holds it."""
    key = cell, layers[0].get("zoneout"), x.shape, x.dtype, torch.get_num_threads(), _extension.bfloat16_parts()
    with _packing:  # or threads that begin at the same time would pack the same weights
        packs = _packs.setdefault(owner, WeakValueDictionary())
        pack = packs.get(key)
        if pack is None or not pack.is_of(layers):
            packs[key] = pack = Pack(cell, x, layers)
        return pack


def _listed(layers: Sequence[dict[str, Any]], name: str) -> list[Tensor]:
    """The tensors with a name of all layers."""
    found = [layer[name] for layer in layers if layer[name] is not None]
    return [x for given in found for x in (given if isinstance(given, (tuple, list)) else (given,))]
