"""How the cost of orthogonal and unitary weights grows with N, m and L: fits the exponents, by least squares of
logarithms, beside those of the formulas.

``python -m perf.orthogonal_cost`` measures; ``python -m perf.orthogonal_cost --page cpu-amd-epyc-1t`` writes the tables
of docs/orthogonal.md from a device's CSV. Times are of the process, on one thread, so that other work on the machine
counts little: the least of a few turns.
"""

import argparse
import functools
import math
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from perf import record, tables
from perf.progress import Progress
from perf.record import Row, significant
from rnnkern import ops
from rnnkern.nn import UnitaryRNN
from rnnkern.ops import householder_autograd

PAGE = record.ROOT / "docs" / "orthogonal.md"
FILE = "orthogonal_cost.csv"
VECTORS, STEPS = 100, 50
FORMED, APPLIED = "UnitaryRNN, weight formed", "UnitaryRNN, factors applied each step"

Call = Callable[[], Tensor]


class Cost(NamedTuple):
    what: str
    fixed: str
    varied: str  # N, m or L
    sizes: Sequence[int]
    formula: str
    work: Callable[[int], float]  # by the formula
    build: Callable[[int], Call]


# ---- what is measured


def reflections_formed(size: int, reflections: int) -> Call:
    V = torch.randn(size, reflections, requires_grad=True)
    return with_backward(functools.partial(ops.householder_product, V), [V])


def reflections_applied(size: int, reflections: int) -> Call:
    """Compact WY, Q x = x - U (W x), its factors made before."""
    V, x = torch.randn(size, reflections), torch.randn(VECTORS, size)
    Q, W, _, norm = householder_autograd.forward(V, True)
    U = V / norm
    return same(lambda: torch.addmm(x, x @ W.mT, U.mT, alpha=-1), x @ Q.mT)


def fourier(size: int) -> UnitaryRNN:
    return UnitaryRNN(1, size)


def fourier_formed(size: int) -> Call:
    rnn = fourier(size)
    found = rnn.parametrizations.weight_hh_l0[0]
    originals = found.originals  # while the network is there
    return with_backward(lambda: torch.view_as_real(found.weight(*originals)), originals)


def fourier_applied(size: int) -> Call:
    """The factors made before."""
    rnn = fourier(size)
    found, x = rnn.parametrizations.weight_hh_l0[0], torch.randn(VECTORS, size, dtype=torch.complex64)
    with torch.no_grad():
        factors, R = found.factors(*found.originals), rnn.weight_hh_l0
        return same(lambda: found.applied(x, *factors), x @ R.mT)


