"""A memory that decays polynomially, and linear networks (sums of exponentials) that approximate it."""

import math

import torch
from torch import Generator, Tensor
from torch.nn import Module, Parameter

from rnnkern.analysis import memory_function
from rnnkern.nn import ContinuousRNN

POWER = 1.1
DT, STEPS = 0.5, 200
RECURRENT = "rnn.parametrizations.weight_hh_l0.original"
SLOWEST, FASTEST = 1e-4, 1.9


def memory(t: Tensor) -> Tensor:
    return (1 + t) ** -POWER


def convolutions(length: int, batch: int, generator: Generator) -> tuple[Tensor, Tensor]:
    """White noise (T, B, 1), and its convolution with ``memory``, (T, B)."""
    x = torch.randn(length, batch, generator=generator)
    t = torch.arange(length)
    lags = t.unsqueeze(1) - t
    kernel = torch.where(lags >= 0, memory(lags.clamp(min=0)), 0)
    return x.unsqueeze(-1), kernel @ x


class Readout(Module):
    """A recurrent layer with one input, followed by c^T h."""

    def __init__(self, rnn: Module, c: Tensor) -> None:
        super().__init__()
        self.rnn, self.input_size, self.c = rnn, rnn.input_size, Parameter(c)

    def forward(self, x: Tensor) -> Tensor:
        return self.rnn(x)[0] @ self.c


def exponentials(size: int) -> tuple[Tensor, Tensor]:
    """Rates w < 0 and weights c > 0 such that the sum of c e^{wt} approximates ``memory(t)``: the trapezoidal rule in
    log(-w) for its Laplace integral. The fastest rate gets the weight of all rates beyond it."""
    s = torch.linspace(math.log(SLOWEST), math.log(FASTEST), size, dtype=torch.float64)
    c = (POWER * s - s.exp()).exp() * (s[1] - s[0]) / math.gamma(POWER)
    c[-1] += 1 - c.sum()
    return -s.exp(), c


def fitted(map: str, size: int) -> Readout:
    """A linear continuous-time network that approximates ``memory``; its recurrent weight is parametrized by a map of
    ``stable``."""
    rates, c = exponentials(size)
    rnn = ContinuousRNN(1, size, dt=DT, nonlinearity="identity", stable_map=map, bias=False, dtype=torch.float64)
    rnn.weight_hh_l0 = rates
    with torch.no_grad():
        rnn.weight_ih_l0.copy_((rates * DT / torch.expm1(rates * DT))[:, None])  # unit impulse response
    return Readout(rnn, c[:, None])


def error(model: Module) -> Tensor:
    """Largest error of the model's memory function."""
    t = DT * torch.arange(STEPS, dtype=torch.float64)
    return (memory_function(model, "impulse", steps=STEPS, dt=DT) - memory(t)).abs().max()
