"""Weights of continuous-time recurrences: values, gradients, exact steps, assignment, errors."""

import copy
import math
import pickle

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import rnnkern
from rnnkern.parametrizations import reset_parameters, stable, zero_order_hold

F64 = torch.float64
STABLE = ("exp", "softplus", "inverse")
G = {
    "exp": lambda m: -math.exp(m),
    "softplus": lambda m: -math.log(1 + math.exp(m)),
    "inverse": lambda m: -1 / (m * m + 0.5),
    "direct": lambda m: m,
}


def made(shape=(5,), stable_map="exp", dtype=F64, **options):
    module = torch.nn.Module()
    module.weight = torch.nn.Parameter(torch.empty(shape, dtype=dtype))
    return stable(module, "weight", stable_map, **options)


def originals(module):
    return module.parametrizations.weight[0].originals


@torch.no_grad()
def moved(module, scale=1.0):
    for x in originals(module):
        x.add_(scale * torch.randn(x.shape, dtype=x.dtype))
    return module


@pytest.mark.parametrize("dt", [None, 0.3])
@pytest.mark.parametrize("stable_map", G)
def test_a_diagonal_is_the_formula(stable_map, dt):
    module = moved(made(stable_map=stable_map, dt=dt))
    (m,) = originals(module)
    wanted = torch.tensor([G[stable_map](x) for x in m.tolist()], dtype=F64)
    wanted = wanted if dt is None else (wanted * dt).exp()
    torch.testing.assert_close(module.weight, wanted, rtol=1e-13, atol=0)


@pytest.mark.parametrize("stable_map", G)
def test_a_matrix_is_the_function_of_a_symmetric_one(stable_map):
    for dt in (None, 0.3):
        module = moved(made((4, 4), stable_map, dt=dt))
        found, W = module.parametrizations.weight[0], module.weight
        if stable_map == "direct":
            (M,) = originals(module)
            torch.testing.assert_close(W, M if dt is None else torch.linalg.matrix_exp(0.3 * M))
            continue
        A, m = originals(module)
        V = found.base @ torch.linalg.matrix_exp(A.tril(-1) - A.tril(-1).mT)
        S = V @ torch.diag(m) @ V.mT
        eye = torch.eye(4, dtype=F64)
        if stable_map == "softplus":
            continuous = made((4, 4), stable_map)
            continuous.load_state_dict(module.state_dict())
            g = continuous.weight
            torch.testing.assert_close(torch.linalg.matrix_exp(-g), eye + torch.linalg.matrix_exp(S))
        else:
            g = -torch.linalg.matrix_exp(S) if stable_map == "exp" else -torch.linalg.inv(S @ S + 0.5 * eye)
        torch.testing.assert_close(W, g if dt is None else torch.linalg.matrix_exp(dt * g))


@pytest.mark.parametrize("shape", [(6,), (6, 6), (2, 3, 3)])
@pytest.mark.parametrize("stable_map", STABLE)
def test_no_parameter_leads_to_what_is_unstable(stable_map, shape):
    for dt, high in ((None, 0), (0.1, 1)):
        W = moved(made(shape, stable_map, dt=dt), 10).weight.detach()
        eigenvalues = W if len(shape) == 1 else torch.linalg.eigvalsh(W)
        assert (eigenvalues <= high + 1e-12 * W.abs().max()).all()
        assert dt is None or (eigenvalues > -1e-12).all()


@pytest.mark.parametrize("shape", [(3,), (3, 3)])
@pytest.mark.parametrize("stable_map", G)
def test_gradients_of_gradients(stable_map, shape):
    module = moved(made(shape, stable_map, dt=0.5), 0.3)
    weight, values = module.parametrizations.weight[0].weight, tuple(originals(module))
    assert gradcheck(weight, values)
    assert gradgradcheck(weight, values)


@pytest.mark.parametrize("stable_map", G)
def test_it_begins_with_its_timescales(stable_map):
    for shape in ((2000,), (40, 40)):
        module = made(shape, stable_map, timescales=(2.0, 50.0))
        W = module.weight.detach()
        rates = W if len(shape) == 1 else torch.linalg.eigvalsh(W)
        taus = -1 / rates
        assert taus.min() > 2 * (1 - 1e-9)
        assert taus.max() < 50 * (1 + 1e-9)
        assert abs((taus < 10).double().mean() - 0.5) < 0.3  # log-uniform with median 10
        reset_parameters(module, "weight")
        assert not torch.equal(module.weight, W)


