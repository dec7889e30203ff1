"""Each cell of rnnkern.cells is its paper's: values and gradients of a loop over the equations, matrix by matrix."""

import pytest
import torch
from torch import exp, log, sigmoid, tanh

import rnnkern
from rnnkern import cells
from rnnkern.nn import Recurrent

T, B, INPUTS, H = 6, 3, 5, 7


def s(z):
    return 1 / (1 + exp(-z))


# In each function x(k) is U[k] x + b[k], R(k, v) is the k-th recurrent matrix times v, and `p` are parameters by name.


def mgu(x, R, p, h):
    f = s(x(0) + R(0, h))
    return (1 - f) * h + f * tanh(x(1) + R(1, f * h))


def janet(x, R, p, h):
    z = x(0) + R(0, h)
    return s(z) * h + (1 - s(z - 1)) * tanh(x(1) + R(1, h))


def peephole_lstm(x, R, p, h, c):
    i, f = s(x(0) + R(0, h) + p["peephole_i"] * c), s(x(1) + R(1, h) + p["peephole_f"] * c)
    new = f * c + i * tanh(x(2) + R(2, h))
    return s(x(3) + R(3, h) + p["peephole_o"] * new) * tanh(new), new


def cifg_lstm(x, R, p, h, c):
    i = 1 - s(x(0) + R(0, h))
    new = (1 - i) * c + i * tanh(x(1) + R(1, h))
    return s(x(2) + R(2, h)) * tanh(new), new


def normal(values, weight, bias, eps=1e-5):
    """The values, normalized together."""
    x = torch.cat(values, -1)
    deviation = torch.sqrt(x.var(-1, correction=0, keepdim=True) + eps)
    return ((x - x.mean(-1, keepdim=True)) / deviation * weight + bias).chunk(len(values), -1)


def dreamer_gru(x, R, p, h):
    reset, new, update = normal([x(k) + R(k, h) for k in range(3)], p["weight_ln"], p["bias_ln"], 1e-3)
    return s(update - 1) * tanh(s(reset) * new) + (1 - s(update - 1)) * h


def of_both(x, R, p, h, gates):
    """LN(u) and LN(r), by gate."""
    u = normal([x(k) for k in range(gates)], p["weight_ln_ih"], p.get("bias_ln_ih", 0))
    r = normal([R(k, h) for k in range(gates)], p["weight_ln_hh"], p.get("bias_ln_hh", p.get("bias_ln")))
    return list(zip(u, r, strict=True))


def lstm_layer_norm(x, R, p, h, c):
    i, f, g, o = (a + b for a, b in of_both(x, R, p, h, 4))
    c = s(f) * c + s(i) * tanh(g)
    return s(o) * tanh(*normal([c], p["weight_ln_c"], p["bias_ln_c"])), c


def gru_layer_norm(x, R, p, h):
    reset, update, (u, r) = of_both(x, R, p, h, 3)
    z = s(sum(update))
    return (1 - z) * tanh(u + s(sum(reset)) * r) + z * h


def ugrnn(x, R, p, h):
    g = s(x(0) + R(0, h))
    return g * h + (1 - g) * tanh(x(1) + R(1, h))


def ran(x, R, p, h, c):
    new = s(x(0) + R(0, h)) * x(2) + s(x(1) + R(1, h)) * c
    return tanh(new), new


def cfn(x, R, p, h):
    return s(x(0) + R(0, h)) * tanh(h) + s(x(1) + R(1, h)) * tanh(x(2))


def minimal_rnn(x, R, p, h):
    u = s(x(0) + R(0, h))
    return u * h + (1 - u) * tanh(x(1))


def li_gru(x, R, p, h):
    z, n = s(x(0) + R(0, h)), x(1) + R(1, h)
    return z * h + (1 - z) * n * (n > 0)


def brc(x, R, p, h):
    c, a = s(x(0) + p["weight_c"] * h), 1 + tanh(x(1) + p["weight_a"] * h)
    return c * h + (1 - c) * tanh(x(2) + a * h)


def nbrc(x, R, p, h):
    c, a = s(x(0) + R(0, h)), 1 + tanh(x(1) + R(1, h))
    return c * h + (1 - c) * tanh(x(2) + a * h)


def star(x, R, p, h):
    k = s(x(0) + R(0, h))
    return tanh((1 - k) * h + k * tanh(x(1)))


def fast_grnn(x, R, p, h):
    y = x(0) + R(0, h)
    z = s(y + p["bias_z"])
    return (s(p["zeta"]) * (1 - z) + s(p["nu"])) * tanh(y + p["bias_n"]) + z * h


def antisymmetric(x, R, p, h):
    y = R(0, h) - 0.01 * h
    return h + 0.01 * s(x(0) + y) * tanh(x(1) + y)


def cornn(x, R, p, y, z):
    new = z + 0.05 * (tanh(x(0) + R(0, y) + R(1, z)) - 1.0 * y - 1.0 * z)
    return y + 0.05 * new, new


def lem(x, R, p, y, z):
    a, b = s(x(0) + R(0, y)), s(x(1) + R(1, y))
    new = (1 - a) * z + a * tanh(x(2) + R(2, y))
    return (1 - b) * y + b * tanh(x(3) + R(3, new)), new


def slstm(x, R, p, h, c, n, m):
    i, f = x(0) + R(0, h), log(s(x(1) + R(1, h)))
    new = torch.where(f + m > i, f + m, i)
    c = exp(f + m - new) * c + exp(i - new) * tanh(x(2) + R(2, h))
    n = exp(f + m - new) * n + exp(i - new)
    return s(x(3) + R(3, h)) * c / n, c, n, new


