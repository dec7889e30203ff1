"""How an operator's autograd.Function is called: plainly, in transforms of torch.func, in forward mode, compiled."""

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from rnnkern._torch_private import constant_when_compiled, in_forward_mode, is_fake, is_in_transform


def transformed() -> bool:
    """Whether a transform of torch.func or forward mode is at work: the plain operator knows nothing of them."""
    return in_forward_mode() or is_in_transform()


def needs_derivatives(*tensors: Tensor | None) -> bool:
    """Whether a call must go through a Function.

    Raises:
        NotImplementedError: TorchScript's tracer is at work, and would lose what the call is.
    """
    backward = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)
    if torch.jit.is_tracing():
        _check_tracing(backward)
    return backward or transformed()


def _check_tracing(backward: bool) -> None:
    restored = "call rnnkern.restore(model) first, which makes layers torch.nn's"
    if torch.onnx.is_in_onnx_export():
        raise NotImplementedError(
            f"ONNX has no operators for rnnkern's kernels: {restored}. What torch.nn does not have may be exported "
            "under rnnkern.use('reference'), as a loop over time of one length"
        )
    if backward:
        raise NotImplementedError(
            "torch.jit.trace does not record the gradients of rnnkern's kernels: trace under torch.no_grad(), or "
            f"{restored}"
        )


def check_lengths_are_there(operator: str, batch_sizes: Tensor | None) -> None:
    """Raises NotImplementedError while the compiler traces a second derivative of packed input."""
    if batch_sizes is not None and is_fake(batch_sizes):
        raise NotImplementedError(
            f"{operator}: second derivatives of packed input cannot be traced by the compiler, since they read the "
            "lengths; call outside torch.compile, or pad and mask"
        )


def no_forward_mode(operator: str) -> staticmethod:
    """The ``jvp`` of a Function."""

    def refuse(*_):
        raise NotImplementedError(
            f"{operator}: the kernels have no forward mode (torch.func.jvp, jacfwd, hessian; torch.autograd."
            "forward_ad): take reverse mode (vjp, jacrev) or rnnkern.use('reference')"
        )

    return staticmethod(refuse)


def applied(function: type[torch.autograd.Function], operator: str) -> Callable:
    """``function.apply``, that of a class of its own in forward mode: the compiler takes no Function that has a jvp."""
    function.forward.__signature__ = inspect.signature(function.forward)  # else it is made anew at each call: 10 us
    duals = type(f"_{function.__name__}OfDuals", (function,), {"jvp": no_forward_mode(operator)})

    def apply(*args):
        if torch.compiler.is_dynamo_compiling():
            args = _distinct(args)
        return (duals if in_forward_mode() else function).apply(*args)

    return apply


def applied_whole(function: type[torch.autograd.Function], operator: str) -> Callable:
    """As :func:`applied`, and inside a transform the compiler does not look into the Function: it would take it apart
    and lose its gradient without a word."""
    apply = applied(function, operator)

    def twin(*args):
        return apply(*args)

    @constant_when_compiled
    def keep():  # called while the compiler traces: to name the twin earlier would import the compiler
        torch.compiler.allow_in_graph(twin)

    def apply_whole(*args):
        if torch.compiler.is_dynamo_compiling() and transformed():
            args = _distinct(args)
            keep()
            return twin(*args)
        return apply(*args)

    return apply_whole


def _distinct(args: Any) -> list:
    """The same arguments for the compiler, which takes no tensor twice: (zeros, zeros) is how many an LSTM begins."""
    return [x.view_as(x) if isinstance(x, Tensor) and _is_in(x, args[:k]) else x for k, x in enumerate(args)]


def _is_in(x, args):
    return any(x is y for y in args)
