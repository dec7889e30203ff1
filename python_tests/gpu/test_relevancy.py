"""CUDA kernels of relevancy_recurrence against the reference: selected events, values, gradients, sizes, chunks."""

import itertools
import json
from collections.abc import Iterator

import pytest
import torch

from python_tests.gpu import drivers, recurrences, relevancies
from python_tests.gpu.conftest import CHOSEN, require
from python_tests.ops.relevancy_sample import call_of, everything, random_call, same_selection
from python_tests.samples import draws
from python_tests.seeds import Random
from rnnkern import reference
from rnnkern.reference._relevancy import RELEVANCY_CELLS
from rnnkern.testing import assert_close, assert_close_over_draws


@pytest.fixture(params=[(name, kernel) for name in CHOSEN for kernel in ("block", "stepwise")], ids="-".join)
def place(request, nan_memory):
    """rnnkern.ops.relevancy_recurrence on each backend, by each kernel; one thread, because calls are small."""
    name, kernel = request.param
    require(recurrences.lacks(name))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with relevancies.routed(relevancies.Place(name, kernel)) as place:
        yield place
    torch.set_num_threads(threads)


def check(place, call, message=""):
    """Compares with the reference in float64."""
    found, truth = everything(place, call), everything(reference.relevancy_recurrence, call)
    assert same_selection(found, truth), f"{message}: other events were selected"
    for name, x in truth.items():
        scale = max(1.0, x[x.isfinite()].abs().max().item()) if x.isfinite().any() else 1.0
        torch.testing.assert_close(
            found[name], x, rtol=0, atol=1e-10 * scale, equal_nan=True, msg=lambda m, n=name: f"{message}: {n}: {m}"
        )


@pytest.mark.parametrize("seed", range(3))
def test_random_calls_in_float64_are_the_references(seed, place):
    if place.kernel == "block":
        pytest.skip("float64 has no block kernel")
    draw = Random(seed)
    torch.manual_seed(seed)
    for number in range(20):
        place.set_seed(100 * seed + number)
        check(place, random_call(draw), f"call {number}")


def test_random_calls_in_float32_are_as_close_to_the_truth_as_plain_pytorch(place):
    """Compares all calls together, because the naive error of a single small call may be small by chance. In 500 such
    calls, the error of the kernels was more than four times that of the reference as often as the reverse."""
    draw = Random(0)
    torch.manual_seed(0)
    calls = []
    for number in range(30):
        place.set_seed(number)
        call = random_call(draw)
        truth, naive = (everything(reference.relevancy_recurrence, call.to(d)) for d in (torch.float64, torch.float32))
        if not same_selection(naive, truth):
            continue
        found = everything(place, call.to(torch.float32))
        assert same_selection(found, truth), f"call {number}: other events were selected"
        calls.append({name: (found[name], naive[name], x) for name, x in truth.items() if x.is_floating_point()})
    assert_close_over_draws(calls)


OPTIONS = {
    "plain": {},
    "packed": {"packed": True},
    "reset": {"reset": 0.3},
    "carried": {"carried": 5, "packed": True, "reset": 0.2},
    "given": {"relevance": "given"},
    "dot": {"alignment": "dot"},
    "window": {"relevant_size": 0},
    "all": {"buffer_size": 9, "carried": 2},
}


@pytest.mark.parametrize("cell", ["tanh", "lstm"])
def test_the_first_call(cell, place):
    torch.manual_seed(1)
    assert check_close(place, draws(call_of, cell, 7, 3, 20, packed=True, reset=0.3))


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("cell", RELEVANCY_CELLS)
def test_every_cell_and_option_in_float32_is_as_close_to_the_truth_as_plain_pytorch(cell, options, place):
    assert check_close(place, draws(call_of, cell, 7, 3, 20, **OPTIONS[options]))


def check_close(place, call, message=""):
    """Compares a call in float32 with the closeness rule, or as many of an iterator of calls as it takes; returns False
    if the reference itself selects other events in float32."""
    calls = call if isinstance(call, Iterator) else [call]
    results = compared(place, calls, message)
    if (first := next(results, None)) is None:
        return False
    results = itertools.chain([first], results)
    assert_close_over_draws(list(results) if isinstance(calls, list) else results, message)
    return True


