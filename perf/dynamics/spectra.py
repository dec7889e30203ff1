"""Pictures 1, 2 and 4: eigenvalues of Jacobians of random GRUs and LSTMs, and where theory says they are (Can,
Krishnamurthy and Schwab 2020, figures 1 and 3)."""

import math
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from matplotlib.axes import Axes
from torch import Generator, Tensor

from perf.dynamics import numbers
from perf.dynamics.networks import Steady, steady
from perf.dynamics.rows import Rows
from perf.figure import COLOURS, STYLE, numbered, plt, save
from rnnkern.analysis import (
    Gains,
    expected_slow_fraction,
    mean_field,
    shaping,
    slow_fraction,
    spectral_edge,
    spectral_support,
)

SEEDS, STEPS = 3, 300
CASES = ((1.0, 10.0), (10.0, 10.0), (1.0, 1.0), (10.0, 1.0))
"""a_z and a_r of a GRU, a_f and a_o of an LSTM; a_h is 3."""
RESETS = {"gru_reset_before": "reset before the product", "gru": "reset after the product, as torch.nn.GRU"}
NEAR = 0.05
"""Eigenvalues within this distance of 1 are slow."""


def compared(rows: Rows, case: str, network: Steady, gains: Gains, most_outside: float, near: float) -> None:
    """Adds the share of eigenvalues outside of the support, and the spectral radius beside the support's edge."""
    eigenvalues, edge = network.eigenvalues, spectral_edge(network.samples, gains)
    outside = share_outside(network, gains, eigenvalues)
    rows.add(case, "share outside", len(network.J), outside, 0.0, most_outside)
    rows.add(case, "spectral radius", len(network.J), eigenvalues.abs().max().item(), edge - near, edge + near)


def share_outside(network: Steady, gains: Gains, eigenvalues: Tensor) -> float:
    return (spectral_support(network.samples, gains).function(eigenvalues - 1) < 0).double().mean().item()


def draw_spectrum(axes: Axes, network: Steady, gains: Gains, title: str) -> None:
    eigenvalues = network.eigenvalues
    # Thousands of dots are an image in the SVG file.
    dots = {"color": "#777777", "markersize": 2, "rasterized": True}
    axes.plot(eigenvalues.real, eigenvalues.imag, ".", label="eigenvalues", **dots)
    low, high = eigenvalues.real.min().item(), eigenvalues.real.max().item()
    x = torch.linspace(low - 0.2, high + 0.2, 1500, dtype=torch.float64)
    y = spectral_support(network.samples, gains).boundary(x - 1)
    inside = y > 0
    inside[1:] |= y[:-1] > 0  # the line ends on the real axis
    inside[:-1] |= y[1:] > 0
    y = torch.where(inside, y, math.nan)
    for sign in (1, -1):
        axes.plot(x, sign * y, color=COLOURS[1], linewidth=1.3, label="theory" if sign == 1 else None)
    axes.set_title(title, fontsize=10)
    axes.set_aspect("equal", adjustable="datalim")
    axes.grid(color="#eeeeee")
    axes.set_axisbelow(True)


