"""GPU kernels of gather_attention: one program per query, and one per memory for sums over queries.

Sums do not depend on the order in which programs run: the pairs (query, place in its list) of a memory are sorted, and
if there are many, pieces of them are summed separately and then added in order.
"""

import triton
import triton.language as tl


@triton.jit
def _tanh(x):
    """tanh by exp, and near 0, where that would cancel, by Lambert's continued fraction with as many steps as the dtype
    needs: the error at 1/2 is below 1e-9 in float32 and 1e-18 in float64."""
    LAST: tl.constexpr = 17 if x.dtype == tl.float64 else 9
    z = x * x
    above, above_before = x, x * 0
    below, below_before = x * 0 + 1, x * 0 + 1
    for k in tl.static_range(3, LAST + 1, 2):
        above, above_before = k * above + z * above_before, above
        below, below_before = k * below + z * below_before, below
    e = tl.exp(-2 * tl.abs(x))
    far = (1 - e) / (1 + e)
    return tl.where(tl.abs(x) > 0.5, tl.where(x < 0, -far, far), above / below)


@triton.jit
def _aligned(query, key, DOT: tl.constexpr):
    if DOT:
        return query * key
    else:  # noqa: RET505  (the compiler takes both branches otherwise)
        return _tanh(query + key)


@triton.jit
def _members(idx, row, first, b, M, K, BLOCK_K: tl.constexpr):
    """For the list of a row, from ``first`` on: the places, whether they hold a member, and the row of u and h of that
    member."""
    place = first + tl.arange(0, BLOCK_K)
    j = tl.load(idx + row * K + place, mask=place < K, other=-1)
    valid = (j >= 0) & (j < M)
    return place, valid, b * M + tl.where(valid, j, 0)


@triton.jit
def _scores(query, of_v, u, memory, valid, unit, inside, n, DOT: tl.constexpr):
    """Returns e (-inf for empty places), the factors of v, the addresses of the members' units, and their mask."""
    at = memory[:, None] * n + unit[None, :]
    there = valid[:, None] & inside[None, :]
    x = _aligned(query[None, :], tl.load(u + at, mask=there, other=0.0), DOT)
    e = tl.sum(of_v[None, :] * x, 1)
    return tl.where(valid, e, -float("inf")), x, at, there