def test_the_step_is_exact_where_forward_euler_diverges():
    """dt |g| = 3: the exact state decays; that of Euler's method doubles and changes its sign at every step."""
    module, dt = made((1,), "exp", dt=3.0), 3.0
    module.weight = torch.tensor([math.exp(-dt)], dtype=F64)
    g = module.parametrizations.weight[0].rates(*originals(module))
    torch.testing.assert_close(g, torch.tensor([-1.0], dtype=F64))
    times = torch.arange(1, 9, dtype=F64)
    torch.testing.assert_close(module.weight**times, (-dt * times).exp())
    assert (1 + dt * g).abs() == 2


def test_discretise():
    w = torch.tensor([0.0, -1e-9, -1e-3, -0.4999, -0.5001, -0.6, -40.0, 0.3], dtype=F64, requires_grad=True)
    factor, integral = zero_order_hold(w, 0.1)
    exact = [0.1 if x == 0 else math.expm1(0.1 * x) / x for x in w.tolist()]
    torch.testing.assert_close(integral, torch.tensor(exact, dtype=F64), rtol=1e-14, atol=0)
    torch.testing.assert_close(factor, (0.1 * w).exp())
    assert gradcheck(lambda w: zero_order_hold(w, 0.1), (w,))
    assert gradgradcheck(lambda w: zero_order_hold(w, 0.1), (w,))


@pytest.mark.parametrize("shape", [(4,), (4, 4)])
@pytest.mark.parametrize("stable_map", G)
def test_a_weight_in_the_range_may_be_assigned(stable_map, shape):
    for dt in (None, 0.2):
        module, W = (
            made(shape, stable_map, dt=dt),
            made(shape, stable_map, dt=dt, timescales=(1.0, 3.0)).weight.detach(),
        )
        if stable_map == "direct" and dt and len(shape) > 1:
            with pytest.raises(ValueError, match="with the map 'direct' and a `dt`, assign to"):
                module.weight = W
            continue
        module.weight = W
        torch.testing.assert_close(module.weight, W)


@pytest.mark.parametrize(
    ("options", "W", "said"),
    [
        ({}, torch.zeros(3), r"the weight must be in \[-inf, 0\), got 0 to 0"),
        ({"dt": 0.1}, torch.tensor([0.5, 1, 0.9]), r"must be in \[0, 1\), got 0.5 to 1"),
        ({"stable_map": "inverse"}, torch.tensor([-3.0, -1, -1]), r"must be in \[-2, 0\), got -3 to -1"),
        ({}, -torch.eye(3), r"the weight must be \(3,\), got \(3, 3\)"),
        ({"shape": (3, 3)}, torch.tensor([[-1.0, 1, 0], [0, -1, 0], [0, 0, -1]]), "must be symmetric"),
        ({"shape": (3, 3)}, torch.eye(3), r"eigenvalues of the weight must be in \[-inf, 0\)"),
        ({"stable_map": "direct"}, torch.tensor([0, math.nan, 0]), "must be finite"),
    ],
)
def test_others_are_refused(options, W, said):
    with pytest.raises(ValueError, match=said):
        made(**{"shape": (3,)} | options).weight = W.double()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"stable_map": "relu"}, "stable: `stable_map` must be one of .* got 'relu'"),
        ({"dt": 0.0}, "stable: `dt` must be positive or None, got 0.0"),
        ({"b": -1}, "stable: `b` must be positive, got -1"),
        ({"timescales": (2, 1)}, r"`timescales` must be positive and ascending, got \(2, 1\)"),
        ({"stable_map": "inverse", "timescales": (0.1, 1)}, "at least b = 0.5 for the map 'inverse'"),
        ({"shape": (3, 4)}, r"stable: `weight` must be \(N,\) or \(..., N, N\), got \(3, 4\)"),
    ],
)
def test_wrong_options(options, said):
    with pytest.raises(ValueError, match=said):
        made(**options)


def test_copies_checkpoints_devices_and_rates_of_learning():
    module, again = moved(made((4, 4), dtype=torch.float32)), made((4, 4), dtype=torch.float32)
    again.load_state_dict(module.state_dict())
    for other in (again, copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert torch.equal(other.weight, module.weight)
    groups = rnnkern.optim.param_groups(module, 1e-2)
    assert [(len(group["params"]), group["lr"]) for group in groups] == [(1, 1e-2), (1, 1e-3)]
    for shape in ((4,), (4, 4)):
        meta = stable(torch.nn.ParameterDict({"weight": torch.empty(shape, device="meta")}), "weight")
        assert (meta.weight.shape, meta.weight.device.type) == (shape, "meta")
        meta.to_empty(device="cpu")
        reset_parameters(meta, "weight")
        assert meta.weight.isfinite().all()
