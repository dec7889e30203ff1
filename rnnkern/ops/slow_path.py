"""Says once per reason that the reference serves a call which a kernel could have served."""

import sys
import threading
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rnnkern import _extension
from rnnkern._torch_private import constant_when_compiled

_lock = threading.Lock()
_said: set[str] = set()
_this_thread = threading.local()


@contextmanager
def asking() -> Iterator[None]:
    """Inside, an implementation is asked for and not taken, by this thread: nothing is slow yet."""
    before = getattr(_this_thread, "asks", False)
    _this_thread.asks = True
    try:
        yield
    finally:
        _this_thread.asks = before


@constant_when_compiled  # while torch.compile traces a call, this runs once, as it stands
def warn_once(operator: str, refusals: Sequence[str | None]) -> None:
    """Warns if one of the reasons why no kernel serves the call is one that the user can do something about."""
    why = next((why for why in refusals if why in _extension.remedies), None)
    if why is None or getattr(_this_thread, "asks", False):
        return
    with _lock:
        if why in _said:
            return
        _said.add(why)
    warnings.warn(
        f"{operator} runs as plain PyTorch, many times slower than rnnkern's kernel: {why}. To change that: "
        f"{_extension.remedies[why]}. To keep it, without this warning: rnnkern.use('reference')",
        _extension.PerformanceWarning,
        stacklevel=_level_of_caller(),
    )


def _level_of_caller() -> int:
    """warnings' stacklevel of the first line that is neither rnnkern's nor PyTorch's."""
    frames = traceback.walk_stack(sys._getframe(1))
    packages = (frame.f_globals.get("__name__", "").partition(".")[0] for frame, _ in frames)
    return next((level for level, package in enumerate(packages, 1) if package not in ("rnnkern", "torch")), 1)