def gru_spectra(folder: Path, quick: bool, rows: Rows, advance: Callable[[], None]) -> None:
    """A panel for each pair of gains and each place of the reset gate. In controls a term of the formula is left out,
    and more eigenvalues lie outside."""
    units, seeds = (300, 1) if quick else (1000, SEEDS)
    loose = 3 if quick else 1  # small networks deviate more
    with plt.rc_context(STYLE):
        figure, panels = plt.subplots(2, 4, figsize=(14, 7), layout="constrained")
        for line, (cell, place) in zip(panels, RESETS.items(), strict=True):
            for axes, (a_z, a_r) in zip(line, CASES, strict=True):
                gains = Gains(3.0, a_z, a_r)
                for seed in range(seeds):
                    network, case = steady(cell, gains, units, seed, STEPS), f"{cell} {a_z:g} {a_r:g} seed {seed}"
                    compared(rows, case, network, gains, 0.025 * loose, 0.06 * loose)
                    share = share_outside(network, gains, network.eigenvalues)
                    without = [Gains(3.0, a_z, 0.0)] + [Gains(3.0, 0.0, a_r)] * (a_z == 10)
                    for control, left_out in zip(without, ("a_r", "a_z"), strict=False):
                        found = share_outside(network, control, network.eigenvalues)
                        rows.add(case, f"share outside without {left_out}", units, found, share, 1.0)
                    if not seed:
                        draw_spectrum(axes, network, gains, f"$a_z$ = {a_z:g}, $a_r$ = {a_r:g}")
                advance()
            line[0].set_ylabel(f"{place}\nimaginary part")
        for axes in panels[1]:
            axes.set_xlabel("real part")
        panels[0, 0].legend(frameon=False, fontsize=8, loc="upper left")
        save(figure, folder / "gates-spectra.png")


# ---- spectral radius and slow modes of GRUs


def radius(folder: Path, quick: bool, rows: Rows, advance: Callable[[], None]) -> None:
    units, seeds, slow = (200, 1, 1) if quick else (1000, 8, 2)
    with plt.rc_context(STYLE):
        figure, (left, middle, right) = plt.subplots(1, 3, figsize=(14, 4.4), layout="constrained")
        radius_of_reset(left, units, seeds, quick, rows, advance)
        slow_modes(middle, right, units, slow, quick, rows, advance)
        for axes in (left, middle, right):
            axes.grid(color="#eeeeee")
            axes.set_axisbelow(True)
            axes.legend(frameon=False, fontsize=8)
        save(figure, folder / "gates-radius.png")


def radius_of_reset(
    axes: Axes, units: int, seeds: int, quick: bool, rows: Rows, advance: Callable[[], None]
) -> None:  # fmt: skip
    """Without gain of the update gate the spectral radius is z + (1 - z) rho, which grows as the root of a_r. Where the
    reset gate is steep, few units decide and single networks vary, so that means are compared."""
    tried, wanted, means = [1.0, 2.0, 5.0, 10.0, 20.0, 40.0, 80.0], [], []
    for a_r in tried:
        gains = Gains(3.0, 0.0, a_r)
        C = mean_field("gru_reset_before", gains, lags=0, population=2).C[0].item()
        wanted.append(0.5 + 0.5 * shaping(C, gains))
        if a_r in numbers.RADII:
            rows.add("theory", "spectral radius", a_r, wanted[-1], *numbers.interval(numbers.RADII[a_r]))
        found = [radius_of("gru_reset_before", gains, units, seed) for seed in range(seeds)]
        means.append(statistics.fmean(found))
        near = 0.06 if a_r <= 20 else 0.12
        if quick:  # small networks with steep gates may settle
            near = 0.18 if a_r <= 20 else math.inf
        rows.add(f"mean of {seeds} GRUs", "spectral radius", a_r, means[-1], wanted[-1] - near, wanted[-1] + near)
        axes.plot([a_r] * seeds, found, ".", color="#999999", label="networks" if a_r == 1 else None)
        advance()
    axes.plot(tried, wanted, color=COLOURS[0], label="theory")
    axes.plot(tried, means, "o", color=COLOURS[1], markersize=4, label="mean of the networks")
    axes.set_xscale("log")
    numbered(axes.xaxis, tried)
    axes.set(xlabel="gain $a_r$ of the reset gate", ylabel="spectral radius of the Jacobian")
    axes.set_title(f"$a_h$ = 3, $a_z$ = 0, {units} units", fontsize=10)


def radius_of(cell: str, gains: Gains, units: int, seed: int) -> float:
    return steady(cell, gains, units, seed, STEPS).eigenvalues.abs().max().item()


