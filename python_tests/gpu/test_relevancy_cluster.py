"""The cluster kernels of relevancy_recurrence against the reference: every cell and option at small sizes, every
compiled tile, any schedule; and the rule that chooses them."""

import json

import pytest
import torch

from python_tests.gpu import drivers, recurrences, relevancies
from python_tests.gpu.conftest import CHOSEN, require
from python_tests.gpu.test_relevancy import A100, H200, adversarial, check_close
from python_tests.ops.relevancy_sample import call_of, everything, same_selection
from python_tests.samples import draws
from rnnkern import reference
from rnnkern.reference._relevancy import RELEVANCY_CELLS

OPTIONS = {
    "plain": {},
    "packed": {"packed": True, "combine": "sum"},
    "everything": {"carried": 4, "packed": True, "reset": 0.3},
    "given": {"relevance": "given", "reset": 0.2, "carried": 2},
    "fifo": {"relevance": "fifo", "alignment": "dot"},
    "window": {"relevant_size": 0},
    "all": {"buffer_size": 9, "carried": 2},
}
TILES = [("tanh", 256), ("modrelu", 384), ("relu", 512), ("lstm", 128), ("lstm", 256), ("lstm", 384)]
"""Tiles differ by size and number of gates."""


@pytest.fixture(params=CHOSEN)
def place(request, nan_memory):
    """rnnkern.ops.relevancy_recurrence by the cluster kernel for every call that it supports; one thread, because calls
    are small."""
    require(recurrences.lacks(request.param))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with relevancies.routed(relevancies.Place(request.param, "cluster")) as place:
        if place.name == "cuda" and not all(relevancies.clusters()):
            pytest.skip("no clusters of 16 blocks run on this GPU")
        yield place
    torch.set_num_threads(threads)


def entered(place, cell, call):
    """Runs a call and checks by the counters that the cluster kernels ran."""
    kernels = place.entered(call)
    op = "relevancy_recurrence/cuda"
    assert set(kernels) == {f"{op}/forward/{cell}/cluster", f"{op}/backward/{cell}/cluster"}


def check(place, call, message=""):
    entered(place, call.args[0], lambda: check_close(place, call, message))


def check_some(place, cell, *args, **kwargs):
    """The same for as many random calls as it takes."""
    entered(place, cell, lambda: check_close(place, draws(call_of, cell, *args, **kwargs)))


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("cell", RELEVANCY_CELLS)
def test_every_cell_and_option_is_as_close_to_the_truth_as_plain_pytorch(cell, options, place):
    torch.manual_seed(1)
    place.set_seed(len(options))
    check_some(place, cell, 5, 2, 20, **OPTIONS[options])


@pytest.mark.parametrize(("cell", "hidden"), TILES)
def test_every_tile(cell, hidden, place):
    """Full tiles and three steps, with more events than a warp processes in one round."""
    place.set_seed(hidden)
    torch.manual_seed(hidden)
    check_some(place, cell, 3, 1, hidden, buffer_size=5, relevant_size=6, carried=8)
    check_some(place, cell, 3, 1, hidden - 7, buffer_size=2, relevant_size=2, reset=0.2)


@pytest.mark.parametrize("cell", ["tanh", "lstm"])
def test_the_first_call(cell, place):
    torch.manual_seed(0)
    check(place, call_of(cell, 3, 2, 130))


@pytest.mark.parametrize("cell", ["modrelu", "lstm"])
def test_everything_at_once(cell, place):
    torch.manual_seed(0)
    check(place, call_of(cell, 4, 2, 133, packed=True, reset=0.3, carried=3))


def test_more_members_than_threads(place):
    torch.manual_seed(0)
    check(place, call_of("lstm", 3, 1, 4, buffer_size=140, relevant_size=1, carried=138))


@pytest.mark.parametrize(("cut", "cell"), [(1, "lstm"), (4, "tanh")])
def test_two_chunks_give_the_bits_of_the_whole(cut, cell, place):
    torch.manual_seed(cut)
    call = call_of(cell, 6, 2, 33, buffer_size=3, relevant_size=2, reset=0.1, dtype=torch.float32)
    (cell, u, R, state, attention), options = call
    place.set_seed(cut)

    def run(state, first, last):
        part = options | {"reset": options["reset"][first:last], "return_memory": True}
        return place(cell, u[first:last], R, state, attention, **part)

    whole, end, _ = run(state, 0, 6)
    first, middle, _ = run(state, 0, cut)
    second, last, _ = run(middle, cut, 6)
    assert torch.equal(whole, torch.cat([first, second]))
    assert all(torch.equal(x, y) for x, y in zip(end, last, strict=True) if x is not None)


