"""relevancy_recurrence: the kernels against the reference, which implements the definition."""

import json

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.library import opcheck

import rnnkern
from python_tests.ops.relevancy_sample import (
    PASSED_ON,
    call_of,
    everything,
    is_the_references,
    random_call,
    same_selection,
    with_leaves,
)
from python_tests.samples import draws, mostly
from python_tests.seeds import Random
from python_tests.tiers import each_level
from rnnkern import reference
from rnnkern.ops import explain, relevancy_recurrence
from rnnkern.reference import RelevancyState
from rnnkern.reference._relevancy import RELEVANCY_CELLS
from rnnkern.testing import assert_close_over_draws

OPTIONS = {
    "plain": {},
    "packed, reset, carried": {"packed": True, "reset": 0.3, "carried": 5},
    "all remembered": {"buffer_size": 11, "relevant_size": 1, "carried": 2},
    "window": {"relevant_size": 0},
    "given, dot, sum": {"relevance": "given", "alignment": "dot", "combine": "sum"},
    "concat": {"combine": "concat", "packed": True, "reset": 0.3},
    "heads": {"heads": 2, "carried": 5},
}

CHECKS = ("test_schema", "test_autograd_registration", "test_faketensor")
"""Tests of opcheck; the other one cannot trace the reference's second derivative, which reads the selected events."""

_operators = torch.ops.rnnkern


