"""The recurrence's CUDA kernels against the reference: values, gradients, sizes, layouts, determinism."""

import pytest
import torch

from python_tests.gpu.recurrences import KINKS, off_kinks
from python_tests.samples import (
    DENSE,
    RECURRENCE_OPTIONS,
    check_recurrence,
    covering_rows,
    outputs_and_gradients,
    recurrence_sample,
    takes,
)
from rnnkern import reference
from rnnkern.ops._recurrence.recurrence import KERNEL_CELLS

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64]
HEADS = {1: 1, 2: 2, 32: 2, 33: 3, 64: 4, 100: 5, 128: 4, 200: 8, 257: 257, 272: 2}
CARRIED = {
    "euler", "lstm", "gru", "gru_reset_before", "goru", "lstm_projected", "lstm_layer_norm", "gru_layer_norm",
}  # fmt: skip
"""Cells that carry their state in float32 beside the stored h if tensors have 16 bits."""

COVERING = covering_rows(
    {
        "cell": list(KERNEL_CELLS),
        "dtype": DTYPES,
        "steps": [63, 0, 1, 2, 3, 150],
        "batch": [3, 0, 1, 8, 9, 17],
        "hidden": [33, 1, 128, 200, 257, 64, 32, 100],
        "heads": [False, True],
        "bias": [True, False],
        "packed": [False, True],
        "reset": [False, True],
        "reverse": [False, True],
        "grad_scale": [0, 1, 2],
        "save_gates": [True, False, None],
        "seed": [0, 1, 2, 3],
    }
)

NOISY = covering_rows(
    {
        "cell": list(KERNEL_CELLS),
        "dtype": DTYPES,
        "steps": [63, 0, 1, 2, 150],
        "batch": [3, 0, 1, 17],
        "hidden": [33, 1, 128, 257, 2, 100],
        "heads": [False, True],
        "packed": [False, True],
        "reset": [False, True],
        "reverse": [False, True],
        "grad_scale": [0, 1, 2],
        "save_gates": [True, False],
        "zoneout": [0.0, 0.3],
        "dropout": [0.0, 0.4],
        "drawn": [True, False],
    }
)
NOISE = {"zoneout": 0.3, "dropout": 0.4}


def dtype_name(dtype):
    return str(dtype).removeprefix("torch.")


def name_of(row):
    values = ((key, dtype_name(value) if key == "dtype" else value) for key, value in row.items())
    return "-".join(f"{key}={value}" if key in ("save_gates", "seed", *NOISE) else
                    key * value if isinstance(value, bool) else str(value) for key, value in values)  # fmt: skip


def check(op, sample, *more):
    check_recurrence(op, [off_kinks(each) for each in (sample, *more)])


@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_name)
@pytest.mark.parametrize("options", [option for option in RECURRENCE_OPTIONS if "keep" not in option])
@pytest.mark.parametrize("cell", KERNEL_CELLS)
def test_every_cell_and_option_is_as_close_to_the_truth_as_plain_pytorch(cell, options, dtype, place):
    if dtype == torch.float64 and place.kernel == "block":
        pytest.skip("float64 has no block kernel")
    if cell in KINKS and "inputs" in RECURRENCE_OPTIONS[options]:
        pytest.skip("what was projected cannot be moved off a kink")
    if not takes(cell, RECURRENCE_OPTIONS[options]):
        pytest.skip("the cell's R has no heads")
    sizes = {"steps": 7, "batch": 11, "hidden": 20}
    # With few units a norm may divide by a small number, so that a single call would depend on chance.
    draws = 2 if reference.CELLS[cell].normalised and dtype in (torch.bfloat16, torch.float16) else 1
    samples = [
        place.sample(recurrence_sample(cell, **sizes, **RECURRENCE_OPTIONS[options], dtype=dtype, requires_grad=True))
        for _ in range(draws)
    ]
    kernels = place.entered(lambda: check(place, *samples))
    kernel = "stepwise" if "zoneout" in options or "dropout" in options else place.kernel
    assert kernels == {f"recurrence/cuda/{way}/{cell}/{kernel}": draws for way in ("forward", "backward")}


@pytest.mark.parametrize("row", COVERING, ids=name_of)
def test_awkward_sizes(row, place):
    if row["dtype"] == torch.float64 and place.kernel == "block":
        pytest.skip("float64 has no block kernel")
    check_row(row, place)


def check_row(row, place):
    row = dict(row)
    save_gates, seed = row.pop("save_gates"), row.pop("seed", 0)
    row["heads"] = HEADS[row["hidden"]] if row["heads"] and takes(row["cell"], {"heads"}) else 1
    if reference.CELLS[row["cell"]].normalised:  # a block per row: the interpreter's time; more than a chunk still
        row["steps"] = min(row["steps"], 66)
    place.set_seed(seed)
    draws = 8 if row["hidden"] == 1 else 1  # gradients with few elements would depend on chance
    samples = [place.sample(recurrence_sample(**row, requires_grad=True)) for _ in range(draws)]
    check(lambda *args, **kwargs: place(*args, **kwargs, save_gates=save_gates), *samples)


@pytest.mark.parametrize("row", NOISY, ids=name_of)
def test_awkward_sizes_with_noise(row, place):
    if place.kernel == "block":
        pytest.skip("zoneout and dropout have no block kernel")
    check_row(row, place)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=dtype_name)