def slow_modes(
    middle: Axes, right: Axes, units: int, seeds: int, quick: bool, rows: Rows, advance: Callable[[], None]
) -> None:  # fmt: skip
    """The share of eigenvalues near 1 grows with the gain of the update gate."""
    tried, shares, wanted = [2.0, 5.0, 10.0, 20.0, 40.0], [], []
    distances = torch.logspace(-4, 0, 81, dtype=torch.float64)
    for a_z, colour in zip(tried, COLOURS, strict=False):
        gains, generator = Gains(3.0, a_z, 0.0), Generator().manual_seed(0)
        C = mean_field("gru_reset_before", gains, lags=0, population=10_000, generator=generator).C[0].item()
        wanted.append(expected_slow_fraction(C, gains))
        eigenvalues = [steady("gru_reset_before", gains, units, seed, STEPS).eigenvalues for seed in range(seeds)]
        shares.append(slow_fraction(torch.stack(eigenvalues), NEAR).mean().item())
        near = (0.04 if a_z >= 5 else math.inf) * (2 if quick else 1)
        rows.add("GRU", "share of slow modes", a_z, shares[-1], wanted[-1] - near, wanted[-1] + near)
        found = [slow_fraction(eigenvalues[0], r.item()).item() for r in distances]
        right.semilogx(distances, found, color=colour, label=f"$a_z$ = {a_z:g}")
        theory = [expected_slow_fraction(C, gains, radius=r.item()) for r in distances]
        right.semilogx(distances, theory, "--", color=colour, linewidth=1)
        advance()
    middle.plot(tried, wanted, color=COLOURS[0], label="theory (equation 111)")
    middle.plot(tried, shares, "o", color=COLOURS[1], markersize=4, label=f"networks of {units} units")
    middle.set(xlabel="gain $a_z$ of the update gate", ylabel=f"share of eigenvalues within {NEAR:g} of 1")
    middle.set(xlim=(0, None), ylim=(0, 0.5))
    middle.set_title("$a_h$ = 3, $a_r$ = 0", fontsize=10)
    right.set(xlabel="r", ylabel="share of eigenvalues within r of 1", ylim=(0, 0.6))
    right.set_title("the same for other distances; dashed: theory", fontsize=10)


# ---- LSTMs


def lstm_spectra(folder: Path, quick: bool, rows: Rows, advance: Callable[[], None]) -> None:
    units = 150 if quick else 1000
    loose = 3 if quick else 1
    with plt.rc_context(STYLE):
        figure, panels = plt.subplots(2, 3, figsize=(14, 8.4), layout="constrained")
        for axes, (a_f, a_o) in zip(panels[:, :2].flat, CASES, strict=True):
            gains = Gains(h=3.0, f=a_f, i=1.0, o=a_o)
            network = steady("lstm", gains, units, 0, STEPS)
            compared(rows, f"LSTM {a_f:g} {a_o:g}", network, gains, 0.02 * loose, math.inf)
            draw_spectrum(axes, network, gains, f"LSTM, $a_f$ = {a_f:g}, $a_o$ = {a_o:g}")
            axes.set(xlabel="real part", ylabel="imaginary part")
            advance()
        panels[0, 0].legend(frameon=False, fontsize=8, loc="upper left")
        units, seeds = (100, 1) if quick else (500, 4)
        radius_of_gates(panels[0, 2], units, seeds, loose, rows, advance)
        slow_modes_of_forget_gate(panels[1, 2], units, seeds, loose, rows, advance)
        save(figure, folder / "gates-lstm.png")


