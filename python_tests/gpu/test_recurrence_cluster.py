"""The cluster kernel against the reference: every cell and option at small sizes, every compiled tile, and any
schedule."""

import pytest
import torch

from python_tests.gpu.recurrences import off_kinks
from python_tests.samples import check_recurrence, covering_rows, outputs_and_gradients, recurrence_sample
from rnnkern.ops._recurrence.autograd import KERNEL_CELLS, RESIDENT_CELLS

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
SIZES = {torch.float32: (256, 384, 512), torch.bfloat16: (256, 384, 512, 640, 768, 1024)}
TILES = {1: "modrelu", 3: "gru", 4: "lstm"}
"""Tiles differ by the number of gates, and by a second product."""

COVERING = covering_rows(
    {
        "cell": list(RESIDENT_CELLS),
        "dtype": DTYPES,
        "steps": [3, 0, 1, 2],
        "batch": [3, 0, 1, 11, 17],
        "hidden": [129, 200, 256],
        "bias": [True, False],
        "packed": [False, True],
        "reset": [False, True],
        "reverse": [False, True],
        "grad_scale": [0, 1, 2],
        "save_gates": [True, False, None],
        "seed": [0, 1, 2, 3, 4, 5],
    }
)


def name_of(row):
    return "-".join(f"{key}={str(value).removeprefix('torch.')}" for key, value in row.items())


def tiles():
    """Each number of gates at each size, and the cell with a second product; alternately a full size and an odd one."""
    for dtype, sizes in SIZES.items():
        for k, size in enumerate(sizes):
            for cell in (*TILES.values(), "gru_reset_before"):
                if size <= 768 or KERNEL_CELLS[cell]["gates"] == 1:
                    yield cell, dtype, size - 7 * (k % 2)


def entries(cell, *ways):
    return {f"recurrence/cuda/{way}/{cell}/cluster": 1 for way in ways}


def check(place, sample, save_gates=None):
    op = lambda *args, **kwargs: place(*args, **kwargs, save_gates=save_gates)  # noqa: E731
    cell = sample.args[0]
    entered = place.entered(lambda: check_recurrence(op, [place.sample(off_kinks(sample))]))
    assert entered == entries(cell, "forward", "backward")


@pytest.mark.parametrize("row", COVERING, ids=name_of)
def test_awkward_sizes(row, clusters):
    row = dict(row)
    save_gates, seed = row.pop("save_gates"), row.pop("seed")
    clusters.set_seed(seed)
    check(clusters, recurrence_sample(**row, requires_grad=True), save_gates)


