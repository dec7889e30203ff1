"""Both directions at once are two calls: values, gradients, bits, and the rule that says when they are side by side."""

import json
from collections import Counter

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.utils._python_dispatch import TorchDispatchMode

import rnnkern
from rnnkern.ops import explain, recurrence, recurrence_bidirectional, use
from rnnkern.ops.recurrence import KERNEL_CELLS
from rnnkern.testing import assert_close, covering_rows, recurrence_sample

LEAVES = ("weight_ih", "bias_ih", "R", "bias")
SIDE_BY_SIDE = "the cpu kernel serves this call, side by side with the other direction"

ROWS = covering_rows(
    {
        "cell": list(KERNEL_CELLS),
        "threads": [2, 1, 3, 4],
        "steps": [40, 0, 1, 12],
        "batch": [9, 0, 1, 64],
        "hidden": [96, 33],
        "dtype": [torch.float32, torch.bfloat16],
        "packed": [False, True],
        "reset": [False, True],
        "bias": [True, False],
        "save_gates": [True, False],
    }
)


def sample(cell, *sizes, inputs=5, **options):
    """(cell, x, and the arguments of each direction)."""
    directions = [recurrence_sample(cell, *sizes, inputs=inputs, **options) for _ in range(2)]
    x, sizes = directions[0].args[1], directions[0].kwargs["batch_sizes"]
    arguments = [{**s.kwargs, "R": s.args[2], "state": s.args[3], "batch_sizes": sizes} for s in directions]
    for call in arguments:
        del call["reverse"]
    return cell, x, *arguments


def to(dtype, value):
    if isinstance(value, dict):
        return {name: to(dtype, x) for name, x in value.items()}
    if isinstance(value, tuple):
        return tuple(to(dtype, x) for x in value)
    if not isinstance(value, torch.Tensor) or not value.is_floating_point():
        return value
    return value.detach().to(dtype, copy=True).requires_grad_(value.requires_grad)


def two_calls(cell, x, forward, backward):
    return recurrence(cell, x, **forward), recurrence(cell, x, **backward, reverse=True)


def leaves(x, *directions):
    named = {"x": x}
    for k, call in enumerate(directions):
        named |= {f"{name} {k}": call[name] for name in LEAVES if call.get(name) is not None}
        named |= {f"{group}[{i}] {k}": t for group in ("state", "params") for i, t in enumerate(call[group])}
    return {name: t for name, t in named.items() if t.requires_grad}


def outputs(results):
    named = {}
    for k, (h, final) in enumerate(results):
        named |= {f"h {k}": h, **{f"final[{i}] {k}": s for i, s in enumerate(final)}}
    return named


def run(op, cell, x, *directions):
    """Results and gradients by name."""
    results = outputs(op(cell, x, *directions))
    generator = torch.Generator().manual_seed(0)
    upstream = [torch.randn(y.shape, generator=generator, dtype=torch.float64).to(y) for y in results.values()]
    named = leaves(x, *directions)
    gradients = torch.autograd.grad(list(results.values()), list(named.values()), upstream, materialize_grads=True)
    return results | {f"grad of {name}": g for name, g in zip(named, gradients, strict=True)}


def is_sum(cell, name):
    """Over all rows, in an order that follows the threads."""
    projection = cell == "lstm_projected" and "params" in name
    return projection or name.startswith(tuple(f"grad of {leaf} " for leaf in LEAVES))


class Operators(TorchDispatchMode):
    """Our operators that ran."""

    def __init__(self):
        super().__init__()
        self.ran = []

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        if operator.namespace == "rnnkern":
            self.ran.append(operator._opname)
        return operator(*args, **(kwargs or {}))


def ran(call):
    with Operators() as operators:
        call()
    return operators.ran


BOTH = ["recurrence_bidirectional", "recurrence_bidirectional_backward"]
TWICE = ["recurrence", "recurrence", "recurrence_backward", "recurrence_backward"]


