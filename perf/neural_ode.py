"""Measures the cell ``euler`` as a neural ODE, dq/dt = tanh(R q + u) with a constant u, against a loop over the steps
and torchdiffeq; and the other cells of continuous depth beside it.

``python -m perf.neural_ode --help``. Only the last state is used. The floor are the products alone.
"""

import functools
import sys
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torchdiffeq import odeint, odeint_adjoint

from perf import family, harness, recurrence
from perf.harness import OURS, Case, Problem, Values, labels
from perf.providers import compiled_function
from rnnkern import cells, ops, reference
from rnnkern._gemm import gemm_reference

SHAPES = ((100, 8, 64), (100, 64, 64), (20, 64, 64), (100, 256, 256))
QUICK_SHAPES = ((8, 3, 16),)
"""(N, B, D): steps, batch size and units."""
INTERVAL = 1.0

Solver = Callable[[Tensor, Tensor], Tensor]
"""A function of u (B, D) and R that returns the last state, from 0."""


def by_cell(cell: str, steps: int, op: Callable, u: Tensor, R: Tensor) -> Tensor:
    dt, zeros = u.new_full(u.shape[-1:], INTERVAL / steps), torch.zeros_like(u)
    made, states, params = {
        "euler": ("euler", 1, (dt,)),
        "adams": (cells.adams, 2, (dt,)),
        "heavy_ball": (cells.heavy_ball, 2, (torch.ones_like(dt), dt, dt)),
        "heavy_ball_tanh": (cells.heavy_ball_tanh, 2, (torch.ones_like(dt), dt, dt, dt)),
    }[cell]
    if op is reference.recurrence:
        return op(made, u.expand(steps, *u.shape), R, (zeros,) * states, params=params)[1][0]
    return op(made, u.unsqueeze(0), R, (zeros,) * states, params=params, steps=steps)[1][0]


def loop(steps: int, u: Tensor, R: Tensor) -> Tensor:
    q, R = torch.zeros_like(u), R.t()
    for _ in range(steps):
        q = q.add(torch.addmm(u, q, R).tanh(), alpha=INTERVAL / steps)
    return q


class Field(torch.nn.Module):
    def __init__(self, u: Tensor, R: Tensor) -> None:
        super().__init__()
        self.u, self.R = u, R

    def forward(self, t: Tensor, q: Tensor) -> Tensor:
        return torch.addmm(self.u, q, self.R.t()).tanh()


def by_torchdiffeq(steps: int, method: str, u: Tensor, R: Tensor, solve: Callable = odeint) -> Tensor:
    times = torch.linspace(0, INTERVAL, steps + 1, dtype=u.dtype)[:: steps if method == "euler" else 1]
    options = {"step_size": INTERVAL / steps} if method == "euler" else None
    more = {} if solve is odeint else {"adjoint_params": (u, R)}
    return solve(Field(u, R), torch.zeros_like(u), times, method=method, options=options, **more)[-1]


def value(solver: Solver, u: Tensor, R: Tensor) -> Values:
    with torch.no_grad():
        return {"q": solver(u, R)}


def both(solver: Solver, u: Tensor, R: Tensor, upstream: Tensor) -> Values:
    u, R = (x.detach().requires_grad_() for x in (u, R))
    q = solver(u, R)
    of_u, of_R = torch.autograd.grad(q, (u, R), upstream)
    return {"q": q.detach(), "gradient of u": of_u, "gradient of R": of_R}


def problem_of(shape: tuple[int, int, int], dtype: torch.dtype, seed: int) -> Problem:
    torch.manual_seed(seed)
    steps, batch, size = shape
    u, upstream = torch.randn(2, batch, size, dtype=dtype)
    R = torch.randn(size, size, dtype=dtype) * size**-0.5

    def of(cell, op=ops.recurrence):
        return functools.partial(by_cell, cell, steps, op)

    solvers = {
        OURS: of("euler"),
        "loop": functools.partial(loop, steps),
        "torchdiffeq": functools.partial(by_torchdiffeq, steps, "euler"),
    }
    if steps <= recurrence.COMPILED_STEPS:
        solvers[recurrence.COMPILED] = compiled_function(solvers["loop"])
    others = {name: of(name) for name in ("adams", "heavy_ball", "heavy_ball_tanh")}
    if steps % 4 == 0:
        others["torchdiffeq's rk4, as many evaluations"] = functools.partial(by_torchdiffeq, steps // 4, "rk4")
    adjoint = {"torchdiffeq's adjoint": functools.partial(by_torchdiffeq, steps, "euler", solve=odeint_adjoint)}

    def calls(named, direction):
        if direction == "forward":
            return {name: functools.partial(value, solver, u, R) for name, solver in named.items()}
        return {name: functools.partial(both, solver, u, R, upstream) for name, solver in named.items()}

    plain = of("euler", reference.recurrence)
    exact = u.double(), R.double(), upstream.double()
    directions = {"forward": others, "forward+backward": others | adjoint}
    return Problem(
        calls={direction: calls(solvers, direction) for direction in directions},
        unlike={direction: calls(named, direction) for direction, named in directions.items()},
        baselines=gemm_reference([(None, R)], [batch] * steps),
        baseline="products",
        naive=functools.partial(both, plain, u, R, upstream),
        truth=functools.partial(both, plain, *exact),
    )


def cases(shapes: Sequence[tuple[int, ...]] = SHAPES, dtype: str = "float32") -> list[Case]:
    kept = getattr(torch, dtype)
    return [
        Case(labels("euler", "neural ODE", "euler", s, dtype), functools.partial(problem_of, s, kept)) for s in shapes
    ]


def main(argv: Sequence[str]) -> None:
    parser = family.arguments("Times neural ODEs of fixed steps.", family.WIDE)
    family.add_shapes(parser, "NxBxD", "four")
    chosen, setup = family.begin(parser, argv, "neural_ode", name="neural_ode")
    usual = QUICK_SHAPES if chosen.quick else SHAPES
    harness.run(cases(chosen.shapes or usual, chosen.dtype), *setup)


if __name__ == "__main__":
    main(sys.argv[1:])
