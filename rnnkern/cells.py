r"""Published recurrent cells, written as short functions that :func:`rnnkern.cell` compiles.

Use one in a layer, ``rnnkern.nn.Recurrent(rnnkern.cells.mgu, 64, 128)``, or as the first argument of
:func:`rnnkern.ops.recurrence`. In the equations :math:`u = W x_t + b_{ih}` is the projected input and
:math:`r = R h_{t-1} + b_{hh}` the recurrent product, both by gate; :math:`\sigma` is the sigmoid, and other products
are elementwise. Kernels are compiled at the first use of a cell.
"""

import functools

import torch
import torch.nn.functional as F
from torch import sigmoid, tanh

from rnnkern._cell import Cell, cell
from rnnkern._cells.norms import layer_norm

__all__ = [
    "adams", "antisymmetric", "brc", "cfn", "cifg_lstm", "cornn", "ct_gru", "dreamer_gru", "ea_lstm", "euler_gap",
    "fast_grnn", "gru", "gru_d", "gru_d_pypots", "gru_layer_norm", "heavy_ball", "heavy_ball_tanh", "janet", "leaky",
    "lem", "li_gru", "lstm", "lstm_layer_norm", "mgu", "minimal_rnn", "nas", "nbrc", "peephole_lstm", "ran", "rnn",
    "slstm", "star", "ugrnn",
]  # fmt: skip


@cell(gates="fn")
def mgu(u, r, h):
    r"""Minimal gated unit (Zhou et al. 2016): :math:`f = \sigma(u_f + r_f)`, :math:`n = \tanh(u_n + R_n (f h) + b_n)`,
    :math:`h' = (1 - f) h + f n`. MGU1 of Heck and Salem 2017 is this cell with :math:`W_f = 0`."""
    f = sigmoid(u.f + r.f)
    return (1 - f) * h + f * tanh(u.n + r.n(f * h))


@cell(gates="fc")
def janet(u, r, h, *, beta=1.0):
    r"""JANET (van der Westhuizen and Lasenby 2018), an LSTM with only a forget gate: :math:`s = u_f + r_f`,
    :math:`h' = \sigma(s) h + (1 - \sigma(s - \beta)) \tanh(u_c + r_c)`."""
    s = u.f + r.f
    return sigmoid(s) * h + (1 - sigmoid(s - beta)) * tanh(u.c + r.c)


@cell(gates="ifgo")
def peephole_lstm(u, r, h, c, *, peephole_i, peephole_f, peephole_o):
    r"""LSTM with peephole connections (Gers and Schmidhuber 2000): gates depend on the cell state, :math:`i` and
    :math:`f` on the old one, :math:`o` on the new one."""
    i = sigmoid(u.i + r.i + peephole_i * c)
    f = sigmoid(u.f + r.f + peephole_f * c)
    c = f * c + i * tanh(u.g + r.g)
    return sigmoid(u.o + r.o + peephole_o * c) * tanh(c), c


@cell(gates="fgo")
def cifg_lstm(u, r, h, c):
    r"""LSTM with coupled gates, :math:`i = 1 - f` (Greff et al. 2017)."""
    f = sigmoid(u.f + r.f)
    c = f * c + (1 - f) * tanh(u.g + r.g)
    return sigmoid(u.o + r.o) * tanh(c), c


@cell(gates="fog")
def ea_lstm(u, r, h, c, i):
    r"""Entity-aware LSTM (Kratzert et al. 2019), whose input gate depends on static inputs :math:`x_s` alone. It is a
    state that never changes: begin with :math:`i = \sigma(W_s x_s + b_s)`. :math:`c' = \sigma(u_f + r_f) c + i
    \tanh(u_g + r_g)`, :math:`h' = \sigma(u_o + r_o) \tanh(c')`."""
    c = sigmoid(u.f + r.f) * c + i * tanh(u.g + r.g)
    return sigmoid(u.o + r.o) * tanh(c), c, i