def name_of(row):
    return "-".join(str(v).removeprefix("torch.") if not isinstance(v, bool) else key * v for key, v in row.items())


@pytest.mark.parametrize("row", ROWS, ids=name_of)
def test_the_bits_are_those_of_two_calls(row, threads):
    row = dict(row)
    count, save_gates = row.pop("threads"), row.pop("save_gates")
    call = sample(**row, requires_grad=True)
    for direction in call[2:]:
        direction["save_gates"] = save_gates
    threads(1)
    wanted = run(two_calls, *call)
    threads(count)
    results = [run(recurrence_bidirectional, *call) for _ in range(2)]
    for name, value in results[0].items():
        assert torch.equal(results[1][name], value), name
        assert value.dtype == wanted[name].dtype
        assert value.shape == wanted[name].shape
        if not is_sum(row["cell"], name):
            assert torch.equal(value, wanted[name]), name


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("options", [{}, {"packed": True, "reset": True}, {"heads": 4, "bias": False}], ids=str)
@pytest.mark.parametrize("cell", ["tanh", "gru", "gru_reset_before", "lstm"])
def test_as_close_to_the_truth_as_plain_pytorch(cell, options, dtype, threads):
    call = sample(cell, 30, 8, 48, **options, dtype=dtype, requires_grad=True)
    with use("reference"):
        naive, truth = run(recurrence_bidirectional, *call), run(recurrence_bidirectional, *to(torch.float64, call))
    for count in (2, 4):
        threads(count)
        actual = run(recurrence_bidirectional, *call)
        for name in actual:
            assert_close(actual[name], naive[name], truth[name], name)


# ---- the rule


def test_both_are_one_operator_and_each_is_counted(threads):
    threads(2)
    call = sample("lstm", 4, 3, 8, dtype=torch.float32, requires_grad=True)
    assert ran(lambda: run(recurrence_bidirectional, *call)) == BOTH
    before = Counter(json.loads(torch.ops.rnnkern.kernel_counts()))
    run(recurrence_bidirectional, *call)
    level = rnnkern.build_info()["simd_level"]
    counted = Counter(json.loads(torch.ops.rnnkern.kernel_counts())) - before
    assert counted == {f"recurrence/cpu/{way}/lstm/{level}": 2 for way in ("forward", "backward")}
    assert explain(recurrence_bidirectional, *call) == [("cpu", SIDE_BY_SIDE)] * 2
    with torch.no_grad():
        assert ran(lambda: recurrence_bidirectional(*call)) == BOTH[:1]


DIFFERENT = {
    "grad_scale": lambda x, one, other: one.update(grad_scale=torch.ones(len(x))),
    "one reset": lambda x, one, other: other.update(reset=torch.zeros(x.shape[:2], dtype=torch.bool)),
    "zoneout": lambda x, one, other: other.update(zoneout=0.5),
    "one bias": lambda x, one, other: one.update(bias=None),
    "save_gates": lambda x, one, other: other.update(save_gates=False),
}


@pytest.mark.parametrize("change", DIFFERENT)
def test_directions_that_differ_are_two_calls(change, threads):
    threads(2)
    cell, x, *directions = sample("gru", 4, 3, 8, dtype=torch.float32, requires_grad=True)
    DIFFERENT[change](x, *directions)
    assert ran(lambda: run(recurrence_bidirectional, cell, x, *directions)) == TWICE
    assert SIDE_BY_SIDE not in [c.reason for c in explain(recurrence_bidirectional, cell, x, *directions)]
    wanted = run(two_calls, cell, x, *directions)
    for name, value in run(recurrence_bidirectional, cell, x, *directions).items():
        assert torch.equal(value, wanted[name]), name


def test_of_different_sizes_they_are_two_calls(threads):
    threads(2)
    _, x, one, _ = sample("gru", 4, 3, 8)
    _, _, _, other = sample("gru", 4, 3, 6)
    assert ran(lambda: recurrence_bidirectional("gru", x, one, other)) == TWICE[:2]


