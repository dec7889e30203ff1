"""LSTM and GRU with layer_norm=True."""

import pytest
import torch

import rnnkern.nn

T, B, I, H = 6, 3, 3, 5  # noqa: E741

CLOSE = {"rtol": 1e-10, "atol": 1e-12}
CLASSES = ("LSTM", "GRU")


def build(cls, *args, **kwargs):
    """A module with parameters that differ from their initial values."""
    module = getattr(rnnkern.nn, cls)(*args, layer_norm=True, **kwargs)
    with torch.no_grad():
        for name, p in module.named_parameters():
            p.add_(0.3 * torch.randn_like(p) if "_ln_" in name else 0)
    return module


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("cls", CLASSES)
def test_one_step_without_derivatives(cls, bias):
    """Without layer_norm, such calls use a fast path."""
    module = build(cls, I, H, bias=bias)
    x, h = torch.randn(1, B, I), torch.randn(1, B, H)
    hx = (h, torch.randn(1, B, H)) if cls == "LSTM" else h
    wanted = module(x, hx)
    with torch.no_grad():
        torch.testing.assert_close(module(x, hx), wanted, rtol=0, atol=0)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("cls", CLASSES)
def test_torchs_parameters_are_drawn_as_torch_draws_them_and_norms_begin_at_one(cls, bias):
    torch.manual_seed(1)
    theirs, following = getattr(torch.nn, cls)(I, H, 2, bidirectional=True, bias=bias), torch.rand(1)
    torch.manual_seed(1)
    ours = getattr(rnnkern.nn, cls)(I, H, 2, bidirectional=True, bias=bias, layer_norm=True)
    assert torch.equal(following, torch.rand(1))
    rows = (4 if cls == "LSTM" else 3) * H
    sizes = {"weight_ln_ih": rows, "weight_ln_hh": rows}
    sizes |= {"weight_ln_c": H, "bias_ln_c": H} if cls == "LSTM" else {}
    suffixes = [f"l{k}{direction}" for k in (0, 1) for direction in ("", "_reverse")]
    added = {f"{name}_{suffix}": size for suffix in suffixes for name, size in sizes.items()}
    assert set(ours.state_dict()) == set(theirs.state_dict()) | set(added)
    for name, p in theirs.named_parameters():
        assert torch.equal(getattr(ours, name), p)
    for _ in range(2):
        for name, size in added.items():
            assert torch.equal(getattr(ours, name), torch.full((size,), float(name.startswith("weight"))))
        with torch.no_grad():
            for p in ours.parameters():
                p.fill_(7)
        ours.reset_parameters()
    assert ours.weight_hh_l0.unique().numel() == ours.weight_hh_l0.numel()
