"""Measures recurrence_tangent, the propagation of S tangents through an LSTM, against what else computes it in PyTorch:
``vmap(jvp)`` of a loop, the Jacobian of each step times the tangents, and a loop that is written by hand.

``python -m perf.lyapunov --help``. In the cases of tangents the trajectory is known: each provider gets h, c and the
gates of all steps, and those that need no gates compute them. The baseline is, in the same run, T products of B S rows
with R and one product with as many operations for each orthonormalization (4 n S^2 for the n elements of the state).
In the case of ``jvp`` a call computes the value and one tangent, and the baseline has the products of both. In the case
of ``gradients`` a call computes the gradient with respect to h of every step, and the baseline has the products of the
forward pass and those of the gradient with R.
"""

import functools
import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.func import functional_call, jacrev, jvp, vmap

from perf import family, harness
from perf.harness import OURS, Case, NoKernel, Problem, Values, labels
from rnnkern import reference
from rnnkern._gemm import gemm_reference, products, run
from rnnkern.ops import explain, recurrence, recurrence_tangent
from rnnkern.ops._recurrence.recurrence_tangent import recurrence_adjoint
from rnnkern.reference._recurrence import recurrence_adjoint as adjoint_of_loop

LSTM, GRU, JVP, GRADIENTS = "lstm", "gru", "jvp", "gradients"
BEGUN = "rnnkern, with the forward pass"
LOOP, STEPS, DENSE, WRITTEN = "vmap(jvp) of a loop", "jacrev of each step", "dense Jacobians", "loop by hand"
FORWARD, MODULE = "rnnkern, the forward pass alone", "torch.nn"
PEERS = (LOOP, WRITTEN, STEPS, DENSE, MODULE)
SHAPES = (
    (200, 1, 128, 32, 0), (200, 1, 128, 32, 1), (200, 1, 128, 32, 10),
    (50, 1, 256, 32, 0), (50, 8, 128, 8, 0), (50, 1, 128, 256, 0),
)  # fmt: skip
"""(T, B, H, S, every)."""
QUICK_SHAPES = ((6, 2, 8, 4, 0), (6, 2, 8, 4, 2))
GRU_SHAPE, QUICK_GRU_SHAPE = (100, 8, 128), (6, 2, 8)
FORGET_BIAS = 4.0
"""Tangents neither vanish nor grow within 200 steps, as in a trained LSTM."""


class Trajectory(NamedTuple):
    """Arguments of the recurrence, and what its training forward returned."""

    u: Tensor
    R: Tensor
    state: tuple[Tensor, Tensor]
    h: Tensor
    c: Tensor
    gates: Tensor  # (T, B, 4*H): i, f, g, o

    def to(self, dtype: torch.dtype) -> "Trajectory":
        return Trajectory(*(tuple(y.to(dtype) for y in x) if isinstance(x, tuple) else x.to(dtype) for x in self))

    def before(self, k: int) -> Tensor:
        """h or c before each step."""
        return torch.cat([self.state[k][None], (self.h, self.c)[k][:-1]])


Propagate = Callable[[Trajectory, Tensor, int], Values]
"""A function of the trajectory, tangents (S, B, 2*H) and the steps between two orthonormalizations."""


def drawn(steps: int, batch: int, hidden: int, count: int, dtype: torch.dtype) -> tuple[Trajectory, Tensor]:
    bound = hidden**-0.5
    u = torch.randn(steps, batch, 4 * hidden, dtype=dtype)
    u[..., hidden : 2 * hidden] += FORGET_BIAS
    R = torch.empty(4 * hidden, hidden, dtype=dtype).uniform_(-bound, bound)
    state = (torch.zeros(batch, hidden, dtype=dtype), torch.zeros(batch, hidden, dtype=dtype))
    options = {"bias": None, "params": None, "batch_sizes": None, "reset": None, "reverse": False}
    h, _, _, c, gates, *_ = torch.ops.rnnkern.recurrence(LSTM, u, R, state, *options.values(), True, True)
    tangents = torch.linalg.qr(torch.randn(batch, 2 * hidden, count, dtype=dtype)).Q.permute(2, 0, 1).contiguous()
    return Trajectory(u, R, state, h, c, gates), tangents