def test_one_thread_or_another_implementation_or_a_transform_takes_two_calls(threads):
    threads(1)
    call = cell, x, *directions = sample("gru", 4, 3, 8, dtype=torch.float32, requires_grad=True)
    assert ran(lambda: run(recurrence_bidirectional, *call)) == TWICE
    assert explain(recurrence_bidirectional, *call) == [("cpu", "the cpu kernel serves this call")] * 2
    threads(2)
    with use("reference"):
        assert ran(lambda: run(recurrence_bidirectional, *call)) == []
        assert explain(recurrence_bidirectional, *call) == [("reference", "forced by use('reference')")] * 2
    with use("cpu"):
        assert ran(lambda: run(recurrence_bidirectional, *call)) == BOTH
    last = lambda x: recurrence_bidirectional(cell, x, *directions)[1][0].sum()  # noqa: E731
    wanted = torch.autograd.grad(last(x), x)[0]
    torch.testing.assert_close(torch.func.grad(last)(x), wanted)
    per_member = torch.vmap(last)(x.detach().unsqueeze(0).expand(2, *x.shape))
    torch.testing.assert_close(per_member, last(x).expand(2))


@pytest.mark.parametrize("packed", [False, True])
def test_compiled_code_is_two_calls(packed, threads):
    threads(2)
    torch.compiler.reset()
    call = sample("lstm", 4, 3, 8, packed=packed, requires_grad=True)
    compiled = torch.compile(recurrence_bidirectional, fullgraph=True, backend="aot_eager")
    wanted = run(two_calls, *call)
    for name, value in run(compiled, *call).items():
        torch.testing.assert_close(value, wanted[name], msg=name)


def test_wrong_arguments_are_named():
    cell, x, one, other = sample("lstm", 4, 3, 8)
    for directions in ((one | {"R": one["R"][1:]}, other), (one, other | {"R": one["R"][1:]})):
        for op in (recurrence_bidirectional, recurrence_bidirectional.choose):
            with pytest.raises(ValueError, match=r"recurrence: `R` must be \(G\*H, H\)"):
                op(cell, x, *directions)
    with pytest.raises(ValueError, match="`cell` must be one of"):
        recurrence_bidirectional("made_up", x, one, other)
    with pytest.raises(TypeError, match="made_up"):
        recurrence_bidirectional(cell, x, one | {"made_up": 1}, other)
    with pytest.raises(TypeError, match="`u` must be a tensor"):
        recurrence_bidirectional(cell, None, one, other)


# ---- the operators and their derivatives