@pytest.mark.parametrize("cell", ["tanh", "lstm"])
def test_the_same_bits_by_any_schedule(cell, place):
    torch.manual_seed(0)
    call = call_of(cell, 5, 2, 40, buffer_size=2, relevant_size=2, reset=0.2, dtype=torch.float32)
    once = everything(place, call)
    for seed in range(1, 4):
        place.set_seed(seed)
        again = everything(place, call)
        assert all(torch.equal(x, again[name]) for name, x in once.items())


@pytest.mark.parametrize("kind", ["equal scores", "equal attention", "NaN first", "NaN later", "always and never"])
def test_what_is_selected_where_scores_are_adversarial(kind, place):
    torch.manual_seed(0)
    call = adversarial(kind).to(torch.float32)
    found, wanted = (everything(op, call, gradients=False) for op in (place, reference.relevancy_recurrence))
    assert same_selection(found, wanted)


def test_no_steps_and_no_samples_leave_the_state(place):
    torch.manual_seed(0)
    for steps, batch in ((0, 2), (3, 0)):
        (cell, u, R, state, attention), options = call_of("tanh", steps, batch, 5, dtype=torch.float32, carried=3)
        found = place(cell, u, R, state, attention, **options)
        wanted = reference.relevancy_recurrence(cell, u, R, state, attention, **options)
        assert all(torch.equal(x, y) for x, y in zip(found[1], wanted[1], strict=True) if x is not None)


# ---- the plan

H200 = (*H200, 16, 7)


@pytest.mark.parametrize(
    ("cell", "batch", "hidden", "kernel", "reason"),
    [("tanh", 32, 256, "cluster", "256 units stay on a cluster of 8 blocks"),
     ("tanh", 33, 256, "block", "256 units stay on one block in 16 bits"),
     ("tanh", 1, 128, "block", "128 units stay on one block"),
     ("lstm", 1, 128, "block", "128 units stay on one block in 16 bits")],
)  # fmt: skip
def test_which_kernels_run_where_a_block_widens_its_weights(cell, batch, hidden, kernel, reason, monkeypatch):
    monkeypatch.delenv("RNNKERN_CUDA_KERNELS", raising=False)
    require(recurrences.lacks("interpret"))
    plan = drivers.interpreted(relevancies.FAMILY).relevancy_plan
    found = json.loads(plan(cell, "bfloat16", (60, batch, hidden, 10, 10), H200))
    assert found["forward"] == found["backward"] == kernel
    assert found["reason"] == f"weights of {reason}"


@pytest.mark.parametrize(
    ("cell", "sizes", "facts", "kernel", "reason"),
    [("tanh", (60, 16, 129, 10, 10), H200, "cluster", "129 units stay on a cluster of 8 blocks"),
     ("tanh", (60, 16, 512, 10, 10), H200, "cluster", "512 units stay on a cluster of 16 blocks"),
     ("tanh", (60, 16, 512, 70, 10), H200, "stepwise", "a memory of 80 needs"),
     ("tanh", (60, 16, 513, 10, 10), H200, "stepwise", "do not fit one block, and they are too large for a cluster"),
     ("lstm", (60, 16, 129, 10, 10), H200, "cluster", "129 units stay on a cluster of 16 blocks"),
     ("lstm", (60, 16, 384, 10, 10), H200, "cluster", "384 units stay on a cluster of 16 blocks"),
     ("lstm", (60, 16, 385, 10, 10), H200, "stepwise", "they are too large for a cluster"),
     ("tanh", (60, 64, 256, 10, 10), H200, "cluster", "a cluster of 8"),
     ("tanh", (60, 65, 256, 10, 10), H200, "stepwise", "65 samples are more than 4 for each of 16 clusters"),
     ("tanh", (60, 29, 512, 10, 10), H200, "stepwise", "29 samples are more than 4 for each of 7 clusters"),
     ("tanh", (60, 4, 512, 10, 10), (*H200[:4], 16, 0), "stepwise", "the GPU runs no cluster of 16 blocks"),
     ("tanh", (60, 4, 256, 10, 10), H200[:4], "stepwise", "the GPU runs no cluster of 8 blocks"),
     ("tanh", (60, 4, 256, 10, 10), A100, "stepwise", "clusters need compute capability 9.0")],
)  # fmt: skip
def test_which_kernels_run(cell, sizes, facts, kernel, reason, monkeypatch):
    monkeypatch.delenv("RNNKERN_CUDA_KERNELS", raising=False)
    require(recurrences.lacks("interpret"))
    plan = drivers.interpreted(relevancies.FAMILY).relevancy_plan
    found = json.loads(plan(cell, "float32", sizes, facts))
    assert found["forward"] == found["backward"] == kernel
    assert reason in found["reason"]
    assert json.loads(plan(cell, "float64", sizes, facts))["forward"] == "stepwise"
    monkeypatch.setenv("RNNKERN_CUDA_KERNELS", "stepwise")
    found = json.loads(plan(cell, "float32", sizes, facts))
    assert found["forward"] == "stepwise"
    assert "leaves out the cluster kernel" in found["reason"]
