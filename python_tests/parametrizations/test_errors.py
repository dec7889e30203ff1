"""Wrong arguments, over the public functions of rnnkern.parametrizations."""

import math

import pytest
import torch
from torch import nn

from python_tests.samples.parametrizations import registered
from rnnkern import parametrizations
from rnnkern.parametrizations import orthogonal, spectral_margin, unitary

HOUSEHOLDER, GIVENS = {"orthogonal_map": "householder"}, {"orthogonal_map": "givens", "init": "uniform"}
NEEDS_INIT = r"`init` must be 'uniform' .* cannot keep the existing matrix\), got None"
ORTHOGONAL = [
    ({"orthogonal_map": "log"}, r"orthogonal: `orthogonal_map` must be one of \('exp', 'cayley', .*\), got 'log'"),
    ({"init": "eye"}, "`init` must be one of .*, got 'eye'"),
    ({"base": "moving"}, "`base` must be one of .*, got 'moving'"),
    ({"rebase_every": 0}, "`rebase_every` must be a positive integer, got 0"),
    ({"rebase_every": 1.5}, "got 1.5"),
    ({"num_negative": 1}, "applies only to the map 'scaled_cayley', got 1"),
    ({"orthogonal_map": "scaled_cayley", "num_negative": 7}, "from 0 to N = 6.*, got 7"),
    (HOUSEHOLDER | {"base": "dynamic"}, "`base`, .* do not apply to the map 'householder'"),
    (HOUSEHOLDER | {"rebase_every": 2}, "`rebase_every` .* do not apply to the map 'householder'"),
    (HOUSEHOLDER | {"reflections": 0}, "`reflections` must be an integer from 1 to N = 6, got 0"),
    (HOUSEHOLDER | {"reflections": 7}, "from 1 to N = 6, got 7"),
    (HOUSEHOLDER | {"init": "eye"}, "`init` must be one of .*, got 'eye'"),
    (HOUSEHOLDER | {"style": "tunable"}, "`style` applies only to the map 'givens', got 'tunable'"),
    (GIVENS | {"base": "dynamic"}, "`base`, .* do not apply to the map 'givens'"),
    (GIVENS | {"init": "haar"}, "`init` must be one of .* for the map 'givens', got 'haar'"),
    (GIVENS | {"init": None}, r"must be one of .* \(rotations cannot keep the existing matrix\), got None"),
    (GIVENS | {"layers": 0}, "`layers` must be a positive integer, got 0"),
    (GIVENS | {"style": "fft"}, "`style` must be one of .*, got 'fft'"),
    (GIVENS | {"style": "butterfly"}, "N must be a power of two .*, got 6"),
    ({"layers": 3}, "`layers` applies only to the map 'givens', got 3"),
    ({"reflections": 3}, "`reflections` applies only to the map 'householder', got 3"),
    *(({"gates": wrong}, f"must be a positive divisor of the 6 rows, got {wrong}") for wrong in (0, 4, True, 2.0)),
]
SPECTRAL = [
    ({"margin": -0.1}, "spectral_margin: `margin` must be a number from 0 to 1, got -0.1"),
    ({"margin": 1.1}, "got 1.1"),
    ({"margin": "wide"}, "got 'wide'"),
    ({"init": "eye"}, "`init` must be one of .*, got 'eye'"),
]
STABLE = [
    ({"stable_map": "relu"}, "stable: `stable_map` must be one of .* got 'relu'"),
    ({"dt": 0.0}, "`dt` must be positive or None, got 0.0"),
    ({"b": -1}, "`b` must be positive, got -1"),
    ({"timescales": (2, 1)}, r"`timescales` must be positive and ascending, got \(2, 1\)"),
    ({"stable_map": "inverse", "timescales": (0.1, 1)}, "at least b = 0.5 for the map 'inverse'"),
]
UNITARY = [
    ({"unitary_map": "log"}, "unitary: `unitary_map` must be one of"),
    ({"unitary_map": "exp", "layers": 3}, "`layers` applies only to the map 'givens', got 3"),
    ({"unitary_map": "givens", "style": "butterfly", "init": "uniform"}, "N must be a power of two"),
    ({"unitary_map": "fourier", "base": "dynamic", "init": "uniform"}, "unitary: `base` applies only to the maps"),
    ({"unitary_map": "exp", "base": "moving"}, "unitary: `base` must be one of .*, got 'moving'"),
    ({"unitary_map": "exp", "rebase_every": 0}, "`rebase_every` must be a positive integer, got 0"),
    *(({"unitary_map": name}, NEEDS_INIT) for name in ("fourier", "givens")),
]
OF_A_BASE = [
    ({"base": "moving"}, "`base` must be one of .*, got 'moving'"),
    ({"rebase_every": 0}, "`rebase_every` must be a positive integer, got 0"),
    ({"init": "eye"}, "`init` must be one of .*, got 'eye'"),
]
WRONG = {"orthogonal": ORTHOGONAL, "spectral_margin": SPECTRAL, "stable": STABLE, "unitary": UNITARY}
WRONG |= {"orthogonal_gate": OF_A_BASE, "schur": OF_A_BASE}


@pytest.mark.parametrize(
    ("function", "options", "said"), [(name, *case) for name, cases in WRONG.items() for case in cases]
)
def test_wrong_options(function, options, said):
    module = nn.Linear(
        6,
        18 if function == "orthogonal_gate" else 6,
        bias=False,
        dtype=torch.complex64 if function == "unitary" else None,
    )
    before = module.weight
    with pytest.raises(ValueError, match=said) as error:
        getattr(parametrizations, function)(module, "weight", **options)
    assert str(error.value).startswith(f"{function}: ")
    assert module.weight is before


def test_wrong_weights():
    with pytest.raises(TypeError, match=r"`module` must be a torch\.nn\.Module, got int"):
        orthogonal(3, "weight")
    with pytest.raises(ValueError, match="must be the name of a parameter or buffer of the module, got 'missing'"):
        orthogonal(nn.Linear(3, 3), "missing")
    with pytest.raises(ValueError, match=r"`bias` must be \(..., M, K\), got \(4,\)"):
        orthogonal(nn.Linear(3, 4), "bias")
    with pytest.raises(ValueError, match=r"spectral_margin: `weight` must be \(..., N, N\), got \(4, 3\)"):
        spectral_margin(nn.Linear(3, 4), "weight")
    with pytest.raises(ValueError, match=r"stable: `weight` must be \(N,\) or \(..., N, N\), got \(4, 3\)"):
        parametrizations.stable(nn.Linear(3, 4), "weight")
    with pytest.raises(TypeError, match=r"`weight` must be real and floating-point, got torch\.complex64"):
        orthogonal(nn.Linear(3, 3, dtype=torch.complex64), "weight")
    with pytest.raises(TypeError, match="unitary: `weight` must be complex, got "):
        unitary(nn.Linear(3, 3), "weight", "exp")
    with pytest.raises(ValueError, match="`weight` is already parametrized"):
        orthogonal(registered("exp"), "weight")


@pytest.mark.parametrize("function", [orthogonal, unitary])
def test_what_is_not_finite_cannot_be_kept(function):
    module = nn.Linear(3, 3, dtype=torch.complex64 if function is unitary else None)
    nn.init.constant_(module.weight, math.nan)
    with pytest.raises(ValueError, match="must be finite to be kept, got NaN or infinity; draw a new one with `init`"):
        function(module, "weight", "exp")
    assert function(module, "weight", "exp", init="haar").weight.isfinite().all()
