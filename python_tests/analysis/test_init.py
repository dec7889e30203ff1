"""Initial values with chosen gains of the gates, and their description."""

import math

import pytest
import torch

import rnnkern.nn
from rnnkern.analysis import Gains, expected_slow_fraction, fixed_points, shaping
from rnnkern.nn.init import describe_initialisation, gate_variance_

F64 = torch.float64
GRU, LSTM = Gains(3.0, 5.0, 0.1), Gains(h=1.0, f=2.0, i=3.0, o=4.0)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


# ---- gate_variance_


def test_the_rows_of_each_gate_have_its_gain():
    """Rows of PyTorch: r, z, n and i, f, g, o."""
    gru = gate_variance_(rnnkern.nn.GRU(2, 256), GRU, generator=generator())
    for rows, gain in zip(gru.weight_hh_l0.chunk(3), (0.1, 5.0, 3.0), strict=True):
        assert rows.std().item() == pytest.approx(gain / 16, rel=0.01)  # of h: 0.1875
        assert abs(rows.mean()) < 4 * gain / 16 / 256
    lstm = gate_variance_(torch.nn.LSTM(2, 128), LSTM, generator=generator())
    for rows, gain in zip(lstm.weight_hh_l0.chunk(4), (3.0, 2.0, 1.0, 4.0), strict=True):
        assert rows.std().item() == pytest.approx(gain / 128**0.5, rel=0.02)
    rnn = gate_variance_(rnnkern.nn.RNN(2, 128), Gains(1.5), generator=generator())
    assert rnn.weight_hh_l0.std().item() == pytest.approx(1.5 / 128**0.5, rel=0.02)


def test_biases_have_their_mean_and_variance_and_input_weights_stay():
    lstm = rnnkern.nn.LSTM(3, 1000, num_heads=50)
    before = lstm.weight_ih_l0.detach().clone()
    gate_variance_(lstm, LSTM, {"f": 1.0, "o": -0.5}, {"f": 0.25}, generator=generator())
    i, f, h, o = lstm.bias_ih_l0.chunk(4)
    assert f.mean().item() == pytest.approx(1, abs=0.06)
    assert f.std().item() == pytest.approx(0.5, rel=0.08)
    assert (i == 0).all()
    assert (h == 0).all()
    assert (o == -0.5).all()
    assert not lstm.bias_hh_l0.any()
    assert torch.equal(lstm.weight_ih_l0, before)


def test_the_fan_is_the_number_of_columns():
    heads = gate_variance_(rnnkern.nn.LSTM(2, 96, num_heads=3), LSTM, generator=generator())
    assert heads.weight_hh_l0.shape[-1] == 32
    forget = heads.weight_hh_l0.unflatten(-2, (4, -1))[..., 1, :, :]
    assert forget.std().item() == pytest.approx(2 / 32**0.5, rel=0.03)
    projected = gate_variance_(torch.nn.LSTM(2, 128, proj_size=16), LSTM, generator=generator())
    assert projected.weight_hh_l0.chunk(4)[1].std().item() == pytest.approx(2 / 16**0.5, rel=0.05)


def test_draws_are_made_in_float64_and_rounded_once():
    layers = [
        gate_variance_(rnnkern.nn.GRU(2, 20, dtype=dtype), GRU, {"z": 1.0}, {"z": 0.3}, generator=generator())
        for dtype in (F64, torch.float32, torch.bfloat16)
    ]
    for name, wanted in layers[0].named_parameters():
        if "weight_ih" not in name:
            for layer in layers[1:]:
                found = getattr(layer, name)
                assert torch.equal(found, wanted.to(found.dtype)), name


def test_chosen_layers_in_both_directions():
    gru = rnnkern.nn.GRU(2, 8, num_layers=2, bidirectional=True)
    before = {name: p.detach().clone() for name, p in gru.named_parameters()}
    assert gate_variance_(gru, GRU, layers=[1], generator=generator()) is gru
    for name, p in gru.named_parameters():
        assert torch.equal(p, before[name]) == ("_l0" in name or "weight_ih" in name), name
    cell = gate_variance_(rnnkern.nn.GRUCell(2, 8), GRU, generator=generator())
    assert not cell.bias_hh.any()


