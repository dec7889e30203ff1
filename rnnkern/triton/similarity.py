"""GPU kernels of similarity: one program per sample.

The tile of all pairs stays in registers; features go by blocks, because means and variances need the objects of one
feature only.

Products of float32 are exact (input_precision "ieee"), as R saturates and amplifies errors of the scores. There are no
atomics: gradients of weight and bias are written per sample, and summed by the caller. Numbers are compile-time
constants, because arguments would be rounded to float32.
"""

import triton
import triton.language as tl


@triton.jit
def _there(lengths, b, T, HAS_LENGTHS: tl.constexpr):
    """The number of objects of a sample."""
    count = T
    if HAS_LENGTHS:
        count = tl.minimum(tl.maximum(tl.load(lengths + b), 0), T).to(tl.int32)
    return count


@triton.jit
def _members(row, n, MASK: tl.constexpr):
    """Which pairs (i, j) are members."""
    i, j = row[:, None], row[None, :]
    inside = (i < n) & (j < n)
    if MASK == "causal":
        inside = inside & (j <= i)
    elif MASK == "strict":
        inside = inside & (j < i)
    return inside


@triton.jit
def _places(row, T, MASK: tl.constexpr, PACKED: tl.constexpr):
    """Addresses of the pairs of a sample, which of them are stored, and how many there are."""
    i, j = row[:, None], row[None, :]
    place, stored, size = i * T + j, (i < T) & (j < T), T * T
    if PACKED:
        strict: tl.constexpr = 1 if MASK == "strict" else 0
        place = i * (i + 1 - 2 * strict) // 2 + j
        stored, size = (i < T) & (j + strict <= i), T * (T + 1 - 2 * strict) // 2
    return place, stored, size


