"""Chooses the implementation of a call: one rule per operator, :func:`explain` to query it and :func:`use` to override
it."""

import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rnnkern import _extension, _torch_private
from rnnkern.ops.slow_path import asking, warn_once

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


def cpu_refusal(x: Tensor, why: str | None = None) -> str | None:
    """The reason why the CPU kernels cannot run a call with tensors like ``x``, or None. ``why`` is a reason of the
    operator itself."""
    return (_extension.reason or why) if x.is_cpu else f"the tensors are on {x.device}"


def cuda_refusal(x: Tensor, why: str | None = None) -> str | None:
    """Like :func:`cpu_refusal`, for the CUDA kernels."""
    if not x.is_cuda:
        return f"the tensors are on {x.device}"
    return _extension.reason or why or _extension.cuda_refusal(x.device)


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
    context = _torch_private.context_of_backward()
    return None if context is None else context.get(_forced_in_backward)


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
