"""Which implementation runs: one written rule per operator, one way to ask and one way to force."""

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
    """What :func:`use` forces in this thread."""

    def __init__(self) -> None:
        # Not a class attribute: torch.compile reads that as a constant and puts no guard on it.
        self.implementation: str | None = None


_forced = _Forced()
_forced_in_backward: ContextVar[str | None] = ContextVar("rnnkern.use", default=None)
"""The same once more: autograd hands the context of the thread that asks for a backward to its own threads. It is not
all there is since torch.compile does not trace context variables."""


class Choice(NamedTuple):
    """An implementation of ``IMPLEMENTATIONS`` and the reason why it is the one."""

    implementation: str
    """``"reference"``, ``"cpu"``, ``"cuda"`` or ``"triton"``."""
    reason: str
    """Why this one: what the others lack, or what forces it."""


@contextmanager
def use(implementation: str) -> Iterator[None]:
    """Forces one implementation inside the block, for every operator that this thread calls.

    Backward passes that begin inside the block follow it, on a GPU too, where autograd runs them in threads of its own
    (with torch 2.11 those do not). Other threads do not, even if they are started inside the block.

    Args:
        implementation: ``"reference"``, ``"cpu"``, ``"cuda"`` or ``"triton"``.

    Raises:
        ValueError: at once if the name is unknown; at a call inside the block that the implementation cannot serve.
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
    """The first implementation without a refusal, or the forced one.

    Args:
        operator: name for messages.
        refusals: for each implementation, in order of preference, why it cannot serve the call, or None if it can.
            The reference always serves and need not be named.
    """
    implementation = forced()
    if implementation is None:
        for name, why in refusals.items():
            if why is None:
                return Choice(name, f"the {name} kernel serves this call")
        warn_once(operator, tuple(refusals.values()))
        return Choice("reference", "; ".join(f"no {name}: {why}" for name, why in refusals.items()))
    missing = f"{operator} has no {implementation} kernel yet"
    why = None if implementation == "reference" else refusals.get(implementation, missing)
    if why is not None:
        raise ValueError(f"{operator}: use({implementation!r}) cannot serve this call: {why}")
    return Choice(implementation, f"forced by use({implementation!r})")


def cpu_refusal(x: Tensor, why: str | None = None) -> str | None:
    """Why the CPU's kernels cannot serve a call with tensors like ``x``, or None; ``why`` is the operator's own."""
    return (_extension.reason or why) if x.device.type == "cpu" else f"the tensors are on {x.device}"


def cuda_refusal(x: Tensor, why: str | None = None) -> str | None:
    """As :func:`cpu_refusal`, of the CUDA kernels."""
    if x.device.type != "cuda":
        return f"the tensors are on {x.device}"
    return _extension.reason or why or _extension.cuda_refusal(x.device)


def operator(check: Callable[..., Any], table: Callable[..., Choice]) -> Callable[[Callable], Callable]:
    """Decorates a public function, for :func:`explain`.

    Args:
        check: raises if something is wrong.
        table: says which implementation serves the call, and why.

    Both take those arguments of the function that they name.
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
    """What :func:`use` forces in this thread, or in the one that asked for the backward pass that it works on."""
    if _forced.implementation is not None or torch.compiler.is_compiling():
        return _forced.implementation
    context = _torch_private.context_of_backward()
    return None if context is None else context.get(_forced_in_backward)


def explain(op: Callable, *args: Any, **kwargs: Any) -> Any:
    """Says which implementation a call would take and why, without making it.

    Args:
        op: a function of ``rnnkern.ops`` or a module of ``rnnkern.nn``.
        args, kwargs: what the call would be given.

    Returns:
        A :class:`Choice` for an operator; for a module one :class:`Choice` per layer and direction, in order.

    Raises:
        TypeError: if ``op`` is neither.

    >>> import torch, rnnkern
    >>> u, R, h0 = torch.zeros(5, 2, 3), torch.zeros(3, 3), torch.zeros(2, 3)
    >>> rnnkern.ops.explain(rnnkern.ops.recurrence, "tanh", u, R, (h0,)).implementation
    'cpu'
    """
    if not hasattr(op, "_choose"):
        raise TypeError(f"explain: `op` must be an operator of rnnkern.ops or a module of rnnkern.nn, got {op!r}")
    with asking():
        return op._choose(*args, **kwargs)
