"""Layers that torch.nn lacks have the values and gradients of their equations, each written as one step of one layer.

test_layouts.py shows that everything else is made of such steps.
"""

import copy
from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import sigmoid, tanh

from python_tests.samples import draws, numbered
from python_tests.samples.layers import DEEP, HIDDEN_SIZE, INPUT_SIZE, moved, values
from rnnkern.ops._scan.moment_filter import EPS
from rnnkern.testing import assert_close_over_draws

B, H = 3, HIDDEN_SIZE


def projected(m, x):
    return F.linear(x, m.weight_ih_l0, getattr(m, "bias_ih_l0", None))


def recurrent(m, h):
    R = m.weight_hh_l0
    if R.dim() == 3:  # the gates of each head
        gates = zip(*(head.chunk(R.shape[1] // R.shape[2]) for head in R), strict=True)
        R = torch.cat([torch.block_diag(*heads) for heads in gates])
    return F.linear(h, R, getattr(m, "bias_hh_l0", None))


class Equation(NamedTuple):
    step: Callable  # (module, u_t, *state) -> the next state
    u: Callable = projected  # (module, x) -> u, for all steps
    output: Callable = lambda m, x, h: h
    states: int = 1


def loop(m, equation, x, state):
    outputs = []
    for x_t, u_t in zip(x, equation.u(m, x), strict=True):
        state = equation.step(m, u_t, *state)
        outputs.append(equation.output(m, x_t, state[0]))
    return [torch.stack(outputs), *state]


# ---- Elman networks


def modrelu(m, z):
    return torch.sign(z) * torch.relu(abs(z) + m.modrelu_bias_l0)


def elman(phi, **more):
    return Equation(lambda m, u, h: (phi(m, u + recurrent(m, h)),), **more)


def henaff(phi):
    return elman(lambda m, z: z, u=lambda m, x: phi(projected(m, x)))


def unitary(m, u, h):
    z = u + h @ m.weight_hh_l0.mT
    return (z / z.abs() * torch.relu(z.abs() + m.modrelu_bias_l0),)


UNITARY = Equation(
    unitary,
    lambda m, x: torch.complex(x @ m.weight_ih_l0[::2].T, x @ m.weight_ih_l0[1::2].T),
    lambda m, x, h: torch.view_as_real(h).flatten(-2),
)

# ---- gates


def lstm(m, u, h, c):
    i, f, g, o = (u + recurrent(m, h)).chunk(4, -1)
    c = sigmoid(f) * c + sigmoid(i) * tanh(g)
    return sigmoid(o) * tanh(c), c


def gated(u, r, h, phi=tanh):
    """A GRU's new state from its parts of the input and of the state."""
    (u_r, u_z, u_n), (r_r, r_z, r_n) = u.chunk(3, -1), r.chunk(3, -1)
    z = sigmoid(u_z + r_z)
    return ((1 - z) * phi(u_n + sigmoid(u_r + r_r) * r_n) + z * h,)


def gru_before(m, u, h):
    reset = sigmoid((u + recurrent(m, h))[:, :H])
    r = torch.cat([recurrent(m, h)[:, : 2 * H], recurrent(m, reset * h)[:, 2 * H :]], -1)
    z, n = sigmoid((u + r)[:, H : 2 * H]), tanh((u + r)[:, 2 * H :])
    return ((1 - z) * n + z * h,)


def normal(x, m, end):
    """The norm of a product; its bias comes after it."""
    weight = getattr(m, f"weight_ln_{end}_l0")
    return F.layer_norm(x, weight.shape, weight, getattr(m, f"bias_{end}_l0", None))


def normal_u(m, x):
    return normal(x @ m.weight_ih_l0.T, m, "ih")


def normal_lstm(m, u, h, c):
    i, f, g, o = (u + normal(h @ m.weight_hh_l0.T, m, "hh")).chunk(4, -1)
    c = sigmoid(f) * c + sigmoid(i) * tanh(g)
    return sigmoid(o) * tanh(F.layer_norm(c, (H,), m.weight_ln_c_l0, m.bias_ln_c_l0 if m.bias else None)), c


NORMAL_GRU = Equation(lambda m, u, h: gated(u, normal(h @ m.weight_hh_l0.T, m, "hh"), h), normal_u)
GORU = Equation(lambda m, u, h: gated(u, recurrent(m, h), h, lambda z: modrelu(m, z)))


# ---- filters of u; v and q are their moments


def filtered(mu=0.0, s=0.5, beta=None):
    def u(m, x):
        v, q, found = 0.0, 0.0, []
        for u_t in projected(m, x):
            v = mu * v + s * u_t
            q = 1 - EPS if beta is None else beta * q + (1 - beta) * u_t**2
            found.append(v / (torch.sqrt(q + EPS) if beta is not None else 1.0))
        return torch.stack(found)

    return u


def nesterov(m, x):
    y, found = 0.5 * projected(m, x), []
    for t in range(len(y)):
        k = t % 4 + 1
        found.append(y[t] + (k - 1) / (k + 2) * (y[t] - y[t - 1]))
    return torch.stack(found)


# ---- continuous time


def euler(m, u, h):
    for _ in range(m.steps):
        h = h + m.dt / m.steps * tanh(u + h @ m.weight_hh_l0.T)
    return (h,)


def adams(m, u, h, k=None):
    """The first step is one of Euler."""
    for _ in range(m.steps):
        slope = tanh(u + h @ m.weight_hh_l0.T)
        h, k = h + m.dt / m.steps * (1.5 * slope - 0.5 * (slope if k is None else k)), slope
    return h, k


def exact(m, u, h):
    """From the exponential of d/dt (h, 1) = (W, u; 0, 0) (h, 1)."""
    zero = torch.zeros_like(u).unsqueeze(-2)
    top = torch.cat([torch.diag(m.weight_hh_l0).expand(B, H, H), u.unsqueeze(-1)], -1)
    step = torch.linalg.matrix_exp(m.dt * torch.cat([top, torch.cat([zero, zero[..., :1]], -1)], -2))
    return ((step[:, :H, :H] @ h.unsqueeze(-1)).squeeze(-1) + step[:, :H, H],)


def factors(m):
    return torch.polar((-m.nu_log.exp()).exp(), m.theta_log.exp())


def lru_u(m, x):
    gamma = (1 - factors(m).abs().square()).sqrt()
    return gamma * (x.to(gamma.dtype.to_complex()) @ torch.view_as_complex(m.B).mT)


def lru_output(m, x, h):
    D = torch.diag(m.D) if m.D.dim() == 1 else m.D
    return (h @ torch.view_as_complex(m.C).mT).real + x @ D.mT


LRU = Equation(lambda m, u, h: (factors(m) * h + u,), lru_u, lru_output)
MODRELU = ("CayleyRNN", "NonNormalRNN", "HouseholderRNN", "EURNN", "SpectralRNN", "OrthogonalInitRNN", "EURNN fused")
EQUATIONS = {
    "RNN identity": elman(lambda m, z: z),
    "RNN hardtanh": elman(lambda m, z: z.clamp(-1, 1)),
    **dict.fromkeys(["RNN modrelu", "RNN heads", "ExpRNN", "ExpRNN dynamic", *MODRELU], elman(modrelu)),
    "OrthogonalInitRNN identity": elman(lambda m, z: torch.relu(z)),
    "HenaffRNN": henaff(torch.relu),
    "HenaffRNN tanh": henaff(tanh),
    "UnitaryRNN": UNITARY,
    **{f"UnitaryRNN {name}": UNITARY for name in ("givens", "free", "exp", "scaled Cayley")},
    "LSTM heads": Equation(lstm, states=2),
    "LSTM layer norm": Equation(normal_lstm, normal_u, states=2),
    "GRU heads": Equation(lambda m, u, h: gated(u, recurrent(m, h), h)),
    **dict.fromkeys(["GRU before", "GRU before, heads"], Equation(gru_before)),
    **dict.fromkeys(["GRU layer norm", "GRU layer norm, no bias"], NORMAL_GRU),
    **dict.fromkeys(["GORU", "GORU heads"], GORU),
    "RNN NAG": elman(lambda m, z: tanh(z), u=nesterov),
    "RNN momentum": elman(lambda m, z: tanh(z), u=filtered(0.6)),
    "LSTM momentum": Equation(lstm, filtered(0.6), states=2),
    "LSTM Adam": Equation(lstm, filtered(0.6, beta=0.9), states=2),
    "ExpRNN RMSprop": elman(modrelu, u=filtered(beta=0.9)),
    "LRU": LRU,
    "LRU outputs": LRU,
    **dict.fromkeys(["ContinuousRNN", "ContinuousRNN steps"], Equation(euler)),
    **dict.fromkeys(["ContinuousRNN Adams", "ContinuousRNN Adams, steps"], Equation(adams)),
    "ContinuousRNN linear": Equation(exact),
}


def call(m, name, x, state):
    """The layer's results in the form of the loop's."""
    hx = tuple(s[None] for s in state) if name in DEEP else state
    output, end = m(x, hx if len(hx) > 1 else hx[0])
    ends = (end if isinstance(end, tuple) else (end,))[: 2 if "Adams" in name else len(state)]
    return [output, *(s[0] if name in DEEP else s for s in ends)]


def results(run, m, x, state):
    """Values, and gradients of a weighted sum of them."""
    found = values(run(m, x, state))
    weighted = sum((y * torch.linspace(0.5, 1, y.numel()).to(y).view_as(y)).sum() for y in found)
    return [*found, *torch.autograd.grad(weighted, [x, *state, *m.parameters()])]


def sample(name, steps):
    m, complex_state = moved(name, dtype=torch.float64, by=0.05), name.startswith(("UnitaryRNN", "LRU"))
    dtype = torch.complex128 if complex_state else torch.float64
    x = torch.randn(steps, B, INPUT_SIZE, dtype=torch.float64, requires_grad=True)
    return m, x, [torch.randn(B, H, dtype=dtype, requires_grad=True) for _ in range(EQUATIONS[name].states)]


@pytest.mark.parametrize("name", EQUATIONS)
def test_float64(name):
    m, x, state = sample(name, 7)
    actual = results(lambda m, x, state: call(m, name, x, state), m, x, state)
    wanted = results(lambda m, x, state: loop(m, EQUATIONS[name], x, state), m, x, state)
    torch.testing.assert_close(actual, wanted, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", [name for name in EQUATIONS if name != "UnitaryRNN free"])
@pytest.mark.sampled
def test_float32(name):
    """Of free complex weights, ``module.float()`` would be another."""

    def compared():
        m, x, state = sample(name, 20)
        truth = results(lambda *args: loop(args[0], EQUATIONS[name], *args[1:]), m, x, state)
        m = copy.deepcopy(m).float()
        x, *state = (y.detach().to(torch.complex64 if y.is_complex() else torch.float32).requires_grad_()
                     for y in (x, *state))  # fmt: skip
        actual = results(lambda *args: call(args[0], name, *args[1:]), m, x, state)
        return numbered(actual, results(lambda *args: loop(args[0], EQUATIONS[name], *args[1:]), m, x, state), truth)

    assert_close_over_draws(draws(compared))
