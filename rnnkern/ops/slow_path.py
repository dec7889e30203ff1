"""Warns once per reason if a call runs in the slow reference implementation although a kernel could run it."""

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
    """Context manager that suppresses the warning while this thread only queries which implementation a call would
    use."""
    before = getattr(_this_thread, "asks", False)
    _this_thread.asks = True
    try:
        yield
    finally:
        _this_thread.asks = before


@constant_when_compiled  # while torch.compile traces a call, this runs once, untraced
def warn_once(operator: str, refusals: Sequence[str | None]) -> None:
    """Warns if the user can remove one of the reasons why no kernel runs the call."""
    why = next((why for why in refusals if why in _extension.remedies), None)
    if why is None or getattr(_this_thread, "asks", False):
        return
    with _lock:
        if why in _said:
            return
        _said.add(why)
    warnings.warn(
        f"{operator} runs in plain PyTorch, many times slower than rnnkern's kernel: {why}. To fix this: "
        f"{_extension.remedies[why]}. To silence this warning, call inside `with rnnkern.use('reference')`.",
        _extension.PerformanceWarning,
        stacklevel=level_of_caller(),
    )


def level_of_caller() -> int:
    """The ``stacklevel`` of the first frame that belongs neither to rnnkern nor to PyTorch and its decorators."""
    frames = traceback.walk_stack(sys._getframe(1))
    packages = (frame.f_globals.get("__name__", "").partition(".")[0] for frame, _ in frames)
    between = ("rnnkern", "torch", "typing_extensions", "warnings")
    return next((level for level, package in enumerate(packages, 1) if package not in between), 1)
