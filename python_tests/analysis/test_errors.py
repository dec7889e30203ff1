"""Wrong arguments, over the functions of rnnkern.analysis: a right call, and the changes that make it wrong."""

import math

import pytest
import torch

from perf.dynamics.networks import LAYERS
from rnnkern import analysis
from rnnkern.analysis import Gains
from rnnkern.nn import GRU, RNN, NonNormalRNN
from rnnkern.nn.init import describe_initialisation, gate_variance_
from rnnkern.parametrizations import orthogonal

ONE = Gains(1.0)
GRU_GAINS = Gains(1.0, 1.0, 1.0)
X, Y = torch.zeros(4, 1, 2), torch.zeros(4, 1, 3)
EYE, W = torch.eye(3), torch.zeros(3, 3)
INTEGERS = torch.zeros(2, 1, 2, dtype=torch.int64)
SAMPLES = analysis.unit_samples(LAYERS["gru"](5), steps=2)
TWO = NonNormalRNN(2, 3, num_layers=2)

CALLS = {
    "bifurcation": {"a_h": 1.8},
    "commutator": {"W": W},
    "dependency_depth": {"ids": INTEGERS - 1},
    "expected_slow_fraction": {"C_h": 0.1, "gains": GRU_GAINS},
    "fisher_memory_curve": {"W": W, "v": torch.ones(3), "lags": 4},
    "fixed_points": {"gains": GRU_GAINS},
    "gradient_norms": {"module": RNN(3, 4), "x": Y, "loss": lambda y: y.sum()},
    "henrici_departure": {"W": W},
    "jacobian": {"cell": "tanh", "u": torch.zeros(2, 3), "R": W, "state": (torch.zeros(2, 3),)},
    "kaplan_yorke": {"exponents": torch.tensor([0.3, -0.5])},
    "lyapunov_spectrum": {"module": RNN(2, 3), "x": X},
    "marginal": {"a_h": 3.0},
    "mean_field": {"cell": "gru", "gains": GRU_GAINS, "population": 2, "lags": 1},
    "memory_function": {"model": RNN(2, 5), "steps": 3},
    "participation": {"vectors": torch.ones(3, 1)},
    "perturbation_error": {"model": RNN(2, 5), "error": lambda rnn: 0.0, "radius": 0.1},
    "pinching_rate": {"C_h": 0.3, "rho": 1.1},
    "schur_parts": {"W": W},
    "shaping": {"C_h": 0.1, "gains": GRU_GAINS},
    "slow_fraction": {"J": EYE},
    "spatial_fisher": {"W": W},
    "spectral_boundary": {"samples": SAMPLES, "gains": GRU_GAINS, "x": torch.zeros(2)},
    "spectral_function": {"samples": SAMPLES, "gains": GRU_GAINS, "points": torch.zeros(2)},
    "spectral_support": {"samples": SAMPLES, "gains": GRU_GAINS},
    "squared_singular_values": {"cell": "tanh", "gains": ONE, "n": 1, "C_h": 0.1},
    "transient_norms": {"W": W, "steps": 3},
    "unit_samples": {"module": LAYERS["gru"](3), "steps": 1},
    "zero_point": {"cell": "gru", "gains": GRU_GAINS},
}


@pytest.mark.parametrize("function", CALLS)
def test_the_call_that_is_changed_is_right(function):
    getattr(analysis, function)(**CALLS[function])


def step(x):
    """Arguments of the Jacobian with one dtype."""
    return {"cell": "modrelu", "u": x, "R": x, "state": (x,), "params": (torch.zeros(3),)}


def case(function, message, error=ValueError, **changed):
    return pytest.param(function, message, error, changed, id=f"{function}-{message}")


