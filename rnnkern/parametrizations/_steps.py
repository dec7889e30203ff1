"""Hook after the steps of all torch.optim optimizers, which moves dynamic bases and warns of unsuitable rates.

Several threads may train and create modules concurrently, so shared data is changed only by atomic operations.
"""

import itertools
import threading
import warnings
from typing import Any
from weakref import WeakSet, WeakValueDictionary

import torch
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from rnnkern._torch_private import disable_when_called

_numbers = itertools.count()
_count: int | None = None
_beginning = threading.Lock()
_listeners: WeakValueDictionary[int, Any] = WeakValueDictionary()
_rotating: WeakValueDictionary[int, Any] = WeakValueDictionary()
_examined: WeakSet[Optimizer] = WeakSet()
_warned = False


def count() -> int:
    """The number of the latest step, counted from the first call on. It is unique for each step."""
    global _count
    if _count is None:
        with _beginning:
            if _count is None:
                register_optimizer_step_post_hook(_after_step)
                _count = next(_numbers)
    return _count


def listen(listener: Any) -> None:
    """Has ``listener.stepped`` called after each step, with the ids of the parameters that the optimizer has."""
    count()
    _listeners[id(listener)] = listener


def watch(parametrization: Any) -> None:
    """Has the rate of the parameters behind an orthogonal weight examined at the first step of an optimizer."""
    _rotating[id(parametrization)] = parametrization


def _examine(optimizer: Optimizer) -> None:
    """Warns, once per process, if a parameter behind an orthogonal weight is in one group with other parameters, so
    that it cannot have its own rate. LBFGS supports only one group."""
    global _warned
    if _warned or optimizer in _examined or isinstance(optimizer, torch.optim.LBFGS):
        return
    _examined.add(optimizer)
    # The originals are read once: a module that nothing else refers to may be collected at any time.
    found = [(p.rotating, p.originals) for ref in _rotating.valuerefs() if (p := ref()) is not None]
    rotating = {id(originals[k]) for which, originals in found if originals for k in which}
    for group in optimizer.param_groups:
        inside = [id(p) in rotating for p in group["params"]]
        if any(inside) and not all(inside):
            _warned = True
            warnings.warn(
                f"{type(optimizer).__name__}: parameters behind orthogonal weights train at the learning rate of all "
                "others; pass rnnkern.optim.param_groups(model, lr) instead of model.parameters() to give them a tenth "
                "of it and no weight decay",
                stacklevel=4,
            )
            return


@disable_when_called
def _after_step(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    global _count
    _count = next(_numbers)
    _examine(optimizer)
    listeners = [listener for found in _listeners.valuerefs() if (listener := found()) is not None]
    if listeners:
        optimised = {id(p) for group in optimizer.param_groups for p in group["params"]}
        for listener in listeners:
            listener.stepped(optimised)