def nas(x, R, p, h, c):
    a = [x(k) + R(k, h) for k in range(8)]
    a[3] = x(3) * R(3, h)
    functions = (sigmoid, torch.relu, sigmoid, torch.relu, tanh, sigmoid, tanh, sigmoid)
    a = [f(v) for f, v in zip(functions, a, strict=True)]
    first, second, third, fourth = tanh(a[0] * a[1]), tanh(a[2] + a[3]), tanh(a[4] * a[5]), sigmoid(a[6] + a[7])
    new = tanh(first + c) * second
    return tanh(tanh(new) * tanh(third + fourth)), new


def leaky(x, R, p, h):
    return h - p["leak"] * h + p["leak"] * tanh(x(0) + R(0, h))


def ct_gru(x, R, p, h):
    r, z = s(x(0) + R(0, h)), s(x(1) + R(1, h))
    return h + 0.1 * (1 - z) * (tanh(x(2) + R(2, r * h)) - h)


def euler_gap(x, R, p, h):
    return h + x(1) * tanh(x(0) + R(0, h))


def adams(x, R, p, h, k):
    new = tanh(x(0) + R(0, h))
    return h + p["dt"] * (3 * new - k) / 2, new


def heavy_ball(x, R, p, h, m):
    m = p["a"] * m + p["b"] * tanh(x(0) + R(0, h))
    return h + p["dt"] * m, m


def heavy_ball_tanh(x, R, p, h, m):
    m = p["a"] * m + p["b"] * (tanh(x(0) + R(0, h)) - p["xi"] * h)
    return h + p["dt"] * tanh(m), m


def ea_lstm(x, R, p, h, c, i):
    f, o, g = (x(k) + R(k, h) for k in range(3))
    new = s(f) * c + i * tanh(g)
    return s(o) * tanh(new), new, i


def decayed(u, h):
    return exp(-u.clamp(min=0)) * h


def gru_d(x, R, p, y):
    r, z = (s(x(k) + R(k, y)) for k in (0, 1))
    return decayed(x(3), (1 - z) * y + z * tanh(x(2) + R(2, r * y)))


def gru_d_pypots(x, R, p, y):
    r, z = (s(x(k) + R(k, y)) for k in (0, 1))
    return decayed(x(3), (1 - z) * tanh(x(2) + R(3, y) + r * R(2, y)) + z * y)


def rnn(x, R, p, h):
    return log(1 + exp(x(0) + R(0, h)))


def gru(x, R, p, h):
    r, z = (((x(k) + R(k, h)) / 6 + 0.5).clamp(0, 1) for k in (0, 1))
    return (1 - z) * (x(2) + r * R(2, h)).clamp(-1, 1) + z * h


def lstm(x, R, p, h, c):
    i, f, o = (s(x(k) + R(k, h)) for k in (0, 1, 3))
    y = x(2) + R(2, h)
    new = f * c + i * (y / (1 + y.abs()))
    return o * (new / (1 + new.abs())), new


MADE = {"rnn": ("softplus",), "gru": ("hardtanh", "hardsigmoid"), "lstm": ("softsign",)}


@pytest.mark.parametrize("name", cells.__all__)
@pytest.mark.sampled
def test_a_cell_is_its_papers(name):
    torch.manual_seed(0)
    cell = getattr(cells, name)(*MADE[name]) if name in MADE else getattr(cells, name)
    layer = Recurrent(cell, INPUTS, H, dtype=torch.float64)
    for parameter in layer.parameters():
        torch.nn.init.uniform_(parameter, -0.8, 0.8)
    x = torch.randn(T, B, INPUTS, dtype=torch.float64)
    U, W = layer.weight_ih_l0.split(H), layer.weight_hh_l0.split(H) if cell.recurrent else ()
    b, d = layer.bias_ih_l0.split(H), layer.bias_hh_l0.split(H) if cell.recurrent else ()
    p = {k.removesuffix("_l0"): v for k, v in layer.named_parameters()}
    state = tuple(torch.zeros(B, H, dtype=torch.float64) for _ in cell.states)
    if name == "ea_lstm":  # i is what the caller gives
        state = *state[:2], torch.rand(B, H, dtype=torch.float64)
    start = tuple(part[None] for part in state) if len(state) > 1 else state[0][None]
    outputs = []
    for t in range(T):
        new = globals()[name](lambda k, t=t: x[t] @ U[k].T + b[k], lambda k, v: v @ W[k].T + d[k], p, *state)
        state = new if isinstance(new, tuple) else (new,)
        outputs.append(state[0])
    expected = torch.stack(outputs)
    for use in ("reference", "cpu"):
        with rnnkern.use(use):
            output, hx = layer(x, start)
        hx = hx if isinstance(hx, tuple) else (hx,)
        actual = [output, *(last[0] for last in hx)]
        torch.testing.assert_close(actual, [expected, *state], rtol=1e-10, atol=1e-10)
    found = torch.autograd.grad(output.cos().sum(), list(layer.parameters()), allow_unused=True)
    wanted = torch.autograd.grad(expected.cos().sum(), list(layer.parameters()), allow_unused=True)
    for f, w in zip(found, wanted, strict=True):
        assert (f is None or not f.numel()) if w is None else torch.allclose(f, w, rtol=1e-9, atol=1e-9)
