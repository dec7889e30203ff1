"""Launches the Triton kernels of moment_filter: a program takes a block of columns through time, a tile at a time.

A column is one channel of one sequence.

Nothing synchronizes with the device; packed lengths are copied to it from pinned memory.
"""

import torch
from torch import Tensor

from rnnkern import _extension
from rnnkern.ops._scan.scan_triton import offsets_of
from rnnkern.ops.triton_launch import OPTIONS, block_of, kernels_of

BLOCK = 64
"""Number of columns per program."""
STEPS = 16
"""Number of steps in a tile if no states are saved; otherwise it is the distance between saved states."""

kernels = kernels_of("moment_filter")


class _Call:
    """Arguments of both kernels."""

    def __init__(self, u, v0, q0, batch_sizes, reset, reverse, mu, s, beta, eps, every):
        self.u, self.v0, self.q0 = (None if x is None else x.contiguous() for x in (u, v0, q0))
        self.shape = u.shape[1:] if v0 is None else v0.shape
        batch, channels = self.shape
        self.steps, columns = u.shape[0] if batch_sizes is None else batch_sizes.numel(), batch * channels
        self.squares, self.every = beta is not None, every
        offsets = None if batch_sizes is None else offsets_of(batch_sizes, u.device)
        reset = None if reset is None else reset.contiguous().view(torch.uint8)
        self.layout = offsets, reset, self.steps, columns, channels
        block = min(BLOCK, max(block_of(columns), 32))
        self.programs = -(-columns // block)
        self.options = {
            "MU": mu, "S": s, "BETA": beta or 0.0, "EPS": eps, "SQUARES": self.squares,
            "PACKED": offsets is not None, "RESET": reset is not None, "FLIP": reverse, "EVERY": every or STEPS,
            "HAS_V0": v0 is not None, "HAS_Q0": q0 is not None, "BLOCK": block, "num_warps": 2,
        } | OPTIONS  # fmt: skip

    def there(self, *tensors: Tensor | None) -> list[Tensor]:
        """Contiguous tensors, with a placeholder for missing ones."""
        return [self.u if x is None else x.contiguous() for x in tensors]

    def states(self) -> list[Tensor]:
        """States for v and, if there is one, for q."""
        wide = torch.promote_types(self.u.dtype, torch.float32)
        return [self.u.new_empty(self.shape, dtype=wide) for _ in range(1 + self.squares)]


def forward(
    u: Tensor, v0: Tensor | None, q0: Tensor | None, batch_sizes: Tensor | None, reset: Tensor | None, reverse: bool,
    mu: float, s: float, beta: float | None, eps: float, every: int,
) -> list[Tensor]:  # fmt: skip
    call = _Call(u, v0, q0, batch_sizes, reset, reverse, mu, s, beta, eps, every)
    results = [y, v, *q] = [torch.empty_like(call.u), *call.states()]
    if q and every:
        results.append(v.new_empty(max((call.steps - 1) // every, 0), 2, *v.shape))
    if u.numel():
        tensors = call.there(call.u, v0, q0, y, v, *(q or [None]), *(results[3:] or [None]))
        kernels().forward[call.programs,](*tensors, *call.layout, KEEPS=len(results) == 4, **call.options)
    else:
        for state, initial in zip(results[1:3], (v0, q0), strict=False):
            state.zero_() if initial is None else state.copy_(initial)
    return results


def backward(
    grad_y: Tensor | None, grad_v: Tensor | None, grad_q: Tensor | None, u: Tensor, v0: Tensor | None,
    q0: Tensor | None, kept: Tensor | None, batch_sizes: Tensor | None, reset: Tensor | None, reverse: bool, mu: float,
    s: float, beta: float | None, eps: float, every: int,
) -> list[Tensor]:  # fmt: skip
    call = _Call(u, v0, q0, batch_sizes, reset, reverse, mu, s, beta, eps, every)
    results = [grad_u, *states] = [torch.empty_like(call.u), *call.states()]
    grads = {"HAS_Y": grad_y, "HAS_V": grad_v, "HAS_Q": grad_q}
    if u.numel():
        tensors = call.there(*grads.values(), call.u, v0, q0, kept, grad_u, states[0], states[-1])
        flags = {name: x is not None for name, x in grads.items()}
        kernels().backward[call.programs,](*tensors, *call.layout, **flags, **call.options)
    else:
        for state, last in zip(states, (grad_v, grad_q), strict=False):
            state.zero_() if last is None else state.copy_(last)
    return results


if _extension.available:
    torch.library.impl("rnnkern::moment_filter", "CUDA")(forward)
    torch.library.impl("rnnkern::moment_filter_backward", "CUDA")(backward)
