"""Counts the steps of all torch.optim optimizers and notifies listeners.

Several threads may train and create modules concurrently, so shared data is changed only by atomic operations.
"""

import itertools
import threading
from typing import Any, Protocol
from weakref import WeakValueDictionary

import torch
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook


class Listener(Protocol):
    def stepped(self, optimised: set[int]) -> None:
        """Called after a step with the ids of the parameters that the optimizer has."""


_numbers = itertools.count()
_count: int | None = None
_beginning = threading.Lock()
_listeners: WeakValueDictionary[int, Listener] = WeakValueDictionary()


def count() -> int:
    """The number of the latest step, counted from the first call on. It is unique for each step."""
    global _count
    if _count is None:
        with _beginning:
            if _count is None:
                register_optimizer_step_post_hook(_after_step)
                _count = next(_numbers)
    return _count


def listen(listener: Listener) -> None:
    count()
    _listeners[id(listener)] = listener


@torch.compiler.disable
def _after_step(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    global _count
    _count = next(_numbers)
    listeners = [listener for found in _listeners.valuerefs() if (listener := found()) is not None]
    if listeners:
        optimised = {id(p) for group in optimizer.param_groups for p in group["params"]}
        for listener in listeners:
            listener.stepped(optimised)
