"""The grid kernel against the reference: R is distributed over many blocks, which exchange words. The interpreter runs
all blocks of a launch concurrently; its number of multiprocessors determines into how many groups of blocks the batch
is divided."""

import pytest
import torch

from python_tests.gpu.recurrences import off_kinks
from python_tests.samples import check_recurrence, covering_rows, outputs_and_gradients, recurrence_sample
from rnnkern.ops._recurrence.autograd import RESIDENT_CELLS

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
EVERYTHING = {"packed": True, "reset": True, "grad_scale": 2}

COVERING = covering_rows(
    {
        "cell": ["modrelu", "euler", "lstm", "gru", "gru_reset_before"],
        "dtype": DTYPES,
        "steps": [3, 0, 1, 9],
        "batch": [3, 0, 1, 8, 9, 17],
        "hidden": [20, 1, 33, 144],
        "multiprocessors": [18, 40],
        "bias": [True, False],
        "packed": [False, True],
        "reset": [False, True],
        "reverse": [False, True],
        "grad_scale": [0, 1, 2],
        "save_gates": [True, False],
        "seed": [0, 1, 2, 3],
    }
)


def name_of(dtype):
    return str(dtype).removeprefix("torch.")


def pretend(grid, multiprocessors):
    """Sets the number of multiprocessors of the interpreter; hardware keeps its own."""
    grid.set_facts(*grid.facts[:2], multiprocessors, grid.facts[3])


def check(grid, sample, **options):
    cell = sample.args[0]
    sample = grid.sample(off_kinks(sample))
    kernels = grid.entered(lambda: check_recurrence(lambda *args, **kwargs: grid(*args, **kwargs, **options), [sample]))
    assert kernels == {f"recurrence/cuda/{way}/{cell}/grid": 1 for way in ("forward", "backward")}


@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
@pytest.mark.parametrize("cell", RESIDENT_CELLS)
def test_every_cell_is_as_close_to_the_truth_as_plain_pytorch(cell, dtype, grid):
    for seed, (reverse, multiprocessors) in enumerate([(False, 3), (True, 6)]):
        pretend(grid, multiprocessors)
        grid.set_seed(2 * RESIDENT_CELLS.index(cell) + seed)
        hidden = 20 if dtype == torch.float32 else 40  # three blocks
        check(
            grid, recurrence_sample(cell, 3, 11, hidden, reverse=reverse, **EVERYTHING, dtype=dtype, requires_grad=True)
        )


@pytest.mark.parametrize("row", COVERING, ids=lambda row: "-".join(map(str, row.values())))
def test_awkward_sizes(row, grid):
    row = dict(row)
    pretend(grid, row.pop("multiprocessors"))
    grid.set_seed(row.pop("seed"))
    save_gates = row.pop("save_gates")
    check(grid, recurrence_sample(**row, requires_grad=True), save_gates=save_gates)


@pytest.mark.parametrize(
    ("cell", "dtype", "hidden"),
    [("lstm", torch.bfloat16, 1040), ("gru_reset_before", torch.float16, 784), ("lstm", torch.float32, 520)],
    ids=str,
)
def test_sizes_as_shipped(cell, dtype, hidden, grid):
    """A warp receives its words in several rounds, and its weights are in registers and in shared memory."""
    pretend(grid, 132)
    check(grid, recurrence_sample(cell, 3, 3, hidden, reset=True, dtype=dtype, requires_grad=True))


@pytest.mark.parametrize(("cell", "reverse"), [("lstm", False), ("modrelu", True)])
def test_several_chunks_of_everything_at_once(cell, reverse, grid):
    """More steps than a chunk of the backward pass has: 64 and 2."""
    sample = recurrence_sample(cell, 66, 9, 20, reverse=reverse, **EVERYTHING, dtype=torch.bfloat16, requires_grad=True)
    check(grid, sample)


@pytest.mark.parametrize(
    ("cell", "dtype"), [("lstm", torch.float32), ("gru", torch.bfloat16), ("gru_reset_before", torch.bfloat16)], ids=str
)
def test_the_same_bits_twice_and_by_any_schedule(cell, dtype, grid):
    sample = grid.sample(recurrence_sample(cell, 5, 9, 20, **EVERYTHING, dtype=dtype, requires_grad=True))
    wanted = outputs_and_gradients(grid, sample)
    for seed in range(1, 6):
        grid.set_seed(seed)
        for name, value in outputs_and_gradients(grid, sample).items():
            assert torch.equal(value, wanted[name]), name


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=name_of)
def test_neighbours_and_groups_change_no_bit(dtype, grid):
    """The result of a sequence does not depend on the other sequences, on its position, or on the number of blocks."""
    name, u, R, state = grid.sample(recurrence_sample("lstm", 3, 19, 20, dtype=dtype, requires_grad=True)).args

    def run(rows):
        own = [x.detach()[..., rows, :].requires_grad_() for x in (u, *state)]
        h, final = grid(name, own[0], R, tuple(own[1:]), save_gates=True)
        return (h, *final, *torch.autograd.grad(h.sum() + final[-1].sum(), own))

    pretend(grid, 3)
    whole = run(list(range(19)))
    for rows, multiprocessors in (([18], 3), ([2, 7, 11, 18], 9), (list(range(19)), 9)):
        pretend(grid, multiprocessors)
        for alone, among in zip(run(rows), whole, strict=True):
            assert torch.equal(alone, among[..., rows, :])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=name_of)
def test_the_first_call(dtype, grid):
    check(grid, recurrence_sample("gru_reset_before", 3, 3, 20, dtype=dtype, requires_grad=True))