@pytest.mark.parametrize("cell", KERNEL_CELLS)
def test_one_tiny_call(cell, dtype, place):
    options = {"heads": 2 if takes(cell, {"heads"}) else 1, "packed": True, "reset": True, "grad_scale": 1}
    sample = recurrence_sample(cell, 3, 3, 10, **options, dtype=dtype, requires_grad=True)
    check(place, place.sample(sample))


WITH_HEADS = ["modrelu", "lstm", "gru", "gru_reset_before"]


@pytest.mark.parametrize(
    ("cell", "heads"),
    [*((cell, heads) for cell in WITH_HEADS for heads in (1, 4)), *((cell, 1) for cell in sorted(DENSE))],
)
def test_several_chunks_of_everything_at_once(cell, heads, place):
    """Resets, lengths, both directions, and more steps than a chunk has: 64, 64 and 22."""
    for reverse in (False, True):
        sample = recurrence_sample(
            cell, 150, 9, 20, heads=heads, packed=True, reset=True, reverse=reverse, grad_scale=2,
            dtype=torch.float32, requires_grad=True,
        )  # fmt: skip
        check(place, place.sample(sample))


# ---- the same bits


def same_bits(actual, wanted):
    assert actual.keys() == wanted.keys()
    for name, value in wanted.items():
        assert torch.equal(actual[name], value), name


@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_name)
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("cell", KERNEL_CELLS)
def test_two_halves_equal_one_whole(cell, reverse, dtype, place):
    """Bit for bit. In 16 bits this holds only for cells without state beyond the stored h; the others agree up to
    rounding of the state between the halves."""
    sample = place.sample(recurrence_sample(cell, 20, 5, 24, reset=True, reverse=reverse, dtype=dtype))
    name, u, R, state = sample.args
    kwargs = sample.kwargs
    reset = kwargs.pop("reset")
    h, final = place(name, u, R, state, reset=reset, **kwargs)
    first, second = (slice(12, None), slice(12)) if reverse else (slice(12), slice(12, None))
    h1, middle = place(name, u[first], R, state, reset=reset[first], **kwargs)
    h2, end = place(name, u[second], R, middle, reset=reset[second], **kwargs)
    halves = torch.cat([h2, h1] if reverse else [h1, h2])
    assert torch.equal(h[first], h1)
    exact = cell not in CARRIED or dtype in (torch.float32, torch.float64)
    tolerance = {"rtol": 0, "atol": 0} if exact else {"rtol": 0, "atol": 8 * torch.finfo(dtype).eps}
    torch.testing.assert_close((halves, *end), (h, *final), **tolerance)


@pytest.mark.parametrize("noise", [{}, NOISE], ids=["", "noise"])
@pytest.mark.parametrize("cell", KERNEL_CELLS)
def test_the_same_bits_twice_and_by_any_schedule(cell, noise, place):
    options = {"packed": True, "reset": True, **noise}
    sample = place.sample(recurrence_sample(cell, 70, 9, 33, **options, dtype=torch.float32, requires_grad=True))
    wanted = outputs_and_gradients(place, sample)
    for seed in (0, 1, 2):
        place.set_seed(seed)
        same_bits(outputs_and_gradients(place, sample), wanted)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=dtype_name)
@pytest.mark.parametrize("cell", KERNEL_CELLS)
def test_neighbours_change_no_bit(cell, dtype, place):
    """The result of a sequence does not depend on the other sequences or on its position in the block."""
    if place.kernel == "stepwise":
        pytest.skip("its products are PyTorch's, whose bits depend on their sizes")
    sample = place.sample(recurrence_sample(cell, 6, 19, 40, heads=2, dtype=dtype, requires_grad=True))
    name, u, R, state = sample.args

    def run(rows):
        own = [x.detach()[..., rows, :].requires_grad_() for x in (u, *state)]
        h, final = place(name, own[0], R, tuple(own[1:]), **sample.kwargs, save_gates=True)
        return (h, *final, *torch.autograd.grad(h.sum() + final[-1].sum(), own))

    whole = run(list(range(19)))
    for rows in ([18], [3], [2, 7, 11, 18], list(range(5, 16))):
        for alone, among in zip(run(rows), whole, strict=True):
            assert torch.equal(alone, among[..., rows, :])


@pytest.mark.parametrize("cell", KERNEL_CELLS)
def test_chunks_change_no_bit_but_of_sums_over_them(cell, place):
    if place.name == "cuda":
        pytest.skip("hardware has its own number of multiprocessors")
    sample = recurrence_sample(cell, 150, 3, 24, packed=True, reset=True, dtype=torch.float32, requires_grad=True)
    op = lambda *args, **kwargs: place(*args, **kwargs, save_gates=True)  # noqa: E731
    results = []
    for multiprocessors, chunk in ((1, 64), (14, 149), (1000, 10666)):
        place.set_facts(*place.facts[:2], multiprocessors, place.facts[3])
        assert place.plan(cell, torch.float32, 150, 3, 24)["chunk_steps"] == chunk
        results.append(outputs_and_gradients(op, sample))
    for result in results[1:]:
        for name, value in results[0].items():
            if name in ("grad of R", "grad of bias"):
                torch.testing.assert_close(result[name], value, rtol=0, atol=1e-6 * value.abs().max().item())
            elif not name.startswith("grad of params"):
                assert torch.equal(result[name], value), name
