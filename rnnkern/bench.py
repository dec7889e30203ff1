"""Times a layer on your own machine beside its peers and the matrix products that it consists of.

``python -m rnnkern.bench --module LSTM --shape 200x64x256 --peer mypackage.MyLSTM`` prints a table of the forward pass
and of forward and backward, and writes bench.csv. A layer is a name of ``rnnkern.nn`` or an import path. It is
constructed with the numbers of inputs and hidden units and called with (T, B, N). Its peer is the class of ``torch.nn``
with the same name; a layer of rnnkern that torch.nn lacks is compared with its reference, a loop over time in PyTorch.
``--peer`` adds others.

Times are those of ``torch.utils.benchmark``: the median over blocks of calls, in two turns per peer. A peer with the
same parameters gets the layer's own values, and its output is compared.
"""

import argparse
import contextlib
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import Module
from torch.utils.benchmark import Measurement, Timer

from rnnkern._gemm import gemm_reference
from rnnkern._report import Row, append, facts, layer, name_of, significant, table
from rnnkern.ops.dispatch import use
from rnnkern.profile import first
from rnnkern.testing import peak_bytes

DIRECTIONS = ("forward", "forward+backward")
GEMM = "matrix products"
Call = Callable[[], object]


class Shape(NamedTuple):
    """T steps, B sequences, and N inputs and hidden units."""

    steps: int
    batch: int
    size: int

    @classmethod
    def of(cls, text: str) -> "Shape":
        sizes = text.split("x")
        if len(sizes) != 3 or not all(size.isdecimal() and int(size) for size in sizes):
            raise argparse.ArgumentTypeError(f"the shape must be TxBxN, such as 200x64x256, got {text!r}")
        return cls(*map(int, sizes))

    def __str__(self) -> str:
        return "x".join(map(str, self))


class Provider(NamedTuple):
    """A layer to be timed."""

    name: str
    module: Module
    result: str  # how its output compares with that of the first provider
    context: Callable[[], contextlib.AbstractContextManager] = contextlib.nullcontext

    def calls(self, x: Tensor) -> dict[str, Call]:
        x = x.detach().requires_grad_()
        leaves = [x, *(p for p in self.module.parameters() if p.requires_grad)]
        with self.context(), torch.no_grad():
            upstream = torch.randn_like(first(self.module(x)))

        def forward() -> None:
            with self.context(), torch.no_grad():
                self.module(x)

        def both() -> None:
            with self.context():
                torch.autograd.grad(first(self.module(x)), leaves, upstream, allow_unused=True)

        return dict(zip(DIRECTIONS, (forward, both), strict=True))


def providers(kind: type[Module], peers: Sequence[type[Module]], x: Tensor) -> list[Provider]:
    """The layer, its peer of torch.nn or its reference, and the given peers."""
    torch.manual_seed(0)
    size, ours = x.shape[-1], name_of(kind)
    module = kind(size, size).to(x)
    found = [Provider(ours, module, "")]
    theirs = getattr(torch.nn, kind.__name__, None) if ours.startswith("rnnkern.nn.") else None
    if theirs is None and ours.startswith("rnnkern.nn."):
        by_reference = lambda: use("reference")  # noqa: E731
        found.append(Provider(f"{ours} as a loop", module, same(module, module, x, by_reference), by_reference))
    for peer in ([theirs] if theirs else []) + list(peers):
        other = peer(size, size).to(x)
        found.append(Provider(name_of(peer), other, same(module, other, x)))
    return found


@torch.no_grad()
def same(module: Module, other: Module, x: Tensor, context: Callable = contextlib.nullcontext) -> str:
    """Whether two layers with the same parameters compute the same output; the other gets the values of the first."""
    own, theirs = module.state_dict(), other.state_dict()
    if {name: value.shape for name, value in own.items()} != {name: value.shape for name, value in theirs.items()}:
        return "other parameters"
    other.load_state_dict(own)
    wanted = first(module(x))
    with context():
        got = first(other(x))
    close = got.shape == wanted.shape and (got - wanted).norm() <= torch.finfo(x.dtype).eps ** 0.5 * wanted.norm()
    return "same" if close else "differs"