def equal(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def outputs(call, **more):
    """The results through which gradients flow."""
    out, state, *_ = relevancy_recurrence(*call.args, **call.kwargs, **more)
    return (out, *(x for name, x in state._asdict().items() if name in PASSED_ON and x is not None))


# ---- values and gradients


def test_random_calls_in_float64_are_the_references():
    draw = Random(0)
    for _ in range(100):
        is_the_references(random_call(draw))


def hold_to_the_rule(*sizes, **options):
    """Compares the selected events and the values of random calls in float32."""

    def compared():
        call = call_of(*sizes, **options, dtype=torch.float32)
        found = everything(relevancy_recurrence, call)
        naive, truth = (everything(reference.relevancy_recurrence, call.to(d)) for d in (torch.float32, torch.float64))
        named = {name: (x, naive[name], truth[name]) for name, x in found.items() if x.is_floating_point()}
        return same_selection(found, truth) and same_selection(naive, truth), named

    assert_close_over_draws(mostly(draws(compared)))


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("cell", RELEVANCY_CELLS)
@pytest.mark.sampled
def test_float32_is_as_close_as_pytorch(cell, options):
    hold_to_the_rule(cell, 9, 3, 37, **OPTIONS[options])


@pytest.mark.parametrize(("batch", "hidden"), [(17, 1), (1, 128), (2, 200)])
def test_other_sizes_in_float32(batch, hidden):
    hold_to_the_rule("tanh", 8, batch, hidden)


@each_level
def test_every_level_computes_the_same(level, simd):
    simd(level)
    draw = Random(1)
    for _ in range(20):
        is_the_references(random_call(draw))
    for cell in ("modrelu", "lstm"):
        hold_to_the_rule(cell, 9, 3, 37, reset=0.1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_weights_made_again_of_large_scores_are_finite(dtype):
    torch.manual_seed(0)
    call = call_of("tanh", 6, 3, 20, buffer_size=9, alignment="dot", scale=1e10 if dtype == torch.float32 else 1e19)
    found, wanted = (everything(op, call.to(dtype)) for op in (relevancy_recurrence, reference.relevancy_recurrence))
    for name, x in wanted.items():
        assert torch.equal(found[name].isfinite(), x.isfinite()), name


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_16_bits_are_computed_in_float32(dtype):
    call = call_of("lstm", dtype=dtype).to(dtype, requires_grad=False)
    h, state = relevancy_recurrence(*call.args, **call.kwargs)
    wide = call.to(torch.float32)
    exact, last = relevancy_recurrence(*wide.args, **wide.kwargs)
    assert torch.equal(h, exact.to(dtype))
    assert torch.equal(state.buffer, last.buffer)


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("cell", RELEVANCY_CELLS)
@pytest.mark.sampled
def test_first_and_second_derivatives(cell, options):
    call = call_of(cell, 4, 2, 3, **OPTIONS[options])
    names, output = list(call.leaves()), "s" if options in ("window", "all remembered") else "h"

    def function(*leaves):
        return outputs(with_leaves(call, dict(zip(names, leaves, strict=True))), output=output)

    assert gradcheck(function, list(call.leaves().values()), fast_mode=True)
    assert gradgradcheck(function, list(call.leaves().values()), fast_mode=True)


def test_a_gradient_penalty_is_the_references():
    """Second derivatives of first derivatives that are part of the graph, for each leaf separately."""
    call = call_of("lstm", 5, 2, 3, reset=0.2)

    def penalty(op):
        h, state = op(*call.args, **call.kwargs)
        leaves = list(call.leaves().values())
        options = {"allow_unused": True, "materialize_grads": True}  # c0, where all sequences begin with a reset
        first = torch.autograd.grad(h.square().sum() + state.relevant.sum(), leaves, create_graph=True, **options)
        return torch.autograd.grad(sum(g.square().sum() for g in first), leaves, **options)

    for found, truth in zip(penalty(relevancy_recurrence), penalty(reference.relevancy_recurrence), strict=True):
        torch.testing.assert_close(found, truth, rtol=1e-9, atol=1e-9)


# ---- the operators


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("cell", ["modrelu", "lstm"])
def test_the_operators_are_what_torch_expects(cell, options):
    call = call_of(cell, 5, 3, 4, **OPTIONS[options]).to(torch.float64, requires_grad=False)
    _, u, R, state, attention = call.args
    weights = [R, *attention]
    if not isinstance(state, RelevancyState):
        state = reference.empty_state(state, call.kwargs["relevant_size"], len(attention[1]))
    parts = [x for x in state if x is not None]
    given = call.kwargs["relevance"] if isinstance(call.kwargs["relevance"], torch.Tensor) else None
    rest = (list(call.kwargs["params"]), call.kwargs["batch_sizes"], call.kwargs["reset"], given,
            call.kwargs["buffer_size"], 0.5, call.kwargs["alignment"] == "dot", "float64")  # fmt: skip
    for flags in ((False, True), (True, False)):
        opcheck(_operators.relevancy_recurrence, (cell, u, weights, parts, *rest, *flags), test_utils=CHECKS)
    h, s, *results = _operators.relevancy_recurrence(cell, u, weights, parts, *rest, True, False)
    last, saved = results[: len(parts)], results[len(parts) :]
    grads = [torch.randn_like(x) for x in (*last[:-7], last[-7], last[-4])]
    for upstream in ((torch.randn_like(h), None, None), (None, torch.randn_like(s), grads)):
        arguments = (cell, *upstream, weights, parts, *rest, h, s, saved)
        opcheck(_operators.relevancy_recurrence_backward, arguments, test_utils=CHECKS)


def test_the_compiler_takes_it_whole():
    call = call_of("lstm", 6, 2, 4)
    compiled = torch.compile(relevancy_recurrence, fullgraph=True, backend="aot_eager")
    assert equal(everything(compiled, call), everything(relevancy_recurrence, call))


@pytest.mark.parametrize("op", [relevancy_recurrence, reference.relevancy_recurrence], ids=["kernel", "reference"])
def test_events_of_a_long_run_keep_their_ids(op):
    """The number of steps exceeds 32 bits."""
    call = call_of("tanh", carried=4)
    begin = 2**32 * call.kwargs["buffer_size"]

    def later(ids):
        return torch.where(ids < 0, ids, ids + begin)

    cell, u, R, state, attention = call.args
    late = state._replace(buffer_ids=later(state.buffer_ids), ids=later(state.ids), time=state.time + begin)
    _, _, memory = op(cell, u, R, state, attention, **call.kwargs, return_memory=True)
    _, last, late_memory = op(cell, u, R, late, attention, **call.kwargs, return_memory=True)
    assert late_memory.ids.max() == last.time.max() - 1 == begin + 10
    assert torch.equal(late_memory.ids, later(memory.ids))


def test_explain_says_what_runs():
    call = call_of("relu").to(torch.float32)
    assert explain(relevancy_recurrence, *call.args, **call.kwargs).implementation == "cpu"

    def counts():
        found = json.loads(_operators.kernel_counts())
        return [sum(n for name, n in found.items() if name.startswith(f"relevancy_recurrence/cpu/{way}/relu"))
                for way in ("forward", "backward")]  # fmt: skip

    before = counts()
    relevancy_recurrence(*call.args, **call.kwargs)[0].sum().backward()
    assert [b - a for a, b in zip(before, counts(), strict=True)] == [1, 1]
    with rnnkern.use("reference"):
        relevancy_recurrence(*call.args, **call.kwargs)
    assert [b - a for a, b in zip(before, counts(), strict=True)] == [1, 1]


def test_what_the_kernels_do_not_have_is_said():
    call = call_of("tanh")
    leaves = call.leaves()

    def function(u):
        return outputs(with_leaves(call, leaves | {"u": u}))[0]

    with pytest.raises(NotImplementedError, match="relevancy_recurrence: forward-mode AD is not supported"):
        torch.func.jvp(function, (leaves["u"].detach(),), (leaves["u"].detach(),))


@pytest.mark.parametrize("cell", ["tanh", "lstm"])
def test_members_of_vmap_are_calls(cell):
    call = call_of(cell, 5, 2, 3).to(torch.float64, requires_grad=False)
    leaves = call.leaves()
    members = {name: torch.stack([x, x.flip(0)]) for name, x in leaves.items() if name in ("u", "R")}

    def function(part):
        return outputs(with_leaves(call, leaves | part))

    def gradients(part):
        return torch.func.grad(lambda part: sum(x.sin().sum() for x in function(part)))(part)

    for f in (function, gradients):
        alone = [f({name: x[k] for name, x in members.items()}) for k in range(2)]
        together = torch.vmap(f)(members)
        flat = [torch.utils._pytree.tree_leaves(x) for x in (together, *alone)]
        for found, *wanted in zip(*flat, strict=True):
            assert torch.equal(found, torch.stack(wanted))
    jacobian = torch.func.jacrev(lambda u: function({"u": u})[0])(leaves["u"])
    torch.testing.assert_close(
        jacobian, torch.autograd.functional.jacobian(lambda u: function({"u": u})[0], leaves["u"])
    )
    with pytest.raises(ValueError, match="needs at least one member"):
        torch.vmap(function)({name: x[:0] for name, x in members.items()})


@pytest.mark.parametrize("time", [-1, 4])
def test_a_time_that_no_state_can_have_is_refused(time):
    """It would address a slot outside the buffer."""
    call = call_of("tanh", 2, 1, 3, buffer_size=9, carried=2)
    state = call.args[3]._replace(time=torch.tensor([time]))
    with pytest.raises(RuntimeError, match=r"`state\.time` must be as"):
        relevancy_recurrence(*call.args[:3], state, call.args[4], **call.kwargs)


# ---- bitwise equality


def halves(call, first):
    """h and the state of a call that is split into two."""
    cell, u, R, state, attention = call.args
    kwargs = dict(call.kwargs)
    cut = {name: kwargs.pop(name) for name in ("reset", "relevance")}

    def options(part):
        return kwargs | {name: x[part] if isinstance(x, torch.Tensor) else x for name, x in cut.items()}

    h, state = relevancy_recurrence(cell, u[:first], R, state, attention, **options(slice(first)))
    rest, state = relevancy_recurrence(cell, u[first:], R, state, attention, **options(slice(first, None)))
    return torch.cat([h, rest]), state


@pytest.mark.parametrize("first", [0, 1, 4, 9, 17])
@pytest.mark.parametrize("options", [{}, {"reset": 0.2}, {"buffer_size": 50}, {"relevant_size": 0},
                                     {"relevance": "given", "relevant_size": 4, "carried": 2}])  # fmt: skip
@pytest.mark.parametrize("cell", ["tanh", "lstm"])
def test_two_calls_are_one_to_the_bit(cell, options, first):
    call = call_of(cell, 17, 3, 19, **{"buffer_size": 5, **options}, dtype=torch.float32)
    h, state = relevancy_recurrence(*call.args, **call.kwargs)
    pieces, last = halves(call, first)
    assert torch.equal(h, pieces)
    for name, x in state._asdict().items():
        assert x is None or torch.equal(x, getattr(last, name)), name


def test_gradients_of_two_calls_are_those_of_one():
    call = call_of("lstm", 12, 2, 5, reset=0.1)
    leaves = list(call.leaves().values())

    def gradients(h, state):
        return torch.autograd.grad(h.sin().sum() + state.relevant.cos().sum() + state.c.sum(), leaves)

    whole = gradients(*relevancy_recurrence(*call.args, **call.kwargs))
    for found, wanted in zip(gradients(*halves(call, 7)), whole, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("cell", ["modrelu", "lstm"])
def test_threads_do_not_change_a_bit(cell, options, threads):
    call = call_of(cell, 9, 29, 21, **OPTIONS[options], dtype=torch.float32)
    threads(1)
    alone = everything(relevancy_recurrence, call)
    for number in (2, 3):
        threads(number)
        assert equal(everything(relevancy_recurrence, call), alone)


# ---- memory


def kept(call):
    """Number of elements that a call saves for the backward pass, besides its inputs and the returned state."""
    inputs = {x.data_ptr() for x in (*call.leaves().values(), *call.kwargs["params"])}
    saved = {}
    with torch.autograd.graph.saved_tensors_hooks(lambda x: saved.setdefault(x.data_ptr(), x), lambda x: x):
        relevancy_recurrence(*call.args, **call.kwargs)
    return sum(x.untyped_storage().nbytes() for key, x in saved.items() if key not in inputs)


@pytest.mark.parametrize("cell", RELEVANCY_CELLS)
def test_a_step_keeps_2_n_and_kappa_and_one_numbers(cell):
    steps, batch, hidden, sizes = 60, 4, 32, {"buffer_size": 10, "relevant_size": 10}
    call = call_of(cell, steps, batch, hidden, **sizes, dtype=torch.float32)
    numbers = (7 if cell == "lstm" else 2) * hidden + 20 + 1
    assert kept(call) <= 1.1 * 4 * numbers * steps * batch


@pytest.mark.parametrize("relevant_size", [0, 3])
def test_full_attention_keeps_memory_that_is_linear_in_time(relevant_size):
    def bytes_of(steps):
        return kept(call_of("tanh", steps, 2, 8, buffer_size=steps, relevant_size=relevant_size, dtype=torch.float32))

    assert bytes_of(400) <= 2 * bytes_of(200)
    assert bytes_of(400) <= 1.1 * 4 * (2 * 8 + 1) * 400 * 2


def test_inference_keeps_nothing():
    assert kept(call_of("lstm").to(torch.float64, requires_grad=False)) == 0
