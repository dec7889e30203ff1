"""Steps of optimisers of torch.optim's base class: how many there were, and who wants to hear of them."""

from typing import Any, Protocol
from weakref import WeakSet

import torch
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook


class Listener(Protocol):
    def stepped(self, optimised: set[int]) -> None:
        """Hears of the ids of the parameters that an optimiser has."""


_count: int | None = None
_listeners: WeakSet[Listener] = WeakSet()


def count() -> int:
    """Since the first call."""
    global _count
    if _count is None:
        _count = 0
        register_optimizer_step_post_hook(_after_step)
    return _count


def listen(listener: Listener) -> None:
    count()
    _listeners.add(listener)


@torch.compiler.disable
def _after_step(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    global _count
    _count += 1
    if _listeners:
        optimised = {id(p) for group in optimizer.param_groups for p in group["params"]}
        for listener in list(_listeners):
            listener.stepped(optimised)
