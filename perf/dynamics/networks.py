"""Random gated networks, their steady states and Jacobians."""

import dataclasses
import functools
from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import Module

import rnnkern.nn
from rnnkern.analysis import UnitSamples, jacobian, unit_samples
from rnnkern.nn.init import gate_variance_

LAYERS = {
    "tanh": lambda n: rnnkern.nn.RNN(1, n, dtype=torch.float64),
    "gru": lambda n: rnnkern.nn.GRU(1, n, dtype=torch.float64),
    "gru_reset_before": lambda n: rnnkern.nn.GRU(1, n, reset_gate="before", dtype=torch.float64),
    "lstm": lambda n: rnnkern.nn.LSTM(1, n, dtype=torch.float64),
}


@dataclasses.dataclass(frozen=True)
class Steady:
    samples: UnitSamples
    state: tuple[Tensor, ...]  # before the last step, (1, n) each
    J: Tensor  # (n, n) or (2n, 2n)

    @functools.cached_property
    def eigenvalues(self) -> Tensor:
        """(n,) or (2n,). Without gain of the output gate, h of an LSTM is a function of c: half of the eigenvalues are
        0 and are left out."""
        J, n = self.J, self.samples.old.shape[0]
        if len(J) > n:
            to_h, to_c = J[:n], J[n:]
            of_c = to_h[:, n:].diagonal() / to_c[:, n:].diagonal()
            if torch.allclose(to_h, of_c[:, None] * to_c, rtol=1e-12, atol=0):
                J = to_c[:, :n] * of_c + to_c[:, n:]
        return torch.linalg.eigvals(J)


def network(
    cell: str, gains: Mapping[str, float], n: int, seed: int, biases: Mapping[str, float] | None = None
) -> tuple[Module, torch.Generator]:
    """A layer of n units with these gains, and the generator that drew it."""
    generator = torch.Generator().manual_seed(seed)
    return gate_variance_(LAYERS[cell](n), gains, biases, generator=generator), generator


def steady(
    cell: str, gains: Mapping[str, float], n: int, seed: int, steps: int = 200,
    biases: Mapping[str, float] | None = None,
) -> Steady:  # fmt: skip
    """A random network after some steps without input, from a random state."""
    module, generator = network(cell, gains, n, seed, biases)
    states = 2 if cell == "lstm" else 1
    state = [torch.randn(1, n, generator=generator, dtype=torch.float64) for _ in range(states)]
    state[0] = state[0].tanh() / states
    R, u = module.weight_hh_l0.detach(), module.bias_ih_l0.detach().expand(steps, 1, -1)
    _, before = rnnkern.ops.recurrence(cell, u[1:], R, tuple(state))
    hx = tuple(s.unsqueeze(0) for s in before)
    samples = unit_samples(module, steps=1, hx=hx if states > 1 else hx[0])
    return Steady(samples, before, jacobian(cell, u[0], R, before)[0])
