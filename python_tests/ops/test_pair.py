"""Both directions, or two layers, in one call equal two calls, over a covering array: bits, derivatives, conditions."""

import json
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import pytest
import torch

import rnnkern
from python_tests.samples import EVERY_CELL, changed, covering_rows, recurrence_sample
from python_tests.samples.agreement import wide
from python_tests.samples.recorded import opcheck, recorded
from rnnkern import use
from rnnkern.ops import recurrence
from rnnkern.ops._recurrence.pair import both
from rnnkern.testing import assert_close, saved_bytes

LEAVES = ("weight_ih", "bias_ih", "R", "bias")


class Pair(NamedTuple):
    """Two recurrences in one call and in two calls. Both functions return (h, final state) of each recurrence; h is
    None if it is not available."""

    op: Callable
    choose: Callable  # the implementation of each recurrence
    at_once: Callable
    two_calls: Callable
    how: str

    @property
    def reason(self):
        return f"the cpu kernel serves this call, {self.how}"


directions, layers = (partial(both, stacked=stacked) for stacked in (False, True))


def at_once_layers(cell, x, lower, upper):
    h, lower_state, upper_state = layers(cell, x, lower, upper)
    return (None, lower_state), (h, upper_state)


def two_directions(cell, x, forward, backward):
    return recurrence(cell, x, **forward), recurrence(cell, x, **backward, reverse=True)


def two_layers(cell, x, lower, upper):
    h, state = recurrence(cell, x, **lower)
    return (None, state), recurrence(cell, h, **upper)


DIRECTIONS = Pair(
    directions, partial(both._choose, stacked=False), directions, two_directions,
    "side by side with the other direction",
)  # fmt: skip
LAYERS = Pair(
    layers, partial(both._choose, stacked=True), at_once_layers, two_layers, "in one call with the other layer"
)
pairs = pytest.mark.parametrize("pair", [DIRECTIONS, LAYERS], ids=["directions", "layers"])

ROWS = covering_rows(
    {
        "cell": list(EVERY_CELL),
        "pair": [DIRECTIONS, LAYERS],
        "threads": [2, 1, 3, 4],
        "steps": [131, 0, 1, 40],
        "batch": [9, 0, 1, 64],
        "hidden": [96, 33],  # layers run concurrently from 2 million multiplications
        "dtype": [torch.float32, torch.bfloat16],
        "packed": [False, True],
        "reset": [False, True],
        "bias": [True, False],
        "save_gates": [True, False],
    }
)


def sample(pair, cell, *sizes, inputs=5, **options):
    """(cell, x, and the arguments of each recurrence)."""
    first = recurrence_sample(cell, *sizes, inputs=inputs, **options)
    width = first.args[3][0].shape[1] if pair is LAYERS else inputs
    second = recurrence_sample(cell, *sizes, inputs=width, **options)
    x, sizes = first.args[1], first.kwargs["batch_sizes"]
    arguments = [{**s.kwargs, "R": s.args[2], "state": s.args[3], "batch_sizes": sizes} for s in (first, second)]
    for call in arguments:
        del call["reverse"]
    return cell, x, *arguments


def leaves(x, *calls):
    named = {"x": x}
    for k, call in enumerate(calls):
        named |= {f"{name} {k}": call[name] for name in LEAVES if call.get(name) is not None}
        named |= {f"{group}[{i}] {k}": t for group in ("state", "params") for i, t in enumerate(call[group])}
    return {name: t for name, t in named.items() if t.requires_grad}


def outputs(results):
    named = {}
    for k, (h, final) in enumerate(results):
        named |= {f"h {k}": h, **{f"final[{i}] {k}": s for i, s in enumerate(final)}}
    return {name: x for name, x in named.items() if x is not None}


def run(call, cell, x, *arguments):
    """Results and gradients by name."""
    results = outputs(call(cell, x, *arguments))
    generator = torch.Generator().manual_seed(0)
    upstream = [torch.randn(y.shape, generator=generator, dtype=torch.float64).to(y) for y in results.values()]
    named = leaves(x, *arguments)
    gradients = torch.autograd.grad(list(results.values()), list(named.values()), upstream, materialize_grads=True)
    return results | {f"grad of {name}": g for name, g in zip(named, gradients, strict=True)}


def is_sum(cell, name):
    """Whether a gradient is a sum over all rows, whose order depends on the number of threads."""
    projection = cell == "lstm_projected" and "params" in name
    return projection or name.startswith(tuple(f"grad of {leaf} " for leaf in LEAVES))


def ran(call):
    """The names of the operators that ran."""
    return [operator._opname for operator, _ in recorded(call)]


