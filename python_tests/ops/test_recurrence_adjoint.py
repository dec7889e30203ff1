"""Gradients with respect to h of every step, over the cells and options of the recurrence's table: the backward kernel
against the reference, and its other results with and without them."""

import pytest
import torch

import rnnkern
from python_tests.cells.samples import CELLS
from python_tests.samples import agree, covering_rows, draws, recurrence_sample, recurrence_samples
from python_tests.tiers import LEVELS, each_level, quick_where
from rnnkern.ops._recurrence.adjoint import recurrence_adjoint
from rnnkern.ops._recurrence.recurrence import KERNEL_CELLS
from rnnkern.reference._recurrence import recurrence_adjoint as by_the_reference

F64 = torch.float64
SAMPLES = list(recurrence_samples(KERNEL_CELLS, steps=5, batch=4, hidden=18))


def of_sines(h):
    """The gradient of a loss that reads all h."""
    return h.sin()


def adjoint_of_sines(op, call):
    args, kwargs = call
    return {"adjoint": op(of_sines, *args, **kwargs)}


@each_level
@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.name)
def test_in_float64_it_is_the_reference(sample, level, simd):
    simd(level)
    agree(recurrence_adjoint, by_the_reference, adjoint_of_sines, [(sample.args, sample.kwargs)])
    assert not recurrence_adjoint(of_sines, *sample.args, **sample.kwargs).requires_grad


COVERING = covering_rows(
    {
        "dtype": [torch.float32, torch.bfloat16, torch.float16],
        "cell": list(KERNEL_CELLS),
        "steps": [12, 0, 1, 40],
        "batch": [3, 0, 1, 17],
        "hidden": [33, 1, 64, 100],
        "option": ["plain", "packed", "zoneout"],
        "threads": [2, 1],
        "level": LEVELS,
    }
)


@pytest.mark.parametrize(
    "row",
    quick_where(lambda row: row["steps"] < 40 and row["dtype"] != torch.float16, COVERING),
    ids=lambda row: "-".join(map(str, row.values())),
)
def test_low_precision_is_as_close_to_the_truth_as_plain_pytorch(row, simd, threads):
    row = dict(row)
    simd(row.pop("level"))
    threads(row.pop("threads"))
    options = {"plain": {}, "packed": {"packed": True, "reset": True}, "zoneout": {"zoneout": 0.3, "dropout": 0.2}}
    sizes = row["steps"], row["batch"], row["hidden"]

    def results(op, sample):
        last = torch.linspace(-1, 1, row["hidden"], dtype=row["dtype"])[: sample.args[3][0].shape[1]]
        adjoint = op(lambda h: last.to(h).expand_as(h), *sample.args, **sample.kwargs)
        assert adjoint.dtype == sample.args[1].dtype
        return {"adjoint": adjoint}

    samples = draws(recurrence_sample, row["cell"], *sizes, dtype=row["dtype"], **options[row["option"]])
    agree(recurrence_adjoint, by_the_reference, results, samples)


def raw(sample, grad_h, grad_state, needs_h, save_gates=True):
    """The results of the backward operator."""
    cell, u, R, state = sample.args
    k = sample.kwargs
    common = u, R, list(state), k["bias"], list(k["params"]), k["batch_sizes"], k.get("reset"), k["reverse"]
    projection, noise = (k.get("weight_ih"), k.get("bias_ih")), sample.noise()
    h, *rest = torch.ops.rnnkern.recurrence.default(cell, *common, True, save_gates, *projection, *noise)
    saved = rest[len(state) :]
    args = (cell, grad_h, grad_state, *common, k.get("grad_scale"), h, saved, True, k["bias"] is not None, *projection,
            True, True, True, *noise, needs_h, True, 0)  # fmt: skip
    return torch.ops.rnnkern.recurrence_backward.default(*args), args


LONG = {"steps": 150, "batch": 4, "hidden": 20, "packed": True, "reset": True, "zoneout": 0.2, "dropout": 0.3}
"""Several chunks of steps."""


@pytest.mark.parametrize("inputs", [0, 7])
@pytest.mark.parametrize("dtype", [torch.float32, F64], ids=str)
@pytest.mark.parametrize("cell", KERNEL_CELLS)
def test_it_leaves_the_bits_of_the_other_gradients(cell, dtype, inputs, threads):
    sample = recurrence_sample(cell, **LONG, inputs=inputs, dtype=dtype)
    rows, state = int(sample.kwargs["batch_sizes"].sum()), sample.args[3]
    grads = torch.randn(rows, state[0].shape[1]).to(dtype), [torch.randn(s.shape).to(dtype) for s in state]
    threads(2)
    *others, of_h = raw(sample, *grads, True)[0]
    alone = raw(sample, *grads, False)[0]
    assert len(alone) == len(others)
    assert all(torch.equal(a, b) for a, b in zip(alone, others, strict=True))
    for number, save_gates in ((1, True), (2, False)):
        threads(number)
        assert torch.equal(of_h, raw(sample, *grads, True, save_gates)[0][-1])


@pytest.mark.parametrize("cell", ["lstm_projected", "gru"])
def test_the_gradient_of_the_final_state_is_part_of_it(cell):
    """The last h of each sequence has the gradient of its final state; the operator passes opcheck."""
    sample = recurrence_sample(cell, 5, 4, 18, packed=True)
    state, sizes = sample.args[3], sample.kwargs["batch_sizes"]
    final = [torch.randn_like(s) for s in state]
    (*_, found), args = raw(sample, None, final, True)
    lengths = (sizes > torch.arange(4)[:, None]).sum(1).tolist()
    starts = [0, *sizes.cumsum(0).tolist()]
    last = torch.stack([found[starts[n - 1] + b] for b, n in enumerate(lengths)])
    assert torch.equal(last, final[0])
    checks = ("test_schema", "test_faketensor")
    torch.library.opcheck(torch.ops.rnnkern.recurrence_backward.default, args, test_utils=checks)


@pytest.mark.parametrize("cell", [*CELLS, rnnkern.cells.heavy_ball], ids=lambda cell: cell.name)
def test_of_a_user_written_cell(cell):
    draw = lambda *shape: 0.5 * torch.randn(shape, dtype=F64)  # noqa: E731
    gates, recurrent = len(cell.gates) * 9, len(cell.recurrent) * 9
    options = {"bias": draw(recurrent), "params": tuple(draw(9) for _ in cell.params), "reverse": True}
    options |= {"batch_sizes": torch.tensor([3, 3, 2, 1, 1]), "reset": torch.rand(5, 3) < 0.3}
    args = cell.name, draw(10, gates), draw(recurrent, 9), tuple(draw(3, 9) for _ in cell.states)
    agree(recurrence_adjoint, by_the_reference, adjoint_of_sines, [(args, options)])


def test_the_reference_can_be_forced():
    sample = recurrence_sample("lstm", 4, 2, 3)
    with rnnkern.use("reference"):
        found = recurrence_adjoint(of_sines, *sample.args, **sample.kwargs)
    assert torch.equal(found, by_the_reference(of_sines, *sample.args, **sample.kwargs))


def test_it_has_no_derivative():
    sample = recurrence_sample("tanh", 4, 2, 3, requires_grad=True)
    h = torch.randn(4, 2, 3, dtype=F64, requires_grad=True)
    (*_, found), _ = raw(sample, h, [], True)
    with pytest.raises(NotImplementedError, match="the gradient of h has no derivative"):
        found.sum().backward()
