"""GPU kernels of skew_exp: one program per small matrix, and products of linear combinations for larger ones.

All kernels evaluate the scheme of degree 8 (python_tests/ops/derive_skew_schemes.py). The number of squarings is known
only on the device, so the host does not synchronize with it. The gradient of the squarings needs no chain of
intermediate results: since all V_k are orthogonal and powers of V_0, the gradient of V = V_0^(2^s) is G V^T V_0 after G
<- G + V_k^T G V_k for each k < s.
"""

import triton
import triton.language as tl


@triton.jit
def _dot(a, b):
    return tl.dot(a, b, input_precision="ieee", out_dtype=a.dtype)


@triton.jit
def _pick(high, of_low, of_high):
    """A coefficient of the scheme in use. If there is only one scheme, it stays a compile-time constant, in every
    dtype."""
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
def _choice(norm, LIMITS: tl.constexpr, MOST: tl.constexpr):
    """Whether the scheme with squarings is used, and the number of squarings."""
    high = norm > LIMITS[0]
    return high, tl.where(high, tl.minimum(tl.ceil(tl.log2(norm / LIMITS[1])), MOST), 0.0)


@triton.jit
def _paired_norm(X):
    return tl.sqrt(tl.sum(tl.sum(X * X, 1), 0) / 2)


