"""What sab_recurrence alone promises: selections as the reference and the published code make them, also in chunks."""

import random

import pytest
import torch

from python_tests.ops.sab_calls import make, outcomes, well_conditioned
from python_tests.samples import agree, draws
from python_tests.seeds import FIRST
from python_tests.tiers import each_level
from rnnkern import reference
from rnnkern._torch_private import address_of
from rnnkern.ops import sab_recurrence


def results(function, call):
    return outcomes(function, call)[0]


def check(call):
    agree(sab_recurrence, reference.sab_recurrence, results, [call])
    (time, slots, steps), wanted = (outcomes(f, call)[1] for f in (sab_recurrence, reference.sab_recurrence))
    assert torch.equal(time, wanted[0])
    assert torch.equal(slots, wanted[1])
    assert steps == wanted[2]


def draw(seed):
    """A random call that is well conditioned."""
    random.seed(FIRST + seed)
    torch.manual_seed(seed)
    while True:
        call = make(
            steps=random.choice([0, 1, 2, 7, 13, 20]), batch=random.choice([0, 1, 2, 4, 5, 9]),
            hidden=random.choice([1, 2, 3, 8, 9, 17]), width=random.choice([None, None, 1, 4, 11]),
            bias=random.random() < 0.5, packed=random.random() < 0.3, resets=random.random() < 0.4,
            top_k=random.choice([1, 2, 3, 5, 40]), attend_every=random.choice([1, 1, 2, 3, 7, 50]),
            truncation=random.choice([1, 2, 3, 10, 100]), scale=random.choice([0.5, 1.0]),
        ).to(torch.float64)  # fmt: skip
        if well_conditioned(call, 1e-4):
            return call


# ---- values and gradients


@pytest.mark.parametrize("first", range(0, 200, 25))
@pytest.mark.sampled
def test_random_calls_are_the_reference_s(first):
    for seed in range(first, first + 25):
        check(draw(seed))


def release(call, b):
    """One sample, computed as in the published code: step by step, with the memories in a list."""
    x, (k, every, truncation) = call.leaves, (call.options[name] for name in ("top_k", "attend_every", "truncation"))
    h, c, M, outputs = x["h0"][b], x["c0"][b], [x["h0"][b]], []
    for t, u in enumerate(x["u"][:, b]):
        if (t + 1) % truncation == 0:
            h, c = h.detach(), c.detach()
        i, f, g, o = (u + x["R"] @ h + x["bias"]).chunk(4)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
        both = [torch.cat([h, m]) for m in M]
        w = torch.stack([x["w"] @ torch.tanh(z if "W" not in x else x["W"] @ z) for z in both])
        if len(M) > k:
            over = torch.relu(w - (w.topk(k).values[-1] + 1e-7))
            w = over / (over.sum() + 1e-7)
        context = w @ torch.stack(M)
        h = h + context
        if (t + 1) % every == 0:
            M.append(h)
        outputs.append(torch.cat([h, context]))
    return torch.stack(outputs), torch.stack(M)


