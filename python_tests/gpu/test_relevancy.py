"""Values, gradients, selected events and bits of the CUDA kernels of relevancy_recurrence, over a table of options."""

import pytest
import torch

from python_tests.gpu import relevancies
from python_tests.gpu.conftest import CHOSEN, running
from python_tests.ops.relevancy_sample import call_of, everything, random_call, same_selection
from python_tests.samples import draws
from python_tests.seeds import Random
from rnnkern import reference
from rnnkern.reference._relevancy import RELEVANCY_CELLS
from rnnkern.testing import assert_close, assert_close_over_draws

F32, F64, BF16, F16 = torch.float32, torch.float64, torch.bfloat16, torch.float16
not_on_a_cluster = pytest.mark.parametrize("kernel", ["block", "stepwise"])


@pytest.fixture(params=["block", "stepwise", "cluster"])
def kernel(request):
    return request.param


@pytest.fixture(params=CHOSEN)
def place(request, kernel, nan_memory):
    """rnnkern.ops.relevancy_recurrence on each backend, by one kernel."""
    with running(relevancies, request.param, kernel) as place:
        torch.manual_seed(0)
        yield place


def check(place, call, message=""):
    """Compares with the reference in float64."""
    found, truth = everything(place, call), everything(reference.relevancy_recurrence, call)
    assert same_selection(found, truth), f"{message}: other events were selected"
    for name, x in truth.items():
        scale = max(1.0, x[x.isfinite()].abs().max().item()) if x.isfinite().any() else 1.0
        torch.testing.assert_close(
            found[name], x, rtol=0, atol=1e-10 * scale, equal_nan=True, msg=lambda m, n=name: f"{message}: {n}: {m}"
        )


def compared(place, calls, message=""):
    """The results in float32 of calls in which the reference selects the same events in float32 as in float64."""
    for call in calls:
        truth, naive = (everything(reference.relevancy_recurrence, call.to(dtype)) for dtype in (F64, F32))
        if same_selection(naive, truth):
            found = everything(place, call.to(F32))
            assert same_selection(found, truth), f"{message}: other events were selected"
            yield {name: (found[name], naive[name], x) for name, x in truth.items() if x.is_floating_point()}


def check_close(place, cell, *sizes, alone=False, **options):
    """Compares as many random calls in float32 as the closeness rule takes, or one alone, and checks which kernels
    ran."""
    results = compared(place, draws(call_of, cell, *sizes, **options))
    ran = place.entered(lambda: assert_close_over_draws([next(results)] if alone else results))
    assert set(ran) == {f"relevancy_recurrence/cuda/{way}/{cell}/{place.kernel}" for way in ("forward", "backward")}


# ---- values, gradients, and which events are selected


@pytest.mark.parametrize("kernel", ["stepwise"])
@pytest.mark.parametrize("seed", range(3))
def test_random_calls_in_float64_are_the_references(kernel, seed, place):
    draw = Random(seed)
    torch.manual_seed(seed)
    for number in range(20):
        place.set_seed(100 * seed + number)
        check(place, random_call(draw), f"call {number}")


@not_on_a_cluster
def test_random_calls_in_float32_are_as_close_to_the_truth_as_plain_pytorch(kernel, place):
    """Compares all calls together, because the naive error of a single small call may be small by chance. In 500 such
    calls, the error of the kernels was more than four times that of the reference as often as the reverse."""
    draw = Random(0)
    assert_close_over_draws(list(compared(place, (random_call(draw) for _ in range(30)))))


OPTIONS = {
    "plain": {},
    "packed": {"packed": True, "combine": "sum"},
    "reset": {"reset": 0.3},
    "everything": {"carried": 5, "packed": True, "reset": 0.3},
    "given": {"relevance": "given", "reset": 0.2, "carried": 2},
    "dot": {"alignment": "dot"},
    "fifo": {"relevance": "fifo", "alignment": "dot"},
    "window": {"relevant_size": 0},
    "all": {"buffer_size": 9, "carried": 2},
}


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("cell", RELEVANCY_CELLS)
@pytest.mark.drawn
def test_every_cell_and_option_is_as_close_to_the_truth_as_plain_pytorch(cell, options, place):
    place.set_seed(len(options))
    sizes = (5, 2, 20) if place.kernel == "cluster" else (7, 3, 20)
    check_close(place, cell, *sizes, **OPTIONS[options])


@pytest.mark.parametrize("cell", ["tanh", "lstm"])
def test_the_first_call(cell, place):
    sizes, options = ((3, 2, 130), {}) if place.kernel == "cluster" else ((7, 3, 20), {"packed": True, "reset": 0.3})
    check_close(place, cell, *sizes, **options, alone=True)


@pytest.mark.parametrize("kernel", ["cluster"])
@pytest.mark.parametrize("cell", ["modrelu", "lstm"])
def test_everything_at_once(kernel, cell, place):
    check_close(place, cell, 4, 2, 133, packed=True, reset=0.3, carried=3, alone=True)


