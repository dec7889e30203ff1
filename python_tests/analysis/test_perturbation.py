"""Errors over perturbed parameters, one after another and at once."""

import pytest
import torch

import rnnkern.nn
from rnnkern.analysis import perturbation_error


@pytest.mark.parametrize("cls", [rnnkern.nn.GRU, rnnkern.nn.LSTM, rnnkern.nn.ContinuousRNN])
@pytest.mark.parametrize("samples", [0, 7])
def test_perturbations_at_once_are_those_one_after_another(cls, samples):
    model, x = cls(2, 5, dtype=torch.float64), torch.randn(11, 3, 2, dtype=torch.float64)
    y = model(x)[0].detach()
    before = [p.clone() for p in model.parameters()]

    def found(at_once):
        generator = torch.Generator().manual_seed(0)
        return perturbation_error(
            model, lambda m: (m(x)[0] - y).abs().max(), 0.3, samples=samples, generator=generator, at_once=at_once
        )

    assert found(True) == pytest.approx(found(False), rel=1e-12)
    assert (found(True) > 0) == (samples > 0)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
