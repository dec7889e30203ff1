"""Unitary networks against loops over their equations, and as modules."""

import pytest
import torch

from rnnkern.nn import UnitaryRNN
from rnnkern.optim import CayleySGD, param_groups

T, B, I, H = 6, 3, 2, 4  # noqa: E741
F64, C128 = torch.float64, torch.complex128
MAPS = [
    {"unitary_map": "fourier"}, {"unitary_map": "givens", "rotation_layers": 3}, {"unitary_map": "free"},
    {"unitary_map": "exp"}, {"unitary_map": "scaled_cayley", "base": "dynamic"},
]  # fmt: skip
maps = pytest.mark.parametrize("options", MAPS, ids=str)


@maps
def test_training_keeps_it_unitary_and_learns(options):
    """The target is a sum of past inputs, predicted from the real and imaginary parts of h."""
    torch.manual_seed(0)
    module = UnitaryRNN(1, 8, **options)
    head = torch.nn.Linear(16, 1)
    model = torch.nn.ModuleList([module, head])
    groups = param_groups(model, 0.02)
    if options["unitary_map"] == "free":
        groups = [{"params": [p for p in model.parameters() if p is not module.weight_hh_l0], "lr": 0.02}]
        optimisers = [CayleySGD([module.weight_hh_l0], 0.02)]
    else:
        optimisers = []
    optimisers.append(torch.optim.Adam(groups))
    x = torch.randn(4, 64, 1)
    losses = []
    for _ in range(100):
        for optimiser in optimisers:
            optimiser.zero_grad()
        loss = (head(module(x)[0][-1]) - x.sum(0)).square().mean()
        loss.backward()
        for optimiser in optimisers:
            optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.05 * losses[0]
    W = module.weight_hh_l0.detach().to(C128)
    assert (W.mH @ W - torch.eye(8, dtype=C128)).abs().max() < 2e-6
