"""Picture 7: transients and Fisher memory of triangular weights (Kerg 2022, figure 1 b and c, table 5)."""

import math
from collections.abc import Callable
from itertools import product
from pathlib import Path

import torch
from matplotlib.axes import Axes
from torch import Tensor

from perf.dynamics import numbers
from perf.dynamics.rows import Rows
from perf.figure import COLOURS, STYLE, plt, save
from rnnkern.analysis import fisher_memory_curve, spatial_fisher, transient_norms

SIZE, STARTS, LAGS = 100, 1000, 200
CASES = tuple(product((0.0, 0.005), (0.95, 1.0, 1.05)))
"""beta and alpha of the triangular weights, in the order of table 5."""
DIAGONALS = (0.0, 0.2)


def triangle(size: int, alpha: float, beta: float, d: float = 0.0) -> Tensor:
    """Kerg 2022, eq. 3.4.2."""
    below = torch.full((size, size), beta, dtype=torch.float64).tril(-2)
    beside = torch.diag(torch.full((size - 1,), alpha, dtype=torch.float64), -1)
    return below + beside + d * torch.eye(size, dtype=torch.float64)


def nonnormality(folder: Path, quick: bool, rows: Rows, advance: Callable[[], None]) -> None:
    """Draws transients, Fisher memory curves and their totals, as nonnormal.png."""
    size, starts = (30, 200) if quick else (SIZE, STARTS)
    with plt.rc_context(STYLE):
        figure, panels = plt.subplots(2, 2, figsize=(11.5, 8), layout="constrained")
        transients(panels[0, 0], size, starts, rows)
        advance()
        for axes, d in zip((panels[0, 1], panels[1, 0]), DIAGONALS, strict=True):
            curves(axes, size, d)
            advance()
        totals(panels[1, 1], size, rows)
        advance()
        panels[0, 0].legend(frameon=False, fontsize=8, ncols=2)
        save(figure, folder / "nonnormal.png")


def styled(beta: float, alpha: float) -> dict[str, str]:
    colour = COLOURS[[0.95, 1.0, 1.05].index(alpha)]
    return {"color": colour, "linestyle": "--" if beta else "-", "label": f"$\\alpha$ = {alpha:g}, $\\beta$ = {beta:g}"}


def transients(axes: Axes, size: int, starts: int, rows: Rows) -> None:
    """Lines are the expectation; dots are sample means over random starts on the unit sphere."""
    generator = torch.Generator().manual_seed(0)
    sphere = torch.randn(size, starts, dtype=torch.float64, generator=generator)
    sphere = sphere / sphere.norm(dim=0)
    for beta, alpha in CASES:
        W, h = triangle(size, alpha, beta), sphere
        expected, squares = transient_norms(W, size), []
        for _ in range(size):
            squares.append(h.square().sum(0))
            h = W @ h
        squares = torch.stack(squares)
        mean, error = squares.mean(1), squares.std(1) / math.sqrt(starts)
        axes.semilogy(expected, **styled(beta, alpha))
        shown = torch.arange(0, size, size // 10)
        axes.semilogy(shown, mean[shown].sqrt(), "o", color=styled(beta, alpha)["color"], markersize=3)
        for t in shown.tolist():
            wanted, within = expected[t].square().item(), 3 * error[t].item() + 1e-12
            rows.add(f"alpha {alpha:g} beta {beta:g}", "mean squared norm", t, mean[t].item(),
                     wanted - within, wanted + within)  # fmt: skip
    axes.set(xlabel="t", ylabel="root mean square of |h(t)|", xlim=(0, size), ylim=(1e-3, 3e2))
    axes.set_title(f"Transients, {size} units, d = 0; dots: {starts:,} random starts", fontsize=10)
    axes.grid(color="#eeeeee")


def curves(axes: Axes, size: int, d: float) -> None:
    first = torch.eye(size, dtype=torch.float64)[0]
    for beta, alpha in CASES:
        J = fisher_memory_curve(triangle(size, alpha, beta, d), first, LAGS)
        axes.semilogy(torch.where(J > 0, J, math.nan), **styled(beta, alpha))
    axes.set(xlabel="k, steps since the input", ylabel="Fisher information J(k)", xlim=(0, LAGS), ylim=(1e-4, 1.3))
    axes.set_title(f"Fisher memory, d = {d:g}", fontsize=10)
    axes.grid(color="#eeeeee")


def totals(axes: Axes, size: int, rows: Rows) -> None:
    """J_tot as the sum of the curve, which is held to table 5, or in a small version to the quadratic form."""
    for k, (d, colour) in enumerate(zip(DIAGONALS, COLOURS, strict=False)):
        found = []
        for beta, alpha in CASES:
            W = triangle(size, alpha, beta, d)
            found.append(fisher_memory_curve(W, torch.eye(size)[0], 1000).sum().item())
            form = spatial_fisher(W)[0, 0].item()
            exact = numbers.interval(numbers.TABLE_5[alpha, beta][k])
            wanted = exact if size == SIZE else (form - 1e-4, form + 1e-4)
            rows.add(f"alpha {alpha:g} beta {beta:g} d {d:g}", "J_tot", size, found[-1], *wanted)
        axes.plot(range(len(CASES)), found, "o", color=colour, label=f"d = {d:g}")
        if size == SIZE:
            printed = [float(numbers.PRINTED_TABLE_5[alpha, beta][k]) for beta, alpha in CASES]
            axes.plot(range(len(CASES)), printed, "x", color="#333333", label="as printed" if d else None)
    axes.axhline(1, color="#999999", linewidth=1, label="every normal weight")
    axes.set_xticks(range(len(CASES)), [f"$\\alpha$ {alpha:g}\n$\\beta$ {beta:g}" for beta, alpha in CASES])
    axes.set(ylabel="total memory", ylim=(0, None))
    axes.set_title("Sum of the curve (table 5)", fontsize=10)
    axes.legend(frameon=False, fontsize=8)
    axes.grid(color="#eeeeee", axis="y")
