"""Chooses the implementation of a call, explains the choice, and warns where the slow reference runs."""

import inspect
import json
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rnnkern import _compiler, _extension
from rnnkern._torch_private import constant_when_compiled, context_of_backward

IMPLEMENTATIONS = ("reference", "cpu", "cuda", "triton")


class _Forced(threading.local):
    """The implementation that :func:`use` forces in this thread."""

    def __init__(self) -> None:
        # Not a class attribute: torch.compile reads that as a constant and puts no guard on it.
        self.implementation: str | None = None


_forced = _Forced()
_forced_in_backward: ContextVar[str | None] = ContextVar("rnnkern.use", default=None)
"""The same value in a context variable, because autograd passes the context of the thread that starts a backward pass
to its worker threads. The thread-local copy is needed too, because torch.compile does not trace context variables."""


_lock = threading.Lock()
_said: set[str] = set()
_this_thread = threading.local()


class Choice(NamedTuple):
    """The implementation that a call uses, and the reason."""

    implementation: str
    """``"reference"``, ``"cpu"``, ``"cuda"`` or ``"triton"``; ``"unknown"`` for a layer without weights."""
    reason: str
    """Why this implementation: why the others cannot run the call, or what forces it."""


@contextmanager
def use(implementation: str) -> Iterator[None]:
    """Context manager that forces one implementation for every operator that this thread calls inside the block.

    It also applies to backward passes that start inside the block, including those on a GPU, which autograd runs in its
    own threads (except with torch 2.11, where GPU backward passes do not follow it). It does not apply to other
    threads, even if they are started inside the block.

    Args:
        implementation: ``"reference"``, ``"cpu"``, ``"cuda"`` or ``"triton"``.

    Raises:
        ValueError: the name is unknown, or, at a call inside the block, the implementation cannot run that call.
    """
    if implementation not in IMPLEMENTATIONS:
        raise ValueError(f"use: `implementation` must be one of {IMPLEMENTATIONS}, got {implementation!r}")
    before = _forced.implementation
    _force(implementation)
    try:
        yield
    finally:
        _force(before)


def _force(implementation: str | None) -> None:
    _forced.implementation = implementation
    if not torch.compiler.is_compiling():
        _forced_in_backward.set(implementation)


def choose(operator: str, refusals: dict[str, str | None]) -> Choice:
    """Returns the forced implementation, or else the first one without a refusal.

    Args:
        operator: name of the operator, for messages.
        refusals: for each implementation, in order of preference, the reason why it cannot run the call, or None if it
            can. The reference can run every call and need not be listed.
    """
    implementation = forced()
    if implementation is None:
        for name, why in refusals.items():
            if why is None:
                return Choice(name, f"the {name} kernel serves this call")
        warn_once(operator, tuple(refusals.values()))
        return Choice("reference", "; ".join(f"no {name}: {why}" for name, why in refusals.items()))
    missing = f"{operator} has no {implementation} kernel"
    why = None if implementation == "reference" else refusals.get(implementation, missing)
    if why is not None:
        raise ValueError(f"{operator}: use({implementation!r}) cannot serve this call: {why}")
    return Choice(implementation, f"forced by use({implementation!r})")


def autocasts(device: str) -> bool:
    """Whether autocast is enabled on a type of device; False for meta tensors, of which autocast knows nothing."""
    return device != "meta" and torch.is_autocast_enabled(device)


def no_autocast(device: str) -> AbstractContextManager:
    """A context without autocast on a type of device."""
    return torch.autocast(device, enabled=False) if autocasts(device) else nullcontext()


def cpu_refusal(x: Tensor, why: str | None = None) -> str | None:
    """The reason why the CPU kernels cannot run a call with tensors like ``x``, or None. ``why`` is a reason of the
    operator itself."""
    return (_extension.reason or why) if x.is_cpu else f"the tensors are on {x.device}"


