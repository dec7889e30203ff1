"""Which implementation runs: one written rule per operator, one way to ask and one way to force."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from rnnkern.ops.slow_path import asking, warn_once

IMPLEMENTATIONS = ("reference", "cpu", "cuda", "triton")

_forced: str | None = None


class Choice(NamedTuple):
    """An implementation of ``IMPLEMENTATIONS`` and the reason why it is the one."""

    implementation: str
    """``"reference"``, ``"cpu"``, ``"cuda"`` or ``"triton"``."""
    reason: str
    """Why this one: what the others lack, or what forces it."""


@contextmanager
def use(implementation: str) -> Iterator[None]:
    """Forces one implementation inside the block, for every operator and in every thread.

    Args:
        implementation: ``"reference"``, ``"cpu"``, ``"cuda"`` or ``"triton"``.

    Raises:
        ValueError: at once if the name is unknown; at a call inside the block that the implementation cannot serve.
    """
    global _forced
    if implementation not in IMPLEMENTATIONS:
        raise ValueError(f"use: `implementation` must be one of {IMPLEMENTATIONS}, got {implementation!r}")
    before, _forced = _forced, implementation
    try:
        yield
    finally:
        _forced = before


def choose(operator: str, refusals: dict[str, str | None]) -> Choice:
    """The first implementation without a refusal, or the forced one.

    Args:
        operator: name for messages.
        refusals: for each implementation, in order of preference, why it cannot serve the call, or None if it can.
            The reference always serves and need not be named.
    """
    if _forced is None:
        for name, why in refusals.items():
            if why is None:
                return Choice(name, f"the {name} kernel serves this call")
        warn_once(operator, tuple(refusals.values()))
        return Choice("reference", "; ".join(f"no {name}: {why}" for name, why in refusals.items()))
    why = None if _forced == "reference" else refusals.get(_forced, f"{operator} has no {_forced} kernel yet")
    if why is not None:
        raise ValueError(f"{operator}: use({_forced!r}) cannot serve this call: {why}")
    return Choice(_forced, f"forced by use({_forced!r})")


def forced() -> str | None:
    """What :func:`use` forces."""
    return _forced


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
    if not hasattr(op, "choose"):
        raise TypeError(f"explain: `op` must be an operator of rnnkern.ops or a module of rnnkern.nn, got {op!r}")
    with asking():
        return op.choose(*args, **kwargs)
