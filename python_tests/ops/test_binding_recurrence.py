"""binding_recurrence against a loop as published, and its errors."""

import pytest
import torch

from perf.relational_peers import esbn
from rnnkern.ops import binding_recurrence, explain, similarity


def sample(K=5, H=4):
    shapes = (4 * H, K + 1), (4 * H, H), (4 * H,), (4 * H,), (K, H), (K,), (1, H), (1,)
    return [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]


def hoisted(z, weights, a, b):
    w, S = similarity(z, norm=None, mask="strict", return_scores=True)
    return binding_recurrence(w, (w * torch.sigmoid(a * S + b)).sum(-1), weights)


@pytest.mark.parametrize("objects", [1, 2, 3, 9])
@pytest.mark.parametrize("batch", [1, 6])
def test_it_is_the_published_loop(batch, objects):
    weights, z = sample(), torch.randn(batch, objects, 7, dtype=torch.float64, requires_grad=True)
    a, b = (torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in (0.7, -0.3))
    found, wanted = hoisted(z, weights, a, b), esbn(z, weights, a, b)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)
    upstream, leaves = torch.randn_like(wanted), [z, a, b, *weights]
    pair = (
        torch.autograd.grad(h, leaves, upstream, allow_unused=True, materialize_grads=True) for h in (found, wanted)
    )
    for mine, other in zip(*pair, strict=True):
        torch.testing.assert_close(mine, other, rtol=0, atol=1e-12)


def test_the_first_two_steps_are_the_same_for_all_samples_and_the_last_object_has_no_key():
    weights = [weight.detach() for weight in sample()]
    w, conf = torch.rand(4, 1, 1, dtype=torch.float64), torch.rand(4, 1, dtype=torch.float64)
    h_1 = binding_recurrence(w, conf, weights)
    assert torch.equal(h_1, h_1[:1].expand(4, -1))
    w, conf = torch.rand(2, 5, 5, dtype=torch.float64), torch.rand(2, 5, dtype=torch.float64)
    changed = w.clone()
    changed[:, :, 4] = torch.nan  # the weight of the last object
    changed[:, 0], changed[:, 1, 1:] = torch.nan, torch.nan  # not below the diagonal
    assert torch.equal(binding_recurrence(w, conf, weights), binding_recurrence(changed, conf, weights))
    assert binding_recurrence(w[:0], conf[:0], weights).shape == (0, 4)


W, CONF, WEIGHTS = torch.zeros(2, 3, 3), torch.zeros(2, 3), [weight.detach().float() for weight in sample()]


@pytest.mark.parametrize(
    ("error", "changed", "said"),
    [
        (ValueError, {"w": W[:, 1:]}, r"`w` must be \(B, T, T\) .* got \(2, 2, 3\)"),
        (TypeError, {"conf": CONF.double()}, "`conf` must be of dtype torch.float32 like `w`, got torch.float64"),
        (ValueError, {"conf": CONF[:1]}, r"`conf` must be \(B, T\) = \(2, 3\), got \(1, 3\)"),
        (TypeError, {"weights": WEIGHTS[:7]}, r"`weights` must be \(W_ih, .*\), got 7 items"),
        (ValueError, {"weights": [WEIGHTS[0].mT, *WEIGHTS[1:]]}, r"`weights\[0\]` must be \(4 H, 1 \+ K\)"),
    ],
)
def test_errors_name_the_argument(error, changed, said):
    arguments = {"w": W, "conf": CONF, "weights": WEIGHTS} | changed
    with pytest.raises(error, match=f"binding_recurrence: {said}"):
        binding_recurrence(**arguments)


def test_there_is_no_kernel():
    choice = explain(binding_recurrence, W, CONF, WEIGHTS)
    assert choice == ("reference", "no kernel: its time is that of its products")