@pytest.mark.parametrize("width", [None, 4])
@pytest.mark.parametrize(("top_k", "every", "truncation"), [(3, 1, 4), (1, 2, 1), (2, 5, 50), (30, 3, 6)])
def test_the_reference_is_what_the_published_code_computes(top_k, every, truncation, width):
    while True:
        call = make(14, 2, 4, width, top_k=top_k, attend_every=every, truncation=truncation, scale=0.5)
        call = call.to(torch.float64)
        if well_conditioned(call, 1e-2):
            break
    out, state = call(reference.sab_recurrence)
    outs, memories = (torch.stack(x) for x in zip(*(release(call, b) for b in range(2)), strict=True))
    torch.testing.assert_close(out, outs.transpose(0, 1), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(state.memory, memories, rtol=1e-12, atol=1e-12)
    upstream = torch.randn_like(out)
    leaves = list(call.leaves.values())
    losses = (out * upstream).sum() + state.memory.sum(), (outs * upstream.transpose(0, 1)).sum() + memories.sum()
    found, wanted = (torch.autograd.grad(loss, leaves, materialize_grads=True, allow_unused=True) for loss in losses)
    for x, y in zip(found, wanted, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-10, atol=1e-10)


@each_level
@pytest.mark.parametrize("width", [None, 19])
def test_every_simd_level(width, level, simd):
    """In float32 scores are below one: larger scores, used as weights, would let errors grow over time."""
    simd(level)
    check(make(20, 5, 33, width, resets=True, attend_every=2, top_k=4).to(torch.float64))
    calls = (call.to(torch.float32) for call in draws(make, 12, 8, 33, width, resets=True, top_k=6, scale=0.5))
    agree(sab_recurrence, reference.sab_recurrence, results, calls)


def test_equal_scores_are_ranked_by_age():
    """All scores equal the threshold, so all weights are zero; the ids are those of the k oldest."""
    call = make(7, 2, 4, top_k=2).to(torch.float64)
    call.leaves["w"].data.zero_()
    check(call)
    _, _, memory = call(sab_recurrence, return_memory=True)
    assert memory.slots[3:].tolist() == [[[0, 1]] * 2] * 4
    assert not memory.weights.any()


def test_scores_that_are_equal_but_for_their_sign_take_the_largest():
    call = make(30, 3, 1, width=1, top_k=2).to(torch.float64)
    call.leaves["W"].data[:] = torch.tensor([[0.0, 50.0]])  # tanh is 1 or -1, which gives ties
    check(call)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("width", [None, 3])
def test_what_is_not_finite_stays_in_its_sample(width, value):
    call = make(10, 3, 4, width, top_k=2).to(torch.float64)
    call.leaves["u"].data[4, 1] = value
    found, wanted = call(sab_recurrence)[0], call(reference.sab_recurrence)[0]
    assert torch.equal(found.isnan(), wanted.isnan())
    assert found[:, [0, 2]].isfinite().all()
    assert torch.equal(found[4:, 1].isnan().any(), torch.tensor(value != value))


# ---- state, chunks and resets


def test_a_reset_begins_a_sequence():
    call = make(12, 2, 5, attend_every=2, truncation=3)
    reset = torch.zeros(12, 2, dtype=torch.bool)
    reset[5, 1] = True
    out, state = call(sab_recurrence, reset=reset)
    fresh = {"u": call.leaves["u"][5:]} | {name: torch.zeros(2, 5, dtype=torch.float64) for name in ("h0", "c0")}
    again, end = call(sab_recurrence, fresh)
    assert torch.equal(out[:, 0], call(sab_recurrence)[0][:, 0])
    assert torch.equal(out[5:, 1], again[:, 1])
    assert torch.equal(state.memory[1, :4], end.memory[1])
    assert not state.memory[1, 4:].any()
    assert state.time.tolist() == [12, 7]


def test_nothing_flows_past_the_cuts_but_through_memory():
    call = make(9, 1, 4, truncation=3, attend_every=50, top_k=1).to(torch.float64)
    out, _ = call(sab_recurrence)
    (du,) = torch.autograd.grad(out[7].sum(), call.leaves["u"])
    assert not du[:5].any()  # the gradient is cut between steps 5 and 6
    assert du[5:8].any(dim=-1).all()
    remembered = make(9, 1, 4, truncation=3, attend_every=2, top_k=5).to(torch.float64)
    (du,) = torch.autograd.grad(remembered(sab_recurrence)[0][7].sum(), remembered.leaves["u"])
    assert du[[1, 3]].any(dim=-1).all()


def test_what_is_kept_for_the_backward():
    """Besides arguments and results: c, a divisor, and the weights and slots of k memories."""
    steps, batch, hidden, k = 50, 4, 64, 3
    call, kept = make(steps, batch, hidden, top_k=k).to(torch.float32), {}
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.setdefault(address_of(x), x) is x or x, lambda x: x):
        out, _, memory = call(sab_recurrence, return_memory=True)
    known = {address_of(x) for x in (out, *call.leaves.values())}
    own = [x for x in kept.values() if address_of(x) not in known and x.shape[:2] == (steps, batch)]
    assert sum(x.numel() for x in own) == steps * batch * (hidden + 2 * k + 1)
    assert {address_of(memory.weights), address_of(memory.slots)} <= kept.keys()


def test_second_derivatives_of_a_cut_path_are_the_reference_s():
    call = make(7, 2, 3, truncation=2, top_k=2).to(torch.float64)
    found = []
    for function in (sab_recurrence, reference.sab_recurrence):
        leaves = list(call.leaves.values())
        first = torch.autograd.grad(call(function)[0].sin().sum(), leaves, create_graph=True)
        found.append(torch.autograd.grad(sum(x.square().sum() for x in first), leaves))
    for x, y in zip(*found, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-9, atol=1e-9)
