"""Options that torch.nn lacks: how their parameters begin, after torch.nn's own, and what save_gates keeps."""

import pytest
import torch

import rnnkern.nn

T, B, I, H = 6, 3, 3, 6  # noqa: E741

CLOSE = {"rtol": 1e-10, "atol": 1e-12}


def build(cls, *args, **kwargs):
    return getattr(rnnkern.nn, cls)(*args, dtype=torch.float64, **kwargs)


def test_heads_are_drawn_as_torch_draws_weights():
    torch.manual_seed(1)
    dense, following = build("LSTM", 4, 64), torch.rand(1)
    torch.manual_seed(1)
    heads = build("LSTM", 4, 64, num_heads=4)
    assert torch.equal(following, torch.rand(1))
    assert torch.equal(heads.bias_hh_l0, dense.bias_hh_l0)
    weight = heads.weight_hh_l0.detach()
    assert weight.abs().max() <= 64**-0.5
    assert abs(weight.std() * 64**0.5 - 3**-0.5) < 0.02
    assert weight.unique().numel() == weight.numel()
    heads.reset_parameters()
    assert heads.weight_hh_l0.shape == (4, 64, 16)


NORMS = {"weight_ln_ih": 1.0, "weight_ln_hh": 1.0}
ADDED = [
    ("RNN", {"nonlinearity": "modrelu"}, {"modrelu_bias": None}),
    ("LSTM", {"layer_norm": True}, NORMS | {"weight_ln_c": 1.0, "bias_ln_c": 0.0}),
    ("GRU", {"layer_norm": True}, NORMS),
]
"""Options, and the values of the parameters that they add; None for small random ones."""


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("cls", "options", "added"), ADDED)
def test_torchs_parameters_are_drawn_as_torch_draws_them(cls, options, added, bias):
    common = {"num_layers": 2, "bidirectional": True, "bias": bias}
    torch.manual_seed(1)
    theirs = getattr(torch.nn, cls)(I, 64, **common)
    torch.manual_seed(1)
    ours = getattr(rnnkern.nn, cls)(I, 64, **common, **options)
    suffixes = [f"l{k}{direction}" for k in (0, 1) for direction in ("", "_reverse")]
    names = {f"{name}_{suffix}": value for suffix in suffixes for name, value in added.items()}
    assert set(ours.state_dict()) == set(theirs.state_dict()) | set(names)
    for name, p in theirs.named_parameters():
        assert torch.equal(getattr(ours, name), p)
    for _ in range(2):
        for name, value in names.items():
            p = getattr(ours, name)
            if value is None:
                assert p.shape == (64,)
                assert 0.005 < p.abs().max() <= 0.01
            else:
                assert torch.equal(p, torch.full_like(p, value))
        with torch.no_grad():
            for p in ours.parameters():
                p.fill_(7)
        ours.reset_parameters()
    assert ours.weight_hh_l0.unique().numel() > 1000


@pytest.mark.skipif(not rnnkern._extension.available, reason="the reference keeps what autograd records")
@pytest.mark.parametrize(
    ("cls", "options", "values"),
    [("LSTM", {}, 4), ("GRU", {}, 4), ("LSTM", {"layer_norm": True}, 12), ("GRU", {"layer_norm": True}, 9)],
)
def test_save_gates_keeps_as_many_values_as_documented(cls, options, values):
    def kept(save_gates):
        tensors, module.save_gates = {}, save_gates
        with torch.autograd.graph.saved_tensors_hooks(lambda t: tensors.setdefault(t.data_ptr(), t), lambda t: t):
            output, _ = module(x)
        return sum(t.numel() for t in tensors.values()), torch.autograd.grad(output.sum(), list(module.parameters()))

    x, module = torch.randn(50, B, I, dtype=torch.float64), build(cls, I, H, **options)
    (more, wanted), (less, found) = kept(True), kept(False)
    torch.testing.assert_close(found, wanted, **CLOSE)
    assert more - less == values * 50 * B * H