def compared(place, calls, message):
    for call in calls:
        dtypes = [torch.float64, torch.float32]
        truth, naive = (everything(reference.relevancy_recurrence, call.to(dtype)) for dtype in dtypes)
        if same_selection(naive, truth):
            found = everything(place, call.to(torch.float32))
            assert same_selection(found, truth), f"{message}: other events were selected"
            yield {name: (found[name], naive[name], x) for name, x in truth.items() if x.is_floating_point()}


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("hidden", [64, 65, 128, 300])
def test_shipped_tiles_and_several_passes(hidden, seed, place):
    if place.kernel == "block" and hidden > 128:
        pytest.skip("one block does not hold them")
    place.set_seed(seed)
    torch.manual_seed(seed)
    sizes = {"buffer_size": 5, "relevant_size": 7, "carried": 13}
    call = call_of(("tanh", "lstm")[seed % 2], 3, 1, hidden, **sizes)
    (check_close if place.kernel == "block" else check)(place, call)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(
    ("cell", "hidden", "options"),
    [("tanh", 256, {}), ("relu", 200, {"packed": True}), ("modrelu", 131, {"reset": 0.2, "carried": 4}),
     ("lstm", 128, {"carried": 4}), ("lstm", 65, {"packed": True, "reset": 0.2})],
)  # fmt: skip
def test_weights_that_lie_on_a_block_in_16_bits(cell, hidden, options, dtype, place):
    """Weights have the caller's dtype and everything else is computed in float32, as in the reference."""
    torch.manual_seed(hidden)
    call = call_of(cell, 4, 3, hidden, **options).to(dtype)
    if options.get("carried"):  # a complete state is float32
        call = call._replace(args=(*call.args[:3], call.to(torch.float32).args[3], call.args[4]))
    found = {}
    kernels = place.entered(lambda: found.update(everything(place, call, parts=8)))
    assert {name.rsplit("/")[-1] for name in kernels} == {place.kernel}
    wide = (call.to(wanted) for wanted in (torch.float64, torch.float32))
    truth, naive = (everything(reference.relevancy_recurrence, each, parts=8) for each in wide)
    assert same_selection(found, truth)
    for name, x in truth.items():
        if x.is_floating_point() and x.numel():
            assert_close(found[name], naive[name].to(found[name].dtype), x, name)


def test_more_members_than_threads(place):
    torch.manual_seed(0)
    call = call_of("tanh", 3, 1, 4, buffer_size=270, relevant_size=1, carried=262)
    (check_close if place.kernel == "block" else check)(place, call)


CHUNKS = [(1, "lstm", 33), (4, "tanh", 100), (6, "tanh", 40)]


@pytest.mark.parametrize(
    ("cut", "cell", "hidden", "dtype"),
    [(*chunks, dtype) for chunks in CHUNKS for dtype in (torch.float32, torch.float64)]
    + [(3, "tanh", 150, torch.bfloat16), (3, "lstm", 70, torch.float16)],
)
def test_two_chunks_give_the_bits_of_the_whole(cut, cell, hidden, dtype, place):
    torch.manual_seed(cut)
    call = call_of(cell, 8, 3, hidden, buffer_size=3, relevant_size=2, reset=0.1, dtype=dtype)
    (cell, u, R, state, attention), options = call
    place.set_seed(cut)

    def run(state, first, last):
        part = options | {"reset": options["reset"][first:last], "return_memory": True}
        return place(cell, u[first:last], R, state, attention, **part)

    whole, end, _ = run(state, 0, 8)
    first, middle, _ = run(state, 0, cut)
    second, last, _ = run(middle, cut, 8)
    assert torch.equal(whole, torch.cat([first, second]))
    assert all(torch.equal(x, y) for x, y in zip(end, last, strict=True) if x is not None)


def test_a_chunk_takes_the_kernel_of_the_whole(place):
    """The memory of the whole call does not fit into a block, although that of the first chunk would."""
    torch.manual_seed(0)
    (cell, u, R, state, attention), options = call_of(
        "lstm", 42, 1, 70, buffer_size=40, relevant_size=8, dtype=torch.float32
    )
    with torch.no_grad():
        whole, _ = place(cell, u, R, state, attention, **options)
        first, middle = place(cell, u[:10], R, state, attention, **options)
        second, _ = place(cell, u[10:], R, middle, attention, **options)
    assert torch.equal(whole, torch.cat([first, second]))