def rotations_formed(size: int, layers: int) -> Call:
    angles = torch.randn(layers, size // 2, requires_grad=True)
    return with_backward(functools.partial(ops.givens_product, angles), [angles])


def rotations_applied(size: int, layers: int, style: str = "tunable") -> Call:
    angles, x = torch.randn(layers, size // 2, requires_grad=True), torch.randn(VECTORS, size)
    return with_backward(functools.partial(ops.givens_product, angles, x, style=style), [angles])


def butterflies_applied(size: int) -> Call:
    return rotations_applied(size, size.bit_length() - 1, "butterfly")


def network_formed(batch: int, size: int) -> Call:
    """A forward and backward after each step of an optimiser, which the weight has to follow."""
    rnn, x = fourier(size), torch.randn(STEPS, batch, 1)
    call = with_backward(lambda: rnn(x)[0], list(rnn.parameters()))

    def after_a_step() -> Tensor:
        with torch.no_grad():
            rnn.parametrizations.weight_hh_l0.original0.add_(0)
        return call()

    return after_a_step


def network_applied(batch: int, size: int) -> Call:
    """The same, step by step in plain PyTorch."""
    rnn, x = fourier(size), torch.randn(STEPS, batch, 1)
    found = rnn.parametrizations.weight_hh_l0[0]

    def forward() -> Tensor:
        factors = found.factors(*found.originals)
        u = torch.view_as_complex((x @ rnn.weight_ih_l0.mT).unflatten(-1, (size, 2)))
        h, outputs = u.new_zeros(batch, size), []
        for u_t in u:
            z = u_t + found.applied(h, *factors)
            length = z.abs()
            h = z * (torch.relu(length + rnn.modrelu_bias_l0) / length)
            outputs.append(h)
        return torch.view_as_real(torch.stack(outputs)).flatten(-2)

    with torch.no_grad():
        wanted = rnn(x)[0]
    return same(with_backward(forward, list(rnn.parameters())), wanted)


def with_backward(function: Call, leaves: Sequence[Tensor]) -> Call:
    upstream = torch.randn_like(function().detach())

    def call() -> Tensor:
        value = function()
        torch.autograd.grad(value, leaves, upstream)
        return value.detach()

    return call


def same(call: Call, wanted: Tensor) -> Call:
    """The call, whose value is compared first: what is wrong is not timed."""
    torch.testing.assert_close(call(), wanted.detach(), rtol=1e-3, atol=1e-3)
    return call


def powers(first: int, last: int) -> list[int]:
    return [2**k for k in range(first.bit_length() - 1, last.bit_length())]


COSTS = [
    Cost("reflections, formed", "N = 512", "m", powers(16, 256), "N^2 m", lambda m: m,
         functools.partial(reflections_formed, 512)),
    Cost("reflections, formed", "m = 32", "N", powers(256, 2048), "N^2 m", lambda n: n**2,
         functools.partial(reflections_formed, reflections=32)),
    Cost("reflections, applied", "N = 1024", "m", powers(16, 256), "N m", lambda m: m,
         functools.partial(reflections_applied, 1024)),
    Cost("reflections, applied", "m = 32", "N", powers(256, 4096), "N m", lambda n: n,
         functools.partial(reflections_applied, reflections=32)),
    Cost("Fourier product, formed", "", "N", powers(64, 1024), "N^2 log N", lambda n: n**2 * math.log(n),
         fourier_formed),
    Cost("Fourier product, applied", "", "N", powers(256, 8192), "N log N", lambda n: n * math.log(n), fourier_applied),
    Cost("rotations, formed", "N = 256", "L", powers(16, 256), "N^2 L", lambda layers: layers,
         functools.partial(rotations_formed, 256)),
    Cost("rotations, applied", "N = 512", "L", powers(4, 64), "N L", lambda layers: layers,
         functools.partial(rotations_applied, 512)),
    Cost("rotations, applied", "L = 8", "N", powers(128, 2048), "N L", lambda n: n,
         functools.partial(rotations_applied, layers=8)),
    Cost("butterflies, applied", "L = log N", "N", powers(128, 2048), "N log N", lambda n: n * math.log(n),
         butterflies_applied),
    *(Cost(what, f"T = {STEPS}, B = {batch}", "N", powers(64, 1024), formula, work, functools.partial(build, batch))
      for batch in (10, 100)
      for what, formula, work, build in (
          (FORMED, "N^2", lambda n: n**2, network_formed),
          (APPLIED, "N log N", lambda n: n * math.log(n), network_applied),
      )),
]  # fmt: skip


# ---- measuring


def cpu_ms(call: Call, seconds: float) -> float:
    """Of one call: the least of the turns that fill ``seconds``, at least three of a hundredth of a second each."""
    call()
    begun = time.process_time()
    call()
    once = max(time.process_time() - begun, 1e-6)
    repeats = math.ceil(0.01 / once)
    turns = []
    for _ in range(max(3, int(seconds / (repeats * once)))):
        begun = time.process_time()
        for _ in range(repeats):
            call()
        turns.append((time.process_time() - begun) / repeats)
    return 1e3 * min(turns)


def measured(cost: Cost, seconds: float) -> list[Row]:
    """A row for each size, all with the exponents fitted through them: of the times, and of the formula."""
    torch.manual_seed(0)
    times = [cpu_ms(cost.build(size), seconds) for size in cost.sizes]
    values = {"exponent": times, "of the formula": [cost.work(size) for size in cost.sizes]}
    fits = {name: significant(record.exponent(zip(cost.sizes, y, strict=True))) for name, y in values.items()}
    row = {"what": cost.what, "fixed": cost.fixed, "varied": cost.varied, "formula": cost.formula} | fits
    return [row | {"size": size, "cpu_ms": significant(ms)} for size, ms in zip(cost.sizes, times, strict=True)]


# ---- tables


def newest(rows: Sequence[Row]) -> list[Row]:
    """Of each fit the newest."""
    key = lambda row: (row["what"], row["fixed"], row["varied"])  # noqa: E731
    dates = {key(row): row["date"] for row in rows}
    return [row for row in rows if row["date"] == dates[key(row)]]


def by_fit(rows: Sequence[Row]) -> list[list[Row]]:
    found: dict[tuple, list[Row]] = {}
    for row in rows:
        found.setdefault((row["what"], row["fixed"], row["varied"]), []).append(row)
    return list(found.values())


def fits(rows: Sequence[Row]) -> list[Row]:
    """A line for each."""
    return [
        {
            "what": own[0]["what"],
            "cost": own[0]["formula"],
            "fixed": own[0]["fixed"],
            "varied": f"{own[0]['varied']} = {own[0]['size']} to {own[-1]['size']}",
            "ms, first": f"{float(own[0]['cpu_ms']):.3g}",
            "ms, last": f"{float(own[-1]['cpu_ms']):.3g}",
            "exponent": f"{float(own[0]['exponent']):.2f}",
            "of the formula": f"{float(own[0]['of the formula']):.2f}",
        }
        for own in by_fit(rows)
    ]


def forms(rows: Sequence[Row]) -> list[Row]:
    """Of the network with a product of Fourier's: a line for each size of batch and state, both forms in it."""
    times = {(row["what"], row["fixed"], int(row["size"])): float(row["cpu_ms"]) for row in rows}
    return [
        {"": fixed, "N": str(size), "formed, ms": f"{ms:.3g}", "applied each step, ms": f"{other:.3g}",
         "formed over applied": f"{ms / other:.2f}"}
        for (what, fixed, size), ms in times.items()
        if what == FORMED and (other := times.get((APPLIED, fixed, size)))
    ]  # fmt: skip


SHOWN = {"growth": (fits, 4), "forms": (forms, 1)}
"""By the name in the page's marks: the lines, and how many columns are words."""


def write(page: Path, rows: Sequence[Row]) -> None:
    row, commits = rows[-1], ", ".join(dict.fromkeys(row["commit"] for row in rows))
    about = f"*Float32; {row['device']}, one thread, {row['simd']}, PyTorch {row['torch']}, commit {commits}.*"

    def filled(match) -> str:
        lines, words = SHOWN[match[2]][0](rows), SHOWN[match[2]][1]
        if not lines:
            return f"{match[1]}*Not measured yet.*\n{match[3]}"
        body = tables.markdown(list(lines[0]), [list(line.values()) for line in lines], words)
        return f"{match[1]}{body}\n\n{about}\n{match[3]}"

    page.write_text(tables.MARKED.sub(filled, page.read_text()))


def main(argv: Sequence[str], page: Path = PAGE) -> None:
    names = list(dict.fromkeys(cost.what for cost in COSTS))
    parser = argparse.ArgumentParser(
        prog="python -m perf.orthogonal_cost", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=0.3, help="of measuring per size; 0.3 if not given")
    parser.add_argument("--what", nargs="+", choices=names, default=names, metavar="WHAT",
                        help=f"of {', '.join(names)}; all if none is named")  # fmt: skip
    parser.add_argument("--page", metavar="DEVICE", help="measure nothing, write the tables")
    record.add_output_arguments(parser)
    chosen = parser.parse_args(argv)
    if chosen.page:
        write(page, newest(record.read(record.RESULTS / chosen.page / FILE)))
        return
    torch.set_num_threads(1)
    facts = record.facts(torch.device("cpu"), shlex.join(["python", "-m", "perf.orthogonal_cost", *argv]))
    path, rows = record.output(chosen, torch.device("cpu")).rows / FILE, []
    costs = [cost for cost in COSTS if cost.what in chosen.what]
    with Progress("", len(costs), "fit") as progress:
        for cost in costs:
            progress.what = f"{cost.what}, {cost.fixed}"
            rows += (found := [facts | row for row in measured(cost, chosen.seconds)])
            record.append(path, found)
            progress.advance()
    print(record.table(fits(rows)))


if __name__ == "__main__":
    main(sys.argv[1:])
