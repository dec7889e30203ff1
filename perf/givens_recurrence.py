"""Measures a recurrence through layers of rotations, forward and backward, by N and L, against the recurrence with
their matrix.

``python -m perf.givens_recurrence --help``. Times are the minimum CPU time of one thread over several rounds. The
matrix is computed in advance, as in a module, which computes it once per optimizer step. Two fits of the times of the
layers are printed too: the exponents of N and L - 1 in the time that the layers after the first add, and the time per
number and step of a sequence as a + b L. On a GPU ``make gpu`` runs the cases. Its baseline copies the data
that must cross memory, in the same run: u and h once, and with the backward pass both again and two gradients.
"""

import functools
import itertools
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from perf import family, harness, orthogonal, record
from perf.harness import OURS, Case, Effort, Problem, Values, labels
from perf.linear_scan import copies
from perf.progress import Progress
from perf.record import Row, significant
from rnnkern import ops, reference

SIZES, QUICK_SIZES = (64, 128, 256, 512, 1024), (8, 16)
LAYERS, QUICK_LAYERS = (1, 2, 4, 8, 16), (1, 2)
STEPS = 50
GPU_SHAPES = ((512, 64, 128, 7), (512, 64, 512, 9), (512, 64, 1024, 10))
GPU_QUICK_SHAPES = ((6, 2, 8, 3),)
"""(T, B, N, L), with the style "butterfly"."""
MATRIX = f"{OURS}, the matrix"
DIRECTION = "forward+backward"


def both(run: Callable[..., tuple[Tensor, Tensor]], inputs: Mapping[str, Tensor], upstream: Tensor) -> Values:
    leaves = {name: x.detach().requires_grad_() for name, x in inputs.items()}
    h, _ = run(**leaves)
    grads = torch.autograd.grad(h, list(leaves.values()), upstream)
    return {"h": h.detach()} | {f"grad of {name}": grad for name, grad in zip(leaves, grads, strict=True)}


def by_matrix(W: Tensor, u: Tensor, state: Tensor, modrelu_bias: Tensor) -> tuple[Tensor, Tensor]:
    h, (last,) = ops.recurrence("modrelu", u, W, (state,), params=(modrelu_bias,))
    return h, last


def with_matrix(inputs: Mapping[str, Tensor], W: Tensor, upstream: Tensor) -> Values:
    """The gradient of W is computed but not compared, because the other providers have gradients of the angles
    instead."""
    values = both(by_matrix, {"W": W} | {name: inputs[name] for name in ("u", "state", "modrelu_bias")}, upstream)
    return {name: value for name, value in values.items() if name != "grad of W"}


def h_of(run: Callable[..., tuple[Tensor, Tensor]], inputs: Mapping[str, Tensor]) -> Values:
    with torch.no_grad():
        return {"h": run(**inputs)[0]}