@triton.jit
def _bound(P1, IDENTITY, pairs, LIMITS: tl.constexpr, MOST: tl.constexpr, BOUND: tl.constexpr):
    """An upper bound of the 2-norm of S, from the symmetric P1 = S^2, as in csrc/orthogonal/cpu/bound.h. ``BOUND``:
    steps of the power method, doublings, inside, rounding (python_tests/ops/derive_skew_schemes.py)."""
    index = tl.arange(0, P1.shape[0]).to(tl.uint32)
    mixed = (index + 1) * 2654435761
    v = (mixed ^ (mixed >> 15)).to(tl.int32, bitcast=True).to(P1.dtype) / 2147483647.0
    found = tl.sum(v, 0) * 0
    for _ in tl.static_range(BOUND[0] // 2):
        w = tl.sum(P1 * v[None, :], 1)
        w = w / tl.maximum(tl.sqrt(tl.sum(w * w, 0)), 1e-30)
        v = tl.sum(P1 * w[:, None], 0)
        found = tl.sqrt(tl.sum(v * v, 0))
        v = v / tl.maximum(found, 1e-30)
    paired = _paired_norm(P1)
    least = tl.sqrt(tl.maximum(found, paired / tl.sqrt(pairs)))
    one = tl.max(tl.sum(tl.abs(P1), 1), 0)
    # Scaled, because squares of small numbers would underflow.
    most = tl.sqrt(tl.where(one > LIMITS[0] * LIMITS[0], tl.minimum(one, paired), one))
    c = BOUND[2] * tl.maximum(least, 1e-15)
    T = P1 * (-2 / (c * c)) - IDENTITY
    degree = 2.0
    done = 0
    while done < BOUND[1]:
        high, times = _choice(most * (1 + BOUND[3]), LIMITS, MOST)
        low_high, low_times = _choice(least, LIMITS, MOST)
        if (high != low_high) | (times != low_times):
            T = 2 * _dot(T, T) - IDENTITY
            degree *= 2
            x = tl.maximum(_paired_norm(T), 1.0)
            root = tl.exp2(tl.log2(x + tl.sqrt(x * x - 1)) / degree)
            most = tl.minimum(most, c * (root + 1 / root) / 2)
            done += 1
        else:
            done = BOUND[1]
    return most * (1 + BOUND[3])


@triton.jit
def _sums(S, P1, P2, sigma, high, IDENTITY, C: tl.constexpr):
    """The operands (left, right) of the last product, and the right operand of the second product."""
    square = sigma * sigma
    X = _pick(high, C[2], C[11]) * square * P1 + P2
    Y = _pick(high, C[4], C[13]) * sigma * S + _pick(high, C[5], C[14]) * square * P1
    Y += _pick(high, C[6], C[15]) * P2 + _pick(high, C[3], C[12]) * IDENTITY
    Z = _pick(high, C[0], C[9]) * sigma * S + _pick(high, C[1], C[10]) * square * P1
    return X, Y, Z


@triton.jit
def small_forward(
    A, V, kept, plan, n, BLOCK: tl.constexpr, KEPT: tl.constexpr, TRAINING: tl.constexpr, MINUS_IDENTITY: tl.constexpr,
    C: tl.constexpr, LIMITS: tl.constexpr, SCHEMES: tl.constexpr, BOUND: tl.constexpr, MOST: tl.constexpr,
):  # fmt: skip
    """One program per matrix. ``C``: x1..x7, y1, y2 of the scheme without squarings, then of the one with squarings."""
    m = tl.program_id(0).to(tl.int64)
    row, column = _places(BLOCK)
    inside = (row < n) & (column < n)
    at = row * n + column
    S = _skew(A + m * n * n, n, BLOCK)
    IDENTITY = tl.where(row == column, 1.0, 0.0).to(S.dtype)
    P1 = _dot(S, S)
    inside_identity = tl.where(row < n, IDENTITY, 0.0).to(S.dtype)
    pairs = tl.maximum(n // 2, 1).to(S.dtype)
    high, times = _choice(_bound(P1, inside_identity, pairs, LIMITS, MOST, BOUND), LIMITS, MOST)
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
def _kept(kept, m, k, n, KEPT: tl.constexpr, BLOCK: tl.constexpr):
    row, column = _places(BLOCK)
    return tl.load(kept + (m * KEPT + k) * n * n + row * n + column, mask=(row < n) & (column < n), other=0.0)


@triton.jit
def small_backward(
    grad, A, kept, plan, grad_A, n, BLOCK: tl.constexpr, KEPT: tl.constexpr, C: tl.constexpr, SCHEMES: tl.constexpr,
):  # fmt: skip
    """One program per matrix. Saved products are loaded where they are needed; a barrier keeps the compiler from
    holding them in shared memory."""
    m = tl.program_id(0).to(tl.int64)
    row, column = _places(BLOCK)
    inside = (row < n) & (column < n)
    at = row * n + column
    A += m * n * n
    G = tl.load(grad + m * n * n + at, mask=inside, other=0.0)
    IDENTITY = tl.where(row == column, 1.0, 0.0).to(G.dtype)
    high = tl.load(plan + 2 * m) > SCHEMES[0]
    squarings = tl.load(plan + 2 * m + 1).to(tl.int32)
    sigma = tl.exp2(-squarings.to(G.dtype))
    square = sigma * sigma
    y1, y2 = _pick(high, C[7], C[16]) * sigma, _pick(high, C[8], C[17]) * square
    if squarings > 0:
        S, P1, P2 = _skew(A, n, BLOCK), _kept(kept, m, 0, n, KEPT, BLOCK), _kept(kept, m, 1, n, KEPT, BLOCK)
        X, Y, _ = _sums(S, P1, P2, sigma, high, IDENTITY, C)
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
    tl.debug_barrier()
    S, P1, P2 = _skew(A, n, BLOCK), _kept(kept, m, 0, n, KEPT, BLOCK), _kept(kept, m, 1, n, KEPT, BLOCK)
    _, Y, _ = _sums(S, P1, P2, sigma, high, IDENTITY, C)
    X_bar = _dot(G, tl.trans(Y))
    tl.debug_barrier()
    P1, P2 = _kept(kept, m, 0, n, KEPT, BLOCK), _kept(kept, m, 1, n, KEPT, BLOCK)
    X, _, _ = _sums(S, P1, P2, sigma, high, IDENTITY, C)
    Y_bar = _dot(tl.trans(X), G)
    S_bar = y1 * G + _pick(high, C[4], C[13]) * sigma * Y_bar
    P1_bar = y2 * G + _pick(high, C[2], C[11]) * square * X_bar + _pick(high, C[5], C[14]) * square * Y_bar
    P2_bar = X_bar + _pick(high, C[6], C[15]) * Y_bar
    tl.debug_barrier()
    Z_bar = square * _dot(_kept(kept, m, 0, n, KEPT, BLOCK), P2_bar)
    S_bar += _pick(high, C[0], C[9]) * sigma * Z_bar
    P1_bar += _pick(high, C[1], C[10]) * square * Z_bar
    tl.debug_barrier()
    S, P1 = _skew(A, n, BLOCK), _kept(kept, m, 0, n, KEPT, BLOCK)
    _, _, Z = _sums(S, P1, P1, sigma, high, IDENTITY, C)
    P1_bar += square * _dot(P2_bar, tl.trans(Z))
    tl.debug_barrier()
    W = S_bar - _dot(P1_bar + tl.trans(P1_bar), _skew(A, n, BLOCK))
    tl.store(grad_A + m * n * n + at, tl.where(row > column, W - tl.trans(W), 0.0), mask=inside)


@triton.jit
def _entries(
    x, m, rows, columns, n, high, sigma, LOW: tl.constexpr, HIGH: tl.constexpr, POWER: tl.constexpr,
    FLIPPED: tl.constexpr, SKEW: tl.constexpr, IDENTITY: tl.constexpr, STRIDE: tl.constexpr,
):  # fmt: skip
    """Entries of one term of a linear combination, 0 outside the matrix; see :func:`product`."""
    inside = (rows < n) & (columns < n)
    x += m * STRIDE * n * n
    if IDENTITY:
        entries = tl.where(rows == columns, 1.0, 0.0).to(x.dtype.element_ty)
    elif SKEW:
        at = tl.maximum(rows, columns) * n + tl.minimum(rows, columns)
        below = tl.load(x + at, mask=inside & (rows != columns), other=0.0)
        entries = tl.where((rows < columns) if FLIPPED else (rows > columns), below, -below)
    elif FLIPPED:
        entries = tl.load(x + columns * n + rows, mask=inside, other=0.0)
    else:
        entries = tl.load(x + rows * n + columns, mask=inside, other=0.0)
    for _ in tl.static_range(POWER):
        entries *= sigma
    return _pick(high, LOW, HIGH) * entries


@triton.jit
def _sum(TERMS: tl.constexpr, tensors, m, rows, columns, n, high, sigma):
    result = _entries(tensors[0], m, rows, columns, n, high, sigma, *TERMS[0])
    for i in tl.static_range(1, len(TERMS)):
        result += _entries(tensors[i], m, rows, columns, n, high, sigma, *TERMS[i])
    return result


@triton.jit(do_not_specialize=["k"])
def product(
    left, right, added, out, plan, n, k, LEFT: tl.constexpr, RIGHT: tl.constexpr, ADDED: tl.constexpr,
    PLANNED: tl.constexpr, IF: tl.constexpr, LOW: tl.constexpr, BLOCK: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """Computes out = left right + added, one program per block and matrix. Each of the three is a linear combination.

    ``left``, ``right`` and ``added`` are tuples of tensors (matrices, N, N). For each tensor ``LEFT``, ``RIGHT`` and
    ``ADDED`` contain: the coefficient in the scheme ``LOW``, the coefficient in the other scheme, the power of 1 /
    2^squarings that multiplies it, whether the tensor is transposed, whether it is skew-symmetric (only its strict
    lower triangle is read), whether it stands for I (it is not read), and the stride between matrices in units of N x
    N. Without ``PLANNED`` the plan is not read. ``IF`` is "always"; or "squared", which stores results only for
    matrices that are squared more than k times; or "copy", which stores the first of ``added`` for the other matrices.
    """
    m = tl.program_id(1).to(tl.int64)
    across = tl.cdiv(n, BLOCK)
    rows = (tl.program_id(0) // across * BLOCK + tl.arange(0, BLOCK))[:, None]
    columns = (tl.program_id(0) % across * BLOCK + tl.arange(0, BLOCK))[None, :]
    at = out + m * n * n + rows * n + columns
    inside = (rows < n) & (columns < n)
    squarings, high, sigma = 0, False, 1.0
    if PLANNED:
        squarings = tl.load(plan + 2 * m + 1)
        high = tl.load(plan + 2 * m) > LOW
        sigma = tl.exp2(-squarings.to(out.dtype.element_ty))
    if IF == "always" or squarings > k:
        result = tl.zeros((BLOCK, BLOCK), out.dtype.element_ty)
        for start in range(0, n, DEPTH):
            depth = start + tl.arange(0, DEPTH)
            x = _sum(LEFT, left, m, rows, depth[None, :], n, high, sigma)
            y = _sum(RIGHT, right, m, depth[:, None], columns, n, high, sigma)
            result += _dot(x, y)
        if len(ADDED) > 0:
            result += _sum(ADDED, added, m, rows, columns, n, high, sigma)
        tl.store(at, result, mask=inside)
    elif IF == "copy":
        entry = tl.load(added[0] + m * ADDED[0][6] * n * n + rows * n + columns, mask=inside, other=0.0)
        tl.store(at, entry, mask=inside)
