"""The CUDA kernels that a call would launch: explain reports them and rnnkern.precompile compiles them."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from rnnkern import _compiler, _extension
from rnnkern.ops.dispatch import Choice

Facts = tuple[int, ...]
"""Facts of a device, as :func:`rnnkern._extension.device_facts` returns them."""


class Wanted(NamedTuple):
    """The device facts and the dtype that kernels are collected for."""

    facts: Facts
    dtype: torch.dtype | None  # replaces that of a call
    found: set[tuple[str, str]]  # headers and types


_this_thread = threading.local()


@contextmanager
def collecting(facts: Facts, dtype: torch.dtype | None) -> Iterator[set[tuple[str, str]]]:
    """Context manager. Inside the block, explaining a call on any device adds the kernels that it would launch on a
    device with these facts."""
    wanted = _this_thread.wanted = Wanted(facts, dtype, set())
    try:
        yield wanted.found
    finally:
        _this_thread.wanted = None


def told(
    choice: Choice, device: torch.device, dtype: torch.dtype, plan: Callable[[str, Facts, bool], str],
    say: Callable[[dict[str, Any]], str],
) -> Choice:  # fmt: skip
    """Adds to a choice which CUDA kernel runs the call, why, and whether it is compiled.

    Args:
        choice: the choice for the call.
        device, dtype: device and dtype of the tensors.
        plan: function of the name of the dtype, the facts of the device and whether TF32 is allowed; it returns the
            plan as JSON.
        say: function that describes the plan in words.
    """
    if wanted := getattr(_this_thread, "wanted", None):
        for tf32 in (False, True):
            planned = json.loads(plan(name_of(wanted.dtype or dtype), wanted.facts, tf32))
            wanted.found.update(map(tuple, planned["programs"]))
    if choice.implementation != "cuda":
        return choice
    facts = _extension.device_facts(device)
    if facts is None:
        return choice._replace(reason=f"{choice.reason}; the CUDA variant is chosen at run time; no device found")
    planned = json.loads(plan(name_of(dtype), facts, _extension.allows_tf32()))
    compiled = _compiled(planned["programs"], _compiler.arch_of(facts[:2]))
    return choice._replace(reason=f"{choice.reason}: {say(planned)}; {compiled}")


def name_of(dtype: torch.dtype) -> str:
    """The name of a dtype as the operators use it."""
    return str(dtype).removeprefix("torch.")


def _compiled(programs: list[list[str]], arch: str) -> str:
    waiting = sum(not _compiler.is_compiled(_compiler.Program(*program, arch)) for program in programs)
    if not waiting:
        return "compiled already"
    compiler = _compiler.nvrtc()
    by = f"; compiler: NVRTC {compiler.version} {compiler.path}" if compiler else f"; {_compiler.LIBRARY} was not found"
    return f"{waiting} of {len(programs)} kernels are not compiled yet{by}"