@not_on_a_cluster
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("hidden", [64, 65, 128, 300])
def test_shipped_tiles_and_several_passes(kernel, hidden, seed, place):
    if kernel == "block" and hidden > 128:
        pytest.skip("one block does not hold them")
    place.set_seed(seed)
    torch.manual_seed(seed)
    cell = ("tanh", "lstm")[seed % 2]
    sizes = {"buffer_size": 5, "relevant_size": 7, "carried": 13}
    if kernel == "block":
        check_close(place, cell, 3, 1, hidden, **sizes, alone=True)
    else:
        check(place, call_of(cell, 3, 1, hidden, **sizes))


@pytest.mark.parametrize("kernel", ["cluster"])
@pytest.mark.parametrize(
    ("cell", "hidden"),
    [("tanh", 256), ("modrelu", 384), ("relu", 512), ("lstm", 128), ("lstm", 256), ("lstm", 384)],
)
@pytest.mark.drawn
def test_every_tile(kernel, cell, hidden, place):
    """Tiles differ by size and number of gates. Full ones, with more events than a warp processes in one round, and
    others."""
    place.set_seed(hidden)
    torch.manual_seed(hidden)
    check_close(place, cell, 3, 1, hidden, buffer_size=5, relevant_size=6, carried=8)
    check_close(place, cell, 3, 1, hidden - 7, buffer_size=2, relevant_size=2, reset=0.2)


@not_on_a_cluster
@pytest.mark.parametrize("dtype", [BF16, F16], ids=str)
@pytest.mark.parametrize(
    ("cell", "hidden", "options"),
    [("tanh", 256, {}), ("relu", 200, {"packed": True}), ("modrelu", 131, {"reset": 0.2, "carried": 4}),
     ("lstm", 128, {"carried": 4}), ("lstm", 65, {"packed": True, "reset": 0.2})],
)  # fmt: skip
def test_weights_that_lie_on_a_block_in_16_bits(kernel, cell, hidden, options, dtype, place):
    """Weights have the caller's dtype and everything else is computed in float32, as in the reference."""
    torch.manual_seed(hidden)
    call = call_of(cell, 4, 3, hidden, **options).to(dtype)
    if options.get("carried"):  # a complete state is float32
        call = call._replace(args=(*call.args[:3], call.to(F32).args[3], call.args[4]))
    found = {}
    kernels = place.entered(lambda: found.update(everything(place, call, parts=8)))
    assert {name.rsplit("/")[-1] for name in kernels} == {place.kernel}
    wide = (call.to(wanted) for wanted in (F64, F32))
    truth, naive = (everything(reference.relevancy_recurrence, each, parts=8) for each in wide)
    assert same_selection(found, truth)
    for name, x in truth.items():
        if x.is_floating_point() and x.numel():
            assert_close(found[name], naive[name].to(found[name].dtype), x, name)


def test_more_members_than_threads(place):
    cell, first, last = ("lstm", 140, 138) if place.kernel == "cluster" else ("tanh", 270, 262)
    sizes = {"buffer_size": first, "relevant_size": 1, "carried": last}
    if place.kernel == "stepwise":
        check(place, call_of(cell, 3, 1, 4, **sizes))
    else:
        check_close(place, cell, 3, 1, 4, **sizes, alone=True)


def test_no_steps_and_no_samples_leave_the_state(place):
    for steps, batch in ((0, 2), (3, 0)):
        call = call_of("tanh", steps, batch, 5, dtype=F32, carried=3)
        found, wanted = (op(*call.args, **call.kwargs) for op in (place, reference.relevancy_recurrence))
        assert all(torch.equal(x, y) for x, y in zip(found[1], wanted[1], strict=True) if x is not None)


def scores_with(rows, value):
    scores = torch.rand(12, 2, dtype=F64)
    scores[rows] = value
    return scores


SCORES = {
    "equal scores": lambda: torch.ones(12, 2, dtype=F64),
    "equal attention": None,
    "minus infinity": lambda: scores_with(slice(0, 12, 2), -torch.inf),
    "NaN first": lambda: scores_with(0, torch.nan),
    "NaN later": lambda: scores_with(slice(1, 12, 3), torch.nan),
    # One sample always replaces events, another never does.
    "always and never": lambda: torch.stack([torch.arange(12.0), -torch.arange(12.0)], 1).double(),
    "signed zeros": lambda: torch.tensor([-0.0, 0.0] * 6, dtype=F64).repeat(2, 1).mT,
}


