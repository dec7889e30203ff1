"""skew_exp on a GPU: the same launches whatever the matrices are, and nothing that waits for them.

Up to 64 rows (32 in float64) a Triton program takes a whole matrix. Above, the scheme's products are ATen's and the
squarings Triton's, each of which a matrix takes part in or not by its own norm.
"""

import functools
import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from rnnkern import _extension
from rnnkern.ops.orthogonal_autograd import KEPT
from rnnkern.ops.skew_schemes import SCHEMES
from rnnkern.ops.triton_launch import OPTIONS, block_of

DEGREE = 8
"""Of the scheme here, in every dtype."""
LARGEST_NORM = 1050
"""Of S, with the margin of its estimate: as many squarings are launched."""
MARGIN = 1.05
STEPS = 6
"""Of the power method, and what is added to what it finds, as in csrc/orthogonal/cpu_plan.h."""
LARGEST = {torch.float32: 64, torch.float64: 32}
"""Rows of a matrix that one program takes: its backward has 128 KB of shared memory then."""


@functools.cache
def scheme(dtype: torch.dtype) -> tuple[tuple[float, ...], tuple[float, float], tuple[int, int], int]:
    """Coefficients, limits and places of the scheme that is not squared and of the one that is, and the most squarings.

    Coefficients are x1..x7, y1, y2 of P1 = S^2, P2 = P1 (x1 S + x2 P1) and exp(S) - 1 = (x3 P1 + P2) (x4 + x5 S +
    x6 P1 + x7 P2) + y1 S + y2 P1, first of the one and then of the other.
    """
    schemes = SCHEMES[str(dtype).removeprefix("torch.")]
    found = [place for place, (degree, _, _) in enumerate(schemes) if degree == DEGREE]
    coefficients, limits = [], []
    for place in (found[0], found[-1]):
        _, limit, (_, (_, (x1, x2, _), _), ((_, x3, _), (x5, x6, x7, x4), (y1, y2, _))) = schemes[place]
        coefficients += [x1, x2, x3, x4, x5, x6, x7, y1, y2]
        limits.append(limit)
    most = math.ceil(math.log2(LARGEST_NORM * MARGIN / limits[1]))
    return tuple(coefficients), tuple(limits), (found[0], found[-1]), most


def kernels():
    """Imported when the first of them runs: triton takes a second."""
    from rnnkern.triton import skew_exp

    return skew_exp


def forward(A: Tensor, minus_identity: bool, training: bool) -> list[Tensor]:
    A = A.contiguous()
    size, batch = A.shape[-1], A.shape[:-2]
    kept = A.new_empty(*batch, KEPT[A.dtype], size, size) if training else None
    plan = torch.empty(*batch, 2, dtype=torch.int64, device=A.device)
    if A.numel() == 0:
        V = torch.empty_like(A)
    elif size <= LARGEST[A.dtype]:
        V = _small_forward(A, kept, plan, minus_identity)
    else:
        with _exact(A.device):
            V = _large_forward(A.view(-1, size, size), kept, plan.view(-1, 2), minus_identity).view(A.shape)
    return [V, kept, plan] if training else [V]


def backward(grad: Tensor, A: Tensor, kept: Tensor, plan: Tensor) -> Tensor:
    grad, A, kept, plan = (x.contiguous() for x in (grad, A, kept, plan))
    size = A.shape[-1]
    if A.numel() == 0:
        return torch.empty_like(A)
    if size <= LARGEST[A.dtype]:
        return _small_backward(grad, A, kept, plan)
    with _exact(A.device):
        flat = (x.view(-1, *x.shape[x.dim() - own :]) for x, own in ((grad, 2), (A, 2), (kept, 3), (plan, 1)))
        return _large_backward(*flat).view(A.shape)


