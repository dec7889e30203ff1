"""Draws the error of a long memory under perturbed weights, for each map of ``stable``, and memory functions of layers:
docs/images/stable.png and memory-functions.png, and .svg of both.

``python -m perf.stable_picture docs/images``
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from perf import polynomial
from perf.figure import COLOURS, STYLE, plt, save
from perf.models import forget_little
from perf.progress import Progress
from rnnkern import nn
from rnnkern.analysis import memory_function, perturbation_error
from rnnkern.analysis._memory import KINDS
from rnnkern.parametrizations._stable import MAPS

SIZES = (8, 16, 32, 64)
RADII = [0.0005 * 2**k for k in range(13)]
STEPS, HIDDEN = 200, 32


def errors(map: str, size: int) -> list[float]:
    """The error for each of ``RADII``."""
    model, generator = polynomial.fitted(map, size), torch.Generator().manual_seed(0)
    return [
        perturbation_error(model, polynomial.error, radius, names=[polynomial.RECURRENT], generator=generator)
        for radius in RADII
    ]


def draw_errors(path: Path) -> None:
    """A panel per map, a line per number of units. The unstable map has an axis of its own."""
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(1, len(MAPS), figsize=(13, 3.8), layout="constrained")
        for axis, map in zip(axes, MAPS, strict=True):
            for size, colour in zip(SIZES, COLOURS, strict=False):
                axis.loglog(RADII, errors(map, size), color=colour, marker="o", markersize=3, label=f"{size} units")
            stable = map != "direct"
            axis.set(xlabel="β, spectral norm of the perturbation", ylabel="largest error" if not stable else None)
            axis.set_title(f'"{map}"' + ("" if stable else ", with its own scale"), fontsize=10)
            axis.set_ylim(*((3e-3, 2) if stable else (1e-3, None)))
            axis.grid(color="#eeeeee")
            axis.set_axisbelow(True)
        for axis in axes[1:-1]:
            axis.tick_params(labelleft=False)
        axes[0].set_ylabel("largest error of the memory function")
        axes[0].legend(frameon=False)
        save(figure, path)


def layers() -> dict[str, torch.nn.Module]:
    """Untrained layers with the same number of units."""
    torch.manual_seed(0)
    lstm = nn.LSTM(1, HIDDEN)
    forget_little(lstm)
    return {
        "RNN, tanh": nn.RNN(1, HIDDEN),
        "LSTM, forget gate bias 1": lstm,
        "ContinuousRNN, tanh": nn.ContinuousRNN(1, HIDDEN, dt=1.0),
        "LRU, 0.9 < |λ| < 0.99": nn.LRU(1, HIDDEN, r_min=0.9, r_max=0.99, max_phase=0.3),
    }


def draw_memories(path: Path) -> None:
    """A panel per layer, a line per kind."""
    with plt.rc_context(STYLE):
        models = layers()
        figure, axes = plt.subplots(1, len(models), figsize=(13, 3.8), sharey=True, layout="constrained")
        for axis, (name, model) in zip(axes, models.items(), strict=True):
            for kind, line, colour in zip(KINDS, ("-", "--", ":"), COLOURS, strict=False):
                found = memory_function(model.double(), kind, steps=STEPS)
                axis.semilogy(found / found[0], line, color=colour, label=f'"{kind}"')
            axis.set(xlabel="t, steps since the input", xlim=(0, STEPS))
            axis.set_title(name, fontsize=10)
            axis.grid(color="#eeeeee")
            axis.set_axisbelow(True)
        axes[0].set_ylabel("memory function, relative to t = 0")
        axes[0].legend(frameon=False)
        save(figure, path)


def main(argv: Sequence[str]) -> None:
    if len(argv) != 1:
        sys.exit(__doc__)
    with Progress("errors of perturbed weights"):
        draw_errors(Path(argv[0]) / "stable.png")
    with Progress("memory functions"):
        draw_memories(Path(argv[0]) / "memory-functions.png")


if __name__ == "__main__":
    main(sys.argv[1:])
