"""Launches the Triton kernels of linear_scan: a program takes a block of columns through time.

A column is one channel of one sequence. With few columns, time is also split into chunks, and one pass over the
products of the chunks gives the state before each chunk.

Nothing synchronizes with the device; packed lengths are copied to it from pinned memory.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from rnnkern import _extension
from rnnkern._torch_private import is_fake
from rnnkern.ops.triton_launch import OPTIONS, block_of, kernels_of

BLOCK = 128
"""Number of columns per program; twice as many for 16-bit dtypes, because prefetching copies move 32 bits per
thread."""
SERIAL = 264
"""With at least this number of programs, time is not split into chunks."""
PROGRAMS = 1024
"""Number of programs to reach by splitting time into chunks."""
LEAST = 16
"""Smallest number of steps per chunk."""
STAGES = 4
"""Number of steps to prefetch."""


class Plan(NamedTuple):
    block: int  # columns per program
    length: int  # steps per chunk
    chunks: int


kernels = kernels_of("linear_scan")


def plan(columns: int, steps: int, bytes_of_real: int) -> Plan:
    """How a call is split into programs and chunks."""
    block = min(BLOCK * (2 if bytes_of_real == 2 else 1), max(block_of(columns), 32))
    programs = max(1, -(-columns // block))
    chunks = 1 if programs >= SERIAL else max(1, min(-(-steps // LEAST), -(-PROGRAMS // programs)))
    length = max(1, -(-steps // chunks))
    return Plan(block, length, max(1, -(-steps // length)))


class _Call:
    """Arguments that all kernels of a call receive."""

    def __init__(self, a, x, h0, batch_sizes, reset, reverse, backward):
        self.complex = x.is_complex()
        self.shape = x.shape[1:] if h0 is None else h0.shape
        batch, channels = self.shape
        self.steps, columns = x.shape[0] if batch_sizes is None else batch_sizes.numel(), batch * channels
        self.like = torch.view_as_real(x) if self.complex else x
        self.plan = plan(columns, self.steps, self.like.element_size())
        self.a, self.reset = self.reals(a), None if reset is None else reset.contiguous().view(torch.uint8)
        self.offsets = None if batch_sizes is None else offsets_of(batch_sizes, x.device)
        self.sizes = (self.steps, columns, channels, self.plan.length)
        self.programs = -(-columns // self.plan.block)
        self.flags = {"PER_STEP": a.dim() != 1, "PACKED": batch_sizes is not None, "RESET": reset is not None}
        self.flags["FLIP"] = reverse != backward
        self.options = {
            "COMPLEX": self.complex, "BLOCK": self.plan.block, "STAGES": STAGES,
            "num_warps": max(1, min(4, self.plan.block // 32)),
        } | OPTIONS  # fmt: skip

    def reals(self, x: Tensor | None) -> Tensor:
        """A contiguous tensor of real numbers; a placeholder for None."""
        if x is None:
            return self.like
        return torch.view_as_real(x.contiguous().resolve_conj()) if x.is_complex() else x.contiguous()

    def empty(self, *sizes: int, dtype: torch.dtype | None = None) -> Tensor:
        """An empty tensor in the dtype of the computation, with a last dimension of 2 for complex numbers."""
        wide = dtype or torch.promote_types(self.like.dtype, torch.float32)
        return torch.empty(*sizes, 2 if self.complex else 1, dtype=wide, device=self.like.device)

    def begins(self, x: Tensor | None, initial: Tensor | None, backward: bool) -> Tensor | None:
        """The state before each chunk."""
        if self.plan.chunks == 1:
            return initial
        shape = self.plan.chunks, self.sizes[1]
        products, ends, found = (self.empty(*shape) for _ in range(3))
        cuts = torch.empty(shape, dtype=torch.int8, device=self.like.device)
        kernels().summarise[self.programs, self.plan.chunks](
            self.a, self.reals(x), products, ends, cuts, self.offsets, self.reset, *self.sizes, HAS_X=x is not None,
            BACKWARD=backward, **self.flags, **self.options,
        )  # fmt: skip
        kernels().carry[self.programs,](
            products, ends, cuts, self.reals(initial), found, self.plan.chunks, self.sizes[1],
            RESET=self.flags["RESET"], HAS_INITIAL=initial is not None, **self.options,
        )  # fmt: skip
        return found


def offsets_of(batch_sizes: Tensor, device: torch.device) -> Tensor:
    """The number of rows before each step, and in total."""
    offsets = torch.nn.functional.pad(batch_sizes.cumsum(0), (1, 0))
    if device.type == "cuda" and not is_fake(offsets):
        offsets = offsets.pin_memory()
    return offsets.to(device, non_blocking=True)


def forward(
    a: Tensor, x: Tensor, h0: Tensor | None, batch_sizes: Tensor | None, reset: Tensor | None, reverse: bool,
    sequence: bool,
) -> list[Tensor]:  # fmt: skip
    call = _Call(a, x, h0, batch_sizes, reset, reverse, backward=False)
    h, last = torch.empty_like(x, memory_format=torch.contiguous_format), x.new_empty(call.shape)
    if not x.numel():
        return [*([h] if sequence else []), last.zero_() if h0 is None else last.copy_(h0)]
    begins = call.begins(x, h0, backward=False)
    kernels().scan[call.programs, call.plan.chunks](
        call.a, call.reals(x), call.reals(begins), call.reals(h), call.reals(last), call.offsets, call.reset,
        *call.sizes, HAS_H0=begins is not None, SEQUENCE=sequence, **call.flags, **call.options,
    )  # fmt: skip
    return [*([h] if sequence else []), last]


def backward(
    grad_h: Tensor | None, grad_last: Tensor | None, a: Tensor, h0: Tensor | None, h: Tensor,
    batch_sizes: Tensor | None, reset: Tensor | None, reverse: bool, needs_a: bool,
) -> list[Tensor]:  # fmt: skip
    call = _Call(a, h, h0, batch_sizes, reset, reverse, backward=True)
    grad_x, grad_h0 = torch.empty_like(h, memory_format=torch.contiguous_format), h.new_empty(call.shape)
    grad_a = torch.empty_like(a, memory_format=torch.contiguous_format)
    if not h.numel():
        state = grad_h0.zero_() if grad_last is None else grad_h0.copy_(grad_last)
        return [grad_x, state, *([grad_a.zero_()] if needs_a else [])]
    per_step, begins = call.flags["PER_STEP"], call.begins(grad_h, grad_last, backward=True)
    each = None if per_step or not needs_a else call.empty(call.plan.chunks, *call.shape)
    kernels().backward[call.programs, call.plan.chunks](
        call.a, call.reals(grad_h), call.reals(begins), call.reals(h), call.reals(h0), call.reals(grad_x),
        call.reals(grad_h0), call.reals(grad_a) if each is None else each, call.offsets, call.reset, *call.sizes,
        HAS_GRAD=grad_h is not None, HAS_LAST=begins is not None, HAS_H0=h0 is not None, NEEDS_A=needs_a,
        **call.flags, **call.options,
    )  # fmt: skip
    if each is not None:
        call.reals(grad_a).copy_(each.sum((0, 1)).view(call.reals(grad_a).shape))
    return [grad_x, grad_h0, *([grad_a] if needs_a else [])]


if _extension.available:
    torch.library.impl("rnnkern::linear_scan", "CUDA")(forward)
    torch.library.impl("rnnkern::linear_scan_backward", "CUDA")(backward)