@pytest.mark.parametrize("options", [{}, {"packed": True, "reset": True}, {"bias": False}], ids=str)
@pytest.mark.parametrize("cell", ["tanh", "modrelu", "gru", "lstm", "lstm_projected"])
def test_opcheck(cell, options):
    _, x, *directions = sample(cell, 3, 3, 4, **options)

    def both(name):
        return [call[name] for call in directions] if directions[0].get(name) is not None else None

    state, params = ([t for call in directions for t in call[group]] for group in ("state", "params"))
    common = (x, both("R"), state, both("bias"), params or None, directions[0]["batch_sizes"], both("reset"))
    projection = both("weight_ih"), both("bias_ih")
    for training, save_gates in ((True, True), (True, False), (False, False)):
        args = (cell, *common, training, save_gates, *projection)
        torch.library.opcheck(torch.ops.rnnkern.recurrence_bidirectional.default, args)
    results = torch.ops.rnnkern.recurrence_bidirectional(cell, *common, True, True, *projection)
    halves, states = (results[: len(results) // 2], results[len(results) // 2 :]), len(state) // 2
    h, saved = [half[0] for half in halves], [t for half in halves for t in half[1 + states :]]
    grad_h = [torch.randn_like(x) for x in h]
    for grads, grad_state, needed in ((grad_h, [], True), ((None, None), [torch.randn_like(s) for s in state], False)):
        args = (cell, *grads, grad_state, *common, h, saved, *projection, *[needed] * 5)
        torch.library.opcheck(torch.ops.rnnkern.recurrence_bidirectional_backward.default, args)


@pytest.mark.parametrize("options", [{}, {"packed": True, "reset": True}], ids=str)
@pytest.mark.parametrize("cell", ["tanh", "gru", "lstm", "lstm_projected"])
def test_first_and_second_derivatives(cell, options, threads):
    threads(2)
    cell, x, *directions = sample(cell, 3, 2, 2, inputs=2, **options, requires_grad=True)
    named = leaves(x, *directions)

    def call(*tensors):
        given = dict(zip(named, tensors, strict=True))
        calls = []
        for k, direction in enumerate(directions):
            own = direction | {name: given[f"{name} {k}"] for name in LEAVES}
            own |= {g: tuple(given[f"{g}[{i}] {k}"] for i in range(len(direction[g]))) for g in ("state", "params")}
            calls.append(own)
        return tuple(outputs(recurrence_bidirectional(cell, given["x"], *calls)).values())

    assert "recurrence_bidirectional" in ran(lambda: call(*named.values()))
    assert gradcheck(call, list(named.values()))
    assert gradgradcheck(call, list(named.values()))


@pytest.mark.parametrize("cell", ["modrelu", "gru", "lstm"])
def test_a_frozen_weight_changes_no_other_gradient(cell, threads):
    threads(2)
    call = sample(cell, 5, 3, 6, dtype=torch.float32, requires_grad=True)
    named, wanted = leaves(*call[1:]), run(recurrence_bidirectional, *call)
    for frozen in [*named, "all but x", "all but R 1"]:
        rest = [n for n in named if (n == frozen[8:] if frozen.startswith("all") else n != frozen)]
        for name, x in named.items():
            x.requires_grad_(name in rest)
        results = run(recurrence_bidirectional, *call)
        assert [n for n in results if n.startswith("grad")] == [f"grad of {name}" for name in rest]
        for name, value in results.items():
            assert torch.equal(value, wanted[name]), (frozen, name)


@pytest.mark.parametrize("used", [["h 0"], ["h 1", "final[1] 1"], ["final[1] 0"], ["h 0", "final[0] 1"]], ids=str)
def test_gradients_of_some_outputs_only(used, threads):
    threads(2)
    call = sample("lstm", 5, 3, 4, requires_grad=True)
    named = leaves(*call[1:])

    def gradients(op):
        results = outputs(op(*call))
        loss = sum(results[name].square().sum() for name in used)
        return torch.autograd.grad(loss, list(named.values()), allow_unused=True)

    for name, actual, wanted in zip(named, gradients(recurrence_bidirectional), gradients(two_calls), strict=True):
        assert (actual is None) == (wanted is None), name
        if wanted is not None:
            torch.testing.assert_close(actual, wanted, msg=name)


def test_a_backward_under_vmap(threads):
    threads(2)
    call = sample("gru", 4, 3, 5, requires_grad=True)
    upstream = torch.randn(2, 4, 3, 5, dtype=torch.float64)

    def gradients(op):
        (h, _), (other, _) = op(*call)
        named = list(leaves(*call[1:]).values())
        return torch.vmap(lambda g: torch.autograd.grad((h, other), named, (g, g), retain_graph=True))(upstream)

    torch.testing.assert_close(gradients(recurrence_bidirectional), gradients(two_calls))


def test_what_the_backward_keeps(threads):
    """The input once, and of each direction h, c and the gates."""
    threads(2)
    call = sample("lstm", 7, 3, 16, requires_grad=True)
    saved = {}
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.setdefault(t.data_ptr(), t), lambda t: t):
        recurrence_bidirectional(*call)
    assert sum(t.numel() for t in saved.values() if t.shape[:2] == (7, 3)) == (5 + 2 * 6 * 16) * 7 * 3
