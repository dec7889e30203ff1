"""`reset_parameters` sets everything that a layer or a parametrization owns: parameters and buffers that come from
`to_empty` hold what the memory happened to contain."""

import functools
import inspect
import itertools

import pytest
import torch

from python_tests.samples import layers as table
from rnnkern import parametrizations


@torch.no_grad()
def poisoned(module):
    """A module from the meta device, in memory full of NaN, and in integers and masks of the largest value."""
    module.to_empty(device="cpu")
    for tensor in itertools.chain(module.parameters(), module.buffers()):
        real = torch.view_as_real(tensor) if tensor.is_complex() else tensor
        real.fill_(float("nan") if real.is_floating_point() else torch.iinfo(real.dtype).max)
    return module


def check_reset(make, reset):
    """The state is the same, whatever the memory contained."""
    states = []
    for module in (poisoned(make(device="meta")), make()):
        torch.manual_seed(1)
        reset(module)
        states.append(module.state_dict())
    found, wanted = states
    assert found.keys() == wanted.keys()
    for key, value in wanted.items():
        torch.testing.assert_close(found[key], value, rtol=0, atol=0, msg=lambda text, key=key: f"{key}: {text}")


@pytest.mark.parametrize("name", table.LAYERS)
def test_layers(name):
    make = functools.partial(table.layer, name)
    check_reset(make, lambda layer: layer.reset_parameters())


PARAMETRIZATIONS = [
    *(("orthogonal", {"orthogonal_map": name}) for name in ("exp", "cayley", "scaled_cayley", "householder")),
    ("orthogonal", {"orthogonal_map": "scaled_cayley", "num_negative": 2, "base": "dynamic"}),
    ("orthogonal", {"orthogonal_map": "givens", "init": "uniform"}),
    ("orthogonal_gate", {"gates": 1}), ("schur", {}), ("schur", {"gamma": 0.9}), ("spectral_margin", {}),
    *(("stable", {"stable_map": name}) for name in ("exp", "softplus", "inverse", "direct")),
    *(("unitary", {"unitary_map": name, "init": "uniform"}) for name in ("fourier", "givens")),
    *(("unitary", {"unitary_map": name}) for name in ("exp", "scaled_cayley")),
]  # fmt: skip


@pytest.mark.parametrize(("name", "options"), PARAMETRIZATIONS, ids=str)
def test_parametrizations(name, options):
    def module(**kwargs):
        linear = torch.nn.Linear(8, 8, bias=False, dtype=torch.complex64 if name == "unitary" else None, **kwargs)
        return getattr(parametrizations, name)(linear, "weight", **options)

    check_reset(module, lambda linear: parametrizations.reset_parameters(linear, "weight"))


def test_the_tables_are_complete():
    functions = {
        "orthogonal_matrix", "unitary_matrix", "reset_parameters", "zero_order_hold",
        *(name for name in parametrizations.__all__ if not inspect.isfunction(getattr(parametrizations, name))),
    }  # fmt: skip
    assert {name for name, _ in PARAMETRIZATIONS} == set(parametrizations.__all__) - functions