@triton.jit
def forward(
    q, u, h, idx, v, out, lse, T, M, K, n, share, DOT: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """One program per query: softmax and sum are updated with each block of its list. ``share``: samples per row of
    v."""
    row = tl.program_id(0).to(tl.int64)
    b = row // T
    unit = tl.arange(0, BLOCK_N)
    inside = unit < n
    query = tl.load(q + row * n + unit, mask=inside, other=0.0)
    of_v = tl.load(v + b // share * n + unit, mask=inside, other=0.0)
    context = tl.zeros([BLOCK_N], query.dtype)
    most = tl.full([], -float("inf"), query.dtype)
    mass = tl.full([], 0.0, query.dtype)
    members = tl.full([], 0, tl.int32)
    first = 0
    while first < K:
        _, valid, memory = _members(idx, row, first, b, M, K, BLOCK_K)
        e, _, at, there = _scores(query, of_v, u, memory, valid, unit, inside, n, DOT)
        grown = tl.maximum(most, tl.max(e, 0))
        shift = tl.where(grown == -float("inf"), 0.0, grown).to(query.dtype)
        p = tl.where(valid, tl.exp(e - shift), 0.0)
        scale = tl.exp(most - shift)
        context = context * scale + tl.sum(p[:, None] * tl.load(h + at, mask=there, other=0.0), 0)
        mass = mass * scale + tl.sum(p, 0)
        members += tl.sum(valid.to(tl.int32), 0)
        most = grown
        first += BLOCK_K
    some = members > 0
    mass = tl.where(some, mass, 1.0)
    tl.store(out + row * n + unit, context / mass, mask=inside)
    tl.store(lse + row, tl.where(some, most + tl.log(mass), 0.0))


@triton.jit
def weigh(
    q, u, idx, v, lse, weights, T, M, K, n, share, DOT: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """One program per query: computes alpha and normalizes it again, because rounding of the log-sum-exp changes its
    sum."""
    row = tl.program_id(0).to(tl.int64)
    b = row // T
    unit = tl.arange(0, BLOCK_N)
    inside = unit < n
    query = tl.load(q + row * n + unit, mask=inside, other=0.0)
    of_v = tl.load(v + b // share * n + unit, mask=inside, other=0.0)
    mass = tl.full([], 0.0, query.dtype)
    first = 0
    while first < K:
        place, valid, memory = _members(idx, row, first, b, M, K, BLOCK_K)
        e, _, _, _ = _scores(query, of_v, u, memory, valid, unit, inside, n, DOT)
        alpha = tl.where(valid, tl.exp(e - tl.load(lse + row)), 0.0)
        tl.store(weights + row * K + place, alpha, mask=place < K)
        mass += tl.sum(alpha, 0)
        first += BLOCK_K
    mass = tl.where(mass == 0, 1.0, mass)
    tl.debug_barrier()  # the program reads back its own writes
    first = 0
    while first < K:
        place = first + tl.arange(0, BLOCK_K)
        alpha = tl.load(weights + row * K + place, mask=place < K, other=0.0)
        tl.store(weights + row * K + place, alpha / mass, mask=place < K)
        first += BLOCK_K


@triton.jit
def backward_queries(
    grad, q, u, h, idx, v, lse, weights, grad_scores, grad_q, grad_v, T, M, K, n, share, DOT: tl.constexpr,
    ROWS: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """One program per ``ROWS`` queries of a sample: alpha and the gradient of e for the programs of the memories, the
    gradient of q, and in the program's row of ``grad_v`` the contribution of its queries to the gradient of v."""
    programs = (T + ROWS - 1) // ROWS
    program = tl.program_id(0).to(tl.int64)
    b = program // programs
    begin = program % programs * ROWS
    unit = tl.arange(0, BLOCK_N)
    inside = unit < n
    of_v = tl.load(v + b // share * n + unit, mask=inside, other=0.0)
    to_v = tl.zeros([BLOCK_N], of_v.dtype)
    t = begin
    while t < tl.minimum(begin + ROWS, T):
        row = b * T + t
        query = tl.load(q + row * n + unit, mask=inside, other=0.0)
        upstream = tl.load(grad + row * n + unit, mask=inside, other=0.0)
        mass = tl.full([], 0.0, query.dtype)
        along = tl.full([], 0.0, query.dtype)
        first = 0
        while first < K:
            place, valid, memory = _members(idx, row, first, b, M, K, BLOCK_K)
            e, _, at, there = _scores(query, of_v, u, memory, valid, unit, inside, n, DOT)
            alpha = tl.where(valid, tl.exp(e - tl.load(lse + row)), 0.0)
            grad_alpha = tl.sum(upstream[None, :] * tl.load(h + at, mask=there, other=0.0), 1)
            tl.store(weights + row * K + place, alpha, mask=place < K)
            tl.store(grad_scores + row * K + place, grad_alpha, mask=place < K)
            mass += tl.sum(alpha, 0)
            along += tl.sum(tl.where(valid, alpha * grad_alpha, 0.0), 0)
            first += BLOCK_K
        mass = tl.where(mass == 0, 1.0, mass)
        along = along / mass
        tl.debug_barrier()  # the program reads back its own writes
        to_q = tl.zeros([BLOCK_N], of_v.dtype)
        first = 0
        while first < K:
            place, valid, memory = _members(idx, row, first, b, M, K, BLOCK_K)
            _, x, at, there = _scores(query, of_v, u, memory, valid, unit, inside, n, DOT)
            alpha = tl.load(weights + row * K + place, mask=valid, other=0.0) / mass
            grad_alpha = tl.load(grad_scores + row * K + place, mask=valid, other=0.0)
            grad_e = alpha * (grad_alpha - along)
            tl.debug_barrier()  # several warps load the same element; none may store before all have loaded
            tl.store(weights + row * K + place, alpha, mask=place < K)
            tl.store(grad_scores + row * K + place, grad_e, mask=place < K)
            if DOT:
                slope = tl.load(u + at, mask=there, other=0.0)
            else:
                slope = 1 - x * x
            to_q += tl.sum(tl.where(there, grad_e[:, None] * slope, 0.0), 0) * of_v
            to_v += tl.sum(tl.where(there, grad_e[:, None] * x, 0.0), 0)
            first += BLOCK_K
        tl.store(grad_q + row * n + unit, to_q, mask=inside)
        t += 1
    tl.store(grad_v + program * n + unit, to_v, mask=inside)


@triton.jit
def backward_memories(
    grad, q, u, v, weights, grad_scores, order, begins, pieces, firsts, spares, memory_of, grad_u, grad_h, spare_u,
    spare_h, memories, M, K, n, share, DOT: tl.constexpr, PIECE: tl.constexpr, BLOCK_P: tl.constexpr,
    BLOCK_N: tl.constexpr,
):  # fmt: skip
    """One program per piece of a memory's pairs. If the memory has one piece, the program writes the gradients;
    otherwise it writes its partial sums to a row of ``spare_u`` and ``spare_h``."""
    program = tl.program_id(0).to(tl.int64)
    memory = tl.load(memory_of + program)
    if memory < memories:
        unit = tl.arange(0, BLOCK_N)
        inside = unit < n
        piece = program - tl.load(firsts + memory)
        begin = tl.load(begins + memory) + piece * PIECE
        end = tl.minimum(begin + PIECE, tl.load(begins + memory + 1))
        key = tl.load(u + memory * n + unit, mask=inside, other=0.0)
        of_v = tl.load(v + memory // M // share * n + unit, mask=inside, other=0.0)
        to_u = tl.zeros([BLOCK_N], key.dtype)
        to_h = tl.zeros([BLOCK_N], key.dtype)
        first = begin
        while first < end:
            rank = first + tl.arange(0, BLOCK_P)
            there = (rank < end)[:, None] & inside[None, :]
            pair = tl.load(order + rank, mask=rank < end, other=0)
            alpha = tl.load(weights + pair, mask=rank < end, other=0.0)
            grad_e = tl.load(grad_scores + pair, mask=rank < end, other=0.0)
            at = (pair // K)[:, None] * n + unit[None, :]
            query = tl.load(q + at, mask=there, other=0.0)
            if DOT:
                slope = query
            else:
                x = _tanh(query + key[None, :])
                slope = 1 - x * x
            to_u += tl.sum(tl.where(there, grad_e[:, None] * slope, 0.0), 0) * of_v
            to_h += tl.sum(alpha[:, None] * tl.load(grad + at, mask=there, other=0.0), 0)
            first += BLOCK_P
        if tl.load(pieces + memory) == 1:
            tl.store(grad_u + memory * n + unit, to_u, mask=inside)
            tl.store(grad_h + memory * n + unit, to_h, mask=inside)
        else:
            spare = tl.load(spares + memory) + piece
            tl.store(spare_u + spare * n + unit, to_u, mask=inside)
            tl.store(spare_h + spare * n + unit, to_h, mask=inside)


@triton.jit
def add_pieces(pieces, spares, spare_u, spare_h, grad_u, grad_h, n, BLOCK_N: tl.constexpr):
    """One program per memory: if it has several pieces, adds their partial sums in order."""
    memory = tl.program_id(0).to(tl.int64)
    count = tl.load(pieces + memory)
    if count > 1:
        unit = tl.arange(0, BLOCK_N)
        inside = unit < n
        begin = tl.load(spares + memory)
        to_u = tl.load(spare_u + begin * n + unit, mask=inside, other=0.0)
        to_h = tl.load(spare_h + begin * n + unit, mask=inside, other=0.0)
        spare = begin + 1
        while spare < begin + count:
            to_u += tl.load(spare_u + spare * n + unit, mask=inside, other=0.0)
            to_h += tl.load(spare_h + spare * n + unit, mask=inside, other=0.0)
            spare += 1
        tl.store(grad_u + memory * n + unit, to_u, mask=inside)
        tl.store(grad_h + memory * n + unit, to_h, mask=inside)
