"""Launches the Triton kernels of skew_exp, independently of the values of the matrices: nothing waits for the device.

Up to 64 rows, one Triton program handles a whole matrix. Up to 512 rows, every product of the scheme and of its reverse
sweep is one launch, which forms the linear combinations to multiply while loading, and adds a third one while storing.
Above that, ATen computes these products, and Triton only the squarings. The norm of each matrix decides in which
squarings it takes part.
"""

import functools
import math
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import NamedTuple

import torch
from torch import Tensor

from rnnkern import _extension
from rnnkern.ops._orthogonal.schemes import DOUBLINGS, INSIDE, POWER_STEPS, ROUNDING, SCHEMES
from rnnkern.ops.triton_launch import OPTIONS, block_of, kernels_of

KEPT = {torch.float32: 2, torch.float64: 3}
"""Number of products that the forward pass saves for the backward pass (kept_products in
csrc/orthogonal/cpu/problem.h)."""
DEGREE = 8
"""Degree of the scheme, for every dtype."""
LARGEST_NORM = 1000
"""Largest supported norm of S. It determines how many squarings are launched, and no matrix is squared more often."""
BOUND = (POWER_STEPS, DOUBLINGS, INSIDE, ROUNDING)
"""Constants of the bound on the 2-norm, as in csrc/orthogonal/cpu/bound.h."""
LARGEST_FUSED = 512
"""Largest N for which Triton computes the products; ATen computes larger ones."""
LARGEST = 64
"""Largest N for which one program handles a whole matrix: its backward pass then uses 96 KB of shared memory in
float64, half of that in float32."""

Coefficient = tuple[float, float, int]
"""A coefficient in the scheme without squarings, in the scheme with squarings, and the power of 1 / 2^squarings that
multiplies it."""
ONE, TWO, MINUS_ONE = ((x, x, 0) for x in (1.0, 2.0, -1.0))
POWERS = {"x1": 3, "x2": 4, "x3": 2, "x4": 0, "x5": 1, "x6": 2, "x7": 0, "y1": 1, "y2": 2}
"""The power of 1 / 2^squarings that multiplies each coefficient, because S and P1 are read unscaled."""


@functools.cache
def scheme(dtype: torch.dtype) -> tuple[tuple[float, ...], tuple[float, float], tuple[int, int], int]:
    """Coefficients, limits and indices of the schemes without and with squarings, and the largest number of squarings.

    Coefficients are x1..x7, y1, y2 of P1 = S^2, P2 = P1 (x1 S + x2 P1) and exp(S) - 1 = (x3 P1 + P2) (x4 + x5 S + x6 P1
    + x7 P2) + y1 S + y2 P1, first for the scheme without squarings. A limit is the largest 2-norm of S for a scheme.
    """
    schemes = SCHEMES[str(dtype).removeprefix("torch.")]
    found = [place for place, (degree, _, _) in enumerate(schemes) if degree == DEGREE]
    coefficients, limits = [], []
    for place in (found[0], found[-1]):
        _, limit, (_, (_, (x1, x2, _), _), ((_, x3, _), (x5, x6, x7, x4), (y1, y2, _))) = schemes[place]
        coefficients += [x1, x2, x3, x4, x5, x6, x7, y1, y2]
        limits.append(limit)
    most = math.ceil(math.log2(LARGEST_NORM / limits[1]))
    return tuple(coefficients), tuple(limits), (found[0], found[-1]), most


@functools.cache
def _coefficients(dtype: torch.dtype) -> SimpleNamespace:
    both = scheme(dtype)[0]
    found = zip(POWERS, both[:9], both[9:], strict=True)
    return SimpleNamespace(**{name: (low, high, POWERS[name]) for name, low, high in found})


kernels = kernels_of("skew_exp")


