"""GPU kernels of linear_scan: a program per block of columns, and with few columns also per chunk of steps.

A column is one channel of one sequence.

Steps are counted in the direction in which the kernel runs, which is opposite in the backward pass. FLIP means that it
starts at the last step. Complex numbers are pairs of reals; for real numbers the imaginary part is unused. The state
after a chunk is the product of its factors times the state before it, plus the state that the chunk computes from zero.
If the state before it is zero, the product is not used, because it may have overflowed.
"""

import triton
import triton.language as tl


@triton.jit
def load(p, at, mask, COMPLEX: tl.constexpr):
    """Loads (real, imaginary) as float64, or as float32 for all other dtypes."""
    WIDE: tl.constexpr = tl.float64 if p.dtype.element_ty == tl.float64 else tl.float32
    if COMPLEX:
        re = tl.load(p + 2 * at, mask=mask, other=0.0).to(WIDE)
        return re, tl.load(p + 2 * at + 1, mask=mask, other=0.0).to(WIDE)
    else:  # noqa: RET505  (the compiler takes both branches otherwise)
        re = tl.load(p + at, mask=mask, other=0.0).to(WIDE)
        return re, re


@triton.jit
def _store(p, at, re, im, mask, COMPLEX: tl.constexpr):
    if COMPLEX:
        tl.store(p + 2 * at, re, mask=mask)
        tl.store(p + 2 * at + 1, im, mask=mask)
    else:
        tl.store(p + at, re, mask=mask)


@triton.jit
def _times(a_re, a_im, s_re, s_im, COMPLEX: tl.constexpr):
    if COMPLEX:
        return a_re * s_re - a_im * s_im, a_re * s_im + a_im * s_re
    else:  # noqa: RET505
        return a_re * s_re, s_im


@triton.jit
def row_at(offsets, t, there, column, N, C, PACKED: tl.constexpr):
    """The address of the row of step t and the mask of its columns, which is empty if the step does not exist."""
    if PACKED:
        t = tl.where(there, t, 0)
        begin = tl.load(offsets + t)
        return begin * C, column < tl.where(there, (tl.load(offsets + t + 1) - begin) * C, 0)
    else:  # noqa: RET505
        return t * N, column < tl.where(there, N, 0)


