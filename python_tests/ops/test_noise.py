"""Zoneout and recurrent dropout: properties of the random draws.

Other tests compare kernels with the reference, with samples that have both."""

import math
from functools import partial

import pytest
import torch

from python_tests.samples import outputs_and_gradients, recurrence_sample
from rnnkern.ops import explain, recurrence
from rnnkern.reference._noise import DROPOUT, hits, philox, zoneout_stream
from rnnkern.testing import saved_bytes

SEED = torch.tensor(2**40 + 17)


def test_philox_has_a_known_answer():
    """A test vector that its authors published."""
    counter, key = (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), (0xA4093822, 0x299F31D0)
    words = philox(tuple(map(torch.tensor, counter)), tuple(map(torch.tensor, key)))
    assert " ".join(f"{int(word):08x}" for word in words) == "d16cfe09 94fdcceb 5001e420 24126ea1"


def kept_by_zoneout(rate, steps=50, batch=20, hidden=37, seed=SEED):
    """(T, B, H): whether a unit kept its previous value. Without zoneout, each step would set h to the number of the
    step."""
    u = torch.arange(1.0, steps + 1)[:, None, None].expand(steps, batch, hidden)
    h0 = torch.zeros(batch, hidden)
    h, _ = recurrence("identity", u, torch.zeros(hidden, hidden), (h0,), zoneout=rate, seed=seed)
    return h != u


def dropped(rate, batch=20, hidden=37, seed=SEED, steps=1):
    """(T, B, H): the result of each step for a state of ones, multiplied by the mask only."""
    u, h0 = torch.zeros(steps, batch, hidden), torch.ones(batch, hidden)
    return recurrence("identity", u, torch.eye(hidden), (h0,), dropout=rate, seed=seed)[0]


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_as_many_are_drawn_as_the_rate_says(rate):
    for drawn in (kept_by_zoneout(rate), dropped(rate, 300, 100) == 0):
        deviation = math.sqrt(rate * (1 - rate) / drawn.numel())
        assert abs(drawn.float().mean() - rate) < 4 * deviation


def test_draws_do_not_depend_on_each_other():
    kept = kept_by_zoneout(0.5).float() * 2 - 1
    other = kept_by_zoneout(0.5, seed=SEED + 1).float() * 2 - 1
    mask = (dropped(0.5)[0] == 0).float() * 2 - 1
    pairs = {
        "steps": (kept[1:], kept[:-1]),
        "sequences": (kept[:, 1:], kept[:, :-1]),
        "units": (kept[..., 1:], kept[..., :-1]),
        "quarters of the units": (kept[..., :27], kept[..., 10:]),
        "seeds": (kept, other),
        "zoneout and dropout": (kept[0], mask),
    }
    for name, (a, b) in pairs.items():
        assert abs((a * b).mean()) < 4 / math.sqrt(a.numel()), name
    like = torch.zeros(20, 37)
    streams = [hits(SEED, 0.5, stream, 0, like) for stream in (zoneout_stream(0), zoneout_stream(1), DROPOUT)]
    assert all((a == b).float().mean() < 0.6 for a, b in zip(streams, streams[1:] + streams[:1], strict=True))


def test_one_mask_for_all_steps_of_a_sequence():
    left = dropped(0.25, steps=4)
    assert set(left[0].unique().tolist()) == {0.0, torch.tensor(4 / 3).item()}
    torch.testing.assert_close(left, torch.stack([left[0] ** t for t in range(1, 5)]))
    assert not torch.equal(left[0, 0], left[0, 1])


def test_without_a_seed_zoneout_takes_the_mean_and_nothing_is_dropped():
    u, h0, R = torch.randn(1, 3, 5), torch.randn(3, 5), torch.zeros(5, 5)
    h, _ = recurrence("identity", u, R, (h0,), zoneout=0.25, dropout=0.5)
    torch.testing.assert_close(h[0], 0.25 * h0 + 0.75 * u[0])
    assert torch.equal(dropped(0.5, seed=None), torch.ones(1, 20, 37))


def test_a_rate_too_small_to_draw_is_none():
    sample = recurrence_sample("tanh", dtype=torch.float32, requires_grad=True)
    plain = outputs_and_gradients(recurrence, sample)
    for seed in (None, SEED):
        kwargs = sample.kwargs | {"zoneout": 2.0**-40, "dropout": 2.0**-40, "seed": seed}
        tiny = outputs_and_gradients(recurrence, sample._replace(kwargs=kwargs))
        assert all(torch.equal(plain[name], tiny[name]) for name in plain)


@pytest.mark.parametrize(("cell", "mean"), [("lstm", 0), ("gru", 0), ("tanh", 1)])
def test_no_mask_is_kept_for_the_backward(cell, mean):
    """With the mean or `keep`, h before it is saved, but only for cells whose backward pass needs it and cannot compute
    it."""

    def kept(**noise):
        sample = recurrence_sample(cell, 5, 3, 4, requires_grad=True)
        return saved_bytes(lambda: recurrence(*sample.args, **sample.kwargs, **noise))

    plain, rows = kept(), 5 * 3 * 8
    assert kept(zoneout=0.3, dropout=0.3, seed=SEED) == plain + SEED.nbytes
    assert kept(zoneout=0.3) == plain + mean * rows * 4
    assert kept(keep=torch.rand(5, 3, dtype=torch.float64)) == plain + mean * rows * 4 + rows


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"zoneout": 1.0}, ValueError, r"`zoneout` must be in \[0, 1\), got 1.0"),
        ({"zoneout": (0.1, -0.1)}, ValueError, r"`zoneout` must be in \[0, 1\), got -0.1"),
        ({"zoneout": (0.1,)}, ValueError, "`zoneout` must be a float or 2 floats, one per state"),
        ({"dropout": math.nan}, ValueError, r"`dropout` must be in \[0, 1\), got nan"),
        ({"dropout": "0.5"}, TypeError, "`dropout` must be a float, got str"),
        ({"zoneout": True}, TypeError, "`zoneout` must be a float, got bool"),
        ({"dropout": 0.5, "seed": 1}, TypeError, "`seed` must be an int64 tensor, got int"),
        ({"dropout": 0.5, "seed": SEED.float()}, TypeError, "`seed` must be an int64 tensor, got torch.float32"),
        ({"dropout": 0.5, "seed": SEED.to("meta")}, TypeError, "`seed` must be on cpu like `u`, got meta"),
        ({"seed": SEED.expand(2)}, ValueError, r"`seed` must have one element, got \(2,\)"),
    ],
)
def test_what_is_refused(change, error, message):
    sample = recurrence_sample("lstm")
    for face in (recurrence, partial(explain, recurrence)):
        with pytest.raises(error, match=message):
            face(*sample.args, **sample.kwargs, **change)