@contextmanager
def _exact(device: torch.device) -> Iterator[None]:
    """No TF32 in ATen's products, which would cost orthogonality at 1e-3."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


# ---- a matrix per program


def _block(size: int) -> int:
    return max(16, block_of(size))


def _small_forward(A, kept, plan, minus_identity):
    V = torch.empty_like(A)
    coefficients, limits, places, most = scheme(A.dtype)
    block = _block(A.shape[-1])
    kernels().small_forward[(A.numel() // A.shape[-1] ** 2,)](
        A, V, A if kept is None else kept, plan, A.shape[-1], BLOCK=block, KEPT=KEPT[A.dtype],
        TRAINING=kept is not None, MINUS_IDENTITY=minus_identity, C=coefficients, LIMITS=limits, SCHEMES=places,
        MARGIN=MARGIN, MOST=most, num_warps=_warps(block), **OPTIONS,
    )  # fmt: skip
    return V


def _small_backward(grad, A, kept, plan):
    result = torch.empty_like(A)
    coefficients, _, places, _ = scheme(A.dtype)
    block = _block(A.shape[-1])
    kernels().small_backward[(A.numel() // A.shape[-1] ** 2,)](
        grad, A, kept, plan, result, A.shape[-1], BLOCK=block, KEPT=KEPT[A.dtype], C=coefficients, SCHEMES=places,
        num_warps=_warps(block), **OPTIONS,
    )  # fmt: skip
    return result


def _warps(block: int) -> int:
    return {16: 1, 32: 4, 64: 8}[block]


# ---- above


class _Coefficients:
    """Those of each matrix, on its device, as (matrices, 1, 1): by its scheme, of S / 2^squarings."""

    def __init__(self, plan: Tensor, dtype: torch.dtype):
        low, high = scheme(dtype)[0][:9], scheme(dtype)[0][9:]
        squared, sigma = (plan[:, :1, None] > scheme(dtype)[2][0]), torch.exp2(-plan[:, 1:, None].to(dtype))
        self.sigma2 = sigma * sigma
        powers = (sigma, self.sigma2, self.sigma2, 1, sigma, self.sigma2, 1, sigma, self.sigma2)
        one = torch.ones_like(sigma)
        self.x1, self.x2, self.x3, self.x4, self.x5, self.x6, self.x7, self.y1, self.y2 = (
            torch.where(squared, b * one, a * one) * power for a, b, power in zip(low, high, powers, strict=True)
        )

    def sums(self, S: Tensor, P1: Tensor, P2: Tensor) -> tuple[Tensor, Tensor]:
        """The factors of the last product."""
        right = self.x5 * S + self.x6 * P1 + self.x7 * P2
        right.diagonal(dim1=-2, dim2=-1).add_(self.x4[..., 0])
        return self.x3 * P1 + P2, right


def _skew(A):
    lower = A.tril(-1)
    return lower - lower.mT


def _norm(P1: Tensor) -> Tensor:
    """As ``_norm`` of the kernels, (matrices,)."""
    bound = P1.abs().sum(-1).amax(-1).sqrt()
    index = torch.arange(1, P1.shape[-1] + 1, device=P1.device)
    mixed = (index * 2654435761) & 0xFFFFFFFF
    mixed = mixed ^ (mixed >> 15)
    v = ((mixed - ((mixed >> 31) << 32)).to(P1.dtype) / 2147483647.0).expand(P1.shape[0], -1).unsqueeze(-1)
    for _ in range(STEPS):
        v = v / torch.linalg.vector_norm(v, dim=1, keepdim=True).clamp_min(1e-30)
        v = torch.bmm(P1, v)
    found = torch.linalg.vector_norm(v, dim=(1, 2)).sqrt()
    return torch.minimum(MARGIN * found, bound)


def _make_plan(P1: Tensor, plan: Tensor) -> None:
    _, (limit, squared_limit), places, most = scheme(P1.dtype)
    norm = _norm(P1)
    squared = norm > limit
    times = torch.where(squared, torch.log2(norm / squared_limit).ceil().clamp(0, most), 0.0)
    plan[:, 0] = torch.where(squared, places[1], places[0])
    plan[:, 1] = times.long()


def _large_forward(A, kept, plan, minus_identity):
    size = A.shape[-1]
    S = _skew(A)
    P1 = torch.bmm(S, S)
    _make_plan(P1, plan)
    c = _Coefficients(plan, A.dtype)
    P2 = torch.bmm(c.sigma2 * P1, c.x1 * S + c.x2 * P1)
    E = torch.bmm(*c.sums(S, P1, P2)).add_(c.y1 * S + c.y2 * P1)
    if kept is not None:
        kept = kept.view(-1, KEPT[A.dtype], size, size)
        kept[:, 0], kept[:, 1] = P1, P2
    for k in range(scheme(A.dtype)[3]):
        E = _square(E, plan, k)
    if not minus_identity:
        E.diagonal(dim1=-2, dim2=-1).add_(1)
    return E


def _product_if(left, right, added, plan, k, more=None, flip_left=False, flip_right=False, times=1):
    out = torch.empty_like(added)
    size, double = added.shape[-1], added.dtype == torch.float64
    block = 64
    across = -(-size // block)
    kernels().product_if[(across * across, added.shape[0])](
        left, right, added, added if more is None else more, out, plan, size, k, FLIP_LEFT=flip_left,
        FLIP_RIGHT=flip_right, TIMES=times, MORE=more is not None, BLOCK=block, DEPTH=16 if double else 32,
        num_warps=8 if double else 4, **OPTIONS,
    )  # fmt: skip
    return out


def _square(E, plan, k):
    return _product_if(E, E, E, plan, k, times=2)


def _unsquare(grad, first, plan, most):
    """The gradient before the squarings (rnnkern/triton/skew_exp.py)."""
    E = first
    for k in range(most):
        half = _product_if(E, grad, grad, plan, k, flip_left=True)
        grad = _product_if(half, E, grad, plan, k, more=half)
        E = _square(E, plan, k)
    grad = _product_if(grad, E, grad, plan, 0, flip_right=True)
    return _product_if(grad, first, grad, plan, 0)


def _large_backward(grad, A, kept, plan):
    S, P1, P2 = _skew(A), kept[:, 0], kept[:, 1]
    c = _Coefficients(plan, A.dtype)
    left, right = c.sums(S, P1, P2)
    first = torch.bmm(left, right).add_(c.y1 * S + c.y2 * P1)
    grad = _unsquare(grad, first, plan, scheme(A.dtype)[3])
    left_bar, right_bar = torch.bmm(grad, right.mT), torch.bmm(left.mT, grad)
    S_bar = c.y1 * grad + c.x5 * right_bar
    P1_bar = c.y2 * grad + c.x3 * left_bar + c.x6 * right_bar
    P2_bar = left_bar + c.x7 * right_bar
    factor_bar = torch.bmm(c.sigma2 * P1, P2_bar)
    P1_bar += c.x2 * factor_bar + torch.bmm(c.sigma2 * P2_bar, (c.x1 * S + c.x2 * P1).mT)
    S_bar += c.x1 * factor_bar
    W = S_bar - torch.bmm(P1_bar + P1_bar.mT, S)
    return (W - W.mT).tril(-1)


if _extension.available:
    torch.library.impl("rnnkern::skew_exp", "CUDA")(forward)
    torch.library.impl("rnnkern::skew_exp_backward", "CUDA")(backward)
