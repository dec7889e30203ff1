"""Draws Lyapunov spectra, and what non-normal weights do: transients, Fisher memory and gradients. Each number in the
CSV stands beside the interval in which theory says it is.

``python -m perf.dynamics_nonnormal docs/images`` appends the numbers to perf/results/<device>/dynamics.csv;
``--quick`` draws small versions and keeps no numbers.
"""

import copy
import math
import shlex
import sys
from collections.abc import Sequence
from itertools import product
from pathlib import Path

import torch
from matplotlib.axes import Axes
from torch import Tensor
from torch.nn import Module

import rnnkern
from perf import record
from perf.figure import COLOURS, STYLE, plt, save
from perf.models import Network
from perf.progress import Progress
from perf.record import Row
from perf.tasks import TASKS
from perf.train import Training
from rnnkern.analysis import (
    fisher_memory_curve,
    gradient_norms,
    jacobian,
    lyapunov_spectrum,
    schur_parts,
    spatial_fisher,
    transient_norms,
)
from rnnkern.analysis._slow import binary_gate, constant_gate

SIZE, STARTS, LAGS = 100, 1000, 200
CASES = tuple(product((0.0, 0.005), (0.95, 1.0, 1.05)))
"""beta and alpha of the triangular weights, in the order of table 5."""
PRINTED = {0.0: (3.03, 5.19, 12.1, 3.18, 5.30, 12.1), 0.2: (12.0, 16.2, 20.5, 12.1, 16.3, 20.4)}
"""J_tot as table 5 of the thesis prints it, by d."""
GAMMAS = (1.0, 0.958)
FAR = 2000
"""Number of powers of the learned weight."""
SEEDS = 2
"""Number of random networks of a kind."""


def triangle(size: int, alpha: float, beta: float, d: float = 0.0) -> Tensor:
    """Kerg 2022, eq. 3.4.2."""
    below = torch.full((size, size), beta, dtype=torch.float64).tril(-2)
    beside = torch.diag(torch.full((size - 1,), alpha, dtype=torch.float64), -1)
    return below + beside + d * torch.eye(size, dtype=torch.float64)


def row(picture: str, case: str, quantity: str, at: float, value: float, least: float, most: float) -> Row:
    """A number of a picture, and the interval in which theory says it is."""
    numbers = {"at": at, "value": value, "least": least, "most": most}
    return {"picture": picture, "case": case, "quantity": quantity} | {
        k: float(f"{v:.12g}") for k, v in numbers.items()
    }


# ---- transients and memory of triangular weights (Kerg 2022, figure 1 b and c, table 5)


def nonnormality(folder: Path, quick: bool, rows: list[Row]) -> None:
    """Draws transients, Fisher memory curves and their totals, as nonnormal.png."""
    size, starts = (30, 200) if quick else (SIZE, STARTS)
    with plt.rc_context(STYLE):
        figure, panels = plt.subplots(2, 2, figsize=(11.5, 8), layout="constrained")
        transients(panels[0, 0], size, starts, rows)
        for axes, d in zip((panels[0, 1], panels[1, 0]), PRINTED, strict=True):
            curves(axes, size, d)
        totals(panels[1, 1], size, rows)
        panels[0, 0].legend(frameon=False, fontsize=8, ncols=2)
        save(figure, folder / "nonnormal.png")


def styled(beta: float, alpha: float) -> dict[str, str]:
    colour = COLOURS[[0.95, 1.0, 1.05].index(alpha)]
    return {"color": colour, "linestyle": "--" if beta else "-", "label": f"$\\alpha$ = {alpha:g}, $\\beta$ = {beta:g}"}


def transients(axes: Axes, size: int, starts: int, rows: list[Row]) -> None:
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
            numbers = t, mean[t].item(), wanted - within, wanted + within
            rows.append(row("nonnormal", f"alpha {alpha:g} beta {beta:g}", "mean squared norm", *numbers))
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


def totals(axes: Axes, size: int, rows: list[Row]) -> None:
    """J_tot as the sum of the curve; the interval in ``rows`` is that of the quadratic form, another computation."""
    for d, colour in zip(PRINTED, COLOURS, strict=False):
        found = []
        for beta, alpha in CASES:
            W = triangle(size, alpha, beta, d)
            found.append(fisher_memory_curve(W, torch.eye(size)[0], 1000).sum().item())
            form = spatial_fisher(W)[0, 0].item()
            numbers = size, found[-1], form - 1e-4, form + 1e-4
            rows.append(row("nonnormal", f"alpha {alpha:g} beta {beta:g} d {d:g}", "J_tot", *numbers))
        axes.plot(range(len(CASES)), found, "o", color=colour, label=f"d = {d:g}")
        if size == SIZE:
            axes.plot(range(len(CASES)), PRINTED[d], "x", color="#333333", label="as printed" if d else None)
    axes.axhline(1, color="#999999", linewidth=1, label="every normal weight")
    axes.set_xticks(range(len(CASES)), [f"$\\alpha$ {alpha:g}\n$\\beta$ {beta:g}" for beta, alpha in CASES])
    axes.set(ylabel="total memory", ylim=(0, None))
    axes.set_title("Sum of the curve (table 5)", fontsize=10)
    axes.legend(frameon=False, fontsize=8)
    axes.grid(color="#eeeeee", axis="y")


