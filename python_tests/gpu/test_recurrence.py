"""Values, gradients and bits of the recurrence's CUDA kernels, over a table of kernels, cells, dtypes and sizes."""

import pytest
import torch

from python_tests.gpu.recurrences import KINKS, check
from python_tests.samples import (
    RECURRENCE_OPTIONS,
    covering_rows,
    outputs_and_gradients,
    recurrence_sample,
    takes,
)
from rnnkern.ops._recurrence.autograd import RESIDENT_CELLS
from rnnkern.ops._recurrence.recurrence import KERNEL_CELLS

F32, BF16, F16, F64 = torch.float32, torch.bfloat16, torch.float16, torch.float64
DTYPES = [F32, BF16, F16, F64]
FEW, SOME = ["tanh", "lstm", "gru_reset_before"], ["modrelu", "lstm", "gru", "gru_reset_before"]
HEADS = {1: 1, 2: 2, 32: 2, 33: 3, 64: 4, 100: 5, 128: 4, 200: 8, 257: 257}
CARRIED = {"euler", "lstm", "gru", "gru_reset_before", "goru", "lstm_projected"}
"""Cells that carry their state in float32 beside the stored h if tensors have 16 bits."""
NOISE = {"zoneout": 0.3, "dropout": 0.4}

LAYOUT = {
    "bias": [True, False],
    "packed": [False, True],
    "reset": [False, True],
    "reverse": [False, True],
    "grad_scale": [0, 1, 2],
    "save_gates": [True, False, None],
    "seed": [0, 1, 2, 3],
}
ANY_SIZE = {
    "steps": [63, 0, 1, 2, 3, 150],
    "batch": [3, 0, 1, 8, 9, 17],
    "hidden": [33, 1, 128, 200, 257, 64, 32, 100, 2],
    "heads": [False, True],
}
NOISY = {"zoneout": [0.0, 0.3], "dropout": [0.0, 0.4], "drawn": [True, False]}
RESIDENT = {"cell": list(RESIDENT_CELLS), "dtype": DTYPES[:3]}
FACTORS = {
    "block": RESIDENT | ANY_SIZE,
    "stepwise": {"cell": list(KERNEL_CELLS), "dtype": DTYPES} | ANY_SIZE | NOISY,
    "cluster": RESIDENT | {"steps": [3, 0, 1, 2], "batch": [3, 0, 1, 11, 17], "hidden": [129, 200, 256]},
    "grid": RESIDENT
    | {"cell": ["euler", *SOME], "steps": [3, 0, 1, 9], "batch": [3, 0, 1, 8, 9, 17]}
    | {"hidden": [20, 1, 33, 144], "multiprocessors": [18, 40]},
}
"""What the awkward sizes of each kernel are made of."""


def over(**kernels):
    """Parameters of a test: for each kernel, the cells and dtypes."""
    rows = [(kernel, *row) for kernel, table in kernels.items() for row in table]
    return pytest.mark.parametrize(("kernel", "cell", "dtype"), rows, ids=named)


def each(cells, *dtypes):
    return [(cell, dtype) for cell in cells for dtype in dtypes]


def named(x):
    """The name of a parameter."""
    if isinstance(x, dict):
        return "-".join(key * value if value is True else f"{key}={named(value)}" for key, value in x.items() if value)
    return str(x).removeprefix("torch.")


def pretend(place, multiprocessors):
    """Sets the number of multiprocessors of the interpreter, which determines into how many groups of blocks a grid
    divides the batch; hardware keeps its own."""
    place.set_facts(*place.facts[:2], multiprocessors, *place.facts[3:])


# ---- values and gradients


OPTIONS = [
    (option, dtype)
    for option in RECURRENCE_OPTIONS
    for dtype in DTYPES
    if "keep" not in option and (dtype in (F32, BF16) or "-" in option or option == "plain")
]
"""Those of float16 and float64 at once, or none of them."""


@pytest.mark.parametrize(("options", "dtype"), OPTIONS, ids=named)
@pytest.mark.parametrize("cell", KERNEL_CELLS)
@pytest.mark.drawn
def test_every_cell_and_option(cell, options, dtype, place):
    if dtype == F64 and place.kernel == "block":
        pytest.skip("float64 has no block kernel")
    if cell in KINKS and "inputs" in RECURRENCE_OPTIONS[options]:
        pytest.skip("what was projected cannot be moved off a kink")
    if not takes(cell, RECURRENCE_OPTIONS[options]):
        pytest.skip("the cell's R has no heads")
    rest = RECURRENCE_OPTIONS[options] | {"dtype": dtype, "requires_grad": True}
    kernel = "stepwise" if "zoneout" in options or "dropout" in options else ""
    check(place, [recurrence_sample(cell, 7, 11, 20, **rest)], kernel)


