"""The relational models: counts of parameters, the published equations, and lengths of sets."""

import pytest
import torch

from perf.relational_models import encoder
from rnnkern import reference
from rnnkern.nn import ESBN, ContextNorm, CoRelNet, Similarity

HEADS = {(3, 2): 200418, (21, 2): 205026, (45, 4): 211684, (45, 2): 211170, (91, 6): 223974}
"""Parameters of table 3 of the thesis, by the size of the triangle and the number of answers."""


def count(*modules):
    return sum(parameter.numel() for module in modules for parameter in module.parameters())


def test_parameters_are_those_of_the_thesis():
    encoding = encoder(32)
    assert count(encoding) == 198624
    for (triangle, answers), wanted in HEADS.items():
        objects = next(n for n in range(20) if n * (n + 1) // 2 == triangle)
        assert count(encoding, CoRelNet(128, objects, answers)) == wanted
    assert count(encoding, ESBN(128, 2)) == 1910757


def test_corelnet_is_its_equation():
    model = CoRelNet(6, 4, 3, hidden=5, dtype=torch.float64)
    x = torch.randn(7, 4, 6, dtype=torch.float64)
    z = (x - x.mean(1, keepdim=True)) / (x.var(1, keepdim=True) + 1e-8).sqrt()
    rows = [torch.softmax((z @ z.mT)[:, i, : i + 1], -1) for i in range(4)]
    torch.testing.assert_close(model(x), model.decoder(torch.cat(rows, -1)))


def test_asymmetric_normalizes_after_the_projections():
    layer = Similarity(5, asymmetric=True, mask="full", dtype=torch.float64)
    torch.nn.init.normal_(layer.weight)
    torch.nn.init.normal_(layer.bias)
    x = torch.randn(3, 4, 5, dtype=torch.float64)
    norm = ContextNorm(5, dtype=torch.float64)
    norm.load_state_dict({"weight": layer.weight, "bias": layer.bias})
    wanted = torch.softmax(norm(layer.left(x)) @ norm(layer.right(x)).mT, -1)
    torch.testing.assert_close(layer(x), wanted)


def test_difference_is_a_decoder_of_all_differences():
    """A linear layer on D_ij = a_i - a_j is one on a - mean(a)."""
    model = CoRelNet(5, 4, 2, hidden=3, rule="difference", dtype=torch.float64)
    x, V = torch.randn(6, 4, 5, dtype=torch.float64), torch.randn(3, 4, 4, dtype=torch.float64)
    a = model.feature(model.norm(x)).squeeze(-1)
    with torch.no_grad():
        model.decoder[0].weight.copy_(V.sum(2) - V.sum(1))
    D = a.unsqueeze(2) - a.unsqueeze(1)
    wanted = torch.einsum("kij,bij->bk", V, D) + model.decoder[0].bias
    torch.testing.assert_close(model.decoder[0](model.relations(x)), wanted)
    first, second = (model(x if shift is None else x + shift) for shift in (None, 3.0))
    torch.testing.assert_close(first, second)


@pytest.mark.parametrize("segments", [None, (2, 1)])
def test_esbn_is_its_equation(segments):
    model = ESBN(6, 2, key_size=3, hidden_size=4, segments=segments, dtype=torch.float64)
    torch.nn.init.normal_(model.confidence)
    x = torch.randn(5, 3, 6, dtype=torch.float64)
    w, S = reference.similarity(x, segments=segments, mask="strict", return_scores=True)
    conf = (w * torch.sigmoid(model.confidence[0] * S + model.confidence[1])).sum(-1)
    weights = (model.weight_ih, model.weight_hh, model.bias_ih, model.bias_hh, model.key.weight, model.key.bias,
               model.gate.weight, model.gate.bias)  # fmt: skip
    wanted = model.answer(reference.binding_recurrence(w, conf, weights))
    torch.testing.assert_close(model(x), wanted)


def test_context_norm():
    x = torch.randn(3, 5, 4)
    assert torch.equal(ContextNorm(4)(x[:, :1]), torch.zeros(3, 1, 4))
    single = ContextNorm(4, segments=(4, 1))
    torch.nn.init.normal_(single.bias)
    assert torch.equal(single(x)[:, 4], single.bias.expand(3, 4))
    biased = ContextNorm(4, unbiased=False, affine=False)(x)
    torch.testing.assert_close(biased.square().mean(1), torch.ones(3, 4), rtol=1e-5, atol=0)
    lengths = torch.tensor([0, 2, 5])
    x[0], x[1, 2:] = torch.nan, torch.nan
    z = ContextNorm(4)(x, lengths)
    assert z.isfinite().all()
    assert (z[0] == 0).all()
    torch.testing.assert_close(z[1:2, :2], ContextNorm(4)(x[1:2, :2]))
    half = ContextNorm(4, dtype=torch.float16)(x[2:].half())
    assert half.dtype == torch.float16
    torch.testing.assert_close(half.float(), ContextNorm(4)(x[2:].half().float()), rtol=0, atol=2e-3)
