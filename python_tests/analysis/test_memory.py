"""Memory functions and perturbation errors: compared with closed forms and with results that theory predicts."""

import math

import pytest
import torch

from perf.polynomial import Readout
from rnnkern.analysis import memory_function, perturbation_error
from rnnkern.analysis._memory import KINDS
from rnnkern.nn import LRU, RNN, ContinuousRNN

F64 = torch.float64


@pytest.mark.parametrize("kind", KINDS)
def test_of_a_linear_network_all_are_the_powers_of_its_weight(kind):
    rnn = RNN(2, 5, nonlinearity="identity", dtype=F64)
    with torch.no_grad():
        rnn.weight_hh_l0.mul_(0.6 / torch.linalg.eigvals(rnn.weight_hh_l0).abs().max())
    c, steps, powers = torch.randn(5, 1, dtype=F64), 30, []
    power = torch.eye(5, dtype=F64)
    for _ in range(steps):
        powers.append((c.T @ power @ rnn.weight_ih_l0).abs().amax())
        power = power @ rnn.weight_hh_l0
    found = memory_function(Readout(rnn, c), kind, steps=steps, history=200)
    torch.testing.assert_close(found, torch.stack(powers).detach(), rtol=0, atol=1e-8)


@pytest.mark.parametrize("kind", KINDS)
def test_of_a_linear_network_in_continuous_time_all_are_the_exponential(kind):
    """All kinds equal |c^T exp(W t) U| to 1e-8. The difference over a step is the mean of the derivative, which is its
    value in the middle of the step up to O(dt^2)."""
    dt, steps = 1e-4, 20_000
    rnn = ContinuousRNN(1, 6, dt=dt, nonlinearity="identity", timescales=(0.5, 5.0), dtype=F64)
    c = torch.randn(6, 1, dtype=F64) / 6
    t = dt * (torch.arange(steps, dtype=F64) + 0.5)
    wanted = ((rnn.weight_hh_l0 * t[:, None]).exp() * rnn.weight_ih_l0[:, 0]) @ c
    history = 1_000_000 if kind == "reversed" else None  # a duration of 100, after which exp(-20) is left
    found = memory_function(Readout(rnn, c), kind, steps=steps, dt=dt, history=history)
    torch.testing.assert_close(found, wanted[:, 0].abs().detach(), rtol=0, atol=1e-8)


def responses(rnn, inputs):
    """The norm of the change of the output in each of 7 steps with a constant input, without that of the biases."""
    y = rnn(inputs.unsqueeze(1).expand(-1, 7, 2))[0] - rnn(torch.zeros(1, 7, 2))[0]
    return torch.cat([y[:, :1], y.diff(dim=1)], 1).norm(dim=-1).detach()


def test_biases_and_layouts_do_not_count():
    rnn = RNN(2, 5, batch_first=True)
    found = memory_function(rnn, steps=7)
    torch.testing.assert_close(found, responses(rnn, torch.eye(2)).amax(0))
    loud = memory_function(rnn, steps=7, inputs=2 * torch.eye(2)[:1])
    torch.testing.assert_close(loud, responses(rnn, 2 * torch.eye(2)[:1])[0] / 2)
    lru = LRU(3, 8)
    assert memory_function(lru, "impulse", steps=5).shape == (5,)
    assert memory_function(lambda x: x, "impulse", steps=3, inputs=torch.ones(1, 1)).tolist() == [1, 0, 0]


def test_perturbations_have_the_norm_that_was_asked_for():
    model = torch.nn.ParameterDict(
        {"vector": torch.zeros(7), "matrix": torch.zeros(5, 3), "heads": torch.zeros(2, 4, 4), "left": torch.zeros(2)}
    )
    seen = []

    def error(model):
        norms = [model.vector.abs().max(), torch.linalg.matrix_norm(model.matrix, 2)]
        seen.append([*norms, *torch.linalg.matrix_norm(model.heads, 2), model.left.abs().max()])
        return len(seen)

    assert perturbation_error(model, error, 0.3, names=["vector", "matrix", "heads"], samples=4) == 5
    torch.testing.assert_close(torch.tensor(seen), torch.tensor([[0.0] * 5] + 4 * [[0.3] * 4 + [0.0]]))
    assert not any(p.any() for p in model.values())
    with pytest.raises(RuntimeError, match="no answer"):
        perturbation_error(model, _raise, 0.3)
    assert perturbation_error(model, lambda model: math.nan, 0.3) == math.inf


def _raise(model):
    if model.vector.any():
        raise RuntimeError("no answer")
    return 0.0