# ---- gradients (Kerg 2022, figure 3 left of appendix A.6)


def learned(gamma: float, updates: int) -> Training:
    """A NonNormalRNN with moduli fixed at gamma, trained on characters. T stays 0 inside the blocks of Lambda, so that
    gamma is the modulus of all eigenvalues."""
    kind = TASKS["stdlib"]
    settings, own = kind.settings._replace(updates=updates), kind.own["rnnkern.NonNormalRNN"]._replace(delta=0.0)
    task = kind.build(settings, "test", None)
    training = Training(task, "rnnkern.NonNormalRNN", 0, settings, torch.device("cpu"), own)
    schur = training.network.rnn.parametrizations.weight_hh_l0
    schur.original2.requires_grad_(False).fill_(gamma)
    for _ in range(updates):
        training.update()
        with torch.no_grad():
            schur.original3.diagonal(-1)[::2].zero_()
    return training


def gradients(folder: Path, quick: bool, rows: list[Row]) -> None:
    """Draws the gradient of the last loss with respect to the states before it, as nonnormal-gradients.png."""
    length, updates, far = (50, 10, 200) if quick else (200, 500, FAR)
    kind = TASKS["stdlib"]
    text = kind.build(kind.settings._replace(length=length), "test", None)
    x, y, _ = next(iter(text.held_out()))
    with plt.rc_context(STYLE):
        figure, (over, powers, theory) = plt.subplots(1, 3, figsize=(14, 4.4), layout="constrained")
        for gamma, colour in zip(GAMMAS, COLOURS, strict=False):
            network = learned(gamma, updates).network.double()
            for active, line in ((True, "-"), (False, "--")):
                found, bound = by_lag(network, x.double(), y, active)
                units = "all units active" if active else "as trained"
                case = f"gamma {gamma:g}, {units}"
                over.semilogy(found, line, color=colour, label=f"$\\gamma$ = {gamma:g}, {units}")
                for lag in range(0, length, length // 10):
                    most = bound[lag].item() if active else math.inf
                    rows.append(row("gradients", case, "norm by lag", lag, found[lag].item(), 0.0, most))
            norm = transient_norms(network.rnn.weight_hh_l0.detach(), far)
            powers.loglog(range(1, far), norm[1:], color=colour, label=f"$\\gamma$ = {gamma:g}")
            for t in (far // 16, far // 4, far - 1):
                slope = (norm[t] / norm[t // 2]).log() / math.log(t / (t // 2))
                interval = (0.0, network.rnn.hidden_size / 2 - 1) if gamma == 1 else (-math.inf, 0.0)
                rows.append(row("gradients", f"gamma {gamma:g}", "power of t", t, slope.item(), *interval))
        over.set(xlabel="lag, steps before the loss", ylabel="gradient norm, relative to lag 0")
        over.set_title("Backpropagation through a trained network", fontsize=10)
        powers.set(xlabel="t", ylabel="$\\|W^t\\|_F / \\sqrt{n}$", ylim=(1e-2, None))
        powers.set_title("Powers of its weight; straight lines are powers of t", fontsize=10)
        gates(theory, 10 if quick else 41, 100 if quick else 600, rows)
        for axes in (over, powers, theory):
            axes.grid(color="#eeeeee")
            axes.legend(frameon=False, fontsize=8)
        save(figure, folder / "nonnormal-gradients.png")


def by_lag(network: Network, x: Tensor, y: Tensor, active: bool) -> tuple[Tensor, Tensor]:
    """(T,): gradient norms by lag, and bounds of them for a network with all units active, relative to lag 0.

    With a bias of 0, modReLU is the identity. Then blocks of the gradient in the basis P grow at most as powers of the
    triangular matrix of the norms of the 2 x 2 blocks of Lambda + T, a power of the lag for gamma = 1.
    """
    bias = network.rnn.modrelu_bias_l0
    kept = bias.detach().clone()
    with torch.no_grad():
        bias.mul_(0.0 if active else 1.0)

    def loss(h: Tensor) -> Tensor:
        return torch.nn.functional.cross_entropy(network.head(h[-1]), y[-1])

    found = gradient_norms(network.rnn, x, loss).mean(1).flip(0)
    with torch.no_grad():
        bias.copy_(kept)
    _, Lambda, T = schur_parts(network.rnn)
    pairs = len(T) // 2
    blocks = torch.linalg.matrix_norm((Lambda + T).reshape(pairs, 2, pairs, 2).transpose(1, 2), 2)
    power, bounds = torch.eye(pairs, dtype=T.dtype), []
    for _ in range(len(found)):
        bounds.append(torch.linalg.matrix_norm(power, 2))
        power = blocks @ power
    return found / found[0], torch.stack(bounds)


def gates(axes: Axes, length: int, units: int, rows: list[Row]) -> None:
    """Gradients through gates, beside those through a non-normal weight: mean squared singular values of products of
    Jacobians. Lines are the theory, dots random matrices."""
    generator = torch.Generator().manual_seed(0)
    R = torch.randn(units, units, dtype=torch.float64, generator=generator) / math.sqrt(units)
    steps, rho = range(length), 1.2
    zeros = torch.arange(units) < units // 2
    cases = (
        ("gates of 1/2", torch.full((units,), 0.5, dtype=torch.float64), [constant_gate(0.5, rho, n) for n in steps]),
        ("gates of 0 and 1", 1.0 - zeros.double(), [binary_gate(0.5, rho, n) for n in steps]),
    )
    for (name, z, wanted), colour in zip(cases, COLOURS[2:], strict=False):
        J = z.diag() + (1 - z)[:, None] * rho * R
        found = transient_norms(J, length).square()
        axes.semilogy(wanted, color=colour, label=name)
        axes.semilogy(found, "o", color=colour, markersize=3)
        for n in (1, 2, length // 2, length - 1):
            numbers = n, found[n].item(), 0.7 * wanted[n], 1.3 * wanted[n]
            rows.append(row("gradients", name, "mean squared singular value", *numbers))
    axes.set(xlabel="n, steps", ylabel="mean squared singular value")
    axes.set_title(f"Gated networks, $\\rho$ = {rho:g}; dots: {units} units", fontsize=10)


# ---- Lyapunov spectra


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


def lyapunov(folder: Path, quick: bool, rows: list[Row]) -> None:
    """Draws Lyapunov spectra of random GRUs, the largest exponent of tanh networks, and spectra of an LSTM before and
    after training, as lyapunov.png."""
    with plt.rc_context(STYLE):
        figure, (gated, elman, trained) = plt.subplots(1, 3, figsize=(14, 4.4), layout="constrained")
        of_grus(gated, *((30, 50) if quick else (200, 600)), rows)
        of_tanh(elman, *((60, 200) if quick else (400, 800)), rows)
        of_lstm(trained, *((10, 60) if quick else (500, 400)), rows)
        for axes in (gated, elman, trained):
            axes.axhline(0, color="#999999", linewidth=1)
            axes.grid(color="#eeeeee")
            axes.legend(frameon=False, fontsize=8)
        save(figure, folder / "lyapunov.png")


def of_grus(axes: Axes, units: int, steps: int, rows: list[Row]) -> None:
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
            rows.append(row("lyapunov", f"{case} seed {seed}", "sum", units, found, wanted - within, wanted + within))
            if seed == 0:
                ordered = exponents.sort(descending=True).values
                axes.plot(torch.arange(units) / units, ordered, color=colour, label=f"$a_z$ = {update:g}")
        rows.append(row("lyapunov", case, "share of |lambda| < 0.01", units, share, least, 1.0))
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


def of_tanh(axes: Axes, units: int, steps: int, rows: list[Row]) -> None:
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
            numbers = g, found, wanted - within, wanted + within
            rows.append(row("lyapunov", f"tanh seed {seed}", "largest exponent", *numbers))
            axes.plot(g, found, "o", color=COLOURS[1], markersize=4, label=None if seed or g > 0.5 else "networks")
    axes.set(xlabel="gain g", ylabel="largest exponent, per step")
    axes.set_title(f"tanh without input, {units} units", fontsize=10)


def of_lstm(axes: Axes, updates: int, steps: int, rows: list[Row]) -> None:
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
            rows.append(row("lyapunov", f"LSTM {when}", quantity, count, value, -math.inf, math.inf))
        axes.plot(torch.arange(count) / count, ordered, color=colour, label=when)
        if when == "before training":
            for _ in range(updates):
                training.update()
    axes.set(xlabel="index / size of the state", ylabel="exponent, per step")
    axes.set_title("LSTM on characters", fontsize=10)


PICTURES = (lyapunov, nonnormality, gradients)


def main(argv: Sequence[str]) -> None:
    folders = [word for word in argv if word != "--quick"]
    if len(folders) != 1:
        sys.exit(__doc__)
    quick, rows, device = "--quick" in argv, [], torch.device("cpu")
    facts = record.facts(device, shlex.join(["python", "-m", "perf.dynamics_nonnormal", *argv]))
    for draw in PICTURES:
        with Progress(draw.__name__):
            draw(Path(folders[0]), quick, rows)
    outside = [row for row in rows if not row["least"] <= row["value"] <= row["most"]]
    print(f"{len(rows)} numbers, {len(outside)} of them outside of their interval", *outside, sep="\n")
    if not quick:
        record.append(record.folder(device) / "dynamics.csv", [facts | row for row in rows])


if __name__ == "__main__":
    main(sys.argv[1:])