@pytest.mark.parametrize(("cell", "dtype", "hidden"), list(tiles()))
def test_every_tile(cell, dtype, hidden, clusters):
    """Three sequences on one cluster, the number of clusters that the interpreter simulates."""
    clusters.set_facts(*clusters.facts[:4], 1, 1)
    found = clusters.plan(cell, dtype, 3, 3, hidden)
    assert 0 <= found["padded"] - hidden <= 7
    clusters.set_seed(hidden)
    check(clusters, recurrence_sample(cell, 3, 3, hidden, dtype=dtype, packed=True, reverse=True, requires_grad=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("cell", ["tanh", "lstm", "gru_reset_before"])
def test_the_first_call(cell, dtype, clusters):
    check(clusters, recurrence_sample(cell, 3, 3, 130, dtype=dtype, requires_grad=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("cell", ["modrelu", "lstm", "gru", "gru_reset_before"])
def test_everything_at_once(cell, dtype, clusters):
    options = {"packed": True, "reset": True, "reverse": True, "grad_scale": 1}
    check(clusters, recurrence_sample(cell, 3, 9, 133, **options, dtype=dtype, requires_grad=True))


def test_several_chunks(clusters):
    """258 steps; a chunk has 256."""
    assert clusters.name == "cuda" or clusters.plan("euler", torch.float32, 258, 1, 129)["chunk_steps"] == 256
    check(clusters, recurrence_sample("euler", 258, 1, 129, reset=True, dtype=torch.float32, requires_grad=True))


# ---- two groups of sequences on a cluster, processed alternately

TWO_GROUPS = [
    (cell, dtype, (5 if dtype == torch.float32 else 9) + (3 * k + j) % (4 if dtype == torch.float32 else 8))
    for k, cell in enumerate(RESIDENT_CELLS)
    for j, dtype in enumerate(DTYPES)
]


def on_one_cluster(clusters, cell, dtype, batch, hidden, groups=2):
    """Runs on a simulated device on which only one cluster can run."""
    clusters.set_facts(*clusters.facts[:4], 1, 1)
    found = clusters.plan(cell, dtype, 3, batch, hidden)
    at_once = 4 if dtype == torch.float32 else 8
    assert clusters.name == "cuda" or found["forward"]["columns"] == batch > at_once
    assert clusters.name == "cuda" or found["backward"]["columns"] == min(batch, groups * at_once)


@pytest.mark.parametrize(("cell", "dtype", "batch"), TWO_GROUPS)
def test_more_rows_than_a_product_has_take_turns(cell, dtype, batch, clusters):
    """One to eight additional rows, or up to four in exact float32; packed, so that the second group ends before the
    first."""
    on_one_cluster(clusters, cell, dtype, batch, 133)
    options = {"packed": True, "reset": True, "reverse": batch % 2 == 0, "grad_scale": 1}
    clusters.set_seed(batch)
    check(clusters, recurrence_sample(cell, 4, batch, 133, **options, dtype=dtype, requires_grad=True))


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("cell", ["lstm", "gru_reset_before"])
def test_a_group_without_steps(cell, reverse, clusters):
    """The second group has sequences of length 0 only, and the first loses sequences at each step."""
    on_one_cluster(clusters, cell, torch.bfloat16, 12, 133)
    sample = recurrence_sample(cell, 3, 12, 133, reverse=reverse, dtype=torch.bfloat16, requires_grad=True)
    name, u, R, state = sample.args
    few = torch.tensor([6, 4, 1])
    alone = (name, torch.cat([u[t, :n] for t, n in enumerate(few)]).detach().requires_grad_(), R, state)
    check(clusters, sample._replace(args=alone, kwargs=sample.kwargs | {"batch_sizes": few}))


@pytest.mark.parametrize(
    ("cell", "hidden", "batch", "groups"), [("lstm", 768, 9, 1), ("gru", 761, 10, 2), ("modrelu", 1024, 9, 2)]
)
def test_two_groups_on_the_largest_tiles(cell, hidden, batch, groups, clusters):
    """The backward pass of an LSTM with 768 units has shared memory for one group only, so it uses more clusters."""
    on_one_cluster(clusters, cell, torch.bfloat16, batch, hidden, groups)
    check(clusters, recurrence_sample(cell, 2, batch, hidden, dtype=torch.bfloat16, packed=True, requires_grad=True))


def test_two_groups_in_several_chunks(clusters):
    """258 steps, where a chunk has 256; the second group has no steps in the last chunk."""
    on_one_cluster(clusters, "euler", torch.float32, 6, 129)
    sample = recurrence_sample("euler", 258, 6, 129, packed=True, dtype=torch.float32, requires_grad=True)
    name, u, R, state = sample.args
    sizes = torch.tensor([6, 4] + [1] * 256)
    u = torch.randn(int(sizes.sum()), u.shape[-1]).requires_grad_()
    check(clusters, sample._replace(args=(name, u, R, state), kwargs=sample.kwargs | {"batch_sizes": sizes}))


# ---- the same bits


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("cell", ["euler", "lstm", "gru_reset_before"])
def test_the_same_bits_by_any_schedule(cell, dtype, clusters):
    options = {"packed": True, "reset": True}
    sample = clusters.sample(recurrence_sample(cell, 3, 3, 140, **options, dtype=dtype, requires_grad=True))
    wanted = outputs_and_gradients(clusters, sample)
    for seed in range(1, 6):
        clusters.set_seed(seed)
        for name, value in outputs_and_gradients(clusters, sample).items():
            assert torch.equal(value, wanted[name]), name


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("cell", ["lstm", "gru_reset_before"])
def test_two_groups_give_the_bits_of_many_clusters(cell, dtype, clusters):
    """For any schedule."""
    batch = 7 if dtype == torch.float32 else 11
    options = {"packed": True, "reset": True}
    sample = clusters.sample(recurrence_sample(cell, 4, batch, 140, **options, dtype=dtype, requires_grad=True))
    wanted = outputs_and_gradients(clusters, sample)
    on_one_cluster(clusters, cell, dtype, batch, 140)
    for seed in range(1, 5):
        clusters.set_seed(seed)
        for name, value in outputs_and_gradients(clusters, sample).items():
            assert torch.equal(value, wanted[name]), name


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("cell", ["tanh", "lstm", "gru", "gru_reset_before"])
def test_neighbours_change_no_bit(cell, dtype, clusters):
    """The result of a sequence does not depend on the other sequences, on the number of clusters, or on its
    position."""
    sample = clusters.sample(recurrence_sample(cell, 3, 9, 140, dtype=dtype, requires_grad=True))
    name, u, R, state = sample.args

    def run(rows):
        own = [x.detach()[..., rows, :].requires_grad_() for x in (u, *state)]
        h, final = clusters(name, own[0], R, tuple(own[1:]), **sample.kwargs, save_gates=True)
        return (h, *final, *torch.autograd.grad(h.sum() + final[-1].sum(), own))

    whole = run(list(range(9)))
    for rows in ([8], [2, 5, 7]):
        for alone, among in zip(run(rows), whole, strict=True):
            assert torch.equal(alone, among[..., rows, :])


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("cell", ["tanh", "lstm", "gru_reset_before"])
def test_two_halves_equal_one_whole(cell, reverse, clusters):
    sample = clusters.sample(recurrence_sample(cell, 5, 3, 132, reset=True, reverse=reverse, dtype=torch.float32))
    name, u, R, state = sample.args
    kwargs = dict(sample.kwargs)
    reset = kwargs.pop("reset")
    whole = clusters(name, u, R, state, reset=reset, **kwargs)
    first, second = (slice(3, None), slice(3)) if reverse else (slice(3), slice(3, None))
    h1, middle = clusters(name, u[first], R, state, reset=reset[first], **kwargs)
    h2, end = clusters(name, u[second], R, middle, reset=reset[second], **kwargs)
    torch.testing.assert_close((torch.cat([h2, h1] if reverse else [h1, h2]), end), whole, rtol=0, atol=0)


# ---- other tests


def test_inference_keeps_nothing_and_gives_the_same(clusters):
    sample = clusters.sample(recurrence_sample("lstm", 3, 3, 140, dtype=torch.bfloat16, requires_grad=True))
    h, final = clusters(*sample.args, **sample.kwargs)
    with torch.no_grad():
        call = lambda: torch.testing.assert_close(clusters(*sample.args, **sample.kwargs), (h, final), rtol=0, atol=0)  # noqa: E731
        assert clusters.entered(call) == entries("lstm", "forward")


@pytest.mark.parametrize("sizes", [[2, 2, 0], [0, 0], [9, 8, 1, 0], []])
@pytest.mark.parametrize("reverse", [False, True])
def test_sequences_without_steps_keep_their_state(reverse, sizes, clusters):
    sample = recurrence_sample("lstm", 1, 20, 130, dtype=torch.float32, requires_grad=True)
    _, (name, u, R, state), _ = clusters.sample(sample)
    rows, first = sum(sizes), max([*sizes, 0])
    sizes = torch.tensor(sizes, dtype=torch.int64)
    h, final = clusters(name, u.flatten(0, 1)[:rows], R, state, batch_sizes=sizes, reverse=reverse)
    assert h.shape == (rows, 130)
    assert not h.isnan().any()
    assert all(torch.equal(f[first:], s[first:]) for f, s in zip(final, state, strict=True))
    (grad,) = torch.autograd.grad(final[0].sum(), state[0])
    assert torch.equal(grad[first:], torch.ones_like(grad[first:]))


def test_nan_stays_in_its_sequence(clusters):
    sample = clusters.sample(recurrence_sample("lstm", 3, 5, 140, dtype=torch.bfloat16, requires_grad=True))
    sample.args[1].data[1, 1, 0] = float("nan")
    h, _ = clusters(*sample.args, **sample.kwargs)
    assert h[2, 1].isnan().all()
    others = [0, 2, 3, 4]
    assert not h[:, others].isnan().any()
    (du,) = torch.autograd.grad(h.sum(), sample.args[1])
    assert not du[:, others].isnan().any()
