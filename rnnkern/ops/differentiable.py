"""Makes an operator differentiable from one description, and calls any autograd.Function in every mode of PyTorch.

The description takes the place of two hand-written autograd Functions with their rules: one wraps the operator and
another its backward operator, because the transforms of torch.func ignore ``register_autograd``. Second derivatives
differentiate the backward pass in plain PyTorch.
"""

import itertools
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from torch import Tensor

from rnnkern import _extension
from rnnkern._torch_private import (
    constant_when_compiled,
    in_forward_mode,
    is_fake,
    is_in_transform,
    lazy_clone,
    unwrap_dead_wrappers,
    without_autograd,
)

_operators = torch.ops.rnnkern

Spec = tuple[int | None, ...]
"""For each argument the length if it is a list of tensors, else None."""


def differentiable(
    name: str,
    *,
    forward: Callable[..., Any],
    results: int,
    saves: Callable[[Sequence[Any], Sequence[Tensor]], Sequence[Any]],
    gradients: Sequence[int],
    reference_backward: Callable[..., Sequence[Tensor]],
    leaves: Collection[int],
    fold: Callable,
    shapes: Callable[..., Any],
    backward_shapes: Callable[..., Any],
    kept: Sequence[int] = (),
    pooled: bool = False,
    optional: Sequence[int] = (),
    stands_for: int | None = None,
    backward_arguments: Callable[..., Sequence[Any]] = lambda grads, saved, needs: (*grads, *saved, *needs),
) -> Callable[..., tuple[Tensor, ...]]:
    """Returns the operator ``rnnkern::name`` with derivatives by ``rnnkern::name_backward``. An argument may be a list
    of tensors.

    Args:
        name: name of the operator.
        forward: function of (training, *args) that calls the operator; with ``training`` it also returns what the
            backward pass needs.
        results: number of outputs that have gradients; the outputs after them are saved for the backward pass.
        saves: function of (args, outputs) that returns the values to save.
        gradients: indices of the ``args`` whose gradients the backward operator returns, in the order of its outputs.
        reference_backward: the backward pass in plain PyTorch, with the arguments of the backward operator, for second
            derivatives.
        leaves: indices of the backward arguments with respect to which second derivatives are taken.
        fold: the rule for torch.vmap, a function of (function, info, dims, args), see :mod:`rnnkern.ops.folds`.
        shapes, backward_shapes: implementations of both operators for fake tensors.
        kept: indices of the outputs with gradients that ``saves`` returns too.
        pooled: whether these are in pooled memory, see :func:`rnnkern.ops.differentiable.can_hand_out`.
        optional: indices of the ``args`` whose gradients the backward operator can leave out. As its last arguments it
            takes one bool for each of them, whether the gradient is needed.
        stands_for: index of the arg that the first output stands for in second derivatives, if any: what that output
            receives as a gradient is added to that of the arg, and is not in ``grads``.
        backward_arguments: function of (grads, saved, needs) that returns the arguments of the backward operator; by
            default the three lists in this order. ``needs`` are the bools of ``optional``.

    Returns:
        A function of ``args`` that calls ``forward``, through autograd if derivatives are needed.
    """

    gradients = tuple(gradients)  # torch.compile does not support range here

    def run_backward(*args):
        return _as_tuple(call_backward(getattr(_operators, f"{name}_backward").default, *args))

    def second_derivatives(ctx, *grads):
        return _second(_kept(ctx), grads, reference_backward, leaves)

    class Backward(torch.autograd.Function):
        @staticmethod
        def forward(spec, *flat):
            return run_backward(*_nested(flat, spec))

        @staticmethod
        def setup_context(ctx, inputs, output):
            spec, *flat = inputs
            _keep(ctx, _nested(flat, spec))

        @staticmethod
        def backward(ctx, *grads):
            return None, *second_derivatives(ctx, *grads)

        @staticmethod
        def vmap(info, dims, spec, *flat):
            return fold(lambda *args: Backward.apply(spec, *args), info, dims[1:], flat)

        jvp = no_forward_mode(name)

    class Forward(torch.autograd.Function):
        @staticmethod
        def forward(kept, spec, *flat):
            return hand_out(_as_tuple(forward(True, *_nested(flat, spec))), kept)

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.handed_out, ctx.spec, *flat = inputs
            output = take_back(output, ctx.handed_out)
            ctx.mark_non_differentiable(*output[results:])
            _keep(ctx, saves(_nested(flat, ctx.spec), output))

        @staticmethod
        def backward(ctx, *grads):
            grads = gradients_taken_back(grads, ctx.handed_out)
            grads = [*grads[:results], *[None] * (results - len(grads))]
            needed = ctx.needs_input_grad[2:]
            all_grads = [None] * len(needed)
            places = None if _has_no_lists(ctx.spec) else _places(ctx.spec)
            if stands_for is not None:
                of_stand_in, *grads = grads
                all_grads[places[stands_for].start] = of_stand_in
            if all(grad is None for grad in grads):
                return None, None, *all_grads
            needs = [needed[k if places is None else places[k].start] for k in optional]
            args = backward_arguments(grads, _nested(*_kept(ctx)), needs)
            if transformed():
                flat, spec = _flat(args)
                found = Backward.apply(spec, *flat)
            else:
                found = run_backward(*args)
            indices = gradients if places is None else [n for k in gradients for n in places[k]]
            for n, grad in zip(indices, found, strict=False):
                if needed[n]:
                    all_grads[n] = grad if all_grads[n] is None else grad + all_grads[n]
            return None, None, *all_grads

        @staticmethod
        def vmap(info, dims, kept, spec, *flat):
            return fold(lambda *args: Forward.apply(kept, spec, *args), info, dims[2:], flat)

    Forward.__name__ = Forward.__qualname__ = name
    Backward.__name__ = Backward.__qualname__ = f"{name}_backward"
    apply = applied(Forward, name)

    def call(*args):
        flat, spec = _flat(args)
        tensors = [x for x in flat if isinstance(x, Tensor)]
        if needs_derivatives(*tensors):
            hidden = kept if can_hand_out(tensors[0], pooled) else ()
            outputs = apply(hidden, spec, *flat)
            return outputs[: len(outputs) - len(hidden)]
        return _as_tuple(forward(False, *args))

    if _extension.available:
        torch.library.register_fake(f"rnnkern::{name}", shapes)
        torch.library.register_fake(f"rnnkern::{name}_backward", backward_shapes)
        torch.library.register_autograd(
            f"rnnkern::{name}_backward",
            lambda ctx, *grads: tuple(_nested(second_derivatives(ctx, *_as_tuple(*grads)), ctx.spec_of_kept)),
            setup_context=lambda ctx, inputs, output: _keep(ctx, inputs),
        )
    return call