@over(
    grid=each(RESIDENT_CELLS, F32, BF16, F16), cluster=each(SOME, F32, BF16), cluster_tf32=each(RESIDENT_CELLS, F32)
)  # fmt: skip
@pytest.mark.drawn
def test_every_cell_with_everything_at_once(kernel, cell, dtype, place):
    options = {"packed": True, "reset": True, "grad_scale": 1, "dtype": dtype, "requires_grad": True}
    place.set_seed(len(cell))
    if kernel != "grid":
        check(place, [recurrence_sample(cell, 3, 9 if kernel == "cluster" else 17, 133, reverse=True, **options)])
        return
    for reverse, multiprocessors in ((False, 3), (True, 6)):
        pretend(place, multiprocessors)
        hidden = 20 if dtype == F32 else 40  # three blocks
        check(place, [recurrence_sample(cell, 3, 11, hidden, reverse=reverse, **options | {"grad_scale": 2})])


@pytest.mark.parametrize(
    ("kernel", "row"),
    [(kernel, row) for kernel, factors in FACTORS.items() for row in covering_rows(factors | LAYOUT)],
    ids=named,
)
@pytest.mark.drawn
def test_awkward_sizes(kernel, row, place):
    row = dict(row)
    save_gates = row.pop("save_gates")
    place.set_seed(row.pop("seed"))
    if multiprocessors := row.pop("multiprocessors", None):
        pretend(place, multiprocessors)
    heads = row["heads"] = HEADS[row["hidden"]] if row.get("heads") and takes(row["cell"], {"heads"}) else 1
    draws = 8 if row["hidden"] == 1 else 1  # gradients with few elements would depend on chance
    samples = [recurrence_sample(**row, requires_grad=True) for _ in range(draws)]
    check(
        place, samples, "stepwise" if kernel == "block" and row["hidden"] > 128 * heads else "", save_gates=save_gates
    )


SMALL = {"block": (3, 3, 10), "stepwise": (3, 3, 10), "cluster": (3, 3, 130), "cluster_tf32": (3, 17, 133),
         "grid": (3, 3, 20)}  # fmt: skip


@over(
    block=each(RESIDENT_CELLS, F32, BF16), stepwise=each(KERNEL_CELLS, F32, BF16), cluster=each(FEW, F32, BF16),
    cluster_tf32=each(["lstm"], F32), grid=each(["gru_reset_before"], F32, BF16),
)  # fmt: skip
@pytest.mark.drawn
def test_a_tiny_first_call(kernel, cell, dtype, place):
    options = {}
    if kernel in ("block", "stepwise"):
        options = {"heads": 2 if takes(cell, {"heads"}) else 1, "packed": True, "reset": True, "grad_scale": 1}
    check(place, [recurrence_sample(cell, *SMALL[kernel], **options, dtype=dtype, requires_grad=True)])


CHUNKS = [
    *(
        (kernel, cell, (150, 9, 20), heads, F32)
        for kernel in ("block", "stepwise")
        for cell in SOME
        for heads in (1, 4)
    ),
    ("stepwise", "lstm_projected", (150, 9, 20), 1, F32),
    *(("grid", cell, (66, 9, 20), 1, dtype) for cell, dtype in (("lstm", BF16), ("modrelu", F32))),
    ("cluster", "euler", (258, 2, 129), 1, F32),
]
"""More steps than a chunk of the backward pass has: 64, or 256 on a cluster."""


@pytest.mark.parametrize(("kernel", "cell", "sizes", "heads", "dtype"), CHUNKS, ids=named)
@pytest.mark.drawn
def test_several_chunks_of_everything_at_once(kernel, cell, sizes, heads, dtype, place):
    if place.name == "interpret":
        assert place.plan(cell, dtype, *sizes, heads)["chunk_steps"] < sizes[0]
    options = {"heads": heads, "packed": True, "reset": True, "grad_scale": 2, "dtype": dtype, "requires_grad": True}
    for reverse in (True,) if kernel == "cluster" else (False, True):  # thousands of threads
        check(place, [recurrence_sample(cell, *sizes, reverse=reverse, **options)])


# ---- the same bits


def same_bits(actual, wanted):
    assert actual.keys() == wanted.keys()
    for name, value in wanted.items():
        assert torch.equal(actual[name], value), name


@pytest.mark.parametrize("reverse", [False, True])
@over(block=each(RESIDENT_CELLS, *DTYPES[:3]), stepwise=each(KERNEL_CELLS, *DTYPES), cluster=each(FEW, F32))
@pytest.mark.drawn
def test_two_halves_equal_one_whole(kernel, cell, reverse, dtype, place):
    """Bit for bit. In 16 bits this holds only for cells without state beyond the stored h; the others agree up to
    rounding of the state between the halves."""
    sizes, cut = ((5, 3, 132), 3) if kernel == "cluster" else ((20, 5, 24), 12)
    sample = place.sample(recurrence_sample(cell, *sizes, reset=True, reverse=reverse, dtype=dtype))
    name, u, R, state = sample.args
    kwargs = sample.kwargs
    reset = kwargs.pop("reset")
    h, final = place(name, u, R, state, reset=reset, **kwargs)
    first, second = (slice(cut, None), slice(cut)) if reverse else (slice(cut), slice(cut, None))
    h1, middle = place(name, u[first], R, state, reset=reset[first], **kwargs)
    h2, end = place(name, u[second], R, middle, reset=reset[second], **kwargs)
    halves = torch.cat([h2, h1] if reverse else [h1, h2])
    assert torch.equal(h[first], h1)
    exact = cell not in CARRIED or dtype in (F32, F64)
    tolerance = {"rtol": 0, "atol": 0} if exact else {"rtol": 0, "atol": 8 * torch.finfo(dtype).eps}
    torch.testing.assert_close((halves, *end), (h, *final), **tolerance)