@cell(gates="rznd", recurrent="rzn")
def gru_d(u, r, y):
    r"""GRU-D (Che et al. 2018), a GRU whose state decays in the gaps between observations:
    :math:`h' = (1 - z) y + z \tanh(u_n + R_n (\sigma(u_r + r_r) \, y) + b_n)` with :math:`z = \sigma(u_z + r_z)`, and
    :math:`y' = \exp(-\max(0, u_d)) h'`. The layer returns y, which has decayed over the gap *after* its step, on whose
    length :math:`u_d` depends; it is h where :math:`u_d \le 0`."""
    z = sigmoid(u.z + r.z)
    h = (1 - z) * y + z * tanh(u.n + r.n(sigmoid(u.r + r.r) * y))
    return torch.exp(-torch.relu(u.d)) * h


@cell(gates="rznd", recurrent="rznc")
def gru_d_pypots(u, r, y):
    r"""GRU-D as in PyPOTS. It differs from :func:`gru_d` in that the reset gate is after the product, that a second
    product :math:`r_c` reaches the candidate without it, and that z keeps the old state:
    :math:`h' = (1 - z) \tanh(u_n + r_c + \sigma(u_r + r_r) \, r_n) + z y`."""
    z = sigmoid(u.z + r.z)
    h = (1 - z) * tanh(u.n + r.c + sigmoid(u.r + r.r) * r.n) + z * y
    return torch.exp(-torch.relu(u.d)) * h


@cell(gates="rnz")
def dreamer_gru(u, r, h, *, weight_ln, bias_ln, eps=1e-3):
    r"""The GRU of DreamerV3 (Hafner et al. 2023), with one norm over the gates of both products: :math:`r, n, z =
    \mathrm{LN}(u + r)`, :math:`h' = s \tanh(\sigma(r) \, n) + (1 - s) h` with :math:`s = \sigma(z - 1)`. Use it in a
    layer with ``bias=False``, and pass ``is_first`` as ``reset``."""
    y = layer_norm(u + r, weight_ln, bias_ln, eps)
    z = sigmoid(y.z - 1)
    return z * tanh(sigmoid(y.r) * y.n) + (1 - z) * h


@cell(gates="ifgo", save="ifgo")
def lstm_layer_norm(u, r, h, c, *, weight_ln_ih, weight_ln_hh, bias_ln, weight_ln_c, bias_ln_c):
    r"""LSTM with layer norm (Ba, Kiros and Hinton 2016, equations 20 to 22): :math:`i, f, g, o = \mathrm{LN}(u) +
    \mathrm{LN}(r)`, :math:`c' = \sigma(f) c + \sigma(i) \tanh(g)`, :math:`h' = \sigma(o) \tanh(\mathrm{LN}(c'))`.
    :class:`rnnkern.nn.LSTM` runs it with ``layer_norm=True``."""
    u, r = layer_norm(u, weight_ln_ih), layer_norm(r, weight_ln_hh, bias_ln)
    i, f, g, o = sigmoid(u.i + r.i), sigmoid(u.f + r.f), tanh(u.g + r.g), sigmoid(u.o + r.o)
    c = f * c + i * g
    return o * tanh(layer_norm(c, weight_ln_c, bias_ln_c)), c


@cell(gates="rzn")
def gru_layer_norm(u, r, h, *, weight_ln_ih, bias_ln_ih, weight_ln_hh, bias_ln_hh):
    r"""GRU with layer norm (Ba, Kiros and Hinton 2016): a GRU whose reset gate is after the product, with
    :math:`\mathrm{LN}(u)` and :math:`\mathrm{LN}(r)` in place of u and r. :class:`rnnkern.nn.GRU` runs it with
    ``layer_norm=True``."""
    u, r = layer_norm(u, weight_ln_ih, bias_ln_ih), layer_norm(r, weight_ln_hh, bias_ln_hh)
    z = sigmoid(u.z + r.z)
    return (1 - z) * tanh(u.n + sigmoid(u.r + r.r) * r.n) + z * h


@cell(gates="gc")
def ugrnn(u, r, h):
    r"""Update gate RNN (Collins et al. 2017): :math:`g = \sigma(u_g + r_g)`,
    :math:`h' = g h + (1 - g) \tanh(u_c + r_c)`."""
    g = sigmoid(u.g + r.g)
    return g * h + (1 - g) * tanh(u.c + r.c)


@cell(gates="ifc", recurrent="if")
def ran(u, r, h, c):
    r"""Recurrent additive network (Lee et al. 2017): :math:`c' = i u_c + f c`, :math:`h' = \tanh(c')`."""
    c = sigmoid(u.i + r.i) * u.c + sigmoid(u.f + r.f) * c
    return tanh(c), c


