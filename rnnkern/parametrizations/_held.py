"""A cache for expensive weights: computed once and reused until a parameter changes or an optimizer steps."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from rnnkern.ops.differentiable import transformed
from rnnkern.ops.dispatch import no_autocast
from rnnkern.parametrizations import _steps as steps

Tensors = Sequence[Tensor]
Function = Callable[..., Tensor]


def comparable(x: Tensor) -> bool:
    """Whether comparing the values of a tensor is cheap: on other devices it would synchronize with the device."""
    return x.is_cpu


class Held:
    """Caches the last value of a weight until something that it was computed from changes.

    The value is valid as long as the tensors are the same objects with the same versions and the same memory, and no
    optimizer has stepped. Writes to ``tensor.data`` do not change the version. On a CPU they are detected by a
    comparison with a copy at every call, which reads N^2 numbers, while computing the weight takes O(N^3) operations.
    On other devices a value is valid until a backward pass has used it, because updates follow backward passes; without
    gradients nothing is cached there.

    With gradients, all callers receive the same tensor. A backward pass therefore sums their gradients and then goes
    through the computation once. Saved tensors are kept for further backward passes. Copies and pickles of this object
    are empty.
    """

    def __init__(self) -> None:
        self._replayed = False
        self.clear()

    def clear(self) -> None:
        self._kept: tuple[_Computation, Tensor, int] | None = None  # one tuple, for other threads

    def __call__(
        self, compute: Function, exact: Function, originals: Tensors, constants: Tensors, *, lent: bool
    ) -> Tensor:
        """Returns ``compute(*originals)``, which may depend on ``constants`` too; ``exact`` supports second
        derivatives. If the tensors are ``lent``, nothing is cached, because the cache would keep them in memory."""
        tensors = (*originals, *constants)
        if lent or not self._can_hold(tensors):
            with no_autocast(originals[0].device.type):
                return exact(*originals)
        graph = torch.is_grad_enabled() and any(x.requires_grad for x in originals)
        if not graph and not comparable(tensors[0]):
            with no_autocast(originals[0].device.type):
                return compute(*originals)
        now = _state(tensors)
        weight = self._find(now, graph)
        if weight is None:
            self.clear()  # before computing, so that two values are never in memory
            computation = _Computation(compute, exact, originals, tensors, now, graph)
            weight = _Weight.apply(computation, *originals) if graph else computation.value
            self._kept = computation, weight, weight._version
        return weight if graph else weight.detach()

    def _find(self, now: tuple[Any, ...], graph: bool) -> Tensor | None:
        kept = self._kept
        if kept is None:
            return None
        computation, weight, version = kept
        fresh = computation.state == now and weight._version == version and computation.holds()
        return weight if fresh and (weight.requires_grad or not graph) else None

    def _can_hold(self, tensors: Tensors) -> bool:
        if transformed() or torch.compiler.is_compiling() or torch.jit.is_tracing():
            return False  # all of these need to see every computation
        if any(type(x) not in PLAIN or not x.is_leaf or x.is_inference() for x in tensors):
            return False
        if tensors[0].is_cuda and torch.cuda.is_current_stream_capturing():
            self._replayed = True  # from here on a CUDA graph may change the tensors without changing their versions
        return not self._replayed

    def __deepcopy__(self, memo: dict) -> "Held":
        return Held()

    def __reduce__(self) -> tuple[Any, ...]:
        return Held, ()


PLAIN = (Tensor, torch.nn.Parameter)


def _state(tensors: Tensors) -> tuple[Any, ...]:
    """What a value depends on: the number of optimizer steps, the current stream, and the identity and versions of the
    tensors."""
    stream = torch.cuda.current_stream(tensors[0].device).cuda_stream if tensors[0].is_cuda else None
    return steps.count(), stream, *((id(x), x._version, x.data_ptr(), x.requires_grad) for x in tensors)


class _Computation:
    """A value and the graph for its gradients."""

    def __init__(self, compute, exact, originals, tensors, state, graph) -> None:
        self.exact, self.originals, self.tensors = exact, originals, tensors
        self.state, self.versions = state, [x._version for x in tensors]
        self.copies = [x.detach().clone() for x in tensors] if comparable(tensors[0]) else None
        self.spent = False
        # Saved-tensor hooks (checkpointing, offloading) of the first caller must not apply to the other callers.
        hooks = saved_tensors_hooks(Tensor.detach, lambda x: x)
        with torch.inference_mode(False), torch.set_grad_enabled(graph), hooks, no_autocast(originals[0].device.type):
            self.inputs = [x.detach().requires_grad_(graph and x.requires_grad) for x in originals]
            self.value = compute(*self.inputs)

    def holds(self) -> bool:
        """Whether the values of the tensors are unchanged, where the versions cannot tell."""
        return not self.spent if self.copies is None else all(map(torch.equal, self.tensors, self.copies))

    def gradients(self, grad: Tensor, wanted: Sequence[bool]) -> list[Tensor | None]:
        if [x._version for x in self.tensors] != self.versions:
            raise RuntimeError(
                "backward through a parametrized weight: a tensor that it was computed from has since been modified "
                "by an in-place operation or an optimizer"
            )
        if torch.is_grad_enabled():  # create_graph=True
            with no_autocast(grad.device.type):
                value, inputs = self.exact(*self.originals), self.originals
            options = {"create_graph": True}
        else:
            value, inputs, options = self.value, self.inputs, {"retain_graph": True}
        needed = [x for x, want in zip(inputs, wanted, strict=True) if want]
        with no_autocast(grad.device.type):
            found = iter(torch.autograd.grad(value, needed, grad, materialize_grads=True, **options))
        self.spent = True
        return [next(found) if want else None for want in wanted]


class _Weight(torch.autograd.Function):
    """Inserts a value into a graph. It saves nothing that autograd could free, so it supports any number of backward
    passes."""

    @staticmethod
    def forward(ctx, computation: _Computation, *originals: Tensor) -> Tensor:
        ctx.computation = computation
        return computation.value.detach()

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
        return None, *ctx.computation.gradients(grad, ctx.needs_input_grad[1:])
