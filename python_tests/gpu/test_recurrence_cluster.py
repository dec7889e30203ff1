"""What the recurrence's cluster and grid kernels alone have: tiles, large layers, and groups that take turns."""

import pytest
import torch

from python_tests.gpu.recurrences import check
from python_tests.gpu.test_recurrence import named, pretend
from python_tests.samples import outputs_and_gradients, recurrence_sample
from rnnkern.ops._recurrence.autograd import KERNEL_CELLS, RESIDENT_CELLS

F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16
EVERYTHING = {"packed": True, "reset": True, "grad_scale": 1}
SIZES = [("cluster", F32, (256, 384, 512), 768), ("cluster", BF16, (256, 384, 512, 640, 768, 1024), 768),
         ("cluster_tf32", F32, (256, 384, 512, 640, 768, 1024), 512)]  # fmt: skip
"""Kernels, their sizes, and the largest that has several gates."""
TILES = [
    (kernel, cell, dtype, size - 7 * (k % 2))  # alternately a full size and an odd one
    for kernel, dtype, sizes, most in SIZES
    for k, size in enumerate(sizes)
    for cell in ("modrelu", "gru", "lstm", "gru_reset_before")  # 1, 3 and 4 gates, and a second product
    if size <= most or KERNEL_CELLS[cell]["gates"] == 1
]
only_cluster = pytest.mark.parametrize("kernel", ["cluster"])


def one_cluster(place):
    """Of a simulated device, on which only one cluster can run at once."""
    place.set_facts(*place.facts[:4], 1, 1)


@pytest.mark.parametrize(("kernel", "cell", "dtype", "hidden"), TILES, ids=named)
@pytest.mark.drawn
def test_every_tile(kernel, cell, dtype, hidden, place):
    """Three sequences on one cluster."""
    one_cluster(place)
    found = place.plan(cell, dtype, 3, 3, hidden)
    assert found["kernel"] == kernel
    assert 0 <= found["padded"] - hidden <= 7
    place.set_seed(hidden)
    options = {"packed": True, "reverse": True, "dtype": dtype, "requires_grad": True}
    check(place, [recurrence_sample(cell, 3, 3, hidden, **options)])


@pytest.mark.parametrize("kernel", ["grid"])
@pytest.mark.parametrize(
    ("cell", "dtype", "hidden"), [("lstm", BF16, 1040), ("gru_reset_before", F16, 784), ("lstm", F32, 520)], ids=named
)
def test_sizes_as_shipped(kernel, cell, dtype, hidden, place):
    """A warp receives its words in several rounds, and its weights are in registers and in shared memory."""
    pretend(place, 132)
    check(place, [recurrence_sample(cell, 3, 3, hidden, reset=True, dtype=dtype, requires_grad=True)])


# ---- two groups


def on_one_cluster(place, cell, dtype, batch, hidden, groups=2):
    one_cluster(place)
    found = place.plan(cell, dtype, 3, batch, hidden)
    at_once = 4 if found["kernel"] == "cluster" and dtype == F32 else 8
    assert place.name == "cuda" or found["forward"]["columns"] == batch > at_once
    assert place.name == "cuda" or found["backward"]["columns"] == min(batch, groups * at_once)


TURNS = [
    *(("cluster", cell, dtype, (5 if dtype == F32 else 9) + (3 * k + j) % (4 if dtype == F32 else 8), 133, 2)
      for k, cell in enumerate(RESIDENT_CELLS) for j, dtype in enumerate((F32, BF16, F16))),
    *(("cluster_tf32", cell, F32, 9 + 3 * k % 8, 133, 2) for k, cell in enumerate(RESIDENT_CELLS)),
    ("cluster", "lstm", BF16, 9, 768, 1), ("cluster", "gru", BF16, 10, 761, 2),
    ("cluster", "modrelu", BF16, 9, 1024, 2),
]  # fmt: skip
"""The backward pass of an LSTM with 768 units has shared memory for one group only, so it uses more clusters."""


@pytest.mark.parametrize(("kernel", "cell", "dtype", "batch", "hidden", "groups"), TURNS, ids=named)
@pytest.mark.drawn
def test_more_rows_than_a_product_has_take_turns(kernel, cell, dtype, batch, hidden, groups, place):
    """One to eight additional rows, or up to four in exact float32; packed, so that the second group ends before the
    first."""
    on_one_cluster(place, cell, dtype, batch, hidden, groups)
    place.set_seed(batch)
    options = EVERYTHING | {"reverse": batch % 2 == 0, "dtype": dtype, "requires_grad": True}
    check(place, [recurrence_sample(cell, 4 if hidden == 133 else 2, batch, hidden, **options)])


@only_cluster
@pytest.mark.parametrize(
    ("cell", "dtype", "hidden", "lengths"),
    [
        ("lstm", BF16, 133, [6, 4, 1]),
        ("gru_reset_before", BF16, 133, [6, 4, 1]),
        ("euler", F32, 129, [6, 4] + [1] * 256),
    ],
    ids=["lstm", "gru_reset_before", "several_chunks"],
)
def test_a_group_without_steps(kernel, cell, dtype, hidden, lengths, place):
    """The second group has sequences of length 0 only, or none in the last of two chunks of 256 steps; the first loses
    sequences."""
    batch = 12 if dtype == BF16 else 6
    on_one_cluster(place, cell, dtype, batch, hidden)
    for reverse in (False, True) if dtype == BF16 else (False,):
        sample = recurrence_sample(cell, 1, batch, hidden, reverse=reverse, dtype=dtype, requires_grad=True)
        name, u, R, state = sample.args
        u = torch.randn(sum(lengths), u.shape[-1]).to(dtype).requires_grad_()
        kwargs = sample.kwargs | {"batch_sizes": torch.tensor(lengths)}
        check(place, [sample._replace(args=(name, u, R, state), kwargs=kwargs)])


@only_cluster
@pytest.mark.parametrize("dtype", [F32, BF16], ids=named)
@pytest.mark.parametrize("cell", ["lstm", "gru_reset_before"])
def test_two_groups_give_the_bits_of_many_clusters(kernel, cell, dtype, place):
    """For any schedule."""
    batch = 7 if dtype == F32 else 11
    options = {"packed": True, "reset": True, "dtype": dtype, "requires_grad": True}
    sample = place.sample(recurrence_sample(cell, 4, batch, 140, **options))
    wanted = outputs_and_gradients(place, sample)
    on_one_cluster(place, cell, dtype, batch, 140)
    for seed in range(1, 5):
        place.set_seed(seed)
        for name, value in outputs_and_gradients(place, sample).items():
            assert torch.equal(value, wanted[name]), name