def test_the_same_bits_whatever_the_scheduler_does(place):
    torch.manual_seed(0)
    call = call_of("tanh", 6, 3, 40, buffer_size=2, relevant_size=2, reset=0.2, dtype=torch.float32)
    once = everything(place, call)
    for seed in range(1, 6):
        place.set_seed(seed)
        again = everything(place, call)
        assert all(torch.equal(x, again[name]) for name, x in once.items())


def adversarial(kind):
    """Calls whose selection depends on ties, infinities and NaN, and a call in which one sample always replaces events
    and another never does."""
    call = call_of("tanh", 12, 2, 3, buffer_size=2, relevant_size=3, relevance="given")
    (cell, u, R, state, attention), options = call
    scores = options["relevance"]
    if kind == "equal scores":
        scores = torch.ones_like(scores)
    elif kind == "equal attention":
        attention = (*attention[:2], torch.zeros_like(attention[2]).requires_grad_())
        options = options | {"relevance": "attention"}
        return call._replace(args=(cell, u, R, state, attention), kwargs=options)
    elif kind == "minus infinity":
        scores[::2] = -torch.inf
    elif kind == "NaN first":
        scores[0] = torch.nan
    elif kind == "NaN later":
        scores[1::3] = torch.nan
    elif kind == "always and never":
        scores[:, 0] = torch.arange(12.0)
        scores[:, 1] = -torch.arange(12.0)
    elif kind == "signed zeros":
        scores = torch.zeros_like(scores)
        scores[::2] = -0.0
    return call._replace(kwargs=options | {"relevance": scores})


@pytest.mark.parametrize(
    "kind", ["equal scores", "equal attention", "minus infinity", "NaN first", "NaN later", "always and never",
             "signed zeros"],
)  # fmt: skip
def test_what_is_selected_where_scores_are_adversarial(kind, place):
    torch.manual_seed(0)
    call = adversarial(kind)
    if place.kernel == "stepwise":
        check(place, call, kind)
        return
    call = call.to(torch.float32)
    found, wanted = everything(place, call), everything(reference.relevancy_recurrence, call)
    assert same_selection(found, wanted)


