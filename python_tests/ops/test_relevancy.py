"""What relevancy_recurrence alone promises: selections are the reference's, two calls are one, and what is kept."""

import pytest
import torch

from python_tests.ops.relevancy_sample import (
    call_of,
    everything,
    is_the_references,
    random_call,
    same_selection,
)
from python_tests.samples import draws, mostly
from python_tests.samples.operators import RELEVANCY_OPTIONS
from python_tests.seeds import Random
from python_tests.tiers import each_level, quick_where
from rnnkern import reference
from rnnkern.ops import relevancy_recurrence
from rnnkern.reference._relevancy import RELEVANCY_CELLS
from rnnkern.testing import assert_close_over_draws, saved_bytes


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


@pytest.mark.parametrize("options", RELEVANCY_OPTIONS)
@pytest.mark.parametrize("cell", RELEVANCY_CELLS)
@pytest.mark.sampled
def test_float32_is_as_close_as_pytorch(cell, options):
    hold_to_the_rule(cell, 9, 3, 37, **RELEVANCY_OPTIONS[options])


@pytest.mark.parametrize(
    ("batch", "hidden"), quick_where(lambda sizes: sizes == (17, 1), [(17, 1), (1, 128), (2, 200)])
)
def test_other_sizes_in_float32(batch, hidden):
    hold_to_the_rule("tanh", 8, batch, hidden)


@each_level
@pytest.mark.drawn
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


# ---- memory


def kept(call):
    """Bytes that a call keeps for the backward pass."""
    return saved_bytes(lambda: relevancy_recurrence(*call.args, **call.kwargs))


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
