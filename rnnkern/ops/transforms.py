"""Calls an operator's autograd.Function: eagerly, in transforms, in forward mode or under torch.compile."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from rnnkern._torch_private import (
    constant_when_compiled,
    in_forward_mode,
    is_fake,
    is_in_transform,
    lazy_clone,
    unwrap_dead_wrappers,
    without_autograd,
)


def transformed() -> bool:
    """Whether a transform of torch.func or forward-mode AD is active, neither of which the plain operator supports."""
    return in_forward_mode() or is_in_transform()


def can_hand_out(x: Tensor, pooled: bool = False) -> bool:
    """Whether :func:`hand_out` works for an operator on ``x``. The transforms of torch.func do not know lazy copies,
    ``pooled`` memory (csrc/common/caching_allocator.h) does not allow them, and on a GPU the write that ends one copies
    on the default stream, which does not wait for the current one and cannot be captured in a graph. A change in place
    then raises an error in the backward pass, as torch.nn's does on a GPU, where cuDNN reads its output."""
    return ((x.is_cpu and not pooled) or torch.compiler.is_compiling()) and not transformed()


def hand_out(outputs: Sequence[Tensor], kept: Sequence[int]) -> tuple[Tensor, ...]:
    """The outputs of a Function, so that the caller may change them in place before the backward pass: those whose
    index is in ``kept``, which the backward pass reads, are lazy copies, and the originals follow the outputs.
    torch.compile, which would otherwise change what the backward pass reads, drops copies that it does not need."""
    given = list(outputs)
    copy = torch.clone if torch.compiler.is_compiling() else lazy_clone
    for k in kept:
        given[k] = copy(outputs[k])
    return *given, *(outputs[k] for k in kept)


def take_back(outputs: Sequence[Tensor], kept: Sequence[int]) -> list[Tensor]:
    """The outputs that :func:`hand_out` was given."""
    given = list(outputs[: len(outputs) - len(kept)])
    for k, original in zip(kept, outputs[len(given) :], strict=True):
        given[k] = original
    return given


def gradients_taken_back(grads: Sequence[Tensor | None], kept: Sequence[int]) -> list[Tensor | None]:
    """The gradients of the outputs that :func:`hand_out` was given; an original has a gradient of its own if the
    backward pass, which reads it, is differentiated."""
    given = list(grads[: len(grads) - len(kept)])
    for k, grad in zip(kept, grads[len(given) :], strict=True):
        given[k] = grad if given[k] is None else given[k] if grad is None else given[k] + grad
    return given


def needs_derivatives(*tensors: Tensor | None) -> bool:
    """Whether a call must go through its autograd.Function.

    Raises:
        NotImplementedError: TorchScript's tracer is active; it cannot record the call.
    """
    backward = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)
    if torch.jit.is_tracing():
        _check_tracing(backward)
    return backward or transformed()


def _check_tracing(backward: bool) -> None:
    restored = "call rnnkern.restore(model) first, which turns the layers into torch.nn layers"
    if torch.onnx.is_in_onnx_export():
        raise NotImplementedError(
            f"ONNX has no operators for rnnkern's kernels: {restored}. Layers that torch.nn lacks can be exported "
            "under rnnkern.use('reference'), as a loop over a fixed number of steps"
        )
    if backward:
        raise NotImplementedError(
            "torch.jit.trace does not record the gradients of rnnkern's kernels: trace under torch.no_grad(), or "
            f"{restored}"
        )


def check_lengths_are_there(operator: str, batch_sizes: Tensor | None) -> None:
    """Raises NotImplementedError while torch.compile traces a second derivative of packed input."""
    if batch_sizes is not None and is_fake(batch_sizes):
        raise NotImplementedError(
            f"{operator}: torch.compile cannot trace second derivatives of packed input, because they read the "
            "lengths; call it outside torch.compile, or pad and mask the input"
        )


def no_forward_mode(operator: str) -> staticmethod:
    """A ``jvp`` for a Function that raises NotImplementedError."""

    def refuse(*_):
        raise NotImplementedError(
            f"{operator}: forward-mode AD is not supported (torch.func.jvp, jacfwd, hessian; torch.autograd."
            "forward_ad): use reverse mode (vjp, jacrev) or rnnkern.use('reference')"
        )

    return staticmethod(refuse)


def applied(function: type[torch.autograd.Function], operator: str, jvp: Callable | None = None) -> Callable:
    """``function.apply``. In forward mode a separate subclass is used, because torch.compile rejects a Function with a
    jvp; without ``jvp``, that subclass raises NotImplementedError. Inside a transform torch.compile does not trace into
    the Function: it would decompose it and silently lose its gradient."""

    class OfDuals(function):
        @staticmethod
        def setup_context(ctx, inputs, output):
            function.setup_context(ctx, inputs, output)
            ctx.save_for_forward(*ctx.to_save)

    OfDuals.jvp = staticmethod(jvp) if jvp else no_forward_mode(operator)

    def twin(*args):  # forward mode of a compiled call is not visible here
        return OfDuals.apply(*args)

    @constant_when_compiled
    def keep():  # called while torch.compile traces: registering the twin earlier would import torch.compile
        torch.compiler.allow_in_graph(twin)

    def apply(*args):
        if torch.compiler.is_dynamo_compiling():
            args = _distinct(args)
            if transformed():
                keep()
                return twin(*args)
        elif not transformed():
            # What Function.apply does outside of transforms, without the binding of default arguments, which takes as
            # long as the rest.
            return super(torch.autograd.Function, function).apply(*unwrap_dead_wrappers(args))
        return (OfDuals if in_forward_mode() else function).apply(*args)

    return apply


def call_backward(operator: Callable, *args: Any) -> Any:
    """Calls a backward operator. Its registered derivative, which is Python, is skipped unless the call may be
    differentiated again."""
    if torch.is_grad_enabled() or torch.compiler.is_compiling():
        return operator(*args)
    with without_autograd():
        return operator(*args)


def _distinct(args: Any) -> list:
    """Copies repeated tensors, because torch.compile rejects arguments that contain the same tensor twice, such as the
    initial (zeros, zeros) of an LSTM."""
    return [x.view_as(x) if isinstance(x, Tensor) and _is_in(x, args[:k]) else x for k, x in enumerate(args)]


def _is_in(x, args):
    return any(x is y for y in args)