OF_MATRICES = [name for name, call in CALLS.items() if "W" in call]
OF_LAYERS = [name for name, call in CALLS.items() if "module" in call and "x" in call]
LINEAR = torch.nn.Linear(2, 2)
CASES = [
    *(case(name, r"`W` must be \(..., N, N\), got \(2, 3\)", W=torch.ones(2, 3)) for name in OF_MATRICES),
    *(case(name, "`W` must be finite", W=torch.full((3, 3), math.nan)) for name in OF_MATRICES),
    *(case(name, "`W` must have one of the dtypes", TypeError, W=torch.ones(3, 3).long()) for name in OF_MATRICES),
    *(case(name, "must be an RNN, LSTM or GRU of torch.nn.*got Linear", module=LINEAR) for name in OF_LAYERS),
    *(case(name, "must be float32 or float64, got", TypeError, module=RNN(2, 3).bfloat16()) for name in OF_LAYERS),
    *(case(name, r"`x` must be \(T, B, I\) with I = ., got \(4, 2\)", x=torch.zeros(4, 2)) for name in OF_LAYERS),
    *(case(name, "`x` must have dtype torch.float32", TypeError, x=X.double(), module=RNN(2, 3)) for name in OF_LAYERS),
    *(case(name, r"must have tensors of the shapes \[\(1, 1, .\)\]", hx=torch.zeros(1, 2, 3)) for name in OF_LAYERS),
    *(case(name, r"`layer` must be in \[0, 1\), got -2", layer=-2) for name in OF_LAYERS),
    *(case(name, r"`direction` must be in \[0, 1\), got 1", direction=1) for name in OF_LAYERS),
    case("bifurcation", r"`a_h` must be between sqrt\(2\) and 2, got 2.5", a_h=2.5),
    case("bifurcation", "`cell` must be one of gru_reset_before, gru, got 'tanh'", cell="tanh"),
    case("bifurcation", "a gru with a_h = 1.41422 has no nonzero fixed points", a_h=1.41422, cell="gru"),
    case("dependency_depth", r"`ids` must be int64, got torch\.float32", TypeError, ids=X),
    case("dependency_depth", r"`ids` must be \(T, B, K\), got \(2, 1\)", ids=INTEGERS[..., 0]),
    case("dependency_depth", "at most the step", ids=INTEGERS + 1),
    case("expected_slow_fraction", "`C_h` must not be negative, got -1", C_h=-1.0),
    case("expected_slow_fraction", "`radius` must be positive, got 0", radius=0),
    case("expected_slow_fraction", "`cell` must be one of gru, .*, got 'tanh'", cell="tanh"),
    case("fisher_memory_curve", r"`v` must be \(n,\) = \(3,\) and finite, got \(2,\)", v=torch.ones(2)),
    case("fisher_memory_curve", "`v` must be a real floating-point tensor, got list", TypeError, v=[1.0, 0.0, 0.0]),
    case("fisher_memory_curve", "`lags` must not be negative, got -1", lags=-1),
    case("fisher_memory_curve", "`noise` must be positive, got 0", noise=0),
    case("fisher_memory_curve", "`W` must have a spectral radius below 1, got 1", W=EYE),
    # The spectral radius is 1/2, and entries of the powers grow to 1e300 and more before they decay.
    case(
        "fisher_memory_curve",
        "`W` must have powers that decay in float64",
        v=torch.ones(40),
        W=0.5 * torch.eye(40).double() + 1e12 * torch.eye(40).roll(1, 0).tril(-1).double(),
    ),
    case("fixed_points", "`cell` must be one of gru_reset_bef", cell="lstm"),
    case("fixed_points", r"`variances\['r'\]` must not be negative", variances={"r": -1.0}),
    case("fixed_points", "`gains` must be a mapping such as Gains, got tuple", TypeError, gains=(3.0, 1.0, 1.0)),
    case("gradient_norms", r"`loss` must return a scalar .* got shape \(4, 1, 4\)", loss=lambda y: y),
    case("gradient_norms", "`loss` must return a scalar .*, a constant", loss=lambda y: y.detach().sum()),
    case("gradient_norms", "`loss` must return a scalar that depends on the output, got float", loss=lambda y: 1.0),
    case("henrici_departure", "`W` must have a weight in Schur form, as NonNormalRNN, got RNN", W=RNN(2, 3)),
    case("henrici_departure", r"`name` must be one of .*, got 'weight'", W=TWO, name="weight"),
    case("jacobian", r"`u` must be float32 or float64, got torch\.bfloat16", TypeError, **step(W.bfloat16())),
    case("jacobian", r"`u` must be float32 or float64, got torch\.complex64", TypeError, **step(W.cfloat())),
    case("jacobian", r"`u` must be \(B, G\*H\), got \(1, 3, 3\)", u=W[None]),
    case("jacobian", "`cell` must be one of", cell="tan"),
    case("jacobian", r"`state\[0\]` must be \(B, H\)", state=(W,)),
    case("jacobian", "`u` must be a tensor, got list", TypeError, u=[[0.0]]),
    case("kaplan_yorke", r"n = \? of them, got 2 with the sum 0\.2", exponents=torch.tensor([0.3, -0.1])),
    case("kaplan_yorke", "n = 3 of them, got 2", exponents=torch.tensor([0.3, -0.1]), n=3),
    case("kaplan_yorke", r"`exponents` must be \(..., S\) with S > 0, got \(2, 0\)", exponents=torch.zeros(2, 0)),
    case("lyapunov_spectrum", "exactly one of `x` and `steps` must be given, got neither", x=None),
    case("lyapunov_spectrum", "exactly one of `x` and `steps` must be given, got both", steps=3),
    case("lyapunov_spectrum", "`steps` must be a positive int, got 0", x=None, steps=0),
    case("lyapunov_spectrum", "`batch` must be a positive int, got 0", x=None, steps=3, batch=0),
    case("lyapunov_spectrum", r"`warmup` must be in \[0, T\) = \[0, 4\), got 4", warmup=4),
    case("lyapunov_spectrum", r"`count` must be in \[1, n\] = \[1, 3\], got 4", count=4),
    case("lyapunov_spectrum", '`every` must be a positive int or "auto", got 0', every=0),
    case("lyapunov_spectrum", "`every` must be a positive int or \"auto\", got 'often'", every="often"),
    case("lyapunov_spectrum", r"`tangents` must have the shapes \(S, B, H\) = \[\(3, 1, 3\)\]", tangents=(EYE,)),
    case("lyapunov_spectrum", "`tangents` must be orthonormal for each", tangents=(torch.ones(2, 1, 3),)),
    case("marginal", "no a_r is on the line for a_h = 1.0", a_h=1.0),
    case("mean_field", "`lags` must be at least 0, got -1", lags=-1),
    case("mean_field", "`population` must be at least 2, got 1", population=1),
    case("mean_field", r"`steps` must be at least 2 \* lags \+ 2 = 4, got 3", steps=3),
    case("mean_field", r"`variances\['h'\]` must not be negative, got -1.0", variances={"h": -1.0}),
    case("memory_function", "`kind` must be one of .* got 'step'", kind="step"),
    case("memory_function", "`steps` must be positive, got 0", steps=0),
    case("memory_function", "`dt` must be positive, got -1", dt=-1),
    case("memory_function", "`history` must be positive, got 0", history=0),
    case("memory_function", r"`inputs` must be \(K, I\) with .* got \(2, 2\), one of them zero", inputs=X[:2, 0]),
    case("memory_function", r"got \(2,\)", inputs=torch.ones(2)),
    case("memory_function", "`inputs` must be given", model=lambda x: x),
    case("participation", r"`vectors` must be \(n, m\), got \(3,\)", vectors=torch.zeros(3)),
    case("participation", "no column of `vectors` must be zero", vectors=torch.zeros(3, 1)),
    case("perturbation_error", "`radius` must not be negative, got -1", radius=-1),
    case("perturbation_error", "`samples` must not be negative", samples=-1),
    case("perturbation_error", "`names` must be among .* got 'W'", names=["W"]),
    case("pinching_rate", "`C_h` must be positive, got 0", C_h=0.0),
    case("pinching_rate", "`rho` must be between 1 and 1.41421, got 1.5", rho=1.5),
    case("schur_parts", r"`name` must be one of \['weight_hh_l0', 'weight_hh_l1'\], got None", W=TWO),
    case("schur_parts", r"`W` must be \(n, n\), got \(2, 3, 3\)", W=torch.zeros(2, 3, 3)),
    case("schur_parts", "`W` must have one of the dtypes", TypeError, W=EYE.cfloat()),
    case("shaping", "`C_h` must not be negative, got -1.0", C_h=-1.0),
    case("slow_fraction", "`radius` must be positive, got 0", radius=0.0),
    case("slow_fraction", r"a real `J` must be \(..., n, n\), got \(2, 3\)", J=torch.zeros(2, 3)),
    case("slow_fraction", "`J` must be .* not empty: got", J=torch.zeros(0)),
    case("spatial_fisher", r"`W` must be \(n, n\), got \(2, 3, 3\)", W=torch.zeros(2, 3, 3)),
    case("spatial_fisher", "`W` must have a spectral radius below 1, got 1", W=EYE),
    case("spatial_fisher", "`noise` must be positive, got 0", noise=0),
    case("spatial_fisher", "`W` must have one of the dtypes", TypeError, W=EYE.cfloat()),
    case("spectral_boundary", r"`x` must be \(P,\), got \(\)", x=torch.zeros(())),
    case("spectral_function", r"`points` must be \(P,\), got \(2, 2\)", points=torch.zeros(2, 2)),
    case("spectral_support", "`gains` of gru must contain h, z, r; 'z' is missing", gains=ONE),
    case("squared_singular_values", "gain of z must be 0 without `switch`", cell="gru", gains=GRU_GAINS),
    case(
        "squared_singular_values",
        "gain of z must be positive with `switch`, got 0",
        cell="gru",
        gains=Gains(1.0, 0.0, 1.0),
        switch=True,
    ),
    case("squared_singular_values", "`n` must not be negative, got -1", n=-1),
    case("transient_norms", "`steps` must not be negative, got -1", steps=-1),
    case("unit_samples", "exactly one of `x` and `steps` must be given", steps=None),
    case("unit_samples", "`module` must run one of the cells", module=torch.nn.Linear(2, 2)),
    case("unit_samples", r"`x` must be \(T, B, I\) with I = 1, got \(4, 1, 2\)", steps=None, x=X),
    case("unit_samples", "`x` must not be empty, got T = 0 and B = 1", steps=None, x=torch.zeros(0, 1, 1)),
    case("unit_samples", r"`layer` must be in \[0, 1\), got 1", layer=1),
    case("zero_point", "`cell` must be one of tanh, gru, .*, got 'goru'", cell="goru"),
    case("zero_point", "`gains` of gru must contain h, z, r; 'z' is missing", gains=ONE),
    case("zero_point", "`biases` of gru must be among h, z, r, got 'f'", biases={"f": 1.0}),
    case("zero_point", "the bias of h must be 0, got 1.0", biases={"h": 1.0}),
]