def cuda_refusal(x: Tensor, why: str | None = None) -> str | None:
    """Like :func:`cpu_refusal`, for the CUDA kernels."""
    if not x.is_cuda:
        return f"the tensors are on {x.device}"
    return _extension.reason or why or _extension.cuda_refusal(x.device)


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


def operator(check: Callable[..., Any], table: Callable[..., Choice]) -> Callable[[Callable], Callable]:
    """Decorator of public functions that makes :func:`explain` work for them.

    Args:
        check: raises an error for wrong arguments.
        table: returns the :class:`Choice` for the call.

    Both receive the arguments of the function that they name in their signature.
    """

    def decorate(function: Callable) -> Callable:
        signature = inspect.signature(function)
        asked = [(ask, inspect.signature(ask).parameters) for ask in (check, table)]

        def chosen(*args: Any, **kwargs: Any) -> Choice:
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            _, choice = (ask(**{name: bound.arguments[name] for name in names}) for ask, names in asked)
            return choice

        function._choose = chosen
        return function

    return decorate


def forced() -> str | None:
    """The implementation that :func:`use` forces in this thread, or in the thread that started the backward pass that
    this thread works on."""
    if _forced.implementation is not None or torch.compiler.is_compiling():
        return _forced.implementation
    context = context_of_backward()
    return None if context is None else context.get(_forced_in_backward)


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


def explain(op: Callable, *args: Any, **kwargs: Any) -> Any:
    """Returns which implementation a call would use and why, without running it.

    Args:
        op: a function of ``rnnkern.ops`` or a module of ``rnnkern.nn``.
        args, kwargs: the arguments of the call.

    Returns:
        A :class:`Choice` for an operator; for a module, a list with one :class:`Choice` per layer and direction, in
        order. If there are several, each reason begins with its layer, numbered as in ``weight_ih_l0``, and its
        direction. If a hook makes a weight at the first call, as weight dropout does, the choice is ``"unknown"`` until
        then, and the reason names the weight.

    Raises:
        TypeError: ``op`` is neither an operator nor a module of rnnkern.

    >>> import torch, rnnkern
    >>> u, R, h0 = torch.zeros(5, 2, 3), torch.zeros(3, 3), torch.zeros(2, 3)
    >>> rnnkern.ops.explain(rnnkern.ops.recurrence, "tanh", u, R, (h0,)).implementation
    'cpu'
    >>> [choice.reason.partition(":")[0] for choice in rnnkern.ops.explain(rnnkern.nn.GRU(3, 8, bidirectional=True), u)]
    ['layer 0, forward direction', 'layer 0, reverse direction']
    """
    if not hasattr(op, "_choose"):
        wanted = "an operator of rnnkern.ops or a module of rnnkern.nn"
        if isinstance(op, torch.nn.Module):
            hint = "rnnkern.explain(model), without other arguments, lists the recurrent layers of any model"
            raise TypeError(f"explain: `op` must be {wanted}, got {type(op).__name__}; {hint}")
        raise TypeError(f"explain: `op` must be {wanted}, got {op!r}")
    with asking():
        try:
            return op._choose(*args, **kwargs)
        except AttributeError as error:
            gone = [name for names in getattr(op, "_all_weights", ()) for name in names if not hasattr(op, name)]
            gone += [error.name] if isinstance(error.obj, torch.nn.Module) else []
            if not gone:
                raise
            reason = f"the layer has no `{gone[0]}` yet; if a hook makes it, ask again after the first call"
            return [Choice("unknown", reason)]


# ---- the CUDA kernels that a call would launch: explain reports them and rnnkern.precompile compiles them

Facts = tuple[int, ...]
"""Facts of a device, as :func:`rnnkern._extension.device_facts` returns them."""


class Wanted(NamedTuple):
    """The device facts and the dtype that kernels are collected for."""

    facts: Facts
    dtype: torch.dtype | None  # replaces that of a call
    found: set[tuple[str, str]]  # headers and types


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