def build(sizes: tuple[int, ...], style: str, dtype: torch.dtype, device: torch.device, seed: int) -> Problem:
    steps, batch, size, layers = sizes
    torch.manual_seed(seed)
    drawn = {
        "u": torch.randn(steps, batch, size, dtype=dtype),
        "angles": torch.randn(layers, size // 2, dtype=dtype),
        "state": torch.randn(batch, size, dtype=dtype),
        "modrelu_bias": 0.02 * torch.rand(size, dtype=dtype) - 0.01,
    }
    inputs = {name: x.to(device) for name, x in drawn.items()}
    upstream = torch.randn_like(inputs["u"])
    orthogonal.refuse_reference(ops.givens_recurrence, *inputs.values())
    W = ops.givens_product(inputs["angles"], style=style)
    dense = {"W": W} | {name: x for name, x in inputs.items() if name != "angles"}
    inside, formula = (functools.partial(f.givens_recurrence, style=style) for f in (ops, reference))
    wide = {name: x.double() for name, x in inputs.items()}
    return Problem(
        calls={
            "forward": {
                OURS: functools.partial(h_of, inside, inputs),
                MATRIX: functools.partial(h_of, by_matrix, dense),
            },
            DIRECTION: {
                OURS: functools.partial(both, inside, inputs, upstream),
                MATRIX: functools.partial(with_matrix, inputs, W, upstream),
            },
        },
        baselines={"forward": copies(upstream, 1.0), DIRECTION: copies(upstream, 3.0)},
        baseline="copy",
        naive=functools.partial(both, formula, inputs, upstream),
        truth=functools.partial(both, formula, wide, upstream.double()),
    )


def cases(shapes: Sequence[tuple[int, ...]], dtype: str, device: torch.device, style: str = "butterfly") -> list[Case]:
    return [
        Case(
            labels("givens_recurrence", style, "modrelu", sizes, dtype),
            functools.partial(build, sizes, style, getattr(torch, dtype), device),
            kinked=True,
        )
        for sizes in shapes
    ]


def measure(cases: Sequence[Case], effort: Effort) -> list[dict[str, float]]:
    """Returns the milliseconds of CPU time of each call for each case, after checking that all results are right. A
    time is the minimum over rounds that go through all cases, so that other load on the machine affects all cases
    alike."""
    calls = [harness.checked(case).calls[DIRECTION] for case in harness.shown(cases)]
    least = [dict.fromkeys(named, math.inf) for named in calls]
    deadline = time.monotonic() + effort.seconds * len(cases)
    with Progress("rounds through all cases", effort.most, "round") as progress:
        while progress.done < effort.least or (progress.done < effort.most and time.monotonic() < deadline):
            for named, ms in zip(calls, least, strict=True):
                for name, call in named.items():
                    repeats, begun = 0, time.process_time()
                    while not repeats or time.process_time() - begun < effort.block:
                        call()
                        repeats += 1
                    ms[name] = min(ms[name], 1e3 * (time.process_time() - begun) / repeats)
            progress.advance()
    return least


def exponents(sizes: Sequence[int], layers: Sequence[int], ms: Sequence[float]) -> tuple[float, float]:
    """p and q of ms - ms_1 ~ N^p (L - 1)^q by least squares of the logarithms, where ms_1 is the time of one layer. NaN
    if fewer than three sizes have more than one layer."""
    first = {n: t for n, count, t in zip(sizes, layers, ms, strict=True) if count == 1}
    added = [(n, count - 1, t - first[n]) for n, count, t in zip(sizes, layers, ms, strict=True) if t > first[n]]
    if len(added) < 3:
        return math.nan, math.nan
    logs = torch.tensor(added, dtype=torch.float64).T.log()
    terms = torch.stack([torch.ones_like(logs[0]), *logs[:2]], 1)
    _, p, q = torch.linalg.lstsq(terms, logs[2].unsqueeze(1)).solution.flatten().tolist()
    return p, q


def line(layers: Sequence[int], each: Sequence[float]) -> tuple[float, float, float]:
    """a and b of each ~ a + b L, and the largest deviation; all with relative errors."""
    L, y = torch.tensor(layers, dtype=torch.float64), torch.tensor(each, dtype=torch.float64)
    terms = torch.stack([torch.ones_like(L), L], 1) / y.unsqueeze(1)
    found = torch.linalg.lstsq(terms, torch.ones_like(y).unsqueeze(1)).solution
    a, b = found.flatten().tolist()
    return a, b, (terms @ found - 1).abs().max().item()


def report(rows: Sequence[Row], batch: int) -> str:
    ours = [row for row in rows if row["provider"] == OURS]
    sizes, layers, ms = ([row[name] for row in ours] for name in ("size", "layers", "ms"))
    p, q = exponents(sizes, layers, ms)
    each = [1e6 * t / (STEPS * batch * size) for t, size in zip(ms, sizes, strict=True)]
    a, b, off = line(layers, each)
    return (
        f"what layers add is N^{p:.2f} (L - 1)^{q:.2f}; {a:.2f} + {b:.2f} L ns per number and step of a sequence, "
        f"within {100 * off:.0f} % of each"
    )


def main(argv: Sequence[str]) -> None:
    parser = family.arguments(
        "Times givens_recurrence and the recurrence with its matrix, forward and backward.", family.WIDE
    )
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--style", default="tunable", choices=("tunable", "butterfly"))
    parser.add_argument("--sizes", type=int, nargs="+", help="N")
    parser.add_argument("--layers", type=int, nargs="+", help="L")
    parser.set_defaults(threads=1)
    chosen, setup = family.begin(parser, argv, "givens_recurrence", Effort(0.0, 3, 5, 5e-3), "givens_recurrence")
    facts = record.facts(setup.device, setup.command)
    common = {"op": "givens_recurrence", "style": chosen.style, "dtype": chosen.dtype, "batch": chosen.batch}
    common |= {"steps": STEPS}
    sizes = chosen.sizes or (QUICK_SIZES if chosen.quick else SIZES)
    grid = list(itertools.product(sizes, chosen.layers or (QUICK_LAYERS if chosen.quick else LAYERS)))
    shapes, rows = [(STEPS, chosen.batch, *sizes) for sizes in grid], []
    todo = cases(shapes, chosen.dtype, setup.device, chosen.style)
    for (size, layers), ms in zip(grid, measure(todo, setup.effort), strict=True):
        own = common | {"size": size, "layers": layers, "over": significant(ms[MATRIX] / ms[OURS])}
        rows += [facts | own | {"provider": name, "ms": significant(t)} for name, t in ms.items()]
    if setup.path is not None:
        record.append(setup.path, rows)
    shown = ("style", "dtype", "batch", "size", "layers", "provider", "ms", "over")
    print(record.table([{name: row[name] for name in shown} for row in rows]))
    print(report(rows, chosen.batch))


if __name__ == "__main__":
    main(sys.argv[1:])