@pytest.mark.parametrize("kind", SCORES)
@pytest.mark.drawn
def test_what_is_selected_where_scores_are_adversarial(kind, place):
    if SCORES[kind]:
        call = call_of("tanh", 12, 2, 3, buffer_size=2, relevant_size=3, relevance="given")
        call = call._replace(kwargs=call.kwargs | {"relevance": SCORES[kind]()})
    else:
        call = call_of("tanh", 12, 2, 3, buffer_size=2, relevant_size=3, scale=0.0)
    if place.kernel == "stepwise":
        check(place, call, kind)
    else:
        found, wanted = (everything(op, call.to(F32)) for op in (place, reference.relevancy_recurrence))
        assert same_selection(found, wanted)


@not_on_a_cluster
def test_scores_that_are_not_finite_spread_as_in_the_reference(kernel, place):
    (cell, u, R, state, (W_a, U_a, v)), options = call_of("tanh", 5, 2, 3, dtype=F32)
    for value in (torch.nan, torch.inf):
        attention = (W_a, U_a, (v * torch.tensor([1.0, value, 1.0])).detach().requires_grad_())
        found = place(cell, u, R, state, attention, **options, return_memory=True)
        wanted = reference.relevancy_recurrence(cell, u, R, state, attention, **options, return_memory=True)
        torch.testing.assert_close(found[0], wanted[0], equal_nan=True)
        assert torch.equal(found[1].ids, wanted[1].ids)
        torch.testing.assert_close(found[2].weights, wanted[2].weights, equal_nan=True)


@not_on_a_cluster
@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
def test_weights_made_again_of_large_scores_are_finite(kernel, dtype, place):
    call = call_of("tanh", 6, 3, 20, buffer_size=9, alignment="dot", scale=1e10 if dtype == F32 else 1e19)
    found, wanted = (everything(op, call.to(dtype)) for op in (place, reference.relevancy_recurrence))
    for name, x in wanted.items():
        assert torch.equal(found[name].isfinite(), x.isfinite()), name


@not_on_a_cluster
def test_full_attention_keeps_one_number_per_row(kernel, place):
    cell, u, R, state, attention = call_of("tanh", 5, 2, 3).to(F32, requires_grad=False).args
    whole = [x.detach() for x in reference.empty_state(state, 2) if x is not None]
    for size, columns in ((5, ()), (4, (6,))):
        _, _, *rest = place.operators.relevancy_recurrence(
            cell, u, [R, *attention], whole, (), None, None, None, size, 0.5, False, "float32", True, False
        )
        assert rest[8].shape == (10, *columns)


# ---- the same bits

CHUNKS = [
    *((kernel, 8, cut, cell, hidden, dtype) for kernel in ("block", "stepwise") for cut, cell, hidden, dtype in (
        (1, "lstm", 33, F32), (4, "tanh", 100, F32), (6, "tanh", 40, F32), (1, "lstm", 33, F64), (4, "tanh", 100, F64),
        (3, "tanh", 150, BF16), (3, "lstm", 70, F16),
    )),
    ("cluster", 6, 1, "lstm", 33, F32), ("cluster", 6, 4, "tanh", 33, F32),
]  # fmt: skip


@pytest.mark.parametrize(("kernel", "steps", "cut", "cell", "hidden", "dtype"), CHUNKS)
def test_two_chunks_give_the_bits_of_the_whole(kernel, steps, cut, cell, hidden, dtype, place):
    torch.manual_seed(cut)
    call = call_of(cell, steps, 3, hidden, buffer_size=3, relevant_size=2, reset=0.1, dtype=dtype)
    (cell, u, R, state, attention), options = call
    place.set_seed(cut)

    def run(state, first, last):
        part = options | {"reset": options["reset"][first:last], "return_memory": True}
        return place(cell, u[first:last], R, state, attention, **part)

    whole, end, _ = run(state, 0, steps)
    first, middle, _ = run(state, 0, cut)
    second, last, _ = run(middle, cut, steps)
    assert torch.equal(whole, torch.cat([first, second]))
    assert all(torch.equal(x, y) for x, y in zip(end, last, strict=True) if x is not None)


@not_on_a_cluster
def test_a_chunk_takes_the_kernel_of_the_whole(kernel, place):
    """The memory of the whole call does not fit into a block, although that of the first chunk would."""
    (cell, u, R, state, attention), options = call_of("lstm", 42, 1, 70, buffer_size=40, relevant_size=8, dtype=F32)
    with torch.no_grad():
        whole, _ = place(cell, u, R, state, attention, **options)
        first, middle = place(cell, u[:10], R, state, attention, **options)
        second, _ = place(cell, u[10:], R, middle, attention, **options)
    assert torch.equal(whole, torch.cat([first, second]))


@pytest.mark.parametrize("cell", ["tanh", "lstm"])
def test_the_same_bits_by_any_schedule(cell, place):
    call = call_of(cell, 5, 2, 40, buffer_size=2, relevant_size=2, reset=0.2, dtype=F32)
    once = everything(place, call)
    for seed in range(1, 5):
        place.set_seed(seed)
        again = everything(place, call)
        assert all(torch.equal(x, again[name]) for name, x in once.items())