def radius_of_gates(
    axes: Axes, units: int, seeds: int, loose: int, rows: Rows, advance: Callable[[], None]
) -> None:  # fmt: skip
    """One gate has a gain and the others none. With a gain of i, the edge is s(b_f) + sqrt(E p), equation 170. Means
    over networks."""
    tried = (1.0, 3.0, 10.0, 30.0, 100.0)
    for gate, colour in zip("ifo", COLOURS, strict=False):
        found, edges = [], []
        for a in tried:
            gains = Gains(**{"h": 3.0, "f": 0.0, "i": 0.0, "o": 0.0} | {gate: a})
            # Networks of the input gate are larger: they are held to the theory.
            size = units * (2 if gate == "i" else 1)
            networks = [steady("lstm", gains, size, seed, STEPS) for seed in range(seeds)]
            found.append(statistics.fmean(network.eigenvalues.abs().max().item() for network in networks))
            edges.append(statistics.fmean(spectral_edge(network.samples, gains) for network in networks))
            near = 0.05 * loose if gate == "i" else math.inf
            rows.add(f"mean of {seeds} LSTMs, a_{gate}", "spectral radius", a, found[-1],
                     edges[-1] - near, edges[-1] + near)  # fmt: skip
            advance()
        axes.loglog(tried, found, "o", color=colour, markersize=4)
        axes.loglog(tried, edges, color=colour, label=f"gain of {gate} alone")
    numbered(axes.xaxis, tried)
    numbered(axes.yaxis, (0.7, 1.0, 1.4, 2.0, 2.8))
    axes.set(xlabel="gain of the gate", ylabel="spectral radius of the Jacobian")
    axes.set_title("dots: networks; lines: edge of the support", fontsize=10)
    axes.grid(color="#eeeeee")
    axes.legend(frameon=False, fontsize=8)


def slow_modes_of_forget_gate(
    axes: Axes, units: int, seeds: int, loose: int, rows: Rows, advance: Callable[[], None]
) -> None:  # fmt: skip
    """Modes per unit near 1, means over networks, and the curve c_1 erfc(c_2 / a_f) of equation 112 with the least
    squares."""
    tried, shares = (2.0, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0), []
    for a_f in tried:
        gains = Gains(h=3.0, f=a_f, i=0.0, o=0.0)
        found = [steady("lstm", gains, units, seed, STEPS).eigenvalues for seed in range(seeds)]
        shares.append(statistics.fmean(((each - 1).abs() < NEAR).sum().item() / units for each in found))
        advance()
    c_1, c_2 = fitted(tried, shares)
    for a_f, share in zip(tried, shares, strict=True):
        curve = c_1 * math.erfc(c_2 / a_f)
        rows.add(f"mean of {seeds} LSTMs, a_f", "slow modes per unit", a_f, share,
                 curve - 0.03 * loose, curve + 0.03 * loose)  # fmt: skip
    for name, value in (("c_1", c_1), ("c_2", c_2)):
        rows.add("LSTM a_f", name, units, value, -math.inf, math.inf)
    fine = torch.linspace(1, 40, 200).tolist()
    axes.plot(fine, [c_1 * math.erfc(c_2 / a) for a in fine], color=COLOURS[0],
              label=f"{c_1:.2f} erfc({c_2:.1f} / $a_f$)")  # fmt: skip
    axes.plot(tried, shares, "o", color=COLOURS[1], markersize=4, label=f"networks of {units} units")
    axes.set(xlabel="gain $a_f$ of the forget gate", ylabel=f"modes within {NEAR:g} of 1, per unit", ylim=(0, 0.5))
    axes.set_title("LSTM, $a_i$ = $a_o$ = 0", fontsize=10)
    axes.grid(color="#eeeeee")
    axes.legend(frameon=False, fontsize=8)


def fitted(x: Sequence[float], y: Sequence[float]) -> tuple[float, float]:
    """c_1 and c_2 of the least squares: for each c_2 of a grid, c_1 is linear."""
    x, y = (torch.tensor(values, dtype=torch.float64) for values in (x, y))
    c_2 = torch.linspace(0.1, 20, 2000, dtype=torch.float64)
    shapes = torch.erfc(c_2[:, None] / x)
    c_1 = (shapes @ y) / shapes.square().sum(1).clamp(min=1e-300)
    best = (c_1[:, None] * shapes - y).square().sum(1).argmin()
    return c_1[best].item(), c_2[best].item()
