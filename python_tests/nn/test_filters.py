"""Filters of the input projection: their equations, the effect of momentum on the dynamics, layouts, other options."""

import copy
import math
import pickle

import pytest
import torch
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import rnnkern
from rnnkern import reference
from rnnkern.nn import GRU, LSTM, RNN, ExpRNN, MomentumLSTM, MomentumRNN
from rnnkern.nn.filters import NAG, Adam, Momentum, RMSprop
from rnnkern.ops._scan.moment_filter import EPS

T, B, I, H = 9, 3, 4, 6  # noqa: E741
F64 = torch.float64
GIVEN = {"momentum": Momentum(0.6, 0.5), "adam": Adam(0.6, 0.5, 0.9), "rmsprop": RMSprop(0.5, 0.9), "nag": NAG(0.5, 4)}
kinds = pytest.mark.parametrize("kind", GIVEN)
CLASSES = {"momentum": LSTM, "adam": GRU, "rmsprop": ExpRNN, "nag": RNN}
"""Each filter is tested on another module, because their common code does not depend on the module."""


def made(kind, cls=None, **options):
    return (cls or CLASSES[kind])(I, H, **{"dtype": F64, "filter": GIVEN[kind]} | options)


def filtered(kind, u):
    """The equations as a loop over time; u (T, B, G*H)."""
    mu, s, beta, every = {
        "momentum": (0.6, 0.5, None, 1), "adam": (0.6, 0.5, 0.9, 1), "rmsprop": (0, 0.5, 0.9, 1), "nag": (0, 0.5, 0, 4),
    }[kind]  # fmt: skip
    v, q, found = torch.zeros_like(u[0]), torch.zeros_like(u[0]), []
    for t, u_t in enumerate(u):
        k = t % every + 1
        v = mu * v + s * u_t
        if kind == "nag":
            found.append(s * u_t + (k - 1) / (k + 2) * (s * u_t - s * u[t - 1]))
        elif kind in ("adam", "rmsprop"):
            q = beta * q + (1 - beta) * u_t**2
            found.append(v / torch.sqrt(q + EPS))
        else:
            found.append(v)
    return torch.stack(found)


@kinds
def test_values_and_gradients_are_those_of_the_loop(kind):
    module, x = made(kind), torch.randn(T, B, I, dtype=F64, requires_grad=True)
    bias = [module.bias_ih_l0, module.bias_hh_l0] if module.bias else [None, None]
    u = torch.nn.functional.linear(x, module.weight_ih_l0, bias[0])
    state = (x.new_zeros(B, H),) * (2 if kind == "momentum" else 1)
    params = (module.modrelu_bias_l0,) if kind == "rmsprop" else ()
    R = module.weight_hh_l0
    h, _ = reference.recurrence(module._cell, filtered(kind, u), R, state, bias=bias[1], params=params)
    output, _ = module(x)
    torch.testing.assert_close(output, h)
    leaves, weight = [x, *module.parameters()], torch.randn_like(h)
    grads = [torch.autograd.grad((y * weight).sum(), leaves, retain_graph=True) for y in (output, h)]
    torch.testing.assert_close(*grads)


def states(hidden):
    return hidden if isinstance(hidden, tuple) else (hidden,)


@kinds
def test_layouts_layers_directions_and_resets(kind):
    """Compares with each sequence alone, each episode alone, and two halves that are run one after the other."""
    x, starts, lengths = torch.randn(T, B, I, dtype=F64), torch.zeros(T, B, dtype=torch.bool), [4, 9, 6]
    starts[5, 1] = starts[2, 0] = starts[3, 2] = True
    module = made(kind, num_layers=2, bidirectional=True)
    packed, last = module(pack_padded_sequence(x, lengths, enforce_sorted=False), reset=starts)
    padded, _ = pad_packed_sequence(packed)
    for b, length in enumerate(lengths):
        output, final = module(x[:length, b], reset=starts[:length, b])
        torch.testing.assert_close(padded[:length, b], output)
        torch.testing.assert_close([part[:, b] for part in states(last)], list(states(final)))
    first = made(kind, num_layers=2, bidirectional=True, batch_first=True)
    first.load_state_dict(module.state_dict())
    torch.testing.assert_close(first(x.transpose(0, 1), reset=starts.T)[0].transpose(0, 1), module(x, reset=starts)[0])
    one = made(kind)
    whole, last = one(x)
    episodes = one(x, reset=torch.arange(T)[:, None].expand(T, B) == 4)[0]
    torch.testing.assert_close(episodes, torch.cat([one(x[:4])[0], one(x[4:])[0]]))
    _, between = one(x[:4])  # Nesterov's schedule restarts at 4 too
    with torch.no_grad():
        rest, end = one(x[4:5], between)
        torch.testing.assert_close(rest, whole[4:5].detach())
        rest, end = one(x[5:], end)
    if kind != "nag":
        torch.testing.assert_close(rest, whole[5:].detach())
        torch.testing.assert_close(end, last)
        packed, again = one(pack_padded_sequence(x[4:], [5, 5, 5], enforce_sorted=False), between)
        torch.testing.assert_close((pad_packed_sequence(packed)[0], again), (whole[4:], last))
        plain = between[:2] if isinstance(one, LSTM) else between[0]
        assert not torch.allclose(one(x[4:], plain)[0], whole[4:])