def parts(tangents: Tensor) -> tuple[Tensor, Tensor]:
    h, c = (part.contiguous() for part in tangents.chunk(2, -1))
    return h, c


def values(every: int, tangents: Sequence[Tensor], log_r: Tensor) -> Values:
    """The tangents; or the exponents, because the tangents of equal exponents are any basis of their span."""
    return {"exponents": log_r.mean(0).to(tangents[0])} if every else {"tangents": torch.cat(list(tangents), -1)}


def kernel(along: Trajectory, tangents: Tensor, every: int) -> Values:
    *found, log_r, _ = torch.ops.rnnkern.recurrence_tangent(
        LSTM, along.u, along.R, along.state, parts(tangents), None, None, None, None, False, along.h,
        (along.c, along.gates), None, None, None, None, every, False, None, 0.0, None,
    )  # fmt: skip
    return values(every, found[1:], log_r)


def begun(along: Trajectory, tangents: Tensor, every: int) -> Values:
    found = recurrence_tangent(LSTM, along.u, along.R, along.state, parts(tangents), every=every)
    return values(every, found.tangents, found.log_r)


def plain(along: Trajectory, tangents: Tensor, every: int) -> Values:
    found = reference.recurrence_tangent(LSTM, along.u, along.R, along.state, parts(tangents), every=every)
    return values(every, found.tangents, found.log_r)