# ---- describe_initialisation


@pytest.mark.parametrize("reset_gate", ["before", "after"])
def test_the_description_of_a_gru(reset_gate):
    gru = rnnkern.nn.GRU(3, 256, num_layers=2, reset_gate=reset_gate)
    gate_variance_(gru, Gains(3.0, 10.0, 2.0), {"z": 1.0}, {"r": 0.3}, layers=[1], generator=generator())
    found = describe_initialisation(gru, layer=1)
    assert dict(found.gains) == pytest.approx({"h": 3.0, "z": 10.0, "r": 2.0}, rel=0.01)
    assert found.biases == pytest.approx({"h": 0.0, "z": 1.0, "r": 0.0}, abs=0.1)
    assert found.variances == pytest.approx({"h": 0.0, "z": 0.0, "r": 0.3}, abs=0.06)
    assert not found.zero_point_stable
    assert found.phase == "chaos"
    cell = "gru_reset_before" if reset_gate == "before" else "gru"
    (C,) = fixed_points(found.gains, found.biases, found.variances, cell=cell)
    assert (found.C_h, found.rho_0) == (C, shaping(C, found.gains, found.biases, found.variances, cell=cell))
    assert found.edge > 1
    about = expected_slow_fraction(found.C_h, found.gains, found.biases, found.variances, cell=cell)
    assert found.slow_fraction == pytest.approx(about, abs=0.1)  # C_h of the steady state, not of the fixed point


def test_the_description_of_an_elman_network_and_a_cell_module():
    rnn = gate_variance_(torch.nn.RNN(1, 200), Gains(0.9), generator=generator())
    found = describe_initialisation(rnn)
    assert (found.zero_point_stable, found.phase, found.C_h, found.slow_fraction) == (True, "zero", 0, 0)
    assert found.rho_0 == pytest.approx(found.gains.h)
    assert found.edge == pytest.approx(found.gains.h, rel=1e-3)
    assert (
        describe_initialisation(rnnkern.nn.GRUCell(1, 8)).phase == "zero"
    )  # PyTorch's initial values have small gains


def test_the_description_of_an_lstm():
    lstm = gate_variance_(rnnkern.nn.LSTM(1, 64), Gains(1.0, 1.0, 1.0, 1.0), {"f": 1.0}, generator=generator())
    for a_h in (1.07, 1.08):  # .7310586 + .25 a_h < 1
        with torch.no_grad():  # exactly this gain
            rows = lstm.weight_hh_l0.unflatten(0, (4, -1))[2]
            rows *= a_h / (rows.square().mean().sqrt() * 8)
        found = describe_initialisation(lstm)
        assert found.gains.h == pytest.approx(a_h, rel=1e-6)
        assert (found.zero_point_stable, found.phase, found.rho_0) == (a_h < 1.0757657, None, None)


def test_heads_and_missing_biases():
    found = describe_initialisation(gate_variance_(rnnkern.nn.LSTM(1, 96, num_heads=3), LSTM, generator=generator()))
    assert dict(found.gains) == pytest.approx(dict(LSTM), rel=0.05)
    found = describe_initialisation(gate_variance_(rnnkern.nn.GRU(1, 64, bias=False), GRU, generator=generator()))
    assert found.biases == dict.fromkeys("rzh", 0.0)


def test_descriptions_are_reproducible():
    torch.manual_seed(0)
    gru = gate_variance_(rnnkern.nn.GRU(1, 32), GRU)
    first = describe_initialisation(gru)
    state = torch.get_rng_state()
    assert describe_initialisation(gru) == first
    assert torch.equal(torch.get_rng_state(), state)
    assert math.isfinite(first.edge)