SCHEDULES = [
    *((kernel, cell, F32, noise) for kernel, cells in (("block", RESIDENT_CELLS), ("stepwise", KERNEL_CELLS))
      for cell in cells for noise in ({}, NOISE) if kernel == "stepwise" or not noise),
    *((kernel, cell, dtype, {}) for kernel, dtypes in (("cluster", (F32, BF16)), ("cluster_tf32", (F32,)))
      for cell in ("euler", "lstm", "gru_reset_before") for dtype in dtypes),
    *(("grid", cell, dtype, {}) for cell, dtype in (("lstm", F32), ("gru", BF16), ("gru_reset_before", BF16))),
]  # fmt: skip


@pytest.mark.parametrize(("kernel", "cell", "dtype", "noise"), SCHEDULES, ids=named)
@pytest.mark.drawn
def test_the_same_bits_twice_and_by_any_schedule(kernel, cell, dtype, noise, place):
    sizes = {"grid": (5, 9, 20), "block": (70, 9, 33), "stepwise": (70, 9, 33)}.get(kernel, (3, 3, 140))
    options = {"packed": True, "reset": True, **noise}
    sample = place.sample(recurrence_sample(cell, *sizes, **options, dtype=dtype, requires_grad=True))
    wanted = outputs_and_gradients(place, sample)
    # On a grid one schedule in ten detects that a buffer is missing.
    for seed in range(40 if kernel == "grid" else 3 if sizes[0] == 70 else 6):
        place.set_seed(seed)
        same_bits(outputs_and_gradients(place, sample), wanted)


@over(**{kernel: each(["lstm"], BF16) for kernel in ("block", "stepwise", "cluster", "grid")})
def test_inference_gives_the_bits_of_training(kernel, cell, dtype, place):
    sample = place.sample(recurrence_sample(cell, *SMALL[kernel], dtype=dtype, requires_grad=True))
    results = []
    with torch.no_grad():
        ran = place.entered(lambda: results.append(place(*sample.args, **sample.kwargs)))
    assert ran == {f"recurrence/cuda/forward/{cell}/{kernel}": 1}
    torch.testing.assert_close(results[0], place(*sample.args, **sample.kwargs), rtol=0, atol=0)


@over(block=each(RESIDENT_CELLS, F32, BF16), cluster=each(["gru", *FEW], F32, BF16), grid=each(["lstm"], F32, BF16))
@pytest.mark.drawn
def test_neighbours_change_no_bit(kernel, cell, dtype, place):
    """The result of a sequence does not depend on the other sequences, on its position, or on the number of blocks.
    Products of the stepwise kernels are PyTorch's, whose bits depend on their sizes."""
    sizes = {"block": (6, 19, 40), "cluster": (3, 9, 140), "grid": (3, 19, 20)}[kernel]
    heads = 2 if kernel == "block" else 1
    sample = place.sample(recurrence_sample(cell, *sizes, heads=heads, dtype=dtype, requires_grad=True))
    name, u, R, state = sample.args

    def run(rows):
        own = [x.detach()[..., rows, :].requires_grad_() for x in (u, *state)]
        h, final = place(name, own[0], R, tuple(own[1:]), **sample.kwargs, save_gates=True)
        return (h, *final, *torch.autograd.grad(h.sum() + final[-1].sum(), own))

    every = list(range(sizes[1]))
    if kernel == "grid":
        pretend(place, 3)
    whole = run(every)
    for rows in (every[-1:], every[2::5], every[3:14]):
        if kernel == "grid" and len(rows) > 1:
            pretend(place, 9)
        for alone, among in zip(run(rows), whole, strict=True):
            assert torch.equal(alone, among[..., rows, :])


@pytest.mark.parametrize("cell", KERNEL_CELLS)
@pytest.mark.drawn
def test_chunks_change_no_bit_but_of_sums_over_them(cell, place):
    if place.name == "cuda":
        pytest.skip("hardware has its own number of multiprocessors")
    sample = recurrence_sample(cell, 150, 3, 24, packed=True, reset=True, dtype=F32, requires_grad=True)
    op = lambda *args, **kwargs: place(*args, **kwargs, save_gates=True)  # noqa: E731
    results = []
    for multiprocessors, chunk in ((1, 64), (14, 149), (1000, 10666)):
        pretend(place, multiprocessors)
        assert place.plan(cell, F32, 150, 3, 24)["chunk_steps"] == chunk
        results.append(outputs_and_gradients(op, sample))
    for result in results[1:]:
        for name, value in results[0].items():
            if name in ("grad of R", "grad of bias"):
                torch.testing.assert_close(result[name], value, rtol=0, atol=1e-6 * value.abs().max().item())
            elif not name.startswith("grad of params"):
                assert torch.equal(result[name], value), name