@triton.jit
def _normalized(
    x, b, row, first, n, T, d, starts, segments, weight, bias, group, EPS: tl.constexpr, CORRECTION: tl.constexpr,
    HAS_WEIGHT: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """A block of features: x normalized and z, (BLOCK_T, BLOCK_D), 1 / s of each object's segment, and what is there.
    CORRECTION is 0 or 1, or -1 for no normalization."""
    feature = first + tl.arange(0, BLOCK_D)
    inside = (row < n)[:, None] & (feature < d)[None, :]
    value = tl.load(x + (b * T + row)[:, None] * d + feature[None, :], mask=inside, other=0.0)
    normal = value
    inverse = tl.zeros([BLOCK_T, BLOCK_D], value.dtype)
    z = value
    if CORRECTION >= 0:
        for k in range(segments):
            begin, end = tl.load(starts + k), tl.load(starts + k + 1)
            mine = ((row >= begin) & (row < tl.minimum(end, n)))[:, None]
            count = tl.maximum(tl.minimum(end, n) - begin, 0)
            origin = tl.sum(tl.where((row == begin)[:, None], value, 0.0), 0)
            shifted = tl.where(mine, value - origin[None, :], 0.0)  # constant features become exactly 0
            mean = tl.sum(shifted, 0) / tl.maximum(count, 1).to(value.dtype)
            centred = tl.where(mine, shifted - mean[None, :], 0.0)
            var = tl.sum(centred * centred, 0) / tl.maximum(count - CORRECTION, 1).to(value.dtype)
            factor = tl.where(count > 1, 1.0 / tl.sqrt(var + EPS), 0.0)
            normal = tl.where(mine, centred * factor[None, :], normal)
            inverse = tl.where(mine, factor[None, :], inverse)
        z = normal
        if HAS_WEIGHT:
            gamma = tl.load(weight + group * d + feature, mask=feature < d, other=0.0)
            beta = tl.load(bias + group * d + feature, mask=feature < d, other=0.0)
            z = tl.where(inside, normal * gamma[None, :] + beta[None, :], 0.0)
    return normal, z, inverse, inside, feature


@triton.jit
def forward(
    x, y, weight, bias, values, lengths, starts, R, scores, product, T, d, e, segments, share,
    SCALE: tl.constexpr, EPS: tl.constexpr, CORRECTION: tl.constexpr, MASK: tl.constexpr, PACKED: tl.constexpr,
    TWO: tl.constexpr, HAS_WEIGHT: tl.constexpr, HAS_VALUES: tl.constexpr, HAS_LENGTHS: tl.constexpr,
    SCORES: tl.constexpr, TINY: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """R, and if requested S and R values."""
    b = tl.program_id(0).to(tl.int64)
    row = tl.arange(0, BLOCK_T)
    n = _there(lengths, b, T, HAS_LENGTHS)
    group = b // share
    S = tl.zeros([BLOCK_T, BLOCK_T], x.dtype.element_ty)
    for first in range(0, d, BLOCK_D):
        _, z_x, _, _, _ = _normalized(
            x, b, row, first, n, T, d, starts, segments, weight, bias, group, EPS, CORRECTION, HAS_WEIGHT, BLOCK_T,
            BLOCK_D,
        )  # fmt: skip
        z_y = z_x
        if TWO:
            _, z_y, _, _, _ = _normalized(
                y, b, row, first, n, T, d, starts, segments, weight, bias, group, EPS, CORRECTION, HAS_WEIGHT, BLOCK_T,
                BLOCK_D,
            )  # fmt: skip
        S = tl.dot(z_x, tl.trans(z_y), S, input_precision="ieee", out_dtype=S.dtype)
    member = _members(row, n, MASK)
    S = tl.where(member, S * SCALE, 0.0)
    place, stored, size = _places(row, T, MASK, PACKED)
    if SCORES:
        tl.store(scores + b * size + place, S, mask=stored)
    anyone = tl.max(member.to(tl.int32), 1) > 0
    most = tl.where(anyone, tl.max(tl.where(member, S, float("-inf")), 1), 0.0)
    power = tl.where(member, tl.exp(tl.where(member, S - most[:, None], 0.0)), 0.0)
    total = tl.where(anyone, tl.sum(power, 1), 1.0)
    found = power / total[:, None]
    found = tl.where(found < TINY, 0.0, found)
    tl.store(R + b * size + place, found, mask=stored)
    if HAS_VALUES:
        for first in range(0, e, BLOCK_D):
            column = first + tl.arange(0, BLOCK_D)
            at = (b * T + row)[:, None] * e + column[None, :]
            here = (column < e)[None, :]
            v = tl.load(values + at, mask=(row < n)[:, None] & here, other=0.0)
            out = tl.dot(found, v, input_precision="ieee", out_dtype=v.dtype)
            tl.store(product + at, out, mask=(row < T)[:, None] & here)


@triton.jit
def _through_norm(
    to, grad_weight, grad_bias, grad, normal, inverse, b, row, n, T, d, starts, segments, weight, group, inside,
    feature, CORRECTION: tl.constexpr, HAS_WEIGHT: tl.constexpr, ADD: tl.constexpr,
):  # fmt: skip
    """Stores the gradient of a block of x, and those of weight and bias of this sample."""
    found = grad
    if CORRECTION >= 0:
        for k in range(segments):
            begin, end = tl.load(starts + k), tl.load(starts + k + 1)
            mine = ((row >= begin) & (row < tl.minimum(end, n)))[:, None]
            count = tl.maximum(tl.minimum(end, n) - begin, 0)
            mean = tl.sum(tl.where(mine, grad, 0.0), 0) / tl.maximum(count, 1).to(grad.dtype)
            along = tl.sum(tl.where(mine, grad * normal, 0.0), 0)
            along = along / tl.maximum(count - CORRECTION, 1).to(grad.dtype)
            through = inverse * ((grad - mean[None, :]) - normal * along[None, :])
            found = tl.where(mine, through, found)
        if HAS_WEIGHT:
            gamma = tl.load(weight + group * d + feature, mask=feature < d, other=0.0)
            found = found * gamma[None, :]
            of_weight = tl.sum(tl.where(inside, grad * normal, 0.0), 0)
            of_bias = tl.sum(tl.where(inside, grad, 0.0), 0)
            at = b * d + feature
            if ADD:
                of_weight += tl.load(grad_weight + at, mask=feature < d, other=0.0)
                of_bias += tl.load(grad_bias + at, mask=feature < d, other=0.0)
            tl.store(grad_weight + at, of_weight, mask=feature < d)
            tl.store(grad_bias + at, of_bias, mask=feature < d)
    at = (b * T + row)[:, None] * d + feature[None, :]
    tl.store(to + at, tl.where(inside, found, 0.0), mask=(row < T)[:, None] & (feature < d)[None, :])


@triton.jit
def backward(
    grad_R, grad_scores, grad_product, x, y, weight, bias, values, lengths, starts, R, grad_x, grad_y, grad_weight,
    grad_bias, grad_values, T, d, e, segments, share, SCALE: tl.constexpr, EPS: tl.constexpr,
    CORRECTION: tl.constexpr, MASK: tl.constexpr, PACKED: tl.constexpr, TWO: tl.constexpr,
    HAS_WEIGHT: tl.constexpr, HAS_VALUES: tl.constexpr, HAS_LENGTHS: tl.constexpr, HAS_R: tl.constexpr,
    HAS_S: tl.constexpr, HAS_P: tl.constexpr, TINY: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """All gradients, from R and the arguments."""
    b = tl.program_id(0).to(tl.int64)
    row = tl.arange(0, BLOCK_T)
    n = _there(lengths, b, T, HAS_LENGTHS)
    group = b // share
    member = _members(row, n, MASK)
    place, stored, size = _places(row, T, MASK, PACKED)
    weights = tl.load(R + b * size + place, mask=stored & member, other=0.0)
    grad = tl.zeros([BLOCK_T, BLOCK_T], weights.dtype)
    if HAS_R:
        grad = tl.load(grad_R + b * size + place, mask=stored & member, other=0.0)
    if HAS_VALUES:
        for first in range(0, e, BLOCK_D):
            column = first + tl.arange(0, BLOCK_D)
            at = (b * T + row)[:, None] * e + column[None, :]
            here = (row < n)[:, None] & (column < e)[None, :]
            of_v = tl.zeros([BLOCK_T, BLOCK_D], weights.dtype)
            if HAS_P:
                v = tl.load(values + at, mask=here, other=0.0)
                upstream = tl.load(grad_product + at, mask=here, other=0.0)
                grad = tl.dot(upstream, tl.trans(v), grad, input_precision="ieee", out_dtype=grad.dtype)
                of_v = tl.dot(tl.trans(weights), upstream, input_precision="ieee", out_dtype=grad.dtype)
            tl.store(grad_values + at, of_v, mask=(row < T)[:, None] & (column < e)[None, :])
    along = tl.sum(tl.where(member, weights * grad, 0.0), 1)
    grad = tl.where(member, weights * (grad - along[:, None]), 0.0)
    grad = tl.where(tl.abs(grad) < TINY, 0.0, grad)
    if HAS_S:
        grad += tl.load(grad_scores + b * size + place, mask=stored & member, other=0.0)
    grad = grad * SCALE
    if not TWO:
        grad = grad + tl.trans(grad)
    for first in range(0, d, BLOCK_D):
        normal, z, inverse, inside, feature = _normalized(
            x, b, row, first, n, T, d, starts, segments, weight, bias, group, EPS, CORRECTION, HAS_WEIGHT, BLOCK_T,
            BLOCK_D,
        )  # fmt: skip
        if TWO:
            normal_y, z_y, inverse_y, _, _ = _normalized(
                y, b, row, first, n, T, d, starts, segments, weight, bias, group, EPS, CORRECTION, HAS_WEIGHT, BLOCK_T,
                BLOCK_D,
            )  # fmt: skip
            of_x = tl.dot(grad, z_y, input_precision="ieee", out_dtype=grad.dtype)
            of_y = tl.dot(tl.trans(grad), z, input_precision="ieee", out_dtype=grad.dtype)
        else:
            of_x = tl.dot(grad, z, input_precision="ieee", out_dtype=grad.dtype)
        _through_norm(
            grad_x, grad_weight, grad_bias, of_x, normal, inverse, b, row, n, T, d, starts, segments, weight, group,
            inside, feature, CORRECTION, HAS_WEIGHT, False,
        )  # fmt: skip
        if TWO:
            tl.debug_barrier()  # the program reads back its own writes
            _through_norm(
                grad_y, grad_weight, grad_bias, of_y, normal_y, inverse_y, b, row, n, T, d, starts, segments, weight,
                group, inside, feature, CORRECTION, HAS_WEIGHT, True,
            )  # fmt: skip