def forward(A: Tensor, minus_identity: bool, training: bool) -> list[Tensor]:
    A = A.contiguous()
    size, batch = A.shape[-1], A.shape[:-2]
    kept = A.new_empty(*batch, KEPT[A.dtype], size, size) if training else None
    plan = torch.empty(*batch, 2, dtype=torch.int64, device=A.device)
    if A.numel() == 0:
        V = torch.empty_like(A)
    elif size <= LARGEST:
        V = _small_forward(A, kept, plan, minus_identity)
    else:
        with _exact(A.device):
            flat = None if kept is None else kept.view(-1, *kept.shape[-3:])
            V = _large_forward(A.view(-1, size, size), flat, plan.view(-1, 2), minus_identity).view(A.shape)
    return [V, kept, plan] if training else [V]


def backward(grad: Tensor, A: Tensor, kept: Tensor, plan: Tensor) -> Tensor:
    grad, A, kept, plan = (x.contiguous() for x in (grad, A, kept, plan))
    size = A.shape[-1]
    if A.numel() == 0:
        return torch.empty_like(A)
    if size <= LARGEST:
        return _small_backward(grad, A, kept, plan)
    with _exact(A.device):
        flat = (x.view(-1, *x.shape[x.dim() - own :]) for x, own in ((grad, 2), (A, 2), (kept, 3), (plan, 1)))
        return _large_backward(*flat).view(A.shape)


