"""Picture 8: gradients through a trained non-normal network and through gates (Kerg 2022, figure 3 left of appendix
A.6; Can, Krishnamurthy and Schwab 2020, appendix F)."""

import math
from collections.abc import Callable
from pathlib import Path

import torch
from matplotlib.axes import Axes
from torch import Tensor

from perf.dynamics.rows import Rows
from perf.figure import COLOURS, STYLE, plt, save
from perf.models import Network
from perf.tasks import TASKS
from perf.train import Training
from rnnkern.analysis import gradient_norms, schur_parts, transient_norms
from rnnkern.analysis._slow import binary_gate, constant_gate

GAMMAS = (1.0, 0.958)
FAR = 2000
"""Number of powers of the learned weight."""


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


def gradients(folder: Path, quick: bool, rows: Rows, advance: Callable[[], None]) -> None:
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
                    rows.add(case, "norm by lag", lag, found[lag].item(), 0.0, most)
                if active:  # as a power of the lag, not exponentially, the logarithm grows ever more slowly
                    early, late = (growth(found, *span) for span in ((length // 10, length // 2), (length // 2, -1)))
                    rows.add(case, "growth of ln norm per step", length // 2, late, -math.inf, early)
                    if gamma < 1:
                        rows.add(case, "final growth of ln norm per step", length - 1, late, -math.inf, 0.0)
            norm = transient_norms(network.rnn.weight_hh_l0.detach(), far)
            powers.loglog(range(1, far), norm[1:], color=colour, label=f"$\\gamma$ = {gamma:g}")
            for t in (far // 16, far // 4, far - 1):
                slope = (norm[t] / norm[t // 2]).log() / math.log(t / (t // 2))
                interval = (0.0, network.rnn.hidden_size / 2 - 1) if gamma == 1 else (-math.inf, 0.0)
                rows.add(f"gamma {gamma:g}", "power of t", t, slope.item(), *interval)
            advance()
        over.set(xlabel="lag, steps before the loss", ylabel="gradient norm, relative to lag 0")
        over.set_title("Backpropagation through a trained network", fontsize=10)
        powers.set(xlabel="t", ylabel="$\\|W^t\\|_F / \\sqrt{n}$", ylim=(1e-2, None))
        powers.set_title("Powers of its weight; straight lines are powers of t", fontsize=10)
        gates(theory, 10 if quick else 41, 100 if quick else 600, rows)
        advance()
        for axes in (over, powers, theory):
            axes.grid(color="#eeeeee")
            axes.legend(frameon=False, fontsize=8)
        save(figure, folder / "nonnormal-gradients.png")


def growth(norms: Tensor, first: int, last: int) -> float:
    """Of the logarithm, per step between two lags."""
    lags = torch.arange(len(norms))
    return ((norms[last] / norms[first]).log() / (lags[last] - lags[first])).item()


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


def gates(axes: Axes, length: int, units: int, rows: Rows) -> None:
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
            rows.add(name, "mean squared singular value", n, found[n].item(), 0.7 * wanted[n], 1.3 * wanted[n])
    axes.set(xlabel="n, steps", ylabel="mean squared singular value")
    axes.set_title(f"Gated networks, $\\rho$ = {rho:g}; dots: {units} units", fontsize=10)