@triton.jit
def is_reset(reset, t, column, N, C, mask):
    return tl.load(reset + t * (N // C) + column // C, mask=mask, other=0) != 0


@triton.jit
def scan(
    a, x, h0, h, last, offsets, reset, T, N, C, length, PER_STEP: tl.constexpr, COMPLEX: tl.constexpr,
    PACKED: tl.constexpr, RESET: tl.constexpr, HAS_H0: tl.constexpr, SEQUENCE: tl.constexpr, FLIP: tl.constexpr,
    BLOCK: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """The forward pass over one chunk of steps. ``h0`` holds the state before each chunk."""
    column = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    chunk = tl.program_id(1).to(tl.int64)
    inside = column < N
    a_re, a_im = load(a, column % C, inside, COMPLEX)
    s_re, s_im = load(h0, chunk * N + column, column < (N if HAS_H0 else 0), COMPLEX)
    first = chunk * length
    for k in tl.range(0, tl.minimum(length, T - first), num_stages=STAGES):
        t = first + k
        if FLIP:
            t = T - 1 - t
        begin, alive = row_at(offsets, t, t >= 0, column, N, C, PACKED)
        if PER_STEP:
            a_re, a_im = load(a, begin + column, alive, COMPLEX)
        x_re, x_im = load(x, begin + column, alive, COMPLEX)
        o_re, o_im = s_re, s_im
        if RESET:
            gone = is_reset(reset, t, column, N, C, alive)
            o_re, o_im = tl.where(gone, 0.0, s_re), tl.where(gone, 0.0, s_im)
        o_re, o_im = _times(a_re, a_im, o_re, o_im, COMPLEX)
        s_re = tl.where(alive, o_re + x_re, s_re)
        s_im = tl.where(alive, o_im + x_im, s_im)
        if SEQUENCE:
            _store(h, begin + column, s_re, s_im, alive, COMPLEX)
    _store(last, column, s_re, s_im, column < tl.where(first + length >= T, N, 0), COMPLEX)


@triton.jit
def summarise(
    a, x, products, ends, cuts, offsets, reset, T, N, C, length, PER_STEP: tl.constexpr, COMPLEX: tl.constexpr,
    PACKED: tl.constexpr, RESET: tl.constexpr, HAS_X: tl.constexpr, FLIP: tl.constexpr, BACKWARD: tl.constexpr,
    BLOCK: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """For each chunk: the product of its factors, its final state from an initial state of zero, and whether a reset
    separates it from earlier steps. Forward s = a s + x, backward s = conj(a) (s + x)."""
    column = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    chunk = tl.program_id(1).to(tl.int64)
    inside = column < N
    a_re, a_im = load(a, column % C, inside, COMPLEX)
    p_re, p_im = tl.full([BLOCK], 1.0, a_re.dtype), tl.full([BLOCK], 0.0, a_re.dtype)
    s_re, s_im = p_im, p_im
    x_re, x_im = p_im, p_im
    cut = column < 0
    first = chunk * length
    for k in tl.range(0, tl.minimum(length, T - first), num_stages=STAGES):
        t = first + k
        if FLIP:
            t = T - 1 - t
        begin, alive = row_at(offsets, t, t >= 0, column, N, C, PACKED)
        if PER_STEP:
            a_re, a_im = load(a, begin + column, alive, COMPLEX)
        if HAS_X:
            x_re, x_im = load(x, begin + column, alive, COMPLEX)
        o_re, o_im = s_re, s_im
        c_im = a_im
        if BACKWARD:
            o_re, o_im = o_re + x_re, o_im + x_im
            c_im = -a_im
        if RESET:
            gone = is_reset(reset, t, column, N, C, alive)
            cut = cut | gone
            if not BACKWARD:
                o_re, o_im = tl.where(gone, 0.0, o_re), tl.where(gone, 0.0, o_im)
        o_re, o_im = _times(a_re, c_im, o_re, o_im, COMPLEX)
        if BACKWARD:
            if RESET:
                o_re, o_im = tl.where(gone, 0.0, o_re), tl.where(gone, 0.0, o_im)
        else:
            o_re, o_im = o_re + x_re, o_im + x_im
        s_re, s_im = tl.where(alive, o_re, s_re), tl.where(alive, o_im, s_im)
        q_re, q_im = _times(a_re, c_im, p_re, p_im, COMPLEX)
        p_re, p_im = tl.where(alive, q_re, p_re), tl.where(alive, q_im, p_im)
    at = chunk * N + column
    _store(products, at, p_re, p_im, inside, COMPLEX)
    _store(ends, at, s_re, s_im, inside, COMPLEX)
    if RESET:
        tl.store(cuts + at, cut.to(tl.int8), mask=inside)


@triton.jit
def carry(
    products, ends, cuts, initial, begins, chunks, N, COMPLEX: tl.constexpr, RESET: tl.constexpr,
    HAS_INITIAL: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Computes the state before each chunk."""
    column = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = column < N
    s_re, s_im = load(initial, column, column < (N if HAS_INITIAL else 0), COMPLEX)
    for k in tl.range(0, chunks, num_stages=STAGES):
        at = column + k * N
        _store(begins, at, s_re, s_im, inside, COMPLEX)
        p_re, p_im = load(products, at, inside, COMPLEX)
        e_re, e_im = load(ends, at, inside, COMPLEX)
        o_re, o_im = _times(p_re, p_im, s_re, s_im, COMPLEX)
        nothing = s_re == 0
        if COMPLEX:
            nothing = nothing & (s_im == 0)
        if RESET:
            nothing = nothing | (tl.load(cuts + at, mask=inside, other=0) != 0)
        s_re = tl.where(nothing, e_re, o_re + e_re)
        s_im = tl.where(nothing, e_im, o_im + e_im)


@triton.jit
def backward(
    a, grad_h, grad_last, h, h0, grad_x, grad_h0, grad_a, offsets, reset, T, N, C, length, PER_STEP: tl.constexpr,
    COMPLEX: tl.constexpr, PACKED: tl.constexpr, RESET: tl.constexpr, HAS_GRAD: tl.constexpr, HAS_LAST: tl.constexpr,
    HAS_H0: tl.constexpr, NEEDS_A: tl.constexpr, FLIP: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """The backward pass over one chunk of steps. ``grad_last`` holds the gradient of the state at the entry of each
    chunk. For a constant a, ``grad_a`` receives the contribution of each chunk and column."""
    column = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    chunk = tl.program_id(1).to(tl.int64)
    inside = column < N
    a_re, a_im = load(a, column % C, inside, COMPLEX)
    s_re, s_im = load(grad_last, chunk * N + column, column < (N if HAS_LAST else 0), COMPLEX)
    i_re, i_im = load(h0, column, column < (N if HAS_H0 else 0), COMPLEX)
    zero = tl.full([BLOCK], 0.0, s_re.dtype)
    sum_re, sum_im = zero, zero
    g_re, g_im = zero, zero
    first = chunk * length
    for k in tl.range(0, tl.minimum(length, T - first), num_stages=STAGES):
        t = first + k
        before = t + 1
        if FLIP:
            t = T - 1 - t
            before = t - 1
        begin, alive = row_at(offsets, t, t >= 0, column, N, C, PACKED)
        if PER_STEP:
            a_re, a_im = load(a, begin + column, alive, COMPLEX)
        if HAS_GRAD:
            g_re, g_im = load(grad_h, begin + column, alive, COMPLEX)
        to_re, to_im = g_re + s_re, g_im + s_im
        _store(grad_x, begin + column, to_re, to_im, alive, COMPLEX)
        if RESET:
            gone = is_reset(reset, t, column, N, C, alive)
        if NEEDS_A:
            from_, has = row_at(offsets, before, (before >= 0) & (before < T), column, N, C, PACKED)
            has = has & alive
            h_re, h_im = load(h, from_ + column, has, COMPLEX)
            h_re, h_im = tl.where(has, h_re, i_re), tl.where(has, h_im, i_im)
            if RESET:
                h_re, h_im = tl.where(gone, 0.0, h_re), tl.where(gone, 0.0, h_im)
            d_re, d_im = _times(h_re, -h_im, to_re, to_im, COMPLEX)
            if PER_STEP:
                _store(grad_a, begin + column, d_re, d_im, alive, COMPLEX)
            else:
                sum_re, sum_im = sum_re + tl.where(alive, d_re, 0.0), sum_im + tl.where(alive, d_im, 0.0)
        o_re, o_im = _times(a_re, -a_im, to_re, to_im, COMPLEX)
        if RESET:
            o_re, o_im = tl.where(gone, 0.0, o_re), tl.where(gone, 0.0, o_im)
        s_re, s_im = tl.where(alive, o_re, s_re), tl.where(alive, o_im, s_im)
    _store(grad_h0, column, s_re, s_im, column < tl.where(first + length >= T, N, 0), COMPLEX)
    if NEEDS_A and not PER_STEP:
        _store(grad_a, chunk * N + column, sum_re, sum_im, inside, COMPLEX)