def products(module: Module, shape: Shape) -> dict[str, Call]:
    """The matrix products of a layer with weights ``weight_ih_l{k}`` and ``weight_hh_l{k}``; empty for others."""
    pairs = [(getattr(module, f"weight_ih_l{k}", None), getattr(module, f"weight_hh_l{k}", None)) for k in range(9)]
    weights = [(W.detach(), R.detach()) for W, R in pairs if W is not None and R is not None and R.dim() == 2]
    fits = all(W.shape[0] == R.shape[0] and W.dtype == R.dtype for W, R in weights)
    return gemm_reference(weights, [shape.batch] * shape.steps) if weights and fits else {}


def timed(calls: dict[str, Call], seconds: float) -> dict[str, Measurement]:
    """Times calls in two turns, the second in the opposite order."""
    found: dict[str, list[Measurement]] = {name: [] for name in calls}
    for order in (list(calls), list(reversed(calls))):
        for name in order:
            timer = Timer("call()", globals={"call": calls[name]}, num_threads=torch.get_num_threads())
            found[name].append(timer.blocked_autorange(min_run_time=seconds / 2))
    return {name: Measurement.merge(both)[0] for name, both in found.items()}


def measure(kind: type[Module], peers: Sequence[type[Module]], shape: Shape, x: Tensor, seconds: float) -> list[Row]:
    """A row per direction and provider. ``times`` is its time divided by the layer's, ``over_products`` by that of the
    matrix products."""
    rows, found = [], providers(kind, peers, x)
    gemm, calls = products(found[0].module, shape), {provider.name: provider.calls(x) for provider in found}
    results = {provider.name: provider.result for provider in found}
    for direction in DIRECTIONS:
        turns = {name: call[direction] for name, call in calls.items()} | ({GEMM: gemm[direction]} if gemm else {})
        times = timed(turns, seconds)
        for name, time in times.items():
            over = significant(time.median / times[GEMM].median) if gemm else ""
            rows.append(
                {"module": found[0].name, "shape": str(shape), "dtype": str(x.dtype).removeprefix("torch.")}
                | {"direction": direction, "provider": name, "ms": significant(1e3 * time.median)}
                | {
                    "iqr_ms": significant(1e3 * time.iqr),
                    "times": significant(time.median / times[found[0].name].median),
                }
                | {"over_products": over, "peak_bytes": peak_bytes(turns[name]), "result": results.get(name, "")}
            )
    return rows


def lines(rows: Sequence[Row]) -> list[Row]:
    """Rows of the printed table."""
    columns = {"ms": "ms", "iqr_ms": "+-", "times": "times its time", "over_products": "over the products"}
    return [
        {name: row[name] for name in ("shape", "direction", "provider")}
        | {words: row[name] for name, words in columns.items()}
        | {"peak, MB": significant(row["peak_bytes"] / 1e6), "result": row["result"]}
        for row in rows
    ]


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m rnnkern.bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--module", type=layer, required=True, metavar="LAYER", help="name or import path")
    parser.add_argument("--shape", nargs="+", type=Shape.of, required=True, metavar="TxBxN")
    parser.add_argument("--peer", nargs="+", type=layer, default=[], metavar="LAYER", help="import paths")
    parser.add_argument("--dtype", choices=["float32", "float64", "bfloat16"], default="float32")
    parser.add_argument("--device", type=torch.device, default=torch.device("cpu"))
    parser.add_argument("--seconds", type=float, default=2.0, help="for each peer and direction")
    parser.add_argument("--out", type=Path, default=Path(), metavar="FOLDER", help="of the CSV")
    chosen = parser.parse_args(argv)
    told, rows = facts(chosen.device), []
    for shape in chosen.shape:
        print(f"{name_of(chosen.module)}, {shape}", file=sys.stderr, flush=True)
        x = torch.randn(*shape, dtype=getattr(torch, chosen.dtype), device=chosen.device)
        new = measure(chosen.module, chosen.peer, shape, x, chosen.seconds)
        append(chosen.out / "bench.csv", [told | row for row in new])
        rows += new
    print(table(lines(rows)))
    print(f"\n{told['device']}, {told['threads']} threads, PyTorch {told['torch']}\nRows: {chosen.out / 'bench.csv'}")


if __name__ == "__main__":
    main(sys.argv[1:])
