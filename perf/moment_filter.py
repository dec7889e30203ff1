"""Measures moment_filter, forward and backward, against the loop over time and against two linear scans with
elementwise operations around them.

``python -m perf.moment_filter --help``. The baseline copies the data that must cross memory, in the same run: forward u
and y once; with the backward pass also the gradients of y and u, and u again if there is a second moment.
"""

import functools
import sys
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from perf import family, harness
from perf.harness import OURS, Case, NoKernel, Problem, labels
from perf.linear_scan import QUICK_SHAPES, SHAPES, copies
from rnnkern import reference
from rnnkern.ops import explain, linear_scan, moment_filter

RULES = {"momentum": {"mu": 0.9, "s": 0.1}, "adam": {"mu": 0.9, "s": 0.1, "beta": 0.99}}
"""Arguments of the filter, by the optimizer to whose update it corresponds."""
COPIES = {"momentum": {"forward": 1.0, "forward+backward": 2.0}, "adam": {"forward": 1.0, "forward+backward": 2.5}}
"""Number of copies of u in the baseline, each of which reads and writes as many values as u has."""
EPS = 1e-2
PEERS = ("loop", "two scans")

Function = Callable[[Tensor], Tensor]


def two_scans(u: Tensor, mu: float, s: float, beta: float | None = None) -> Tensor:
    """The usual code with ``linear_scan``."""
    zeros, factors = u.new_zeros(u.shape[1:]), u.new_ones(u.shape[-1])
    v, _ = linear_scan(mu * factors, s * u, zeros)
    if beta is None:
        return v
    q, _ = linear_scan(beta * factors, (1 - beta) * u.square(), zeros)
    return v / (q + EPS).sqrt()


def problem_of(sizes: tuple[int, ...], rule: str, dtype: torch.dtype, device: torch.device, seed: int) -> Problem:
    torch.manual_seed(seed)
    u, upstream = (torch.randn(sizes, dtype=dtype).to(device) for _ in range(2))
    chosen = explain(moment_filter, u, **RULES[rule])
    if chosen.implementation == "reference":
        raise NoKernel(f"there is no kernel to measure: {chosen.reason}")
    loop = functools.partial(first, reference.moment_filter, RULES[rule])
    functions = {OURS: functools.partial(first, moment_filter, RULES[rule])}
    functions |= {} if u.is_cuda else {"loop": loop}  # there, hundreds of times slower than the other
    functions[PEERS[1]] = functools.partial(two_scans, **RULES[rule])
    return Problem(
        calls={
            "forward": {name: functools.partial(value, f, u) for name, f in functions.items()},
            "forward+backward": {name: functools.partial(both, f, u, upstream) for name, f in functions.items()},
        },
        baselines={direction: copies(u, count) for direction, count in COPIES[rule].items()},
        baseline="copy",
        naive=functools.partial(both, loop, u, upstream),
        truth=functools.partial(both, loop, u.double(), upstream.double()),
    )


def first(operator: Callable[..., tuple[Tensor, ...]], rule: dict[str, float], u: Tensor) -> Tensor:
    return operator(u, **rule)[0]


def value(function: Function, u: Tensor) -> dict[str, Tensor]:
    with torch.no_grad():
        return {"y": function(u)}


def both(function: Function, u: Tensor, upstream: Tensor) -> dict[str, Tensor]:
    leaf = u.detach().requires_grad_()
    y = function(leaf)
    return {"y": y.detach(), "gradient of u": torch.autograd.grad(y, leaf, upstream)[0]}


def cases(shapes: Sequence[tuple[int, ...]], dtype: str, device: torch.device) -> list[Case]:
    return [
        Case(
            labels("moment_filter", rule, "linear", sizes, dtype),
            functools.partial(problem_of, sizes, rule, getattr(torch, dtype), device),
        )
        for sizes in shapes
        for rule in RULES
    ]


def main(argv: Sequence[str]) -> None:
    parser = family.arguments("Times moment_filter, forward and forward+backward.", devices=True)
    family.add_shapes(parser, "TxBxC", "three")
    chosen, setup = family.begin(parser, argv, "moment_filter")
    shapes = chosen.shapes or (QUICK_SHAPES if chosen.quick else SHAPES)
    harness.run(cases(shapes, chosen.dtype, setup.device), *setup)


if __name__ == "__main__":
    main(sys.argv[1:])
