"""Launches the Triton kernels of similarity: a program per sample, for at most ``MOST`` objects.

Nothing synchronizes with the device."""

import functools

import torch
from torch import Tensor

from rnnkern import _extension
from rnnkern.ops.triton_launch import OPTIONS, block_of, kernels_of

MOST = 128
"""Largest number of objects: the tile of all pairs stays in registers."""
TILE = 2048
"""Number of values in a block of features of all objects."""

kernels = kernels_of("similarity")


def refusal(objects: int) -> str | None:
    """Why the kernels cannot serve a call with so many objects, or None."""
    return (
        None if objects <= MOST else f"more than {MOST} objects, here {objects}, do not fit into a program's registers"
    )


def blocks(objects: int) -> tuple[int, int, int]:
    """Block sizes for objects and for features, and the number of warps."""
    size = max(16, block_of(objects))  # products of tiles have at least 16 rows
    return size, max(16, min(64, TILE // size)), max(1, min(8, size * size // 512))


@functools.cache
def starts_of(segments: tuple[int, ...], device: torch.device) -> Tensor:
    """Where each segment begins, and T, on the device; made once, from pinned memory on a GPU."""
    starts = torch.tensor((0, *segments), dtype=torch.int32).cumsum(0, dtype=torch.int32)
    return starts.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else starts


def _groups(weight: Tensor) -> int:
    """The number of rows of a weight (d,) or (G, d)."""
    return 1 if weight.dim() == 1 else weight.shape[0]


class _Call:
    """Arguments of both kernels."""

    def __init__(self, x, y, weight, bias, values, lengths, segments, norm, eps, mask, scale, packed):
        given = (x, y, weight, bias, values, lengths)
        self.x, self.y, self.weight, self.bias, self.values, self.lengths = (
            None if t is None else t.contiguous() for t in given
        )
        batch, objects, features = x.shape
        pairs = objects * (objects + (1 if mask == "causal" else -1)) // 2
        self.pairs = (batch, pairs) if packed else (batch, objects, objects)
        share = batch // _groups(weight) if weight is not None and batch else 1
        width = 0 if values is None else values.shape[2]
        self.tensors = [self.there(t) for t in (self.x, self.y, self.weight, self.bias, self.values, self.lengths)]
        self.tensors.append(starts_of(tuple(segments), x.device))
        self.sizes = objects, features, width, len(segments), max(share, 1)
        block_t, block_d, warps = blocks(objects)
        self.options = {
            "SCALE": scale, "EPS": eps, "CORRECTION": {"unbiased": 1, "biased": 0, "none": -1}[norm], "MASK": mask,
            "PACKED": packed,
            "TWO": y is not None, "HAS_WEIGHT": weight is not None, "HAS_VALUES": values is not None,
            "HAS_LENGTHS": lengths is not None, "TINY": torch.finfo(x.dtype).tiny, "BLOCK_T": block_t,
            "BLOCK_D": block_d, "num_warps": warps,
        } | OPTIONS  # fmt: skip

    def there(self, t: Tensor | None) -> Tensor:
        """The tensor, contiguous, or a placeholder for None."""
        return self.x if t is None else t.contiguous()


def forward(
    x: Tensor, y: Tensor | None, weight: Tensor | None, bias: Tensor | None, values: Tensor | None,
    lengths: Tensor | None, segments: list[int], norm: str, eps: float, mask: str, scale: float, packed: bool,
    scores: bool,
) -> list[Tensor]:  # fmt: skip
    call = _Call(x, y, weight, bias, values, lengths, segments, norm, eps, mask, scale, packed)
    R, S = x.new_empty(call.pairs), x.new_empty(call.pairs) if scores else None
    product = None if values is None else torch.empty_like(call.values)
    if x.numel():
        outputs = R, call.there(S), call.there(product)
        kernels().forward[(x.shape[0],)](*call.tensors, *outputs, *call.sizes, SCORES=scores, **call.options)
    return [t for t in (R, S, product) if t is not None]


def backward(
    grad_R: Tensor | None, grad_scores: Tensor | None, grad_product: Tensor | None, x: Tensor, y: Tensor | None,
    weight: Tensor | None, bias: Tensor | None, values: Tensor | None, lengths: Tensor | None, R: Tensor,
    segments: list[int], norm: str, eps: float, mask: str, scale: float, packed: bool,
) -> list[Tensor]:  # fmt: skip
    call = _Call(x, y, weight, bias, values, lengths, segments, norm, eps, mask, scale, packed)
    made = [x.new_empty(0) if t is None else torch.empty_like(t) for t in (call.x, call.y, call.weight, call.bias,
                                                                           call.values)]  # fmt: skip
    if not x.numel():
        return [t.zero_() for t in made]
    grad_x, grad_y, grad_weight, grad_bias, grad_values = made
    each = [x.new_empty(0 if weight is None else (x.shape[0], x.shape[2])) for _ in range(2)]
    grads = {"HAS_R": grad_R, "HAS_S": grad_scores, "HAS_P": grad_product}
    kernels().backward[(x.shape[0],)](
        *map(call.there, grads.values()), *call.tensors, R.contiguous(), grad_x, grad_y, *each, grad_values,
        *call.sizes, **{name: t is not None for name, t in grads.items()}, **call.options,
    )  # fmt: skip
    if weight is not None:
        for total, rows in zip((grad_weight, grad_bias), each, strict=True):
            total.view(-1, x.shape[2]).copy_(rows.view(_groups(weight), -1, x.shape[2]).sum(1))
    return made


if _extension.available:
    torch.library.impl("rnnkern::similarity", "CUDA")(forward)
    torch.library.impl("rnnkern::similarity_backward", "CUDA")(backward)
