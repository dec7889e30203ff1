"""GPU kernels of moment_filter: one program per block of columns processes time in pieces.

A column is one channel of one sequence. The steps of a piece are the rows of a tile, and a scan over the tile computes
their states.

Steps are counted in processing order; FLIP means that processing starts at the last step. A row in which a sequence is
inactive has the factor 1 and adds nothing. A factor of 0, as at a reset, discards earlier values, even NaN. Numbers are
compile-time constants, because arguments would be rounded to float32.
"""

import triton
import triton.language as tl

from rnnkern.triton.linear_scan import is_reset, load, row_at


@triton.jit
def _read(p, at, mask):
    real, _ = load(p, at, mask, False)
    return real


@triton.jit
def _then(a, b, next_a, next_b):
    """Composes s -> a s + b with s -> next_a s + next_b."""
    return a * next_a, tl.where(next_a == 0, next_b, next_a * b + next_b)


@triton.jit
def _states(factors, inputs, before, REVERSE: tl.constexpr):
    """The state at each row of a tile, from the state before the first row, or in reverse after the last."""
    a, b = tl.associative_scan((factors, inputs), 0, _then, reverse=REVERSE)
    return tl.where(a == 0, b, a * before + b)


@triton.jit
def _row(tile, row, which):
    return tl.sum(tl.where(row == which, tile, 0.0), 0, keep_dims=True)


@triton.jit
def _places(offsets, reset, place, column, T, N, C, PACKED: tl.constexpr, RESET: tl.constexpr, FLIP: tl.constexpr):
    """For a tile: the addresses of its elements, their mask, and which of them are reset."""
    t = place
    if FLIP:
        t = T - 1 - place
    begin, alive = row_at(offsets, t, place < T, column, N, C, PACKED)
    gone = column < 0
    if RESET:
        gone = is_reset(reset, t, column, N, C, alive)
    return begin + column, alive, gone


@triton.jit
def _factors(factor: tl.constexpr, alive, gone, like):
    """The factors of the states, with the dtype of ``like``."""
    factors = tl.where(alive, tl.full(like.shape, factor, like.dtype), tl.full(like.shape, 1.0, like.dtype))
    return tl.where(gone, 0.0, factors)


@triton.jit
def forward(
    u, v0, q0, y, v, q, kept, offsets, reset, T, N, C, MU: tl.constexpr, S: tl.constexpr, BETA: tl.constexpr,
    EPS: tl.constexpr, SQUARES: tl.constexpr, PACKED: tl.constexpr, RESET: tl.constexpr, HAS_V0: tl.constexpr,
    HAS_Q0: tl.constexpr, KEEPS: tl.constexpr, FLIP: tl.constexpr, EVERY: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The forward pass. It stores v and q before each piece except the first in ``kept``, (pieces - 1, 2, N)."""
    column = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)[None, :]
    row = tl.arange(0, EVERY)[:, None].to(tl.int64)
    inside, columns = column < N, tl.zeros([1, 1], tl.int64) + N
    v_before = _read(v0, column, column < (N if HAS_V0 else 0))
    q_before = _read(q0, column, column < (N if HAS_Q0 else 0))
    for piece in range(tl.cdiv(T, EVERY)):
        at, alive, gone = _places(offsets, reset, piece * EVERY + row, column, T, N, C, PACKED, RESET, FLIP)
        x = _read(u, at, alive)
        first = _states(_factors(MU, alive, gone, x), S * x, v_before, False)
        found = first
        if SQUARES:
            second = _states(_factors(BETA, alive, gone, x), (1 - BETA) * (x * x), q_before, False)
            found = first / tl.sqrt(second + EPS)
            q_before = _row(second, row, EVERY - 1)
        v_before = _row(first, row, EVERY - 1)
        tl.store(y + at, found, mask=alive)
        if KEEPS:
            to, more = kept + 2 * piece * columns + column, column < tl.where((piece + 1) * EVERY < T, N, 0)
            tl.store(to, v_before, mask=more)
            tl.store(to + N, q_before, mask=more)
    tl.store(v + column, v_before, mask=inside)
    if SQUARES:
        tl.store(q + column, q_before, mask=inside)


@triton.jit
def backward(
    grad_y, grad_v, grad_q, u, v0, q0, kept, grad_u, grad_v0, grad_q0, offsets, reset, T, N, C, MU: tl.constexpr,
    S: tl.constexpr, BETA: tl.constexpr, EPS: tl.constexpr, SQUARES: tl.constexpr, PACKED: tl.constexpr,
    RESET: tl.constexpr, HAS_V0: tl.constexpr, HAS_Q0: tl.constexpr, HAS_Y: tl.constexpr, HAS_V: tl.constexpr,
    HAS_Q: tl.constexpr, FLIP: tl.constexpr, EVERY: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The backward pass. It recomputes v and q of a piece from those before it and propagates their gradients in
    reverse."""
    column = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)[None, :]
    row = tl.arange(0, EVERY)[:, None].to(tl.int64)
    inside, columns = column < N, tl.zeros([1, 1], tl.int64) + N
    v_first = _read(v0, column, column < (N if HAS_V0 else 0))
    q_first = _read(q0, column, column < (N if HAS_Q0 else 0))
    to_v = _read(grad_v, column, column < (N if HAS_V else 0))
    to_q = _read(grad_q, column, column < (N if HAS_Q else 0))
    pieces = tl.cdiv(T, EVERY)
    for k in range(pieces):
        piece = pieces - 1 - k
        place = piece * EVERY + row
        at, alive, gone = _places(offsets, reset, place, column, T, N, C, PACKED, RESET, FLIP)
        _, next_alive, next_gone = _places(offsets, reset, place + 1, column, T, N, C, PACKED, RESET, FLIP)
        # to_v and to_q, which enter at the last row, are already multiplied by the factors of the next step.
        next_alive, next_gone = next_alive & (row < EVERY - 1), next_gone & (row < EVERY - 1)
        grad = _read(grad_y, at, alive & (column < (N if HAS_Y else 0)))
        factors = _factors(MU, alive, gone, grad)
        v_slope = grad
        if SQUARES:
            x = _read(u, at, alive)
            squares = _factors(BETA, alive, gone, grad)
            from_ = kept + (2 * piece - 2) * columns + column
            later = column < tl.where(piece > 0, N, 0)
            v_before = tl.where(piece > 0, tl.load(from_, mask=later, other=0.0), v_first)
            q_before = tl.where(piece > 0, tl.load(from_ + N, mask=later, other=0.0), q_first)
            first = _states(factors, S * x, v_before, False)
            second = _states(squares, (1 - BETA) * (x * x), q_before, False)
            slope = 1.0 / tl.sqrt(second + EPS)
            v_slope = grad * slope
            q_slope = grad * (-0.5 * (first * slope) * (slope * slope))
        v_grad = _states(_factors(MU, next_alive, next_gone, grad), v_slope, to_v, True)
        found = S * v_grad
        to_v = _row(tl.where(factors == 0, 0.0, factors * v_grad), row, 0)
        if SQUARES:
            q_grad = _states(_factors(BETA, next_alive, next_gone, grad), q_slope, to_q, True)
            found += 2 * (1 - BETA) * x * q_grad
            to_q = _row(tl.where(squares == 0, 0.0, squares * q_grad), row, 0)
        tl.store(grad_u + at, found, mask=alive)
    tl.store(grad_v0 + column, to_v, mask=inside)
    if SQUARES:
        tl.store(grad_q0 + column, to_q, mask=inside)
