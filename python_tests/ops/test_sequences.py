"""What a sequence means, over the elementwise recurrences of the table: two halves are the whole, a packed sequence is
that sequence alone, and NaN ends at a reset."""

import pytest
import torch

from python_tests.samples.operators import Call, draw, outputs
from rnnkern.ops._scan.moment_filter import EVERY

NAMES = ("linear_scan", "moment_filter", "givens_recurrence")
STATES = {"linear_scan": ["state"], "moment_filter": ["v0", "q0"], "givens_recurrence": ["state"]}
SIZES = {"linear_scan": (5,), "moment_filter": (5,), "givens_recurrence": (4, 3)}
"""Besides steps and samples."""


def of_rows(call: Call, rows: int, choose) -> Call:
    """The call with the chosen part of each tensor that has so many rows."""

    def part(tensors):
        return {
            key: choose(x) if isinstance(x, torch.Tensor) and x.dim() > 1 and len(x) == rows else x
            for key, x in tensors.items()
        }

    return call._replace(tensors=part(call.tensors), options=part(call.options))


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_two_halves_are_the_whole(name, reset, reverse):
    cut = 2 * EVERY  # so that blocks of steps, and therefore all bits, are equal
    call = draw(name, cut + 7, 2, *SIZES[name], reset=reset, reverse=reverse)
    whole, *last = outputs(call)
    state, found = {}, {}
    halves = (slice(0, cut), slice(cut, None))
    for half in reversed(halves) if reverse else halves:
        part = of_rows(call, cut + 7, lambda x, half=half: x[half])
        found[half.start], *state = outputs(part.with_tensors(dict(zip(STATES[name], state, strict=False))))
    assert torch.equal(torch.cat([found[0], found[cut]]), whole)
    assert all(map(torch.equal, state, last))


@pytest.mark.parametrize("option", ["packed", "packed-reset-reverse"])
@pytest.mark.parametrize("name", NAMES)
def test_what_packed_means(name, option):
    """Equal to each sequence alone, with its own length."""
    call = draw(name, 2 * EVERY + 3, 4, *SIZES[name], option=option)
    sizes, reset = call.options["batch_sizes"], call.options.get("reset")
    whole, *last = outputs(call)
    begins = torch.cat([torch.zeros(1, dtype=torch.long), sizes.cumsum(0)])
    for b in range(4):
        rows = [int(begins[t]) + b for t in range(len(sizes)) if sizes[t] > b]
        own = {"batch_sizes": None, "reset": None if reset is None else reset[: len(rows), b : b + 1]}
        alone = of_rows(call, len(whole), lambda x, rows=rows: x[rows].unsqueeze(1))
        states = {key: call.tensors[key][b : b + 1] for key in STATES[name]}
        found, *state = outputs(alone.with_tensors(states)._replace(options=call.options | own))
        assert torch.equal(found.squeeze(1), whole[rows])
        assert all(torch.equal(mine, other[b : b + 1]) for mine, other in zip(state, last, strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_nan_stays_in_its_sequence_and_ends_at_a_reset(name):
    call = draw(name, 40, 3, *SIZES[name])
    given = next(key for key in call.tensors if key in ("u", "x"))
    call.tensors[given][2, 0, 1] = torch.nan
    reset = torch.zeros(40, 3, dtype=torch.bool)
    reset[20, 0] = True
    y, *_ = outputs(call._replace(options=call.options | {"reset": reset}))
    wanted = torch.zeros(40, 3, dtype=torch.bool)
    wanted[2:20, 0] = True
    assert torch.equal(y.isnan().any(-1), wanted)
    if name != "givens_recurrence":  # which mixes channels
        assert y[..., [0, 2, 3, 4]].isfinite().all()
