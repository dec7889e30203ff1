"""The ODE-RNN of docs/continuous.md: its steps, and what it learns beside a GRU."""

import math
import re
from pathlib import Path

import pytest
import torch

import rnnkern

PAGE = Path(__file__).parents[1] / "docs" / "continuous.md"


@pytest.fixture
def ode_rnn():
    """The class that the page defines."""
    (code,) = (
        block for block in re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.M | re.S) if "ODERNN" in block
    )
    names = {"torch": torch, "rnnkern": rnnkern}
    exec(compile(code, str(PAGE), "exec"), names)
    return names["ODERNN"]


def sines(batch, kept=50):
    """(N, B, 1) and (N - 1, B): a sine of any phase at 50 of 100 times, a quarter of a radian apart, and the gaps."""
    times = torch.rand(batch, 100).argsort(1)[:, :kept].sort(1).values.T
    x = torch.sin(times / 4 + 2 * math.pi * torch.rand(batch))
    return x.unsqueeze(-1), times.diff(dim=0) / 10


def train(model, updates):
    """Trains the model; returns the squared error of each prediction, a mean over new sequences."""
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for _ in range(updates):
        x, gaps = sines(64)
        optimizer.zero_grad()
        (model(x[:-1], gaps) - x[1:]).square().mean().backward()
        optimizer.step()
    x, gaps = sines(2000)
    with torch.no_grad():
        return (model(x[:-1], gaps) - x[1:]).square().mean((1, 2))


def test_it_is_a_loop_of_cells_and_euler_steps(ode_rnn):
    model = ode_rnn(hidden=9, steps=4)
    x, gaps = sines(5)
    h, wanted = torch.zeros(5, 9), []
    for observed, gap in zip(x, gaps, strict=False):
        h = model.cell(observed, h)
        for _ in range(4):
            h = h + gap[:, None] / 4 * torch.tanh(model.field(h))
        wanted.append(model.readout(h))
    found, wanted = model(x[:-1], gaps), torch.stack(wanted)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
    leaves = list(model.parameters())
    pair = (torch.autograd.grad(y.square().mean(), leaves) for y in (found, wanted))
    for actual, gradient in zip(*pair, strict=True):
        torch.testing.assert_close(actual, gradient, rtol=1e-4, atol=1e-5)


class WithoutGaps(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.readout = rnnkern.nn.GRU(1, 32), torch.nn.Linear(32, 1)

    def forward(self, x, gaps):
        return self.readout(self.layer(x)[0])


@pytest.mark.proof
@pytest.mark.parametrize("seed", [0, 1])
def test_an_ode_rnn_predicts_what_a_gru_cannot_without_the_gaps(ode_rnn, seed):
    """Most of its error is that of the first predictions, before the phase can be known."""
    torch.manual_seed(seed)
    errors = train(ode_rnn(), 300)
    assert errors.mean() <= 0.006
    assert errors[3:].mean() <= 0.002
    assert train(WithoutGaps(), 300).mean() >= 0.05
