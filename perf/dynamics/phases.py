"""Picture 3: phases of random GRUs, and pinched spectra (Can, Krishnamurthy and Schwab 2020, figure 2)."""

import math
from collections.abc import Callable
from pathlib import Path

import torch
from matplotlib.axes import Axes

from perf.dynamics import numbers
from perf.dynamics.rows import Rows
from perf.figure import COLOURS, STYLE, numbered, plt, save
from rnnkern.analysis import Gains, bifurcation, fixed_point_support, fixed_points, marginal, pinching_rate, shaping

LOWEST, HIGHEST = 1.0, 100.0
"""Range of a_r."""
LEAST = {"gru_reset_before": 1.48, "gru": 1.5}
"""Where the bifurcation leaves this range."""
SHADES = {"zero": "#dce9f5", "coexistence": "#d5ead9", "chaos": "#fbe3d6"}


def phases(folder: Path, quick: bool, rows: Rows, advance: Callable[[], None]) -> None:
    """The left panels share an axis: a phase diagram for each place of the reset gate."""
    with plt.rc_context(STYLE):
        figure, panels = plt.subplots(1, 4, figsize=(15, 4.2), layout="constrained")
        diagram(panels[0], "gru_reset_before", "reset before the product", quick, rows)
        advance()
        diagram(panels[1], "gru", "reset after the product, as torch.nn.GRU", quick, rows)
        advance()
        amplitudes(panels[2], quick, rows)
        advance()
        pinching(panels[3], quick, rows)
        advance()
        save(figure, folder / "gates-phases.png")


def diagram(axes: Axes, cell: str, title: str, quick: bool, rows: Rows) -> None:
    known = numbers.BIFURCATIONS[cell]
    for a_h in list(known)[:: 3 if quick else 1]:
        rows.add(cell, "bifurcation", a_h, bifurcation(a_h, cell=cell), *numbers.interval(known[a_h]))
    gains = torch.linspace(LEAST[cell], 1.99, 3 if quick else 14, dtype=torch.float64).tolist()
    line = [bifurcation(a_h, cell=cell) for a_h in gains]
    axes.axvspan(1, 2, color=SHADES["zero"], linewidth=0)
    axes.fill_between([*gains, 2.0], [*line, line[-1]], HIGHEST, color=SHADES["coexistence"], linewidth=0)
    axes.axvspan(2, 4, color=SHADES["chaos"], linewidth=0)
    axes.plot(gains, line, color=COLOURS[2])
    beyond = torch.linspace(2.05, 4, 3 if quick else 9).tolist()
    axes.plot(beyond, [marginal(a_h, cell=cell) for a_h in beyond], "--", color=COLOURS[3])
    if cell == "gru_reset_before":
        for a_h, wanted in numbers.MARGINAL.items():
            rows.add(cell, "marginal line", a_h, marginal(a_h), *numbers.interval(wanted))
    axes.set_yscale("log")
    numbered(axes.yaxis, (1, 3, 10, 30, 100))
    axes.set(xlim=(1, 4), ylim=(LOWEST, HIGHEST), xlabel="gain $a_h$ of the candidate")
    axes.set_ylabel("gain $a_r$ of the reset gate")
    words = ((1.05, 1.15, "activity\ndies out"), (1.65, 55, "both"), (2.2, 55, "chaos"))
    for x, y, word in (*words, (2.5, 1.15, "marginally stable\nbelow the dashes")):
        axes.text(x, y, word, fontsize=9, va="bottom")
    axes.set_title(title, fontsize=10)


def amplitudes(axes: Axes, quick: bool, rows: Rows) -> None:
    """Mean squares of the fixed points, of which the lower branch ends at the bifurcation."""
    for cell, found in numbers.FIXED_POINTS.items():
        for (a_h, a_r), wanted in found.items():
            gains = Gains(a_h, 1.0, a_r)
            for C, (C_h, rho) in zip(fixed_points(gains, cell=cell), wanted, strict=True):
                case = f"{cell} a_h {a_h:g}"
                rows.add(case, "C_h", a_r, C, *numbers.interval(C_h))
                rows.add(case, "rho_0", a_r, shaping(C, gains, cell=cell), *numbers.interval(rho))
    for a_r, colour in zip((1.0, 3.0, 10.0, 30.0), COLOURS, strict=False):
        points = [
            (a_h, C) for a_h in torch.linspace(1.45, 3, 20 if quick else 156).tolist()
            for C in fixed_points(Gains(a_h, 1.0, a_r))
        ]  # fmt: skip
        axes.semilogy(*zip(*points, strict=True), ".", color=colour, markersize=3, label=f"$a_r$ = {a_r:g}")
    axes.set(xlabel="gain $a_h$ of the candidate", ylabel="mean square $C_h$ of the units", ylim=(1e-3, 1))
    axes.set_title("nonzero fixed points, reset before", fontsize=10)
    axes.grid(color="#eeeeee")
    axes.legend(frameon=False, fontsize=8, loc="lower right")


def pinching(axes: Axes, quick: bool, rows: Rows) -> None:
    """The spectrum is pinched at 1: there, its height and its extent to the right fall exponentially in a_z."""
    upright, along = (fixed_points(Gains(3.0, 1.0, a_r))[0] for a_r in (2.0, 1.0))
    c = pinching_rate(along, shaping(along, Gains(3.0, 1.0, 1.0)))
    rows.add("a_r 1", "rate c of theorem 4.8", 0, c, *numbers.interval("0.8388315"))
    tried = torch.linspace(0, 40, 11 if quick else 41).tolist()
    heights = [height(upright, a_z) for a_z in tried]
    edges = [fixed_point_support(along, Gains(3.0, a_z, 1.0)).edge() for a_z in tried]
    for a_z, wanted in numbers.INTERCEPTS.items():
        rows.add("a_r 2", "imaginary part at 1", a_z, height(upright, a_z), *numbers.interval(wanted))
    for a_z, wanted in numbers.EDGES.items():
        edge = fixed_point_support(along, Gains(3.0, a_z, 1.0)).edge()
        rows.add("a_r 1", "spectral radius - 1", a_z, edge, *numbers.interval(wanted))
    axes.semilogy(tried, heights, color=COLOURS[0], label="imaginary part at 1, $a_r$ = 2")
    axes.semilogy(tried, edges, color=COLOURS[1], label="spectral radius - 1, $a_r$ = 1")
    slope = [edges[-1] * math.exp(c * math.sqrt(along) * (tried[-1] - a_z)) for a_z in tried]
    axes.semilogy(tried, slope, ":", color=COLOURS[1], label="slope of theorem 4.8")
    axes.set(xlabel="gain $a_z$ of the update gate", ylabel="distance from 1", ylim=(1e-10, 10))
    axes.set_title("spectrum of a fixed point, $a_h$ = 3", fontsize=10)
    axes.grid(color="#eeeeee")
    axes.legend(frameon=False, fontsize=8)


def height(C: float, a_z: float) -> float:
    return fixed_point_support(C, Gains(3.0, a_z, 2.0)).boundary(torch.zeros(1)).item()
