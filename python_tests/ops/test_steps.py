"""recurrence(steps=...), one input for all steps, against the reference with the input repeated, over its table."""

import functools

import pytest
import torch
from torch.func import grad, jvp, vmap

from python_tests.gpu.recurrences import KINKS
from python_tests.samples import (
    EVERY_CELL,
    RECURRENCE_OPTIONS,
    agree,
    covering_rows,
    draws,
    outputs_and_gradients,
    recurrence_sample,
    takes,
)
from rnnkern import reference, use
from rnnkern.ops import explain, recurrence
from rnnkern.testing import peak_bytes

STEPS = (1, 2, 5, 37)
OPTIONS = [name for name, options in RECURRENCE_OPTIONS.items() if not options.get("packed")]


def constant_sample(cell, steps, batch=3, hidden=6, **options):
    sample = recurrence_sample(cell, steps, batch, hidden, requires_grad=True, **options)
    name, u, *rest = sample.args
    return sample._replace(args=(name, u[:1].detach().requires_grad_(), *rest))


def in_place(steps, cell, u, *rest, **kwargs):
    return recurrence(cell, u, *rest, steps=steps, **kwargs)


def repeated(steps, cell, u, *rest, **kwargs):
    return reference.recurrence(cell, u.expand(steps, *u.shape[1:]), *rest, **kwargs)


DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
ROWS = [
    row
    for row in covering_rows(
        {"cell": list(EVERY_CELL), "option": OPTIONS, "steps": STEPS, "save_gates": [True, False], "threads": [1, 2],
         "sizes": [(3, 6), (1, 4), (9, 20)], "dtype": DTYPES}
    )
    if takes(row["cell"], RECURRENCE_OPTIONS[row["option"]])
    and (row["dtype"] == torch.float64 or row["cell"] not in KINKS)
]  # fmt: skip


@pytest.mark.parametrize("row", ROWS, ids=lambda row: "-".join(map(str, row.values())))
@pytest.mark.sampled
def test_values_and_gradients(row, threads):
    threads(row["threads"])
    options = RECURRENCE_OPTIONS[row["option"]] | {"dtype": row["dtype"]}
    samples = draws(constant_sample, row["cell"], row["steps"], *row["sizes"], **options)
    op = functools.partial(in_place, row["steps"], save_gates=row["save_gates"])
    agree(op, functools.partial(repeated, row["steps"]), outputs_and_gradients, samples)


def test_the_input_is_not_copied():
    cell, u, R, state = constant_sample("lstm", 64, 8, 32, dtype=torch.float32).args
    gates = 64 * 8 * 4 * 32 * 4  # bytes of u or its gradient for all steps
    with torch.no_grad():
        assert peak_bytes(lambda: recurrence(cell, u, R, state, steps=64)) < 0.5 * gates
    h, _ = recurrence(cell, u, R, state, steps=64)
    upstream = torch.ones_like(h)
    assert peak_bytes(lambda: torch.autograd.grad(h, u, upstream, retain_graph=True)) < 0.5 * gates


def test_every_way_to_call():
    cell, u, R, state = constant_sample("lstm", 5).args
    wanted, _ = repeated(5, cell, u, R, state)
    call = lambda u: recurrence(cell, u, R, state, steps=5)[0]  # noqa: E731
    assert explain(recurrence, cell, u, R, state, steps=5).implementation == "cpu"
    torch.testing.assert_close(torch.compile(call, backend="aot_eager", fullgraph=True)(u), wanted)
    for context in (torch.no_grad(), use("reference")):
        with context:
            torch.testing.assert_close(call(u), wanted)


@pytest.mark.parametrize(("inputs", "options"), [(0, {"save_u": True}), (0, {"save_gates": False}), (4, {})], ids=str)
def test_second_derivatives(inputs, options):
    sample = constant_sample("lstm", 3, 2, 3, inputs=inputs)
    leaves = sample.leaves()

    def second(op):
        h, _ = op(3, *sample.args, **sample.kwargs, **options)
        first = torch.autograd.grad(h.sin().sum(), leaves, create_graph=True)
        return torch.autograd.grad(sum(g.sin().sum() for g in first), leaves)

    torch.testing.assert_close(second(in_place), second(repeated))


def test_transforms():
    cell, u, R, state = constant_sample("gru", 4).to(torch.float64, requires_grad=False).args
    value = lambda op, u: op(4, cell, u, R, state)[0].sin()  # noqa: E731
    for transform in (
        lambda f: grad(lambda u: f(u).sum())(u),
        lambda f: jvp(f, (u,), (u.cos(),))[1],
        lambda f: vmap(f)(torch.stack([u, u.cos()])),
    ):
        mine, plain = (transform(functools.partial(value, op)) for op in (in_place, repeated))
        torch.testing.assert_close(mine, plain)


@pytest.mark.parametrize(
    ("steps", "change", "error", "message"),
    [
        (0, {}, ValueError, "`steps` must be at least 1, got 0"),
        (2.0, {}, TypeError, "`steps` must be an int, got float"),
        (True, {}, TypeError, "`steps` must be an int, got bool"),
        (4, {"u": torch.zeros(2, 3, 6, dtype=torch.float64)}, ValueError, r"`u` must be \(1, B, G\*H\) with `steps`"),
        (4, {"keep": torch.zeros(1, dtype=torch.float64)}, ValueError, r"`keep` must be \(T,\) = \(4,\)"),
    ],
)
def test_errors(steps, change, error, message):
    cell, u, R, state = constant_sample("tanh", 4).args
    given = {"u": u} | change
    with pytest.raises(error, match=message):
        recurrence(cell, given.pop("u"), R, state, steps=steps, **given)
    with pytest.raises(ValueError, match="`batch_sizes` must be None with `steps`"):
        recurrence(cell, u[0], R, state, steps=4, batch_sizes=torch.tensor([3]))