BOTH = ["recurrence_pair", "recurrence_pair_backward"]
TWICE = ["recurrence", "recurrence", "recurrence_backward", "recurrence_backward"]


def name_of(row):
    named = {**row, "pair": "layers" if row["pair"] is LAYERS else "directions"}
    return "-".join(str(v).removeprefix("torch.") if not isinstance(v, bool) else key * v for key, v in named.items())


@pytest.mark.parametrize("row", ROWS, ids=name_of)
def test_the_bits_are_those_of_two_calls(row, threads):
    row = dict(row)
    pair, count, save_gates = row["pair"], row.pop("threads"), row.pop("save_gates")
    call = sample(**row, requires_grad=True)
    for arguments in call[2:]:
        arguments["save_gates"] = save_gates
    threads(1)
    wanted, truth = run(pair.two_calls, *call), run(pair.two_calls, *changed(call, wide))
    threads(count)
    results = [run(pair.at_once, *call) for _ in range(2)]
    for name, value in results[0].items():
        assert torch.equal(results[1][name], value), name
        assert value.dtype == wanted[name].dtype
        assert value.shape == wanted[name].shape
        if is_sum(row["cell"], name):
            assert_close(value, wanted[name], truth[name], name)
        else:
            assert torch.equal(value, wanted[name]), name


# ---- conditions for one call


@pairs
def test_both_are_one_operator_and_each_is_counted(pair, threads):
    threads(2)
    call = sample(pair, "lstm", 4, 3, 8, dtype=torch.float32, requires_grad=True)
    assert ran(lambda: run(pair.at_once, *call)) == BOTH
    before = Counter(json.loads(torch.ops.rnnkern.kernel_counts()))
    run(pair.at_once, *call)
    level = rnnkern.build_info()["simd_level"]
    counted = Counter(json.loads(torch.ops.rnnkern.kernel_counts())) - before
    assert counted == {f"recurrence/cpu/{way}/lstm/{level}": 2 for way in ("forward", "backward")}
    assert pair.choose(*call) == [("cpu", pair.reason)] * 2
    with torch.no_grad():
        assert ran(lambda: pair.op(*call)) == BOTH[:1]


DIFFERENT = {
    "grad_scale": lambda x, one, other: one.update(grad_scale=torch.ones(len(x))),
    "one reset": lambda x, one, other: other.update(reset=torch.zeros(x.shape[:2], dtype=torch.bool)),
    "zoneout": lambda x, one, other: other.update(zoneout=0.5),
    "keep": lambda x, one, other: one.update(keep=torch.full((len(x),), 0.25)),
    "one bias": lambda x, one, other: one.update(bias=None),
    "save_gates": lambda x, one, other: other.update(save_gates=False),
    "sizes": lambda x, one, other: other.update(
        sample(LAYERS, "gru", 4, 3, 6, inputs=other["weight_ih"].shape[1], dtype=torch.float32, requires_grad=True)[2]
    ),
}


@pairs
@pytest.mark.parametrize("change", DIFFERENT)
def test_calls_that_differ_are_two(change, pair, threads):
    threads(2)
    call = sample(pair, "gru", 4, 3, 8, dtype=torch.float32, requires_grad=True)
    DIFFERENT[change](*call[1:])
    assert ran(lambda: run(pair.at_once, *call)) == TWICE
    assert pair.reason not in [c.reason for c in pair.choose(*call)]
    wanted = run(pair.two_calls, *call)
    for name, value in run(pair.at_once, *call).items():
        assert torch.equal(value, wanted[name]), name


@pairs
def test_one_thread_or_another_implementation_or_a_transform_takes_two_calls(pair, threads):
    threads(1)
    call = cell, x, *arguments = sample(pair, "gru", 4, 3, 8, dtype=torch.float32, requires_grad=True)
    assert ran(lambda: run(pair.at_once, *call)) == TWICE
    assert pair.choose(*call) == [("cpu", "the cpu kernel serves this call")] * 2
    threads(2)
    with use("reference"):
        assert ran(lambda: run(pair.at_once, *call)) == []
        assert pair.choose(*call) == [("reference", "forced by use('reference')")] * 2
    with use("cpu"):
        assert ran(lambda: run(pair.at_once, *call)) == BOTH
    last = lambda x: pair.at_once(cell, x, *arguments)[1][0].sum()  # noqa: E731
    wanted = torch.autograd.grad(last(x), x)[0]
    torch.testing.assert_close(torch.func.grad(last)(x), wanted)
    per_member = torch.vmap(last)(x.detach().unsqueeze(0).expand(2, *x.shape))
    torch.testing.assert_close(per_member, last(x).expand(2))


