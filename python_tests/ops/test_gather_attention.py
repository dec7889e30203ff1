"""What gather_attention alone promises: contents of lists, hard scores, and the ids of a relevancy recurrence."""

import pytest
import torch

from python_tests.samples import agree, draws, gather_sample
from python_tests.samples.operators import REAL, check, draw, results
from rnnkern import reference
from rnnkern.ops import gather_attention, relevancy_recurrence


def test_int64_indices_are_those_of_int32():
    """The ids of a relevancy state are int64."""
    q, u, h, idx, v = gather_sample(2, 5, 7, 4, 9)
    wide = torch.where(idx < 0, torch.tensor(-(2**40)), idx.long())
    assert torch.equal(gather_attention(q, u, h, wide, v), gather_attention(q, u, h, idx, v))


def check_changed(change, *sizes, dtype, scale):
    """Compares random calls, which are changed, with the reference."""
    samples = map(change, draws(draw, "gather_attention", *sizes, dtype=dtype))
    agree(gather_attention, reference.gather_attention, results, samples, scale=scale)


@pytest.mark.parametrize("scale", [1e-4, 30.0])
@pytest.mark.parametrize("dtype", REAL)
def test_scores_that_hardly_differ_and_that_leave_one(dtype, scale):
    """With one weight of almost 1, the terms of gradients cancel."""
    times = {"q": min(scale, 1), "u": min(scale, 1), "h": 1, "v": max(scale, 1)}

    def change(call):
        return call.with_tensors({name: x * times[name] for name, x in call.tensors.items()})

    check_changed(change, 8, 30, 30, 8, 40, dtype=dtype, scale=scale)


@pytest.mark.parametrize("dtype", REAL)
def test_a_memory_that_all_attend_to(dtype):
    """All scores of a list are equal, so the 2,100 terms of a gradient of u cancel."""

    def change(call):
        idx = call.options["idx"]
        return call._replace(options=call.options | {"idx": torch.where(idx < 0, idx, 3).int()})

    check_changed(change, 2, 700, 5, 3, 24, dtype=dtype, scale=100.0)


def test_no_memories():
    check("gather_attention", 2, 3, 0, 2, 6)


# ---- contents of lists


def test_what_lists_mean():
    q, u, h, _, v = gather_sample(1, 3, 4, 0, 5)
    idx = torch.tensor([[[2, -1, 0], [-1, -1, -1], [1, 1, 3]]], dtype=torch.int32)
    out, weights = gather_attention(q, u, h, idx, v, return_weights=True)
    e = (v * torch.tanh(q[0, :, None] + u[0])).sum(-1)
    alpha = torch.softmax(e[0, [2, 0]], 0)
    torch.testing.assert_close(weights[0, 0], torch.stack([alpha[0], torch.zeros(()).double(), alpha[1]]))
    torch.testing.assert_close(out[0, 0], alpha @ h[0, [2, 0]])
    assert torch.equal(out[0, 1], torch.zeros(5).double())
    assert torch.equal(weights[0, 1], torch.zeros(3).double())
    twice = torch.softmax(e[2, [1, 1, 3]], 0)
    torch.testing.assert_close(weights[0, 2], twice)
    assert torch.equal(gather_attention(q, u, h, torch.where(idx < 0, -7, idx), v), out)


def test_what_nobody_attends_to_is_not_read():
    q, u, h, idx, v = gather_sample(2, 6, 7, 4, 9)
    idx = idx.clamp_max(3)
    call = draw("gather_attention")
    call = call._replace(tensors={"q": q, "u": u, "h": h, "v": v}, options=call.options | {"idx": idx})
    wanted = results(gather_attention, call)
    poisoned = {name: call.tensors[name].index_fill(1, torch.tensor([4, 5, 6]), torch.nan) for name in "uh"}
    q[:, 0] = torch.nan  # its list is empty
    found = results(gather_attention, call.with_tensors(poisoned))
    assert all(torch.equal(found[what], x) for what, x in wanted.items())
    assert all((found[f"grad of {name}"][:, 4:] == 0).all() for name in "uh")


def test_scores_that_are_no_numbers():
    q, u, h, v = torch.zeros(1, 4, 2), torch.zeros(1, 3, 2), torch.arange(6.0).view(1, 3, 2), torch.ones(2)
    u[0, 1], u[0, 2] = torch.nan, -torch.inf
    idx = torch.tensor([[[0, 1], [0, 2], [2, -1], [0, 0]]], dtype=torch.int32)
    for alignment, of_minus_infinity in (("additive", None), ("dot", torch.nan)):
        tensors = (torch.ones_like(q) if alignment == "dot" else q, u, h, idx, v)
        out, weights = gather_attention(*tensors, alignment=alignment, return_weights=True)
        assert out[0, 0].isnan().all()
        assert torch.equal(out[0, 3], h[0, 0])
        wanted = reference.gather_attention(*tensors, alignment=alignment, return_weights=True)
        for found, of_reference in zip((out, weights), wanted, strict=True):
            torch.testing.assert_close(found, of_reference, equal_nan=True)
        if of_minus_infinity is not None:
            assert torch.equal(weights[0, 1], torch.tensor([1.0, 0.0]))
            assert out[0, 2].isnan().all()


def test_a_v_for_each_of_some_samples():
    q, u, h, idx, _ = gather_sample(6, dtype=torch.float32)
    v = torch.randn(3, 9)
    out = gather_attention(q, u, h, idx, v)
    for b in range(6):
        assert torch.equal(
            out[b], gather_attention(q[b : b + 1], u[b : b + 1], h[b : b + 1], idx[b : b + 1], v[b // 2])[0]
        )


@pytest.mark.parametrize("alignment", ["additive", "dot"])
@pytest.mark.parametrize("combine", ["half", "sum"])
def test_the_weights_of_a_recurrence_are_found_again_from_its_states(combine, alignment):
    u, s0 = torch.randn(17, 3, 6, dtype=torch.float64), torch.randn(3, 6, dtype=torch.float64)
    weights = [torch.randn(*sizes, dtype=torch.float64) / 2 for sizes in ((6, 6), (6, 6), (6, 6), (6,))]
    options = {"buffer_size": 4, "relevant_size": 3, "combine": combine, "alignment": alignment}
    options["reset"] = torch.rand(17, 3) < 0.1
    h, _, memory = relevancy_recurrence("tanh", u, weights[0], (s0,), weights[1:], return_memory=True, **options)
    s, _ = relevancy_recurrence("tanh", u, weights[0], (s0,), weights[1:], output="s", **options)
    before = torch.cat([s0.unsqueeze(0), s[:-1]]).masked_fill(options["reset"].unsqueeze(-1), 0)
    _, W_a, U_a, v = weights
    q, u, h, idx = (x.transpose(0, 1) for x in (before @ W_a.T, h @ U_a.T, h, memory.ids))
    out, alpha = gather_attention(q, u, h, idx, v, alignment=alignment, return_weights=True)
    torch.testing.assert_close(alpha, memory.weights.transpose(0, 1), rtol=0, atol=1e-10)
    wanted = s.transpose(0, 1) / {"half": 0.5, "sum": 1.0}[combine] - h
    torch.testing.assert_close(out, wanted, rtol=0, atol=1e-10)


def test_lists_that_differ_from_member_to_member():
    q, u, h, idx, v = gather_sample()
    members = torch.stack([idx, idx.flip(1), idx.flip(2)], 1)
    found = torch.vmap(lambda idx: gather_attention(q, u, h, idx, v), 1)(members)
    for k in range(3):
        torch.testing.assert_close(found[k], gather_attention(q, u, h, members[:, k], v))
