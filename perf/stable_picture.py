"""Draws what perturbed weights do to a long memory, under each map of ``stable``, and memory functions of layers.

``python -m perf.stable_picture docs/images``
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from perf import polynomial
from perf.figure import STYLE, plt, save
from perf.models import forget_little
from perf.progress import Progress
from rnnkern import nn
from rnnkern.analysis import KINDS, memory_function, perturbation_error
from rnnkern.parametrizations._stable import MAPS

SIZES = (8, 16, 32, 64)
RADII = [0.0005 * 2**k for k in range(13)]
HIGHEST = 1e15
"""Of an error; what is beyond is drawn as a triangle at the edge."""
STEPS, HIDDEN = 200, 32


def errors(map: str, size: int) -> list[float]:
    """Of each of ``RADII``."""
    model, generator = polynomial.fitted(map, size), torch.Generator().manual_seed(0)
    return [
        perturbation_error(model, polynomial.error, radius, names=[polynomial.RECURRENT], generator=generator)
        for radius in RADII
    ]


def draw_errors(path: Path) -> None:
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(1, len(MAPS), figsize=(13, 3.6), sharey=True, layout="constrained")
        for axis, map in zip(axes, MAPS, strict=True):
            for size, shade in zip(SIZES, (0.4, 0.6, 0.8, 1.0), strict=True):
                found = torch.tensor(errors(map, size)).nan_to_num(posinf=HIGHEST).clamp(max=HIGHEST)
                colour = plt.get_cmap("Blues")(shade)
                axis.loglog(RADII, found, color=colour, label=f"{size} units")
                beyond = [(radius, HIGHEST) for radius, x in zip(RADII, found, strict=True) if x >= HIGHEST]
                axis.plot(*zip(*beyond, strict=True), "^", color=colour, clip_on=False) if beyond else None
            axis.set(xlabel=f"β, the perturbation's norm\n({map})", ylim=(1e-3, HIGHEST))
            axis.grid(color="#eeeeee")
        axes[0].set_ylabel("largest error of the memory function")
        axes[0].legend(frameon=False)
        figure.suptitle("A memory of $(1 + t)^{-1.1}$ by exponentials whose weight is perturbed", fontsize=12)
        save(figure, path)


def layers() -> dict[str, torch.nn.Module]:
    """Untrained, of as many units."""
    torch.manual_seed(0)
    lstm = nn.LSTM(1, HIDDEN)
    forget_little(lstm)
    return {
        "RNN, tanh": nn.RNN(1, HIDDEN),
        "LSTM, forget gates begin open": lstm,
        "ContinuousRNN, tanh": nn.ContinuousRNN(1, HIDDEN, dt=1.0),
        "LRU, 0.9 < |λ| < 0.99": nn.LRU(1, HIDDEN, r_min=0.9, r_max=0.99, max_phase=0.3),
    }


def draw_memories(path: Path) -> None:
    with plt.rc_context(STYLE):
        models = layers()
        figure, axes = plt.subplots(1, len(models), figsize=(13, 3.6), sharey=True, layout="constrained")
        for axis, (name, model) in zip(axes, models.items(), strict=True):
            for kind, line in zip(KINDS, ("-", "--", ":"), strict=True):
                found = memory_function(model.double(), kind, steps=STEPS)
                axis.semilogy(found / found[0], line, color="#08519c", label=kind)
            axis.set(xlabel=f"steps since the input\n({name})", ylim=(1e-6, 10), xlim=(0, STEPS))
            axis.grid(color="#eeeeee")
        axes[0].set_ylabel("memory function over its first value")
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
