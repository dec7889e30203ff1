"""Picture 6: Lyapunov spectra of random GRUs, tanh networks and a trained LSTM."""

import copy
import math
from collections.abc import Callable
from pathlib import Path

import torch
from matplotlib.axes import Axes
from torch import Tensor
from torch.nn import Module

import rnnkern
from perf.dynamics.rows import Rows
from perf.figure import COLOURS, STYLE, plt, save
from perf.tasks import TASKS
from perf.train import Training
from rnnkern.analysis import jacobian, lyapunov_spectrum

SEEDS = 2
"""Number of random networks of a kind."""


def gru(units: int, update: float, seed: int) -> Module:
    """A random GRU without input and biases: gains 3, 1 and ``update`` of candidate, reset and update gate."""
    torch.manual_seed(seed)
    rnn = rnnkern.nn.GRU(1, units, reset_gate="before", bias=False, dtype=torch.float64)
    gains = torch.tensor([1.0, update, 3.0], dtype=torch.float64).repeat_interleave(units)
    with torch.no_grad():
        rnn.weight_hh_l0.normal_().mul_(gains[:, None] / math.sqrt(units))
    return rnn


@torch.no_grad()
def log_determinant(rnn: Module, h: Tensor, steps: int) -> float:
    """Mean logarithm of |det J| of a GRU over the next steps from the state h (1, 1, N)."""
    R, u = rnn.weight_hh_l0, h.new_zeros(1, 3 * h.shape[-1])
    total = 0.0
    for _ in range(steps):
        total += torch.linalg.slogdet(jacobian("gru_reset_before", u, R, (h[0],))[0]).logabsdet.item()
        h = rnn(h.new_zeros(1, 1, 1), h)[1]
    return total / steps


def lyapunov(folder: Path, quick: bool, rows: Rows, advance: Callable[[], None]) -> None:
    """Draws Lyapunov spectra of random GRUs, the largest exponent of tanh networks, and spectra of an LSTM before and
    after training, as lyapunov.png."""
    with plt.rc_context(STYLE):
        figure, (gated, elman, trained) = plt.subplots(1, 3, figsize=(14, 4.4), layout="constrained")
        of_grus(gated, *((30, 50) if quick else (200, 600)), rows)
        advance()
        of_tanh(elman, *((60, 200) if quick else (400, 800)), rows)
        advance()
        of_lstm(trained, *((10, 60) if quick else (500, 400)), rows)
        advance()
        for axes in (gated, elman, trained):
            axes.axhline(0, color="#999999", linewidth=1)
            axes.grid(color="#eeeeee")
            axes.legend(frameon=False, fontsize=8)
        save(figure, folder / "lyapunov.png")


def of_grus(axes: Axes, units: int, steps: int, rows: Rows) -> None:
    """The sum of all exponents is the mean logarithm of the determinant, whatever the network. The share of slow
    exponents, a mean over the seeds, grows with the gain of the update gate."""
    share, start = 0.0, torch.randn(1, 1, units, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    for update, colour in zip((1.0, 3.0, 10.0), COLOURS, strict=False):
        least, share, case = share, 0.0, f"GRU a_z {update:g}"
        for seed in range(SEEDS):
            rnn = gru(units, update, seed)
            with torch.no_grad():
                h = rnn(torch.zeros(200, 1, 1, dtype=torch.float64), start)[1]
            exponents = lyapunov_spectrum(rnn, hx=h, steps=steps, count=units, every=1).exponents[0]
            share += (exponents.abs() < 0.01).double().mean().item() / SEEDS
            found, wanted = exponents.sum().item(), log_determinant(rnn, h, steps)
            within = 1e-9 * abs(wanted)
            rows.add(f"{case} seed {seed}", "sum", units, found, wanted - within, wanted + within)
            if seed == 0:
                ordered = exponents.sort(descending=True).values
                axes.plot(torch.arange(units) / units, ordered, color=colour, label=f"$a_z$ = {update:g}")
        rows.add(case, "share of |lambda| < 0.01", units, share, least, 1.0)
    axes.set(xlabel="index / number of units", ylabel="exponent, per step")
    axes.set_title(f"GRU without input, {units} units, $a_h$ = 3, $a_r$ = 1", fontsize=10)


def largest_exponent(g: float) -> float:
    """Of a large tanh network of gain g: ln(g^2 E phi'^2) / 2 at the fixed point q = g^2 E tanh(x sqrt q)^2."""
    x = torch.linspace(-10, 10, 2001, dtype=torch.float64)
    weight = torch.exp(-x.square() / 2)
    weight, q = weight / weight.sum(), 1.0
    for _ in range(1000):
        q = g**2 * (weight * (x * q**0.5).tanh().square()).sum().item()
    slope = 1 - (x * q**0.5).tanh().square()
    return math.log(g**2 * (weight * slope.square()).sum()) / 2


def of_tanh(axes: Axes, units: int, steps: int, rows: Rows) -> None:
    fine = torch.linspace(0.5, 5, 46).tolist()
    axes.plot(fine, [largest_exponent(g) for g in fine], color=COLOURS[0], label="theory of large networks")
    for g in (0.5, 0.75, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0):
        for seed in range(SEEDS):
            torch.manual_seed(seed)
            rnn = rnnkern.nn.RNN(1, units, bias=False, dtype=torch.float64)
            with torch.no_grad():
                rnn.weight_hh_l0.normal_().mul_(g / math.sqrt(units))
            start = torch.randn(1, 1, units, dtype=torch.float64)
            found = lyapunov_spectrum(rnn, hx=start, steps=steps + 200, count=1, warmup=200).exponents[0, 0].item()
            # Finite networks deviate from the theory, the more so near the transition at g = 1.
            wanted, within = largest_exponent(g), (10 if g >= 2 else 30) / units
            rows.add(f"tanh seed {seed}", "largest exponent", g, found, wanted - within, wanted + within)
            axes.plot(g, found, "o", color=COLOURS[1], markersize=4, label=None if seed or g > 0.5 else "networks")
    axes.set(xlabel="gain g", ylabel="largest exponent, per step")
    axes.set_title(f"tanh without input, {units} units", fontsize=10)


def of_lstm(axes: Axes, updates: int, steps: int, rows: Rows) -> None:
    kind = TASKS["stdlib"]
    settings = kind.settings._replace(updates=updates)
    training = Training(kind.build(settings, "test", None), "rnnkern.LSTM", 0, settings, torch.device("cpu"))
    text = kind.build(settings._replace(length=steps + 100), "test", None)
    x = next(iter(text.held_out())).x[:, :1].double()
    for when, colour in zip(("before training", "after training"), COLOURS, strict=False):
        rnn = copy.deepcopy(training.network.rnn).double()
        count = 2 * rnn.hidden_size
        exponents = lyapunov_spectrum(rnn, x, count=count, warmup=100).exponents[0]
        ordered = exponents.sort(descending=True).values
        slow = (exponents > math.log(0.9)).sum().item()
        for quantity, value in (("largest exponent", ordered[0].item()), ("exponents above ln 0.9", slow)):
            rows.add(f"LSTM {when}", quantity, count, value, -math.inf, math.inf)
        axes.plot(torch.arange(count) / count, ordered, color=colour, label=when)
        if when == "before training":
            for _ in range(updates):
                training.update()
    axes.set(xlabel="index / size of the state", ylabel="exponent, per step")
    axes.set_title("LSTM on characters", fontsize=10)
