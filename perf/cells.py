"""Measures cells of rnnkern.cell: the collection against its loop over time, and user-written LSTM, GRU and tanh
against the built-in ones.

``python -m perf.cells --help``. N = I = H, and both sides include the input projection. The loop computes everything
outside of it that does not depend on the previous step. First calls are timed in separate processes, unless ``--cells``
selects some. ``python -m perf.tables`` writes the tables of docs/cells.md.
"""

import functools
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence

import torch

import rnnkern
from perf import family, harness, recurrence
from perf.harness import OURS, Case, NoKernel, Problem, labels
from perf.providers import Layer, Provider, compiled, loop, of_function, operator
from rnnkern._gemm import gemm_reference
from rnnkern.reference._recurrence import cell_of

SHAPES = ((50, 8, 64), (100, 32, 60), (100, 32, 100), (100, 32, 200), (220, 64, 128), (256, 32, 256))
"""(T, B, N), as in README."""

BUILT_IN = {"lstm": rnnkern.cells.lstm(), "gru": rnnkern.cells.gru(), "tanh": rnnkern.cells.rnn("tanh")}
"""User-written counterpart of each built-in cell."""
MADE = ("rnn", "gru", "lstm")
COLLECTION = {name: getattr(rnnkern.cells, name) for name in rnnkern.cells.__all__ if name not in MADE}

LONG_SUM = 8.0
"""Largest error of the input gradient of a cell with more than four gates, as a multiple of the loop's. The kernel adds
G * N products one after another, PyTorch's GEMM in blocks: for nas with N = 100 to 256 the largest error is 4.4 to 6
times the loop's. All rows of the gradient have it alike, so it is rounding, and no unit on the other side of a kink."""

FIRST_CALL = """
import time, torch, rnnkern
{define}
u, R, h0 = torch.zeros(2, 1, {gates}), torch.zeros({gates}, 1), torch.zeros(1, 1)
begun = time.perf_counter()
rnnkern.ops.recurrence(cell, u, R, (h0, h0)[:{states}])
print(time.perf_counter() - begun)
"""


def draw_layer(cell: rnnkern.Cell, name: str, batch: int, size: int, dtype: torch.dtype) -> Layer:
    bound = size**-0.5
    shapes = {"weight_ih": (len(cell.gates) * size, size), "weight_hh": (len(cell.recurrent) * size, size)}
    shapes["bias_ih"] = shapes["weight_ih"][:1]
    weights = {key: torch.empty(shape).uniform_(-bound, bound) for key, shape in shapes.items()}
    sizes = zip(cell.params, cell.rows, strict=True)
    params = tuple(torch.empty(n * size).uniform_(*cell.init.get(key, (-bound, bound))) for key, n in sizes)
    return Layer(name, batch, None, weights, params).map(lambda w: w.to(dtype).requires_grad_(w.numel() > 0))


def build(
    name: str, built_in: bool, with_compiled: bool, steps: int, batch: int, size: int, dtype: torch.dtype, seed: int
) -> Problem:
    torch.manual_seed(seed)
    cell = BUILT_IN[name] if built_in else COLLECTION[name]
    layer = draw_layer(cell, cell.name, batch, size, dtype)
    x = torch.randn(steps, batch, size, dtype=dtype, requires_grad=True)
    recurrence.refuse_reference(layer, x)
    naive = differentiable(of_function(loop, layer))
    exact = differentiable(of_function(loop, layer.map(lambda w: w.detach().double().requires_grad_(w.requires_grad))))
    providers = {OURS: differentiable(of_function(operator, layer))}
    if with_compiled:
        grad = torch.ones(steps, batch, size, dtype=dtype)
        providers[recurrence.COMPILED] = recurrence.warmed(compiled(naive), x, grad)
    else:
        providers["loop"] = naive
        if built_in:
            providers["built-in"] = of_function(operator, layer._replace(cell=name))
    grad_h = torch.randn(steps, batch, size, dtype=dtype)
    facts, W = cell_of(cell.name), layer.weights["weight_ih"].detach()
    return Problem(
        calls={
            "forward": {key: functools.partial(p.inference, x) for key, p in providers.items()},
            "forward+backward": {key: functools.partial(p.training, x, grad_h) for key, p in providers.items()},
        },
        baselines=gemm_reference([(W, W)], [batch] * steps),
        naive=functools.partial(naive.training, x, grad_h),
        truth=lambda: exact.training(x.detach().double().requires_grad_(), grad_h.double()),
        baseline="GEMM, R as large as W",
        factors={"grad of x": LONG_SUM} if facts.gates > 4 else {},
        columns=lambda provider: {"gates": facts.gates, "states": facts.states, "saved": cell.saved},
    )


def differentiable(provider: Provider) -> Provider:
    """Differentiates only with respect to tensors that require a gradient: a cell without R has an empty R."""
    return provider._replace(leaves={name: w for name, w in provider.leaves.items() if w.requires_grad})


def first_calls(repeats: int) -> dict[str, float]:
    """Seconds of the first call in a new process: with an empty cache, with the compiled cell in the cache, and of the
    built-in cell."""
    own = (
        "@rnnkern.cell(gates='fn')\ndef cell(u, r, h):\n    f = torch.sigmoid(u.f + r.f)\n"
        "    return (1 - f) * h + f * torch.tanh(u.n + f * r.n)"
    )
    found: dict[str, list[float]] = {}
    for _ in range(repeats):
        with tempfile.TemporaryDirectory() as folder:
            for what, define, gates in (("cold", own, 2), ("warm", own, 2), ("built-in", "cell = 'gru'", 3)):
                code = FIRST_CALL.format(define=define, gates=gates, states=1)
                environment = os.environ | {"RNNKERN_CACHE_DIR": folder}
                done = subprocess.run(
                    [sys.executable, "-c", code], env=environment, check=True, capture_output=True, text=True
                )
                found.setdefault(what, []).append(float(done.stdout))
    return {what: statistics.median(times) for what, times in found.items()}


def main(argv: Sequence[str]) -> None:
    parser = family.arguments("Times the cells of rnnkern.cell, forward and forward+backward.")
    parser.add_argument("--cells", nargs="+", choices=[*BUILT_IN, *COLLECTION], metavar="CELL")
    family.add_shapes(parser, "TxBxN", "six")
    parser.add_argument(
        "--compiled", action="store_true",
        help=f"against torch.compile of the loop alone, at sizes of at most {recurrence.COMPILED_STEPS} steps",
    )  # fmt: skip
    chosen, setup = family.begin(parser, argv, "cells", name="cells")
    shapes = chosen.shapes or (recurrence.QUICK_SHAPES if chosen.quick else SHAPES)
    if chosen.compiled:
        shapes = [shape for shape in shapes if shape[0] <= recurrence.COMPILED_STEPS]
    elif chosen.cells is None:
        for what, seconds in first_calls(1 if chosen.quick else 5).items():
            print(f"first call, {what}: {1e3 * seconds:.1f} ms")
    cells = [(name, True) for name in BUILT_IN] + [(name, False) for name in COLLECTION]
    todo = [
        Case(
            labels("own cell", "built-in" if built_in else "collection", name, shape, chosen.dtype),
            functools.partial(build, name, built_in, chosen.compiled, *shape, getattr(torch, chosen.dtype)),
            kinked=True,
        )
        for name, built_in in cells
        if chosen.cells is None or name in chosen.cells
        for shape in shapes
    ]
    try:
        harness.run(todo, *setup)
    except NoKernel as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main(sys.argv[1:])
