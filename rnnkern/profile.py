"""Measures how the memory and the time of a layer's forward and backward pass grow with the sequence length.

``python -m rnnkern.profile --layer RelRNN torch.nn.LSTM mypackage.MyLayer --lengths 100 1000 10000`` prints a table
and writes profile.csv, and profile.png if matplotlib is installed. A layer is a name of ``rnnkern.nn`` or an import
path. It is constructed with the numbers of inputs and hidden units and called with (T, B, inputs).
"""

import argparse
import importlib
import importlib.util
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import Module

from rnnkern._report import Row, append, exponent, facts, layer, name_of, significant, table
from rnnkern.testing import peak_bytes, saved_bytes

QUICK = 1.0
"""Seconds below which a call is timed three times."""


def measure(module: Module, x: Tensor) -> Row:
    """Measures one forward and backward pass of a layer.

    Args:
        module: a layer whose output is a tensor, or a tuple that begins with one.
        x: its input.

    Returns:
        A dict of ``saved_bytes`` and ``peak_bytes``, as by :func:`rnnkern.testing.saved_bytes`, without the input, and
        :func:`rnnkern.testing.peak_bytes`, and ``seconds``, the shortest of three calls, or of one if that takes longer
        than a second.

    >>> measured = rnnkern.profile.measure(rnnkern.nn.LSTM(8, 32, save_gates=False), torch.randn(100, 4, 8))
    >>> measured["saved_bytes"] / (4 * 100 * 4)  # values per step and sequence: h, c, and once the zeros h_0
    64.32
    """
    parameters = [p for p in module.parameters() if p.requires_grad]

    def backward() -> float:
        begun = time.perf_counter()
        torch.autograd.grad(first(module(x)).sum(), parameters, allow_unused=True)
        if x.is_cuda:
            torch.cuda.synchronize(x.device)
        return time.perf_counter() - begun

    saved = saved_bytes(lambda: first(module(x)), [x, *module.parameters()])
    peak = peak_bytes(backward)
    seconds = backward()
    if seconds < QUICK:
        seconds = min(seconds, backward(), backward())
    return {"saved_bytes": saved, "peak_bytes": peak, "seconds": significant(seconds)}


def first(output: Tensor | tuple) -> Tensor:
    return output if isinstance(output, Tensor) else first(output[0])


def profiles(
    layers: Sequence[type[Module]], lengths: Sequence[int], inputs: int, hidden: int, batch: int, device: torch.device,
    told: Callable[[str], None] = lambda words: None,
) -> Iterator[Row]:  # fmt: skip
    """A row for each layer and length. A layer's rows end where the device has too little memory."""
    for kind in layers:
        torch.manual_seed(0)
        module = kind(inputs, hidden).to(device)
        for length in sorted(lengths):
            told(f"{name_of(kind)}, T = {length}")
            try:
                row = measure(module, torch.randn(length, batch, inputs, device=device))
            except torch.OutOfMemoryError:
                told(f"{name_of(kind)}, T = {length}: out of memory")
                break
            sizes = {"layer": name_of(kind), "inputs": inputs, "hidden": hidden, "batch": batch, "T": length}
            yield sizes | row


def lines(rows: Sequence[Row]) -> list[Row]:
    """Rows of the printed table, with the number of values that a step of a sequence keeps."""
    return [
        {"layer": row["layer"], "T": row["T"]}
        | {"kept, MB": significant(row["saved_bytes"] / 1e6)}
        | {"values per step": significant(row["saved_bytes"] / (4 * row["T"] * row["batch"]))}
        | {"peak, MB": significant(row["peak_bytes"] / 1e6), "ms": significant(1e3 * row["seconds"])}
        for row in rows
    ]


def growth(rows: Sequence[Row]) -> list[Row]:
    """For each layer the exponents of its growth with T."""
    found = []
    for name in dict.fromkeys(row["layer"] for row in rows):
        own = [row for row in rows if row["layer"] == name]
        powers = {
            words: f"T^{exponent((row['T'], row[column]) for row in own):.2f}"
            for column, words in (("saved_bytes", "kept ~"), ("peak_bytes", "peak ~"), ("seconds", "time ~"))
        }
        found.append({"layer": name} | powers)
    return found


def draw(path: Path, rows: Sequence[Row]) -> None:
    """Draws kept and peak memory, and time, against T."""
    matplotlib = importlib.import_module("matplotlib")
    matplotlib.use("Agg")
    figure, axes = importlib.import_module("matplotlib.pyplot").subplots(1, 2, figsize=(10, 4), layout="constrained")
    for k, name in enumerate(dict.fromkeys(row["layer"] for row in rows)):
        own, colour = [row for row in rows if row["layer"] == name], f"C{k}"
        steps = [row["T"] for row in own]
        axes[0].plot(steps, [row["saved_bytes"] / 1e6 for row in own], "o-", color=colour, label=f"{name}, kept")
        axes[0].plot(steps, [row["peak_bytes"] / 1e6 for row in own], "o:", color=colour, label=f"{name}, peak")
        axes[1].plot(steps, [1e3 * row["seconds"] for row in own], "o-", color=colour, label=name)
    for panel, words in zip(axes, ("MB", "ms, forward and backward"), strict=True):
        panel.set(xlabel="T", ylabel=words, xscale="log", yscale="log")
        panel.grid(color="#eeeeee")
        panel.legend(frameon=False)
    figure.savefig(path, dpi=120)


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m rnnkern.profile", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--layer", nargs="+", type=layer, required=True, metavar="LAYER", help="name or import path")
    parser.add_argument("--lengths", nargs="+", type=int, default=[100, 1000, 10_000], metavar="T")
    parser.add_argument("--inputs", type=int, default=16)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--device", type=torch.device, default=torch.device("cpu"))
    parser.add_argument("--out", type=Path, default=Path(), metavar="FOLDER", help="of the CSV and the picture")
    chosen = parser.parse_args(argv)
    told, rows = facts(chosen.device), []
    show = lambda words: print(words, file=sys.stderr, flush=True)  # noqa: E731
    for row in profiles(chosen.layer, chosen.lengths, chosen.inputs, chosen.hidden, chosen.batch, chosen.device, show):
        append(chosen.out / "profile.csv", [told | row])
        rows.append(row)
    if not rows:
        parser.error("the shortest sequence needs too much memory")
    print(table(lines(rows)))
    if len(chosen.lengths) > 1:
        print(f"\n{table(growth(rows))}")
    print(f"\nRows: {chosen.out / 'profile.csv'}")
    if importlib.util.find_spec("matplotlib"):
        draw(chosen.out / "profile.png", rows)
        print(f"Picture: {chosen.out / 'profile.png'}")
    else:
        print("No picture: matplotlib is not installed")


if __name__ == "__main__":
    main(sys.argv[1:])