@pytest.mark.parametrize(("function", "message", "error", "changed"), CASES)
def test_wrong_arguments_are_named(function, message, error, changed):
    with pytest.raises(error, match=message):
        getattr(analysis, function)(**CALLS[function] | changed)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Gains(1.0, 2.0), r"Gains: there must be 1 \(h\), 3 \(h, z, r\) or 4 \(h, f, i, o\), got 2"),
        (lambda: Gains(1.0, h=2.0), "Gains: 'h' must be given once, got it twice"),
        (lambda: Gains(1.0, q=2.0), "Gains: the names must be h, or h, z and r, or h, f, i and o, got h, q"),
        (lambda: Gains(-1.0), "Gains: `h` must not be negative, got -1"),
        (lambda: Gains(math.nan), "Gains: `h` must not be negative, got nan"),
        (lambda: gate_variance_(torch.nn.Linear(2, 2), GRU_GAINS), "`module` must be an LSTM, GRU or RNN, got Linear"),
        (lambda: gate_variance_(GRU(1, 2), Gains(1, 1, 1, 1)), "`gains` of gru must be among h, z, r, got 'f'"),
        (lambda: gate_variance_(GRU(1, 2), {"h": 1.0}), "must contain h, z, r; 'z' is missing"),
        (lambda: gate_variance_(GRU(1, 2), {"h": -1.0, "z": 1.0, "r": 1.0}), "must not be negative"),
        (lambda: gate_variance_(GRU(1, 2), GRU_GAINS, {"f": 1.0}), "`biases` of gru must be among h, z, r, got"),
        (lambda: gate_variance_(GRU(1, 2), GRU_GAINS, None, {"z": -1.0}), r"`variances\['z'\]` must not be neg"),
        (lambda: gate_variance_(GRU(1, 2), GRU_GAINS, layers=[1]), "`layers` must be between 0 and 0, got 1"),
        (
            lambda: gate_variance_(GRU(1, 2, bias=False), GRU_GAINS, {"z": 1.0}),
            "must be 0 for a module with bias=False",
        ),
        (lambda: gate_variance_(orthogonal(RNN(1, 2), "weight_hh_l0"), ONE), "weight_hh_l0 must not be parametrized"),
        (lambda: describe_initialisation(GRU(1, 2), layer=1), "`layer` must be between 0 and 0, got 1"),
        (lambda: describe_initialisation(torch.nn.Linear(1, 2)), "`module` must run one of the cells"),
        (lambda: describe_initialisation(RNN(1, 2, nonlinearity="relu")), "got relu"),
    ],
)
def test_wrong_gains_and_initial_values(call, message):
    with pytest.raises(ValueError, match=message):
        call()
