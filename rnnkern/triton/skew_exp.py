"""Kernels of skew_exp for GPUs: a small matrix per program, and products that a matrix may not need.

All evaluate the scheme of degree 8 (csrc/orthogonal/derive.py). How often the result is squared is known on the device
alone, so that nothing waits for it. The squarings' gradient needs no chain of earlier results: with V_k orthogonal and
all of them powers of V_0, that of V = V_0^(2^s) is G V^T V_0 after G <- G + V_k^T G V_k for each k < s.
"""

import triton
import triton.language as tl


@triton.jit
def _dot(a, b):
    return tl.dot(a, b, input_precision="ieee", out_dtype=a.dtype)


@triton.jit
def _pick(high, of_low, of_high):
    """A coefficient of the scheme in use. Where there is one scheme alone it stays a constant, in every dtype."""
    if of_low == of_high:
        return of_low
    else:  # noqa: RET505  (the compiler takes both branches otherwise)
        return tl.where(high, of_high, of_low)


@triton.jit
def _places(BLOCK: tl.constexpr):
    index = tl.arange(0, BLOCK)
    return index[:, None], index[None, :]


@triton.jit
def _skew(A, n, BLOCK: tl.constexpr):
    row, column = _places(BLOCK)
    below = tl.load(A + row * n + column, mask=(row > column) & (row < n), other=0.0)
    return below - tl.trans(below)


@triton.jit
def _norm(P1, BLOCK: tl.constexpr, MARGIN: tl.constexpr):
    """The 2-norm of S from P1 = S^2, which is symmetric, as in csrc/orthogonal/cpu_plan.h."""
    bound = tl.sqrt(tl.max(tl.sum(tl.abs(P1), 1), 0))
    index = tl.arange(0, BLOCK).to(tl.uint32)
    mixed = (index + 1) * 2654435761
    v = (mixed ^ (mixed >> 15)).to(tl.int32, bitcast=True).to(P1.dtype) / 2147483647.0
    found = bound * 0
    for _ in tl.static_range(3):
        w = tl.sum(P1 * v[None, :], 1)
        w = w / tl.maximum(tl.sqrt(tl.sum(w * w, 0)), 1e-30)
        v = tl.sum(P1 * w[:, None], 0)
        found = tl.sqrt(tl.sum(v * v, 0))
        v = v / tl.maximum(found, 1e-30)
    return tl.minimum(MARGIN * tl.sqrt(found), bound)


@triton.jit
def _sums(S, P1, P2, sigma, high, IDENTITY, C: tl.constexpr):
    """(left, right) of the last product, and the right of the second."""
    square = sigma * sigma
    X = _pick(high, C[2], C[11]) * square * P1 + P2
    Y = _pick(high, C[4], C[13]) * sigma * S + _pick(high, C[5], C[14]) * square * P1
    Y += _pick(high, C[6], C[15]) * P2 + _pick(high, C[3], C[12]) * IDENTITY
    Z = _pick(high, C[0], C[9]) * sigma * S + _pick(high, C[1], C[10]) * square * P1
    return X, Y, Z


@triton.jit
def small_forward(
    A, V, kept, plan, n, BLOCK: tl.constexpr, KEPT: tl.constexpr, TRAINING: tl.constexpr, MINUS_IDENTITY: tl.constexpr,
    C: tl.constexpr, LIMITS: tl.constexpr, SCHEMES: tl.constexpr, MARGIN: tl.constexpr, MOST: tl.constexpr,
):  # fmt: skip
    """A program per matrix. ``C``: x1..x7, y1, y2 of the scheme that is not squared, then of the one that is."""
    m = tl.program_id(0).to(tl.int64)
    row, column = _places(BLOCK)
    inside = (row < n) & (column < n)
    at = row * n + column
    S = _skew(A + m * n * n, n, BLOCK)
    IDENTITY = tl.where(row == column, 1.0, 0.0).to(S.dtype)
    P1 = _dot(S, S)
    norm = _norm(P1, BLOCK, MARGIN)
    high = norm > LIMITS[0]
    times = tl.where(high, tl.minimum(tl.ceil(tl.log2(norm / LIMITS[1])), MOST), 0.0)
    squarings = times.to(tl.int32)
    sigma = tl.exp2(-times)
    P2 = P1 * 0
    _, _, Z = _sums(S, P1, P2, sigma, high, IDENTITY, C)
    P2 = _dot(sigma * sigma * P1, Z)
    X, Y, _ = _sums(S, P1, P2, sigma, high, IDENTITY, C)
    E = _dot(X, Y) + _pick(high, C[7], C[16]) * sigma * S + _pick(high, C[8], C[17]) * sigma * sigma * P1
    done = 0
    while done < squarings:
        E = 2 * E + _dot(E, E)
        done += 1
    if not MINUS_IDENTITY:
        E += IDENTITY
    tl.store(V + m * n * n + at, E, mask=inside)
    if TRAINING:
        tl.store(kept + m * KEPT * n * n + at, P1, mask=inside)
        tl.store(kept + (m * KEPT + 1) * n * n + at, P2, mask=inside)
        tl.store(plan + 2 * m, tl.where(high, SCHEMES[1], SCHEMES[0]))
        tl.store(plan + 2 * m + 1, squarings)