def joint(module, x, h, v):
    """One step of (h, v) and its Jacobian."""

    def step(h, v):
        _, (h_n, v_n) = module(x.view(1, 1, -1), (h.view(1, 1, -1), v.view(1, 1, -1)))
        return torch.cat([h_n.flatten(), v_n.flatten()])

    J = torch.cat(torch.autograd.functional.jacobian(step, (h, v)), dim=1)
    return step(h, v).detach().split(H), J


def test_momentum_adds_h_eigenvalues_mu_and_h_exponents_ln_mu():
    """This holds exactly for the joint state (h, v), in addition to the eigenvalues of D R."""
    module, mu = MomentumRNN(I, H, mu=0.7, dtype=F64), 0.7
    h, v = torch.randn(2, H, dtype=F64)
    Q, exponents = torch.eye(2 * H, dtype=F64), torch.zeros(2 * H, dtype=F64)
    for _ in range(50):
        (h, v), J = joint(module, torch.randn(I, dtype=F64), h, v)
        D = torch.diag(1 - h**2)
        eigenvalues = torch.linalg.eigvals(J)
        is_mu = (eigenvalues - mu).abs() < 1e-6
        assert is_mu.sum() == H
        wanted = torch.linalg.eigvals(D @ module.weight_hh_l0.detach())
        distances = (eigenvalues[~is_mu].unsqueeze(1) - wanted).abs()
        assert distances.amin(0).max() < 1e-8
        Q, stretch = torch.linalg.qr(J @ Q)
        exponents += stretch.diagonal().abs().log() / 50
    torch.testing.assert_close(exponents[H:], torch.full((H,), math.log(mu), dtype=F64), rtol=1e-12, atol=0)
    assert (exponents[:H] - math.log(mu)).abs().min() > 1e-3


def test_momentum_does_not_enter_the_gradient_through_h():
    """dL/dh_0 is the product of the D R, because v does not depend on h."""
    module, x = MomentumRNN(I, H, dtype=F64), torch.randn(T, 1, I, dtype=F64)
    h0 = torch.randn(1, 1, H, dtype=F64, requires_grad=True)
    output, _ = module(x, (h0, torch.randn(1, 1, H, dtype=F64)))
    wanted = torch.ones(H, dtype=F64)
    for h in reversed(output.detach()[:, 0]):
        wanted = (wanted * (1 - h**2)) @ module.weight_hh_l0.detach()
    (grad,) = torch.autograd.grad(output[-1].sum(), h0)
    torch.testing.assert_close(grad.flatten(), wanted)


def test_the_slope_at_zero_is_ten_times_the_step():
    """With the published epsilon of 1e-16 it would be 6e7 for s = 0.6."""
    module = RNN(1, 1, nonlinearity="identity", bias=False, filter=Adam(0.6, 0.6, 0.9), dtype=F64)
    module.weight_ih_l0.data.fill_(1)
    x = torch.zeros(1, 1, 1, dtype=F64, requires_grad=True)
    (slope,) = torch.autograd.grad(module(x)[0].sum(), x)
    assert slope.item() == pytest.approx(0.6 / math.sqrt(EPS)) == pytest.approx(6.0)


@kinds
@pytest.mark.parametrize("shape", [(0, B), (T, 0)])
def test_sizes_of_nothing(kind, shape):
    output, last = made(kind, LSTM)(torch.randn(*shape, I, dtype=F64), reset=torch.zeros(shape, dtype=torch.bool))
    assert output.shape == (*shape, H)
    assert all(part.shape[:2] == (1, shape[1]) for part in last)