@cell(gates="fic", recurrent="fi")
def cfn(u, r, h):
    r"""Chaos-free network (Laurent and von Brecht 2017): :math:`h' = \sigma(u_f + r_f) \tanh(h) + \sigma(u_i + r_i)
    \tanh(u_c)`."""
    return sigmoid(u.f + r.f) * tanh(h) + sigmoid(u.i + r.i) * tanh(u.c)


@cell(gates="gz", recurrent="g")
def minimal_rnn(u, r, h):
    r"""MinimalRNN (Chen 2017): :math:`z = \tanh(u_z)`, :math:`g = \sigma(u_g + r_g)`, :math:`h' = g h + (1 - g) z`. In
    the paper the gate uses :math:`U_z z`; here it uses its own projection of the input."""
    g = sigmoid(u.g + r.g)
    return g * h + (1 - g) * tanh(u.z)


@cell(gates="zn")
def li_gru(u, r, h):
    r"""Light GRU without its batch norm (Ravanelli et al. 2018): :math:`z = \sigma(u_z + r_z)`,
    :math:`h' = z h + (1 - z) \mathrm{relu}(u_n + r_n)`."""
    z = sigmoid(u.z + r.z)
    return z * h + (1 - z) * torch.relu(u.n + r.n)


@cell(gates="can", recurrent="")
def brc(u, r, h, *, weight_c, weight_a):
    r"""Bistable recurrent cell (Vecoven et al. 2021), without coupling of units: :math:`c = \sigma(u_c + w_c h)`,
    :math:`a = 1 + \tanh(u_a + w_a h)`, :math:`h' = c h + (1 - c) \tanh(u_n + a h)`."""
    c = sigmoid(u.c + weight_c * h)
    a = 1 + tanh(u.a + weight_a * h)
    return c * h + (1 - c) * tanh(u.n + a * h)


@cell(gates="can", recurrent="ca")
def nbrc(u, r, h):
    r"""Neuromodulated bistable recurrent cell (Vecoven et al. 2021): :math:`c = \sigma(u_c + r_c)`,
    :math:`a = 1 + \tanh(u_a + r_a)`, :math:`h' = c h + (1 - c) \tanh(u_n + a h)`."""
    c = sigmoid(u.c + r.c)
    a = 1 + tanh(u.a + r.a)
    return c * h + (1 - c) * tanh(u.n + a * h)


@cell(gates="kz", recurrent="k")
def star(u, r, h):
    r"""Stackable recurrent cell (Turkoglu et al. 2021): :math:`k = \sigma(u_k + r_k)`,
    :math:`h' = \tanh((1 - k) h + k \tanh(u_z))`."""
    k = sigmoid(u.k + r.k)
    return tanh((1 - k) * h + k * tanh(u.z))


@cell(init={"bias_z": (1.0, 1.0), "bias_n": (1.0, 1.0), "zeta": (1.0, 1.0), "nu": (-4.0, -4.0)})
def fast_grnn(u, r, h, *, bias_z, bias_n, zeta, nu):
    r"""FastGRNN with weights of full rank (Kusupati et al. 2018), one product for gate and candidate:
    :math:`z = \sigma(u + r + b_z)`, :math:`h' = (\sigma(\zeta) (1 - z) + \sigma(\nu)) \tanh(u + r + b_n) + z h`. The
    paper's scalars :math:`\zeta` and :math:`\nu` are per unit here."""
    z = sigmoid(u + r + bias_z)
    return (sigmoid(zeta) * (1 - z) + sigmoid(nu)) * tanh(u + r + bias_n) + z * h


@cell(gates="zh", recurrent="h")
def antisymmetric(u, r, h, *, gamma=0.01, epsilon=0.01):
    r"""Gated antisymmetric RNN (Chang et al. 2019): :math:`a = r - \gamma h`, :math:`h' = h + \epsilon \, \sigma(u_z +
    a) \tanh(u_h + a)`. In the paper :math:`R = M - M^T`, which a parametrization of ``weight_hh_l{k}`` can
    ensure."""
    a = r.h - gamma * h
    return h + epsilon * sigmoid(u.z + a) * tanh(u.h + a)


