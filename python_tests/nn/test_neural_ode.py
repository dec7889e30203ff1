"""NeuralODE and HeavyBallODE against loops that follow the equations on h and m, and solvers of torchdiffeq."""

import pytest
import torch
from torch import Tensor, tanh
from torch.autograd import grad

from python_tests.samples import draws
from rnnkern.nn import HeavyBallODE, NeuralODE
from rnnkern.testing import assert_close_over_draws

F64 = torch.float64
B, H, D = 4, 3, 5
HEAVY = [
    {"hidden_size": D}, {"hidden_size": D, "time_input": True, "learn_momentum": True}, {"hidden_size": None},
    {"hidden_size": None, "generalized": True, "time_input": True}, {"hidden_size": D, "gamma": 0.7},
]  # fmt: skip


def drawn(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=F64).requires_grad_()


def neural_loop(ode: NeuralODE, h: Tensor) -> Tensor:
    path, last, dt = [h], None, ode.time / ode.steps
    for n in range(ode.steps):
        slope = ode.field(n * dt, h)
        if ode.method == "euler" or last is None:
            last = slope
        h, last = h + dt * (1.5 * slope - 0.5 * last), slope
        path.append(h)
    return torch.stack(path)


def heavy_loop(ode: HeavyBallODE, h: Tensor, m: Tensor) -> tuple[Tensor, Tensor]:
    """Leapfrog in its usual form, with m at whole steps and two half steps of it around the step of h."""
    path, dt, gamma = [h], ode.time / ode.steps, ode.gamma
    moved = tanh if ode.generalized else lambda m: m

    def force(t: float, h: Tensor) -> Tensor:
        return ode.field(t, h) - (ode.xi * h if ode.generalized else 0)

    for n in range(ode.steps):
        if ode.method == "leapfrog":
            m = (1 - gamma * dt / 2) * m + dt / 2 * force(n * dt, h)
            h = h + dt * moved(m)
            m = (m + dt / 2 * force((n + 1) * dt, h)) / (1 + gamma * dt / 2)
        else:
            m = (1 - gamma * dt) * m + dt * force(n * dt, h)
            h = h + dt * moved(m)
        path.append(h)
    return torch.stack(path), m


@pytest.mark.parametrize("steps", [1, 2, 9])
@pytest.mark.parametrize("time_input", [False, True])
@pytest.mark.parametrize("method", ["adams", "euler"])
def test_a_neural_ode_is_the_loop_on_h(method, time_input, steps):
    ode = NeuralODE(H, D, steps=steps, method=method, time=1.7, time_input=time_input, dtype=F64)
    h, weight = drawn(B, H), torch.randn(steps + 1, B, H, dtype=F64)
    found, wanted = ode(h, return_path=True), neural_loop(ode, h)
    torch.testing.assert_close(found, wanted, rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(ode(h), wanted[-1], rtol=1e-13, atol=1e-13)
    leaves = [h, *ode.parameters()]
    torch.testing.assert_close(
        *(grad((path * weight).sum(), leaves) for path in (found, wanted)), rtol=1e-12, atol=1e-12
    )


@pytest.mark.parametrize("steps", [1, 9])
@pytest.mark.parametrize("method", ["leapfrog", "semi_implicit_euler"])
@pytest.mark.parametrize("options", HEAVY, ids=str)
def test_a_heavy_ball_ode_is_the_loop_on_h_and_m(options, method, steps):
    ode = HeavyBallODE(H, **options, steps=steps, method=method, time=1.7, dtype=F64)
    if ode.momentum is not None:
        torch.nn.init.normal_(ode.momentum)
    h, m, weight = drawn(B, H), drawn(B, H), torch.randn(steps + 1, B, H, dtype=F64)
    leaves = [h, *ode.parameters()]
    for start in (m, None):
        begun = (torch.zeros_like(h) if ode.momentum is None else ode.momentum.expand_as(h)) if start is None else m
        found, wanted = ode(h, start, return_path=True), heavy_loop(ode, h, begun)
        torch.testing.assert_close(found, wanted, rtol=1e-13, atol=1e-13)
        torch.testing.assert_close(ode(h, start), (wanted[0][-1], wanted[1]), rtol=1e-13, atol=1e-13)
        grads = [
            grad((path * weight).sum() + last.square().sum(), leaves, allow_unused=True, materialize_grads=True)
            for path, last in (found, wanted)
        ]
        torch.testing.assert_close(*grads, rtol=1e-11, atol=1e-12)


def test_in_float32_they_are_as_close_as_the_loop():
    for make, loop in (
        (lambda: NeuralODE(8, 32, steps=50, dtype=F64), neural_loop),
        (lambda: HeavyBallODE(8, 32, steps=50, dtype=F64), lambda ode, h: heavy_loop(ode, h, torch.zeros_like(h))[0]),
    ):

        def compared(make=make, loop=loop):
            ode, h = make(), torch.randn(64, 8, dtype=F64)
            truth = loop(ode, h)
            ode.float()
            found = ode(h.float(), return_path=True)
            return {"path": (found if isinstance(found, Tensor) else found[0], loop(ode, h.float()), truth)}

        assert_close_over_draws(draws(compared))


def test_solvers_of_torchdiffeq_take_the_fields():
    odeint = pytest.importorskip("torchdiffeq").odeint
    h, m, times = drawn(B, H), drawn(B, H), torch.linspace(0, 1, 101, dtype=F64)
    ode = NeuralODE(H, D, steps=100, method="euler", dtype=F64)
    wanted = odeint(ode.field, h, times, method="euler")
    torch.testing.assert_close(ode(h, return_path=True), wanted, rtol=1e-12, atol=1e-12)
    leaves = [h, *ode.parameters()]
    torch.testing.assert_close(grad(ode(h).sum(), leaves), grad(wanted[-1].sum(), leaves), rtol=1e-11, atol=1e-12)
    exact = odeint(ode.field, h, times[[0, -1]], method="dopri5", rtol=1e-10, atol=1e-12)[-1]
    ode.method = "adams"
    assert (ode(h) - exact).abs().max() < 1e-3
    heavy = HeavyBallODE(H, D, steps=100, dtype=F64)
    exact = odeint(heavy.system, (h, m), times[[0, -1]], method="dopri5", rtol=1e-10, atol=1e-12)
    for found, wanted in zip(heavy(h, m), exact, strict=True):
        assert (found - wanted[-1]).abs().max() < 1e-3