def test_what_equals_what():
    x = torch.randn(T, B, I, dtype=F64)
    for cls, first, second in (
        (LSTM, {}, {"filter": Momentum(0.0, 1.0)}),
        (GRU, {"filter": RMSprop(0.5, 0.9)}, {"filter": Adam(0.0, 0.5, 0.9)}),
        (RNN, {"filter": Momentum(0.0, 0.5)}, {"filter": NAG(0.5, 1)}),
    ):
        one, other = (cls(I, H, dtype=F64, **options) for options in (first, second))
        other.load_state_dict(one.state_dict())
        torch.testing.assert_close(one(x)[0], other(x)[0])
    one, other = MomentumLSTM(I, H, mu=0.3, s=0.9, dtype=F64), LSTM(I, H, filter=Momentum(0.3, 0.9), dtype=F64)
    other.load_state_dict(one.state_dict())
    torch.testing.assert_close(one(x), other(x))


@pytest.mark.parametrize(
    "options",
    [
        {"num_heads": 2},
        {"proj_size": 3},
        {"zoneout": 0.2, "recurrent_dropout": 0.3, "num_layers": 2, "dropout": 0.2},
        {"recurrent_grad_dropout": 0.5, "bidirectional": True},
    ],
)
def test_other_options_stay(options):
    """In training and with the same seed, a filter without effect changes nothing."""
    plain, module = LSTM(I, H, dtype=F64, **options), LSTM(I, H, dtype=F64, filter=Momentum(0.0, 1.0), **options)
    module.load_state_dict(plain.state_dict())
    results = []
    for each in (plain, module):
        torch.manual_seed(1)
        output, _ = each(torch.ones(T, B, I, dtype=F64))
        results.append((output, torch.autograd.grad(output.square().sum(), list(each.parameters()))))
    torch.testing.assert_close(*results)


def test_copies_compiler_autocast_and_explain():
    module, x = MomentumLSTM(I, H), torch.randn(T, B, I)
    wanted, _ = module(x)
    for other in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert torch.equal(other(x)[0], wanted)
    with torch._dynamo.config.patch(allow_rnn=True):
        torch.testing.assert_close(torch.compile(module, fullgraph=True, backend="eager")(x)[0], wanted)
    with torch.autocast("cpu", torch.bfloat16):
        output, (_, _, v) = module(x)
        again, _ = module(x, (torch.zeros(1, B, H), torch.zeros(1, B, H), v * 0))
    assert (output.dtype, v.dtype) == (torch.bfloat16, torch.float32)
    for each in (output, again):  # a v of zeros equals no v, but is computed in another way
        torch.testing.assert_close(each.float(), wanted, rtol=0.02, atol=0.01)
    (choice,) = rnnkern.ops.explain(module, x)
    assert choice.implementation == ("cpu" if rnnkern._extension.available else "reference")
    assert rnnkern.restore(RNN(I, H, filter=NAG(1.0, 3))).left[0].reason.startswith("torch.nn has no filter=")
    assert str(module) == "rnnkern.nn.MomentumLSTM(4, 6, filter=Momentum(mu=0.6, s=0.6))"


@pytest.mark.parametrize(
    ("make", "error", "said"),
    [
        (lambda: Momentum(0.9, "s"), TypeError, "Momentum: `s` must be a number, got 's'"),
        (lambda: Momentum(True, 1.0), TypeError, "Momentum: `mu` must be a number, got True"),
        (lambda: NAG(1.0, 2.5), TypeError, "NAG: `restart_every` must be an int, got 2.5"),
        (lambda: Momentum(1.0, 1.0), ValueError, r"Momentum: `mu` must be in \[0, 1\), got 1.0"),
        (lambda: Adam(0.5, 1.0, 1.0), ValueError, r"Adam: `beta` must be in \[0, 1\), got 1.0"),
        (lambda: RMSprop(0.0, 0.9), ValueError, "RMSprop: `s` must be positive, got 0.0"),
        (lambda: NAG(1.0, 0), ValueError, "NAG: `restart_every` must be at least 1, got 0"),
        (lambda: LSTM(I, H, filter=(0.9, 1.0)), TypeError, r"filter must be a filter of rnnkern.nn.filters, got \(0.9"),
        (lambda: LSTM(I, H, filter=Momentum(0.9, 1.0), layer_norm=True), ValueError, "must be False with a filter"),
    ],
)
def test_wrong_options(make, error, said):
    with pytest.raises(error, match=said):
        make()


def test_wrong_states():
    module, x, h = MomentumRNN(I, H), torch.randn(T, B, I), torch.zeros(1, B, H)
    with pytest.raises(RuntimeError, match=r"Expected v of size \(1, 3, 6\), got \[1, 3, 4\]"):
        module(x, (h, torch.zeros(1, B, 4)))
    with pytest.raises(ValueError, match="hx must have 1 or 2 tensors, got 3"):
        module(x, (h, h, h))