@contextmanager
def _exact(device: torch.device) -> Iterator[None]:
    """Disables TF32 in ATen's products, which would make the result orthogonal only to 1e-3."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


# ---- small matrices: one program each


def _block(size: int) -> int:
    return max(16, block_of(size))


def _small_forward(A, kept, plan, minus_identity):
    V = torch.empty_like(A)
    coefficients, limits, places, most = scheme(A.dtype)
    block = _block(A.shape[-1])
    kernels().small_forward[(A.numel() // A.shape[-1] ** 2,)](
        A, V, A if kept is None else kept, plan, A.shape[-1], BLOCK=block, KEPT=KEPT[A.dtype],
        TRAINING=kept is not None, MINUS_IDENTITY=minus_identity, C=coefficients, LIMITS=limits, SCHEMES=places,
        BOUND=BOUND, MOST=most, num_warps=_warps(block), **OPTIONS,
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


# ---- larger matrices


class Term(NamedTuple):
    """A term of a linear combination of matrices."""

    matrix: Tensor  # (matrices, N, N)
    kind: str = "plain"  # or flipped, symmetric, identity; skew and skew flipped read only the lower triangle
    coefficient: Coefficient = ONE

    def times(self, coefficient: Coefficient) -> "Term":
        return self._replace(coefficient=coefficient)

    def flipped(self) -> "Term":
        return self._replace(kind={"plain": "flipped", "skew": "skew flipped"}.get(self.kind, self.kind))

    @property
    def facts(self) -> tuple:
        """The properties of the term that the kernel needs."""
        kinds = ("flipped" in self.kind, "skew" in self.kind, self.kind == "identity")
        return *self.coefficient, *kinds, self.matrix.stride(0) // self.matrix.shape[-1] ** 2


Sum = list[Term]


def _flipped(terms: Sum) -> Sum:
    return [term.flipped() for term in terms]


def _product(left: Sum, right: Sum, added: Sum, plan: Tensor, when: str = "always", k: int = 0) -> Term:
    """Computes left right + added. ``when`` is the ``IF`` of :func:`rnnkern.triton.skew_exp.product`."""
    matrices, size = left[0].matrix.shape[:2]
    if size > LARGEST_FUSED and when != "copy":
        result = torch.bmm(_combined(left, plan), _combined(right, plan))
        return Term(result.add_(_combined(added, plan)) if added else result)
    out = left[0].matrix.new_empty(matrices, size, size)
    sums = (left, right, added)
    facts = [tuple(term.facts for term in sum) for sum in sums]
    planned = when != "always" or any(low != high or power for sum in facts for low, high, power, *_ in sum)
    block, depth, warps = _tile(size, out.dtype)
    kernels().product[(math.ceil(size / block) ** 2, matrices)](
        *(tuple(term.matrix for term in sum) for sum in sums), out, plan, size, k, LEFT=facts[0], RIGHT=facts[1],
        ADDED=facts[2], PLANNED=planned, IF=when, LOW=scheme(out.dtype)[2][0], BLOCK=block,
        DEPTH=depth, num_warps=warps, **OPTIONS,
    )  # fmt: skip
    return Term(out)


def _tile(size: int, dtype: torch.dtype) -> tuple[int, int, int]:
    """Rows and columns of a program's tile, the inner size of its steps, and the number of warps; smaller tiles if one
    matrix would give few programs."""
    return 32 if size <= 256 else 64, *((16, 8) if dtype == torch.float64 else (32, 4))


def _combined(terms: Sum, plan: Tensor) -> Tensor:
    """The linear combination as a matrix, for ATen's products; for smaller matrices the kernel forms it while
    loading."""
    squared = plan[:, :1, None] > scheme(terms[0].matrix.dtype)[2][0]
    sigma = torch.exp2(-plan[:, 1:, None].to(terms[0].matrix.dtype))
    if len(terms) == 1 and terms[0].coefficient == ONE:
        return terms[0].matrix.mT if terms[0].kind == "flipped" else terms[0].matrix
    result = None
    for matrix, kind, (low, high, power) in terms:
        factor = torch.where(squared, high * sigma**power, low * sigma**power)
        if kind == "identity":
            result.diagonal(dim1=-2, dim2=-1).add_(factor[..., 0])
        elif result is None:
            result = factor * (matrix.mT if kind == "flipped" else matrix)
        else:
            result.addcmul_(factor, matrix.mT if kind == "flipped" else matrix)
    return result


def _paired_norm(X: Tensor) -> Tensor:
    return torch.linalg.vector_norm(X, dim=(1, 2)) / math.sqrt(2)


def _choice(norm: Tensor) -> tuple[Tensor, Tensor]:
    """Whether to use the scheme with squarings, and the number of squarings, as in the kernels."""
    _, (limit, squared_limit), _, most = scheme(norm.dtype)
    squared = norm > limit
    return squared, torch.where(squared, torch.log2(norm / squared_limit).ceil().clamp(0, most), 0.0)


def _bound(P1: Tensor) -> Tensor:
    """The bound on the 2-norm as in the kernels, of shape (matrices,). Each doubling is a launch that skips the
    matrices whose number of squarings is already certain."""
    size, (limit, _) = P1.shape[-1], scheme(P1.dtype)[1]
    index = torch.arange(1, size + 1, device=P1.device)
    mixed = (index * 2654435761) & 0xFFFFFFFF
    mixed = mixed ^ (mixed >> 15)
    v = ((mixed - ((mixed >> 31) << 32)).to(P1.dtype) / 2147483647.0).expand(P1.shape[0], -1).unsqueeze(-1)
    for _ in range(POWER_STEPS):
        v = v / torch.linalg.vector_norm(v, dim=1, keepdim=True).clamp_min(1e-30)
        v = torch.bmm(P1, v)
    one, paired = P1.abs().sum(-1).amax(-1), _paired_norm(P1)
    least = torch.maximum(torch.linalg.vector_norm(v, dim=(1, 2)), paired / math.sqrt(max(size // 2, 1))).sqrt()
    most = torch.where(one > limit**2, torch.minimum(one, paired), one).sqrt()
    c = INSIDE * least.clamp_min(1e-15)
    T = Term((-2 / c.square())[:, None, None] * P1)
    T.matrix.diagonal(dim1=-2, dim2=-1).sub_(1)
    in_doubt = torch.zeros(len(P1), 2, dtype=torch.int64, device=P1.device)
    for doubling in range(1, DOUBLINGS + 1):
        chosen = zip(_choice(most * (1 + ROUNDING)), _choice(least), strict=True)
        doubt = torch.logical_or(*(high != low for high, low in chosen))
        in_doubt[:, 1] = doubt
        T = _product([T.times(TWO)], [T], [Term(T.matrix, "identity", MINUS_ONE)], in_doubt, "copy")
        x = _paired_norm(T.matrix)
        found = c * torch.cosh(torch.acosh(x.clamp_min(1)) / 2 ** (doubling + 1))
        most = torch.where(doubt, torch.fmin(most, found), most)
    return most * (1 + ROUNDING)


def _make_plan(P1: Tensor, plan: Tensor) -> None:
    places = scheme(P1.dtype)[2]
    squared, times = _choice(_bound(P1))
    plan[:, 0] = torch.where(squared, places[1], places[0])
    plan[:, 1] = times.long()


def _given(A: Tensor) -> Term:
    """S, as a term."""
    if A.shape[-1] <= LARGEST_FUSED:
        return Term(A, "skew")
    lower = A.tril(-1)
    return Term(lower - lower.mT)


def _last(S: Term, P1: Term, P2: Term) -> tuple[Sum, Sum, Sum]:
    """The operands left, right and added of the last product of the scheme."""
    c = _coefficients(S.matrix.dtype)
    right = [S.times(c.x5), P1.times(c.x6), P2.times(c.x7), Term(S.matrix, "identity", c.x4)]
    return [P1.times(c.x3), P2], right, [S.times(c.y1), P1.times(c.y2)]


def _large_forward(A, kept, plan, minus_identity):
    S, c = _given(A), _coefficients(A.dtype)
    P1 = _product([S], [S], [], plan)._replace(kind="symmetric")
    _make_plan(P1.matrix, plan)
    P2 = _product([P1], [S.times(c.x1), P1.times(c.x2)], [], plan)
    E = _product(*_last(S, P1, P2), plan)
    if kept is not None:
        kept[:, 0], kept[:, 1] = P1.matrix, P2.matrix
    for k in range(scheme(A.dtype)[3]):
        E = _square(E, plan, k)
    if not minus_identity:
        E.matrix.diagonal(dim1=-2, dim2=-1).add_(1)
    return E.matrix


def _square(E, plan, k):
    return _product([E], [E], [E.times(TWO)], plan, "copy", k)


def _unsquare(G, first, plan, most):
    """The gradient with respect to the matrix before the squarings (explained in rnnkern/triton/skew_exp.py)."""
    E = first
    for k in range(most):
        half = _product([E.flipped()], [G], [G], plan, "copy", k)
        G = _product([half], [E], [G, half], plan, "copy", k)
        E = _square(E, plan, k)
    G = _product([G], [E.flipped()], [G], plan, "copy")
    return _product([G], [first], [G], plan, "copy")


def _large_backward(grad, A, kept, plan):
    S, P1, P2, c = _given(A), Term(kept[:, 0], "symmetric"), Term(kept[:, 1]), _coefficients(A.dtype)
    left, right, added = _last(S, P1, P2)
    first = _product(left, right, added, plan, "squared")
    G = _unsquare(Term(grad), first, plan, scheme(A.dtype)[3])
    X, Y = _product([G], _flipped(right), [], plan), _product(_flipped(left), [G], [], plan)
    P2_bar = [X, Y.times(c.x7)]
    Z = _product([P1], P2_bar, [], plan)
    P1_bar = _product(
        P2_bar, _flipped([S.times(c.x1), P1.times(c.x2)]),
        [G.times(c.y2), X.times(c.x3), Y.times(c.x6), Z.times(c.x2)], plan,
    )  # fmt: skip
    S_bar = [G.times(c.y1), Y.times(c.x5), Z.times(c.x1)]
    W = _product([P1_bar, P1_bar.flipped()], [S.times(MINUS_ONE)], S_bar, plan).matrix
    return (W - W.mT).tril(-1)


if _extension.available:
    torch.library.impl("rnnkern::skew_exp", "CUDA")(forward)
    torch.library.impl("rnnkern::skew_exp_backward", "CUDA")(backward)
