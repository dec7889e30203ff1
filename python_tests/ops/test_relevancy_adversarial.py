"""relevancy_recurrence with difficult selections: ties, infinities, NaN, the smallest and the largest memory."""

import pytest
import torch

from python_tests.ops.relevancy_sample import call_of
from python_tests.ops.relevancy_sample import is_the_references as hold

STEPS, BATCH = 14, 3


def with_scores(scores, **options):
    call = call_of("tanh", STEPS, BATCH, 5, relevance="given", **options)
    return call._replace(kwargs=call.kwargs | {"relevance": torch.as_tensor(scores, dtype=torch.float64)})


@pytest.mark.parametrize("sizes", [(3, 2), (1, 1), (1, 4), (5, 3), (20, 2)])
@pytest.mark.parametrize("alignment", ["additive", "dot"])
@pytest.mark.sampled
def test_equal_scores_everywhere(sizes, alignment):
    """v = 0: all weights are equal, and of events with equal scores the first stays."""
    buffer_size, relevant_size = sizes
    call = call_of("tanh", STEPS, BATCH, 4, buffer_size=buffer_size, relevant_size=relevant_size, scale=0.0,
                   alignment=alignment)  # fmt: skip
    found = hold(call)
    live = (found["ids"] >= 0).sum(-1, keepdim=True)
    assert torch.equal(found["weights"], (found["ids"] >= 0) / live.double())


def test_equal_scores_that_are_given_keep_the_oldest():
    found = hold(with_scores(torch.ones(STEPS, BATCH), buffer_size=2, relevant_size=3))
    assert found["last ids"].tolist() == [[0, 1, 2]] * BATCH


def test_of_equal_least_scores_the_first_goes():
    scores = torch.zeros(STEPS, BATCH)
    scores[:3] = torch.tensor([[1.0], [1.0], [5.0]])
    found = hold(with_scores(scores, buffer_size=1, relevant_size=2))
    assert found["last ids"].tolist() == [[2, 1]] * BATCH


@pytest.mark.parametrize("odd", [float("nan"), float("-inf"), float("inf")])
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.sampled
def test_scores_that_are_no_numbers(odd, seed):
    """Comparisons with NaN are false, so an event with score NaN stays in the relevant set but cannot enter it."""
    draw = torch.Generator().manual_seed(seed)
    scores = torch.rand(STEPS, BATCH, generator=draw, dtype=torch.float64)
    scores[torch.rand(STEPS, BATCH, generator=draw) < (0.5 if seed else 1)] = odd  # or never numbers
    hold(with_scores(scores, buffer_size=2, relevant_size=3))


@pytest.mark.parametrize("odd", [float("nan"), float("-inf"), float("inf")])
def test_an_alignment_that_is_no_number(odd):
    """Its weights are NaN, and so are all later values, in the same places."""
    call = call_of("tanh", 6, 2, 4, buffer_size=2)
    v = call.args[4][2].detach().clone()
    v[1] = odd
    hold(call._replace(args=(*call.args[:4], (*call.args[4][:2], v))), gradients=False)


def test_weights_that_underflow_are_zero():
    call = call_of("tanh", STEPS, BATCH, 4, scale=1e4, relevance="given")  # not by weights, which would tie
    found = hold(call, gradients=False)
    assert (found["weights"][found["ids"] >= 0] == 0).any()


@pytest.mark.parametrize("cell", ["tanh", "lstm"])
def test_a_memory_of_one(cell):
    """kappa = 1: the event itself has all the weight."""
    found = hold(call_of(cell, STEPS, BATCH, 4, buffer_size=1, relevant_size=0))
    torch.testing.assert_close(found["s"], found["h"])
    assert (found["weights"] == 1).all()


@pytest.mark.parametrize("sizes", [(1, 1), (1, 3), (1, 40), (14, 5), (30, 0), (30, 30), (5, 30)])
@pytest.mark.sampled
def test_a_buffer_of_one_and_more_room_than_steps(sizes):
    buffer_size, relevant_size = sizes
    for cell in ("relu", "modrelu"):
        hold(call_of(cell, STEPS, BATCH, 4, buffer_size=buffer_size, relevant_size=relevant_size))


def test_one_that_replaces_at_every_step_beside_one_that_never_does():
    rising, falling = torch.arange(STEPS), torch.arange(STEPS, 0, -1)
    scores = torch.stack([rising, falling, torch.zeros(STEPS)], 1)
    found = hold(with_scores(scores, buffer_size=2, relevant_size=3))
    assert sorted(found["last ids"][0].tolist()) == [STEPS - 5, STEPS - 4, STEPS - 3]
    assert found["last ids"][1].tolist() == [0, 1, 2]


@pytest.mark.parametrize("cell", ["tanh", "lstm"])
def test_a_reset_at_every_step(cell):
    found = hold(call_of(cell, STEPS, BATCH, 4, reset=1.0, carried=6))
    assert (found["last ids"] == -1).all()


@pytest.mark.parametrize("shape", [(0, 3), (4, 0), (0, 0)])
@pytest.mark.parametrize("cell", ["modrelu", "lstm"])
def test_no_steps_and_no_samples(cell, shape):
    steps, batch = shape
    hold(call_of(cell, steps, batch, 3, carried=5))
    hold(call_of(cell, steps, batch, 3))