@pairs
def test_compiled_code_is_two_calls(pair, threads):
    threads(2)
    call = sample(pair, "lstm", 4, 3, 8, packed=True, requires_grad=True)
    compiled = torch.compile(pair.at_once, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(run(compiled, *call), run(pair.two_calls, *call))


@pairs
def test_wrong_arguments_of_either_are_named(pair, threads):
    threads(2)
    cell, x, one, other = sample(pair, "lstm", 4, 3, 8)
    for wrong in ((one | {"R": one["R"][1:]}, other), (one, other | {"R": other["R"][1:]})):
        for op in (pair.op, pair.choose):
            with pytest.raises(ValueError, match=r"recurrence: `R` must be \(G\*H, H\)"):
                op(cell, x, *wrong)
    with pytest.raises(TypeError, match="`u` must be a tensor"):
        pair.op(cell, None, one, other)


# ---- the operators and their derivatives


@pairs
@pytest.mark.parametrize(
    ("cell", "options", "more"),
    [
        ("tanh", {"bias": False}, ()),
        ("lstm_projected", {"packed": True, "reset": True}, ()),
        ("lstm", {}, ("test_aot_dispatch_dynamic",)),
    ],
)
def test_opcheck(cell, options, more, pair, threads):
    threads(2)
    call = sample(pair, cell, 3, 3, 4, **options, requires_grad=True)
    opcheck(lambda: run(pair.at_once, *call), *more)
    for arguments in call[2:]:
        arguments["save_gates"] = False
    opcheck(lambda: run(pair.at_once, *call), *more)
    with torch.no_grad():
        opcheck(lambda: pair.op(*call), *more)


def of_some_outputs(*names):
    def differentiate(results, leaves):
        loss = sum(results[name].square().sum() for name in names if name in results)
        return torch.autograd.grad(loss, leaves, materialize_grads=True)

    return differentiate


def second(results, leaves):
    first = torch.autograd.grad(sum(y.sin().sum() for y in results.values()), leaves, create_graph=True)
    return torch.autograd.grad(sum(g.sin().sum() for g in first), leaves)


def under_vmap(results, leaves):
    h = [y for name, y in results.items() if name.startswith("h")]
    upstream = torch.linspace(-1, 1, 2 * h[0].numel(), dtype=h[0].dtype).view(2, *h[0].shape)
    return torch.vmap(lambda g: torch.autograd.grad(h, leaves, [g] * len(h), retain_graph=True))(upstream)


DERIVATIVES = {
    "second": second,
    "under vmap": under_vmap,
    "of h": of_some_outputs("h 1"),
    "of the other h and a state": of_some_outputs("h 0", "final[0] 1"),
    "of the first state": of_some_outputs("final[0] 0"),
    "of both states": of_some_outputs("final[1] 0", "final[0] 1"),
}


@pairs
@pytest.mark.parametrize("derivative", DERIVATIVES)
@pytest.mark.parametrize("options", [{}, {"packed": True, "reset": True}], ids=str)
@pytest.mark.parametrize("cell", ["gru", "lstm", "lstm_projected"])
def test_derivatives_are_those_of_two_calls(cell, options, derivative, pair, threads):
    threads(2)
    call = sample(pair, cell, 4, 3, 5, **options, requires_grad=True)
    named = list(leaves(*call[1:]).values())
    found, wanted = (DERIVATIVES[derivative](outputs(op(*call)), named) for op in (pair.at_once, pair.two_calls))
    torch.testing.assert_close(found, wanted)


@pairs
@pytest.mark.parametrize("cell", ["modrelu", "gru", "lstm"])
def test_a_frozen_weight_changes_no_other_gradient(cell, pair, threads):
    threads(2)
    call = sample(pair, cell, 5, 3, 6, requires_grad=True)
    named, wanted = leaves(*call[1:]), run(pair.at_once, *call)
    for frozen in [*named, "all but x", "all but R 1"]:
        rest = [n for n in named if (n == frozen[8:] if frozen.startswith("all") else n != frozen)]
        for name, x in named.items():
            x.requires_grad_(name in rest)
        results = run(pair.at_once, *call)
        assert [n for n in results if n.startswith("grad")] == [f"grad of {name}" for name in rest]
        for name, value in results.items():
            torch.testing.assert_close(value, wanted[name], msg=f"{frozen}: {name}")


@pairs
def test_what_the_backward_keeps(pair, threads):
    """h, c and the gates of each recurrence, beside the input."""
    threads(2)
    call = sample(pair, "lstm", 7, 3, 16, requires_grad=True)
    assert saved_bytes(lambda: pair.op(*call), [call[1]]) == 8 * 7 * 3 * 2 * 6 * 16
