"""Which operators of rnnkern run in a call, and with which arguments."""

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only


class _Recorder(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, tuple]] = []

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        if operator.namespace == "rnnkern":
            self.calls.append((operator, tree_map_only(torch.Tensor, torch.Tensor.detach, args)))
        return operator(*args, **(kwargs or {}))


def recorded(call: Callable[[], Any]) -> list[tuple[Any, tuple]]:
    """The operators that run during a call, in order, with their arguments."""
    with _Recorder() as recorder:
        call()
    return recorder.calls


FAST = ("test_schema", "test_autograd_registration", "test_faketensor")
"""The fast tests of opcheck; "test_aot_dispatch_dynamic" takes seconds."""


def opcheck(call: Callable[[], Any], *more: str) -> None:
    """Runs the fast tests of torch's opcheck, and others, on every operator that runs during a call."""
    for operator, args in recorded(call):
        torch.library.opcheck(operator, args, test_utils=(*FAST, *more))