@triton.jit
def small_backward(
    grad, A, kept, plan, grad_A, n, BLOCK: tl.constexpr, KEPT: tl.constexpr, C: tl.constexpr, SCHEMES: tl.constexpr,
):  # fmt: skip
    m = tl.program_id(0).to(tl.int64)
    row, column = _places(BLOCK)
    inside = (row < n) & (column < n)
    at = row * n + column
    S = _skew(A + m * n * n, n, BLOCK)
    IDENTITY = tl.where(row == column, 1.0, 0.0).to(S.dtype)
    P1 = tl.load(kept + m * KEPT * n * n + at, mask=inside, other=0.0)
    P2 = tl.load(kept + (m * KEPT + 1) * n * n + at, mask=inside, other=0.0)
    G = tl.load(grad + m * n * n + at, mask=inside, other=0.0)
    high = tl.load(plan + 2 * m) > SCHEMES[0]
    squarings = tl.load(plan + 2 * m + 1).to(tl.int32)
    sigma = tl.exp2(-squarings.to(S.dtype))
    square = sigma * sigma
    X, Y, Z = _sums(S, P1, P2, sigma, high, IDENTITY, C)
    y1, y2 = _pick(high, C[7], C[16]) * sigma, _pick(high, C[8], C[17]) * square
    if squarings > 0:
        first = _dot(X, Y) + y1 * S + y2 * P1
        E = first
        done = 0
        while done < squarings:
            T = G + _dot(tl.trans(E), G)
            G += T + _dot(T, E)
            E = 2 * E + _dot(E, E)
            done += 1
        G += _dot(G, tl.trans(E))
        G += _dot(G, first)
    X_bar = _dot(G, tl.trans(Y))
    Y_bar = _dot(tl.trans(X), G)
    S_bar = y1 * G + _pick(high, C[4], C[13]) * sigma * Y_bar
    P1_bar = y2 * G + _pick(high, C[2], C[11]) * square * X_bar + _pick(high, C[5], C[14]) * square * Y_bar
    P2_bar = X_bar + _pick(high, C[6], C[15]) * Y_bar
    Z_bar = square * _dot(P1, P2_bar)
    S_bar += _pick(high, C[0], C[9]) * sigma * Z_bar
    P1_bar += square * _dot(P2_bar, tl.trans(Z)) + _pick(high, C[1], C[10]) * square * Z_bar
    W = S_bar - _dot(P1_bar + tl.trans(P1_bar), S)
    tl.store(grad_A + m * n * n + at, tl.where(row > column, W - tl.trans(W), 0.0), mask=inside)


@triton.jit
def product_if(
    left, right, added, more, out, plan, n, k, FLIP_LEFT: tl.constexpr, FLIP_RIGHT: tl.constexpr, TIMES: tl.constexpr,
    MORE: tl.constexpr, BLOCK: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """out = left right + TIMES added (+ more) of matrices that are squared more than k times, else out = added."""
    m = tl.program_id(1).to(tl.int64)
    across = tl.cdiv(n, BLOCK)
    rows = tl.program_id(0) // across * BLOCK + tl.arange(0, BLOCK)
    columns = tl.program_id(0) % across * BLOCK + tl.arange(0, BLOCK)
    inside = (rows[:, None] < n) & (columns[None, :] < n)
    at = m * n * n + rows[:, None] * n + columns[None, :]
    result = tl.load(added + at, mask=inside, other=0.0)
    if tl.load(plan + 2 * m + 1) > k:
        result *= TIMES
        if MORE:
            result += tl.load(more + at, mask=inside, other=0.0)
        row_step = 1 if FLIP_LEFT else n
        column_step = n if FLIP_RIGHT else 1
        start = 0
        while start < n:
            depth = start + tl.arange(0, DEPTH)
            a = left + m * n * n + rows[:, None] * row_step + depth[None, :] * (n if FLIP_LEFT else 1)
            b = right + m * n * n + depth[:, None] * (1 if FLIP_RIGHT else n) + columns[None, :] * column_step
            x = tl.load(a, mask=(rows[:, None] < n) & (depth[None, :] < n), other=0.0)
            y = tl.load(b, mask=(depth[:, None] < n) & (columns[None, :] < n), other=0.0)
            result += _dot(x, y)
            start += DEPTH
    tl.store(out + at, result, mask=inside)