def test_scores_that_are_not_finite_spread_as_in_the_reference(place):
    torch.manual_seed(0)
    (cell, u, R, state, (W_a, U_a, v)), options = call_of("tanh", 5, 2, 3, dtype=torch.float32)
    for value in (torch.nan, torch.inf):
        attention = (W_a, U_a, (v * torch.tensor([1.0, value, 1.0])).detach().requires_grad_())
        found = place(cell, u, R, state, attention, **options, return_memory=True)
        wanted = reference.relevancy_recurrence(cell, u, R, state, attention, **options, return_memory=True)
        torch.testing.assert_close(found[0], wanted[0], equal_nan=True)
        assert torch.equal(found[1].ids, wanted[1].ids)
        torch.testing.assert_close(found[2].weights, wanted[2].weights, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_weights_made_again_of_large_scores_are_finite(dtype, place):
    torch.manual_seed(0)
    call = call_of("tanh", 6, 3, 20, buffer_size=9, alignment="dot", scale=1e10 if dtype == torch.float32 else 1e19)
    found, wanted = (everything(op, call.to(dtype)) for op in (place, reference.relevancy_recurrence))
    for name, x in wanted.items():
        assert torch.equal(found[name].isfinite(), x.isfinite()), name


def test_full_attention_keeps_one_number_per_row(place):
    torch.manual_seed(0)
    cell, u, R, state, attention = call_of("tanh", 5, 2, 3).to(torch.float32, requires_grad=False).args
    whole = [x.detach() for x in reference.empty_state(state, 2) if x is not None]
    for size, columns in ((5, ()), (4, (6,))):
        _, _, *rest = place.operators.relevancy_recurrence(
            cell, u, [R, *attention], whole, (), None, None, None, size, 0.5, False, "float32", True, False
        )
        assert rest[8].shape == (10, *columns)


H200 = (9, 0, 132, 232448)
A100 = (8, 0, 108, 166912)


@pytest.mark.parametrize(
    ("cell", "sizes", "facts", "dtype", "forward", "backward", "reason"),
    [("tanh", (120, 64, 128, 10, 10), H200, "float32", "block", "block", "128 units stay on one block"),
     ("tanh", (120, 64, 64, 10, 10), A100, "float32", "block", "block", "64 units stay on one block"),
     ("lstm", (120, 64, 64, 10, 10), A100, "float32", "block", "block", "64 units stay on one block"),
     ("lstm", (120, 64, 128, 20, 19), H200, "float32", "block", "block", "128 units stay on one block"),
     ("lstm", (120, 64, 128, 20, 22), H200, "float32", "stepwise", "stepwise", "a memory of 42 and the weights"),
     ("lstm", (120, 64, 65, 10, 10), A100, "float32", "stepwise", "stepwise", "a memory of 20 and the weights"),
     ("lstm", (120, 64, 65, 1, 1), (9, 0, 132, 200000), "float32", "block", "stepwise", "backward they do not"),
     ("lstm", (120, 64, 129, 10, 10), H200, "float32", "stepwise", "stepwise", "129 units and 4 gates do not fit"),
     ("relu", (120, 64, 129, 10, 10), H200, "float32", "stepwise", "stepwise", "129 units and 1 gate do not fit"),
     ("tanh", (120, 64, 256, 10, 10), H200, "bfloat16", "block", "block", "256 units stay on one block in 16 bits"),
     ("relu", (120, 64, 129, 13, 10), H200, "float16", "block", "block", "129 units stay on one block in 16 bits"),
     ("lstm", (120, 64, 128, 10, 10), A100, "float16", "block", "block", "128 units stay on one block in 16 bits"),
     ("lstm", (120, 64, 64, 10, 10), H200, "bfloat16", "block", "block", "64 units stay on one block"),
     ("tanh", (120, 64, 128, 10, 10), A100, "bfloat16", "block", "block", "128 units stay on one block"),
     ("tanh", (120, 64, 256, 14, 10), H200, "bfloat16", "stepwise", "stepwise", "a memory of 24 and the weights"),
     ("tanh", (120, 64, 256, 10, 10), A100, "bfloat16", "stepwise", "stepwise", "a memory of 20 and the weights"),
     ("tanh", (120, 64, 257, 10, 10), H200, "bfloat16", "stepwise", "stepwise", "257 units and 1 gate do not fit"),
     ("lstm", (120, 64, 129, 10, 10), H200, "bfloat16", "stepwise", "stepwise", "129 units and 4 gates do not fit"),
     ("tanh", (120, 64, 128, 10, 10), H200, "float64", "stepwise", "stepwise", "float64 has no block kernel"),
     ("tanh", (120, 64, 128, 10, 10), (7, 5, 68, 65536), "float32", "stepwise", "stepwise", "capability 8.0"),
     ("tanh", (120, 529, 128, 10, 10), H200, "float32", "stepwise", "stepwise", "529 samples are more than 4 for each"),
     ("tanh", (9, 64, 128, 500, 0), H200, "float32", "stepwise", "stepwise", "a memory of 500 and the weights"),
     ("tanh", (9, 64, 128, 2**62, 0), H200, "float32", "stepwise", "stepwise", "a memory without bound has no block")],
)  # fmt: skip
def test_which_kernels_run(cell, sizes, facts, dtype, forward, backward, reason, monkeypatch):
    monkeypatch.delenv("RNNKERN_CUDA_KERNELS", raising=False)
    require(recurrences.lacks("interpret"))
    plan = json.loads(drivers.interpreted(relevancies.FAMILY).relevancy_plan(cell, dtype, sizes, facts))
    assert (plan["forward"], plan["backward"]) == (forward, backward)
    assert reason in plan["reason"]
    if "units stay" in reason and "16 bits" not in reason:
        assert "16 bits" not in plan["reason"]
    monkeypatch.setenv("RNNKERN_CUDA_KERNELS", "stepwise")
    plan = json.loads(drivers.interpreted(relevancies.FAMILY).relevancy_plan(cell, dtype, sizes, facts))
    assert plan["forward"] == "stepwise"
    assert "leaves out the block kernel" in plan["reason"]


@pytest.mark.parametrize(("cell", "hidden"), [("tanh", 3), ("modrelu", 128), ("lstm", 64), ("lstm", 127)])
def test_kernels_are_counted(cell, hidden, place):
    torch.manual_seed(0)
    kernels = place.entered(lambda: everything(place, call_of(cell, 2, 1, hidden, dtype=torch.float32)))
    wanted = {f"relevancy_recurrence/cuda/{way}/{cell}/{place.kernel}": 2 for way in ("forward", "backward")}
    assert kernels == wanted
