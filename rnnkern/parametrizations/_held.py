"""A cache for expensive weights: computed once and reused until a parameter changes or an optimizer steps."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from rnnkern._torch_private import in_forward_mode, is_in_transform
from rnnkern.parametrizations import _steps as steps

Tensors = Sequence[Tensor]
Function = Callable[..., Tensor]


def transformed() -> bool:
    """Whether derivatives are taken, or code is recorded, by something that looks at every call."""
    recorded = torch.compiler.is_compiling() or torch.jit.is_tracing()
    return recorded or is_in_transform() or in_forward_mode()


def comparable(x: Tensor) -> bool:
    """Whether it costs little to see if a tensor has changed: elsewhere the host would wait for the device."""
    return x.is_cpu


class Held:
    """The newest value of a weight, as long as nothing that it was computed from has changed.

    What counts is the tensors themselves, their versions and their memory, and that no optimizer has stepped. Writes to
    ``tensor.data`` change no version. On a CPU they are found by a comparison with a copy at every call, which reads
    N^2 numbers where the weight takes N^3 operations. On other devices a value holds until a backward has gone through
    it, since updates follow that, and without gradients none is held.

    With gradients all who ask get one and the same tensor, so that a backward sums their gradients before it goes on,
    once, through what the computation saved; that stays for further backwards. A copy and a pickle hold nothing.
    """

    def __init__(self) -> None:
        self._replayed = False
        self.clear()

    def clear(self) -> None:
        self._kept: tuple[_Computation, Tensor, int] | None = None  # one tuple: a thread sees all of it or nothing

    def __call__(
        self, compute: Function, exact: Function, originals: Tensors, constants: Tensors, *, lent: bool
    ) -> Tensor:
        """``compute(*originals)``, which depends on ``constants`` too; ``exact`` has second derivatives. From tensors
        that are ``lent`` nothing is held: they would stay in memory with it."""
        tensors = (*originals, *constants)
        if lent or not self._can_hold(tensors):
            with _without_autocast(tensors):
                return exact(*originals)
        graph = torch.is_grad_enabled() and any(x.requires_grad for x in originals)
        if not graph and not comparable(tensors[0]):
            with _without_autocast(tensors):
                return compute(*originals)
        now = _state(tensors)
        weight = self._find(now, graph)
        if weight is None:
            self.clear()  # first, so that two are never in memory
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
        if transformed() or self._replayed:
            return False
        for x in tensors:
            if type(x) not in PLAIN or not x.is_leaf or x.is_inference():
                return False
        if tensors[0].is_cuda and torch.cuda.is_current_stream_capturing():
            self._replayed = True  # from here on a graph may change the tensors, which no version tells
        return not self._replayed

    def __deepcopy__(self, memo: dict) -> "Held":
        return Held()

    def __reduce__(self) -> tuple[Any, ...]:
        return Held, ()


PLAIN = (Tensor, torch.nn.Parameter)


def _state(tensors: Tensors) -> tuple[Any, ...]:
    """What a value holds for: the optimizer steps so far, the stream that has it, and the tensors as they are."""
    stream = torch.cuda.current_stream(tensors[0].device).cuda_stream if tensors[0].is_cuda else None
    return steps.count(), stream, *((id(x), x._version, x.data_ptr(), x.requires_grad) for x in tensors)


class _Computation:
    """A value, and what leads back from it."""

    def __init__(self, compute, exact, originals, tensors, state, graph) -> None:
        self.exact, self.originals, self.tensors = exact, originals, tensors
        self.state, self.versions = state, [x._version for x in tensors]
        self.copies = [x.detach().clone() for x in tensors] if comparable(tensors[0]) else None
        self.spent = False
        # What a checkpoint or an offload around the first to ask does to saved tensors is not for all others too.
        hooks = saved_tensors_hooks(Tensor.detach, _as_it_is)
        with torch.inference_mode(False), torch.set_grad_enabled(graph), hooks, _without_autocast(tensors):
            self.inputs = [x.detach().requires_grad_(graph and x.requires_grad) for x in originals]
            self.value = compute(*self.inputs)

    def holds(self) -> bool:
        """Whether the tensors have the values that they had, as far as the versions do not tell."""
        return not self.spent if self.copies is None else all(map(torch.equal, self.tensors, self.copies))

    def gradients(self, grad: Tensor, wanted: Sequence[bool]) -> list[Tensor | None]:
        if [x._version for x in self.tensors] != self.versions:
            raise RuntimeError(
                "backward through a parametrized weight: what it was computed from has been modified since, by an "
                "inplace operation or an optimizer"
            )
        with _without_autocast(self.tensors):
            if torch.is_grad_enabled():  # the gradient is to be differentiated
                value, inputs, options = self.exact(*self.originals), self.originals, {"create_graph": True}
            else:
                value, inputs, options = self.value, self.inputs, {"retain_graph": True}
            needed = [x for x, want in zip(inputs, wanted, strict=True) if want]
            found = iter(torch.autograd.grad(value, needed, grad, materialize_grads=True, **options))
        self.spent = True
        return [next(found) if want else None for want in wanted]


def _without_autocast(tensors: Tensors) -> AbstractContextManager:
    """In 16 bits nothing stays orthogonal."""
    device = tensors[0].device.type
    return torch.autocast(device, enabled=False) if torch.is_autocast_enabled(device) else nullcontext()


def _as_it_is(x: Tensor) -> Tensor:
    return x


class _Weight(torch.autograd.Function):
    """Puts a value into a graph. It saves nothing for autograd to free, so that it serves any number of backwards."""

    @staticmethod
    def forward(ctx, computation: _Computation, *originals: Tensor) -> Tensor:
        ctx.computation = computation
        return computation.value.detach()

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
        return None, *ctx.computation.gradients(grad, ctx.needs_input_grad[1:])