def _as_tuple(*outputs: Tensor | Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The outputs of an operator that returns a tensor or a list, as a tuple."""
    return tuple(outputs[0]) if isinstance(outputs[0], (list, tuple)) else outputs


def _flat(args: Sequence[Any]) -> tuple[list[Any], Spec]:
    """Expands lists of tensors among the arguments; :func:`_nested` is the inverse."""
    if list not in map(type, args):
        return list(args), (None,) * len(args)
    spec = tuple([len(x) if _is_of_tensors(x) else None for x in args])
    return [y for x, length in zip(args, spec, strict=True) for y in ((x,) if length is None else x)], spec


def _is_of_tensors(x: Any) -> bool:
    """Whether an argument is a list of tensors, not of ints."""
    return isinstance(x, list) and not (x and isinstance(x[0], int))


def _nested(flat: Sequence[Any], spec: Spec) -> list[Any]:
    if _has_no_lists(spec):
        return list(flat)
    args, rest = [], list(flat)
    for length in spec:
        count = 1 if length is None else length
        args.append(rest[0] if length is None else rest[:count])
        rest = rest[count:]
    return args


def _has_no_lists(spec: Spec) -> bool:
    return spec.count(None) == len(spec)


def _places(spec: Spec) -> list[range]:
    """For each argument, its places among the flat ones."""
    ends = [0, *itertools.accumulate([1 if length is None else length for length in spec])]
    return [range(begin, end) for begin, end in itertools.pairwise(ends)]


def _keep(ctx: Any, args: Sequence[Any]) -> None:
    """Stores arguments in ``ctx``: tensors as saved tensors, other values as attributes. :func:`_kept` returns them."""
    flat, ctx.spec_of_kept = _flat(args)
    ctx.set_materialize_grads(False)
    ctx.constants = [None if isinstance(x, Tensor) else x for x in flat]
    ctx.save_for_backward(*[x if isinstance(x, Tensor) else None for x in flat])


def _kept(ctx: Any) -> tuple[list[Any], Spec]:
    flat = [x if other is None else other for x, other in zip(ctx.saved_tensors, ctx.constants, strict=True)]
    return flat, ctx.spec_of_kept


def _second(
    kept: tuple[list[Any], Spec], grads: Sequence[Tensor | None], backward: Callable, leaves: Collection[int]
) -> list[Tensor | None]:
    """The vector-Jacobian product of ``backward``: a gradient or None for each flat argument."""
    flat, spec = kept
    there = [n for k, places in enumerate(_places(spec)) if k in leaves for n in places if isinstance(flat[n], Tensor)]
    there = [n for n in there if flat[n].is_floating_point() or flat[n].is_complex()]

    def run(*given):
        full = dict(enumerate(flat)) | dict(zip(there, given, strict=True))
        return tuple(backward(*_nested([full[k] for k in range(len(flat))], spec)))[: len(grads)]

    results, pull = torch.func.vjp(run, *(flat[k] for k in there))
    upstream = tuple(torch.zeros_like(y) if g is None else g.to(y) for y, g in zip(results, grads, strict=True))
    found = dict(zip(there, pull(upstream), strict=True))
    return [found.get(k) for k in range(len(flat))]


# ---- calling an autograd.Function: eagerly, in transforms of torch.func, in forward mode or under torch.compile


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
