"""What makes an operator differentiable: one description of it, in place of two autograd Functions and their rules.

Around the operator stands an autograd.Function, and around the backward operator another, for the transforms of
torch.func do not take what ``register_autograd`` is told. Second derivatives are the backward's, in plain PyTorch.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from torch import Tensor

from rnnkern import _extension
from rnnkern.ops.transforms import applied_whole, needs_derivatives, no_forward_mode, transformed

_operators = torch.ops.rnnkern

Spec = tuple[int | None, ...]
"""Of arguments, some of which are lists of tensors: the length of each list, and None for all else."""


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
    optional: Sequence[int] = (),
    backward_arguments: Callable[..., Sequence[Any]] = lambda grads, saved, needs: (*grads, *saved, *needs),
) -> Callable[..., tuple[Tensor, ...]]:
    """The operator ``rnnkern::name`` with derivatives by ``rnnkern::name_backward``, of arguments that may be lists.

    Args:
        name: of the operator.
        forward: (training, *args): calls the operator, so that with ``training`` it returns what the backward needs.
        results: how many of its outputs have gradients; those after them are kept for the backward.
        saves: (args, outputs): what is kept.
        gradients: which of ``args`` the backward's outputs are gradients of, in their order.
        reference_backward: the backward in plain PyTorch, from the same arguments, for second derivatives.
        leaves: which of the backward's arguments those are taken of.
        fold: (function, info, dims, args): the rule of torch.vmap, see :mod:`rnnkern.ops.transforms`.
        shapes, backward_shapes: the two operators on fake tensors.
        optional: which of ``args`` the backward is told by a bool, at its end, whether they need a gradient.
        backward_arguments: (grads, saved, needs): the backward's, where they are not these in this order.

    Returns:
        A function of ``args`` that calls ``forward``, through autograd where a derivative is asked for.
    """

    gradients = tuple(gradients)  # the compiler knows no range

    def run_backward(spec, *flat):
        operator = getattr(_operators, f"{name}_backward").default
        return _as_tuple(operator(*_nested(flat, spec)))

    def second_derivatives(ctx, *grads):
        return _second(_kept(ctx), grads, reference_backward, leaves)

    class Backward(torch.autograd.Function):
        @staticmethod
        def forward(spec, *flat):
            return run_backward(spec, *flat)

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
        def forward(spec, *flat):
            return _as_tuple(forward(True, *_nested(flat, spec)))

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.spec, *flat = inputs
            ctx.mark_non_differentiable(*output[results:])
            _keep(ctx, saves(_nested(flat, ctx.spec), output))

        @staticmethod
        def backward(ctx, *grads):
            grads = [*grads[:results], *[None] * (results - len(grads))]
            owners = _owners(ctx.spec)
            if all(grad is None for grad in grads):
                return (None,) * (1 + len(owners))
            needed = ctx.needs_input_grad[1:]
            needs = [needed[owners.index(k)] for k in optional]
            flat, spec = _flat(backward_arguments(grads, _nested(*_kept(ctx)), needs))
            found = Backward.apply(spec, *flat) if transformed() else run_backward(spec, *flat)
            inputs = [n for k in gradients for n, owner in enumerate(owners) if owner == k]
            found = {n: grad for n, grad in zip(inputs, found, strict=False) if needed[n]}
            return None, *[found.get(n) for n in range(len(owners))]

        @staticmethod
        def vmap(info, dims, spec, *flat):
            return fold(lambda *args: Forward.apply(spec, *args), info, dims[1:], flat)

    Forward.__name__ = Forward.__qualname__ = name
    Backward.__name__ = Backward.__qualname__ = f"{name}_backward"
    apply = applied_whole(Forward, name)

    def call(*args):
        flat, spec = _flat(args)
        if needs_derivatives(*(x for x in flat if isinstance(x, Tensor))):
            return apply(spec, *flat)
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
    """Of an operator that returns one tensor, or of one that returns a list."""
    return tuple(outputs[0]) if isinstance(outputs[0], (list, tuple)) else outputs


def _flat(args: Sequence[Any]) -> tuple[list[Any], Spec]:
    spec = tuple([len(x) if isinstance(x, list) else None for x in args])
    return [y for x in args for y in (x if isinstance(x, list) else (x,))], spec


def _nested(flat: Sequence[Any], spec: Spec) -> list[Any]:
    if not any(spec):
        return list(flat)
    args, rest = [], list(flat)
    for length in spec:
        count = 1 if length is None else length
        args.append(rest[0] if length is None else rest[:count])
        rest = rest[count:]
    return args


def _owners(spec: Spec) -> list[int]:
    """Of each flat argument, the argument that it is of."""
    return [k for k, length in enumerate(spec) for _ in range(1 if length is None else length)]


def _keep(ctx: Any, args: Sequence[Any]) -> None:
    flat, ctx.spec_of_kept = _flat(args)
    ctx.set_materialize_grads(False)
    ctx.constants = [None if isinstance(x, Tensor) else x for x in flat]
    ctx.save_for_backward(*(x if isinstance(x, Tensor) else None for x in flat))


def _kept(ctx: Any) -> tuple[list[Any], Spec]:
    flat = [x if other is None else other for x, other in zip(ctx.saved_tensors, ctx.constants, strict=True)]
    return flat, ctx.spec_of_kept


def _second(
    kept: tuple[list[Any], Spec], grads: Sequence[Tensor | None], backward: Callable, leaves: Collection[int]
) -> list[Tensor | None]:
    """The vector-Jacobian product of ``backward``, with a gradient or None for each flat argument."""
    flat, spec = kept
    there = [k for k, owner in enumerate(_owners(spec)) if owner in leaves and isinstance(flat[k], Tensor)]
    there = [k for k in there if flat[k].is_floating_point() or flat[k].is_complex()]

    def run(*given):
        full = dict(enumerate(flat)) | dict(zip(there, given, strict=True))
        return tuple(backward(*_nested([full[k] for k in range(len(flat))], spec)))[: len(grads)]

    results, pull = torch.func.vjp(run, *(flat[k] for k in there))
    upstream = tuple(torch.zeros_like(y) if g is None else g.to(y) for y, g in zip(results, grads, strict=True))
    found = dict(zip(there, pull(upstream), strict=True))
    return [found.get(k) for k in range(len(flat))]