@cell(gates="y", recurrent="yz")
def cornn(u, r, y, z, *, dt=0.05, gamma=1.0, epsilon=1.0):
    r"""Coupled oscillatory RNN (Rusch and Mishra 2021), with implicit damping as in the paper's code:
    :math:`z' = z + dt (\tanh(u + R_y y + R_z z) - \gamma y - \epsilon z)`, :math:`y' = y + dt \, z'`."""
    z = z + dt * (tanh(u.y + r.y + r.z(z)) - gamma * y - epsilon * z)
    return y + dt * z, z


@cell(gates="abzy")
def lem(u, r, y, z, *, dt=1.0):
    r"""Long expressive memory (Rusch et al. 2022): :math:`a = dt \, \sigma(u_a + r_a)`, :math:`b = dt \, \sigma(u_b +
    r_b)`, :math:`z' = (1 - a) z + a \tanh(u_z + r_z)`, :math:`y' = (1 - b) y + b \tanh(u_y + R_y z' + b_y)`."""
    a, b = dt * sigmoid(u.a + r.a), dt * sigmoid(u.b + r.b)
    z = (1 - a) * z + a * tanh(u.z + r.z)
    return (1 - b) * y + b * tanh(u.y + r.y(z)), z


@cell(gates="ifzo")
def slstm(u, r, h, c, n, m):
    r"""sLSTM with exponential gates and a stabilizer m (Beck et al. 2024): :math:`m' = \max(f + m, i)`,
    :math:`c' = e^{f + m - m'} c + e^{i - m'} \tanh(z)`, :math:`n' = e^{f + m - m'} n + e^{i - m'}`,
    :math:`h' = \sigma(o) c' / n'`, with :math:`f = \log \sigma(u_f + r_f)`; i, z and o are :math:`u + r`."""
    i, f = u.i + r.i, F.logsigmoid(u.f + r.f)
    stable = torch.maximum(f + m, i)
    inward, kept = torch.exp(i - stable), torch.exp(f + m - stable)
    c = kept * c + inward * tanh(u.z + r.z)
    n = kept * n + inward
    return sigmoid(u.o + r.o) * c / n, c, n, stable


@cell(gates=8)
def nas(u, r, h, c):
    r"""The cell found by neural architecture search (Zoph and Le 2017), as in its authors' published code. With
    :math:`s_k = u_k + r_k` for the gates k = 0, ..., 7:
    :math:`c' = \tanh(\tanh(\sigma(s_0) \, \mathrm{relu}(s_1)) + c) \tanh(\sigma(s_2) + \mathrm{relu}(u_3 r_3))`,
    :math:`h' = \tanh(\tanh(c') \tanh(\tanh(\tanh(s_4) \, \sigma(s_5)) + \sigma(\tanh(s_6) + \sigma(s_7))))`."""
    a, b = sigmoid(u[0] + r[0]), torch.relu(u[1] + r[1])
    d, e = sigmoid(u[2] + r[2]), torch.relu(u[3] * r[3])
    f, g = tanh(u[4] + r[4]), sigmoid(u[5] + r[5])
    p, q = tanh(u[6] + r[6]), sigmoid(u[7] + r[7])
    c = tanh(tanh(a * b) + c) * tanh(d + e)
    return tanh(tanh(c) * tanh(tanh(f * g) + sigmoid(p + q))), c


@cell(init={"leak": (0.1, 0.9)})
def leaky(u, r, h, *, leak):
    r"""Leaky integrator (Jaeger et al. 2007) with a leak per unit: :math:`h' = (1 - l) h + l \tanh(u + r)`."""
    return (1 - leak) * h + leak * tanh(u + r)


@cell(gates="rzn")
def ct_gru(u, r, h, *, dt=0.1):
    r"""Euler step of the continuous-time GRU (Wang, Li and Li 2024, appendix J), :math:`\dot h = (1 - z) (n - h)`:
    gates r, z and :math:`n = \tanh(u_n + R_n (r h) + b_n)` as in a GRU whose reset gate is before the product."""
    z = sigmoid(u.z + r.z)
    return h + dt * (1 - z) * (tanh(u.n + r.n(sigmoid(u.r + r.r) * h)) - h)