def step(R: Tensor, u: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    h, c = state
    i, f, g, o = (u + h @ R.t()).chunk(4, -1)
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


def orthonormal(tangents: Tensor) -> tuple[Tensor, Tensor]:
    """The tangents (S, B, n) after a QR decomposition per sequence, and log |R_ss| (B, S)."""
    Q, R = torch.linalg.qr(tangents.permute(1, 2, 0))
    return Q.permute(2, 0, 1), R.diagonal(dim1=1, dim2=2).abs().log()


def by_blocks(advance: Callable[[int, int, Tensor], Tensor], steps: int, every: int, tangents: Tensor) -> Values:
    """Orthonormalizes between blocks of steps; ``advance`` propagates tangents through the steps first..last-1."""
    if not every:
        return values(0, [advance(0, steps, tangents)], tangents)
    logs = []
    for first in range(0, steps, every):
        tangents, log = orthonormal(advance(first, min(first + every, steps), tangents))
        logs.append(log.double())
    return values(every, [tangents], torch.stack(logs))


def loop(along: Trajectory, tangents: Tensor, every: int) -> Values:
    def advance(first, last, tangents):
        def final(state):
            for u in along.u[first:last].unbind(0):
                state = step(along.R, u, state)
            return state

        begin = (along.before(0)[first], along.before(1)[first])
        return torch.cat(vmap(lambda h, c: jvp(final, (begin,), ((h, c),))[1])(*parts(tangents)), -1)

    return by_blocks(advance, len(along.u), every, tangents)


def jacobian_of_each_step(along: Trajectory, tangents: Tensor, every: int) -> Values:
    def joint(u, state):
        return torch.cat(step(along.R, u, state.chunk(2, -1)), -1)

    jacobian, states = vmap(jacrev(joint, 1)), torch.cat([along.before(0), along.before(1)], -1)
    return by_matrices(lambda t: jacobian(along.u[t], states[t]), len(along.u), every, tangents)


def dense(along: Trajectory, tangents: Tensor, every: int) -> Values:
    """The closed form of the Jacobian (31) of each step, as a matrix."""
    K, (R_i, R_f, R_g, R_o) = coefficients(along), along.R.chunk(4)

    def matrix(t):
        i, f, g, o, keep, m = (x[t, :, :, None] for x in K)
        E = i * R_i + f * R_f + g * R_g
        D = keep[..., 0].diag_embed()
        return torch.cat([torch.cat([o * R_o + m * E, m * D], -1), torch.cat([E, D], -1)], -2)

    return by_matrices(matrix, len(along.u), every, tangents)


def by_matrices(matrix: Callable[[int], Tensor], steps: int, every: int, tangents: Tensor) -> Values:
    def advance(first, last, tangents):
        columns = tangents.permute(1, 2, 0)
        for t in range(first, last):
            columns = matrix(t) @ columns
        return columns.permute(2, 0, 1)

    return by_blocks(advance, steps, every, tangents)


def coefficients(along: Trajectory) -> tuple[Tensor, ...]:
    """(T, B, H) each: what the tangents of the products of i, f and g contribute to that of c, what that of o
    contributes to that of h, f itself, and the derivative of h by c."""
    (i, f, g, o), c = along.gates.chunk(4, -1), along.c.tanh()
    return (g * i * (1 - i), along.before(1) * f * (1 - f), i * (1 - g * g), c * o * (1 - o), f, o * (1 - c * c))


def written(along: Trajectory, tangents: Tensor, every: int) -> Values:
    """A loop that computes tangents and nothing else: all coefficients at once, one product per step."""
    *gates, keep, m = coefficients(along)
    K, W = torch.cat(gates, -1), along.R.t()

    def advance(first, last, tangents):
        (h, c), shape = tangents.chunk(2, -1), tangents.shape[:2]
        for t in range(first, last):
            i, f, g, o = ((h.reshape(-1, W.shape[0]) @ W).view(*shape, -1) * K[t]).chunk(4, -1)
            c = torch.addcmul(i + f + g, keep[t], c)
            h = torch.addcmul(o, m[t], c)
        return torch.cat([h, c], -1)

    return by_blocks(advance, len(along.u), every, tangents)


def problem_of(shape: Sequence[int], dtype: torch.dtype, seed: int) -> Problem:
    torch.manual_seed(seed)
    steps, batch, hidden, count, every = shape
    along, tangents = drawn(steps, batch, hidden, count, dtype)
    choice = explain(recurrence_tangent, LSTM, along.u, along.R, along.state, parts(tangents))
    if choice.implementation == "reference":
        raise NoKernel(f"there is no kernel to measure: {choice.reason}")
    functions: dict[str, Propagate] = {OURS: kernel, BEGUN: begun, LOOP: loop, WRITTEN: written}
    if batch == 1 and not every:
        functions |= {STEPS: jacobian_of_each_step, DENSE: dense}
    rows, n = batch * count, 2 * hidden
    floor = products(torch.randn(steps * rows, hidden, dtype=dtype), along.R.t(), [rows] * steps)
    if every:
        blocks = -(-steps // every) * batch
        Q, both = torch.randn(blocks * count, n, dtype=dtype), torch.randn(n, 2 * count, dtype=dtype)
        floor += products(Q, both, [count] * blocks, constant=False)
    return Problem(
        calls={"tangents": {name: functools.partial(without_graph, f, along, tangents, every)
                            for name, f in functions.items()}},
        baselines={"tangents": functools.partial(run, floor)},
        naive=functools.partial(without_graph, plain, along, tangents, every),
        truth=functools.partial(without_graph, plain, along.to(torch.float64), tangents.double(), every),
        baseline="GEMM",
    )  # fmt: skip


def without_graph(function: Propagate, *args) -> Values:
    with torch.no_grad():
        return function(*args)


def problem_of_jvp(shape: Sequence[int], dtype: torch.dtype, seed: int) -> Problem:
    """Value and tangent of a GRU whose input and weights have tangents."""
    torch.manual_seed(seed)
    steps, batch, size = shape
    module = torch.nn.GRU(size, size).to(dtype)
    weights = {name: p.detach() for name, p in module.named_parameters()}
    x, direction = torch.randn(2, steps, batch, size, dtype=dtype)
    dots = {name: torch.randn_like(p) * size**-0.5 for name, p in weights.items()}
    W, R = weights["weight_ih_l0"], weights["weight_hh_l0"]

    def fused(op, x, weights):
        W, R, b_ih, b_hh = weights.values()
        return op(GRU, x, R, (x.new_zeros(batch, size),), bias=b_hh, weight_ih=W, bias_ih=b_ih)[0]

    def theirs(x, weights):
        return functional_call(module, weights, (x,))[0]

    def both(function, wide=torch.Tensor.clone) -> Values:
        given = wide(x), {name: wide(p) for name, p in weights.items()}
        along = wide(direction), {name: wide(p) for name, p in dots.items()}
        h, tangent = jvp(function, given, along)
        return {"h": h, "tangent of h": tangent}

    ours = functools.partial(fused, recurrence)
    plainly = functools.partial(fused, reference.recurrence)
    floor = gemm_reference([(W, R), (W, R)], [batch] * steps)["forward"]
    return Problem(
        calls={"jvp": {OURS: functools.partial(without_graph, both, ours),
                       MODULE: functools.partial(without_graph, both, theirs)}},
        baselines={"jvp": floor},
        naive=functools.partial(without_graph, both, plainly),
        truth=functools.partial(without_graph, both, plainly, torch.Tensor.double),
        unlike={"jvp": {FORWARD: functools.partial(without_graph, lambda: {"h": ours(x, weights)})}},
    )  # fmt: skip


def problem_of_gradients(shape: Sequence[int], dtype: torch.dtype, seed: int) -> Problem:
    """The gradient with respect to h of every step of a GRU. torch.nn's layer is called once per step."""
    torch.manual_seed(seed)
    steps, batch, size = shape
    module = torch.nn.GRU(size, size).to(dtype)
    weights = [p.detach() for p in module.parameters()]
    x, upstream = torch.randn(2, steps, batch, size, dtype=dtype)

    def ours(op, wide=torch.Tensor.clone) -> Values:
        W, R, b_ih, b_hh = map(wide, weights)
        h0 = wide(x.new_zeros(batch, size))
        return {"gradient": op(lambda h: wide(upstream), GRU, wide(x), R, (h0,), bias=b_hh, weight_ih=W, bias_ih=b_ih)}

    def theirs() -> Values:
        found = [x.new_zeros(1, batch, size).requires_grad_()]
        for u in x.split(1):
            found.append(module(u, found[-1])[0])
        return {"gradient": torch.cat(torch.autograd.grad(found[1:], found[1:], upstream.split(1)))}

    W, R = weights[:2]
    through_R = products(x.new_empty(steps * batch, 3 * size).normal_(), R, [batch] * steps)
    forward = gemm_reference([(W, R)], [batch] * steps)["forward"]
    return Problem(
        calls={GRADIENTS: {OURS: functools.partial(ours, recurrence_adjoint),
                           WRITTEN: functools.partial(ours, adjoint_of_loop), MODULE: theirs}},
        baselines={GRADIENTS: lambda: (forward(), run(through_R))},
        naive=functools.partial(ours, adjoint_of_loop),
        truth=functools.partial(ours, adjoint_of_loop, torch.Tensor.double),
    )  # fmt: skip


def case_of(every: int) -> str:
    return f"every {every}"


def cases(shapes: Sequence[Sequence[int]], gru_shapes: Sequence[Sequence[int]], dtype: str) -> list[Case]:
    """The cases of tangents, and those of jvp and of gradients."""
    kind = getattr(torch, dtype)
    found = [
        Case(
            labels("recurrence_tangent", case_of(shape[-1]), LSTM, shape[:-1], dtype),
            functools.partial(problem_of, shape, kind),
        )
        for shape in shapes
    ]
    return found + [
        Case(labels(op, case, GRU, shape, dtype), functools.partial(problem, shape, kind))
        for shape in gru_shapes
        for op, case, problem in (
            ("recurrence_tangent", JVP, problem_of_jvp),
            ("recurrence_backward", GRADIENTS, problem_of_gradients),
        )
    ]


def shape(text: str) -> tuple[int, ...]:
    steps, batch, hidden, count, every = map(int, text.split("x"))
    return steps, batch, hidden, count, every


def main(argv: Sequence[str]) -> None:
    parser = family.arguments(
        "Times recurrence_tangent, jvp and gradients of every step against the ways of PyTorch.", dtypes=family.WIDE
    )
    parser.add_argument("--shapes", nargs="*", type=shape, metavar="TxBxHxSxK", help="tangents, instead of the usual")
    parser.add_argument("--only-tangents", action="store_true", help="leaves out the cases of jvp and of gradients")
    chosen, setup = family.begin(parser, argv, "lyapunov", name="lyapunov")
    shapes, of_gru = (QUICK_SHAPES, QUICK_GRU_SHAPE) if chosen.quick else (SHAPES, GRU_SHAPE)
    shapes = shapes if chosen.shapes is None else chosen.shapes
    harness.run(cases(shapes, [] if chosen.only_tangents else [of_gru], chosen.dtype), *setup)


if __name__ == "__main__":
    main(sys.argv[1:])