@cell(init={"dt": (0.1, 0.1)})
def adams(u, r, h, k, *, dt):
    r"""Step of the two-step Adams-Bashforth method for :math:`\dot h = \tanh(u + r)`, of second order with one product:
    :math:`k' = \tanh(u + r)`, :math:`h' = h + dt (\tfrac32 k' - \tfrac12 k)`. Begin with :math:`k = \tanh(u_0 + R
    h_0)`, which makes the first step one of Euler; from k = 0, as after a reset, it is 1.5 dt long."""
    new = tanh(u + r)
    return h + dt * (1.5 * new - 0.5 * k), new


@cell(gates="hd", recurrent="h")
def euler_gap(u, r, h):
    r"""Euler step of :math:`\dot h = \tanh(u_h + r_h)` whose length is an input, :math:`h' = h + u_d \tanh(u_h + r_h)`:
    each sequence has a step of its own, and a step of 0 leaves h as it is."""
    return h + u.d * tanh(u.h + r.h)


@cell(init={"a": (0.9, 0.9), "b": (0.1, 0.1), "dt": (1.0, 1.0)})
def heavy_ball(u, r, h, m, *, a, b, dt):
    r"""Heavy-ball cell (Xia et al. 2021): :math:`m' = a m + b \tanh(u + r)`, :math:`h' = h + dt \, m'`. For
    :math:`\dot h = m`, :math:`\dot m = -\gamma m + \tanh(u + r)`, :math:`a = 1 - \gamma dt` and :math:`b = dt` are
    semi-implicit Euler, and :math:`a = (1 - \gamma dt / 2) / (1 + \gamma dt / 2)`, :math:`b = dt / (1 + \gamma dt /
    2)` the leapfrog method, of second order with m at half steps."""
    m = a * m + b * tanh(u + r)
    return h + dt * m, m


@cell(init={"a": (0.9, 0.9), "b": (0.1, 0.1), "dt": (1.0, 1.0), "xi": (1.0, 1.0)})
def heavy_ball_tanh(u, r, h, m, *, a, b, dt, xi):
    r"""Generalized heavy-ball cell (Xia et al. 2021): :math:`m' = a m + b (\tanh(u + r) - \xi h)`,
    :math:`h' = h + dt \tanh(m')`, with the coefficients of :func:`heavy_ball`."""
    m = a * m + b * (tanh(u + r) - xi * h)
    return h + dt * tanh(m), m


ACTIVATIONS = {
    "tanh": tanh, "relu": F.relu, "sigmoid": sigmoid, "hardtanh": F.hardtanh, "hardsigmoid": F.hardsigmoid,
    "leaky_relu": F.leaky_relu, "softplus": F.softplus, "elu": F.elu, "softsign": F.softsign,
}  # fmt: skip
"""Activations by name, for :func:`rnn`, :func:`gru` and :func:`lstm`."""


def _activation(function: str, name: str):
    if name not in ACTIVATIONS:
        raise ValueError(f"{function}: an activation must be one of {', '.join(ACTIVATIONS)}, got {name!r}")
    return ACTIVATIONS[name]


@functools.cache
def rnn(activation: str) -> Cell:
    """An Elman cell with one of :data:`ACTIVATIONS`, as in ``rnn("softplus")``."""
    act = _activation("rnn", activation)

    def elman(u, r, h):
        return act(u + r)

    return cell(elman)


@functools.cache
def gru(activation: str = "tanh", gate: str = "sigmoid") -> Cell:
    """A GRU whose reset gate is after the product, with other activations: ``gru("hardtanh", "hardsigmoid")``."""
    act, squash = _activation("gru", activation), _activation("gru", gate)

    def gru_of(u, r, h):
        z = squash(u.z + r.z)
        return (1 - z) * act(u.n + squash(u.r + r.r) * r.n) + z * h

    return cell(gru_of, gates="rzn")


@functools.cache
def lstm(activation: str = "tanh", gate: str = "sigmoid") -> Cell:
    """An LSTM with other activations: ``lstm("softsign", "hardsigmoid")``."""
    act, squash = _activation("lstm", activation), _activation("lstm", gate)

    def lstm_of(u, r, h, c):
        c = squash(u.f + r.f) * c + squash(u.i + r.i) * act(u.g + r.g)
        return squash(u.o + r.o) * act(c), c

    return cell(lstm_of, gates="ifgo")
