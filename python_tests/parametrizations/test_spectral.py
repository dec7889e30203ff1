"""Weights whose singular values stay within a margin of 1: values, gradients, drift, assignment, errors."""

import copy
import pickle

import pytest
import torch

from rnnkern import reference
from rnnkern.parametrizations import INITS, SpectralMargin, reset_parameters, spectral_margin

F64 = torch.float64


def made(size=6, margin=0.2, dtype=F64, **options):
    return spectral_margin(torch.nn.Linear(size, size, bias=False, dtype=dtype), "weight", margin, **options)


def parts(module):
    found = module.parametrizations.weight
    return found[0], found.original0, found.original1, found.original2


@torch.no_grad()
def moved(module, scale=0.5):
    for x in parts(module)[1:]:
        x.copy_(scale * torch.randn(x.shape))
    return module


def formula(module):
    band, A, C, p = parts(module)
    s = 2 * band.margin * (1 / (1 + torch.exp(-p)) - 0.5) + 1
    U, V = band.base_u @ reference.skew_exp(A), band.base_v @ reference.skew_exp(C)
    return U @ torch.diag_embed(s) @ V.mT


@pytest.mark.parametrize("size", [1, 5])
@pytest.mark.parametrize("init", INITS)
def test_it_begins_orthogonal(init, size):
    W = made(size, init=init).weight
    torch.testing.assert_close(W.T @ W, torch.eye(size, dtype=F64))
    torch.testing.assert_close(torch.linalg.det(W), torch.ones((), dtype=F64))


def test_value_and_gradients_are_the_formula_s():
    module = moved(made())
    band, *originals = parts(module)
    torch.testing.assert_close(module.weight, formula(module))
    s = band.singular_values(originals[2]).sort(descending=True).values
    torch.testing.assert_close(torch.linalg.svdvals(module.weight), s)
    G = torch.randn(6, 6, dtype=F64)
    found, wanted = (torch.autograd.grad((G * W).sum(), originals) for W in (module.weight, formula(module)))
    torch.testing.assert_close(found, wanted)


def test_gradients_of_gradients():
    module = moved(made(3))
    band, *originals = parts(module)
    assert torch.autograd.gradcheck(band.weight, originals)
    assert torch.autograd.gradgradcheck(band.weight, originals)
    (first,) = torch.autograd.grad(module.weight.sin().sum(), originals[2], create_graph=True)
    assert torch.autograd.grad(first.square().sum(), originals[0])[0].abs().sum() > 0


@pytest.mark.parametrize("margin", [0, 0.01, 1])
def test_no_parameter_leads_out_of_the_margin(margin):
    module = moved(made(16, margin, torch.float32))
    with torch.no_grad():
        parts(module)[3].mul_(100)
    s = torch.linalg.svdvals(module.weight.detach().double())
    assert ((s > 1 - margin - 2e-6) & (s < 1 + margin + 2e-6)).all()
    if margin == 0:
        assert not torch.autograd.grad(module.weight.sum(), parts(module)[3])[0].any()


def test_10_000_updates_stay_within_the_margin():
    module, generator = made(24, 0.1, torch.float32, init="haar"), torch.Generator().manual_seed(0)
    with torch.no_grad():
        for _ in range(10_000):
            for x in parts(module)[1:]:
                x.sub_(1e-3 * torch.randn(x.shape, generator=generator))
    s = torch.linalg.svdvals(module.weight.detach().double())
    assert ((s > 0.9 - 2e-6) & (s < 1.1 + 2e-6)).all()


def test_a_matrix_within_the_margin_may_be_assigned():
    module, other = moved(made()), moved(made())
    module.weight = other.weight.detach()
    torch.testing.assert_close(module.weight, other.weight)
    _, A, C, _ = parts(module)
    assert not A.any()
    assert not C.any()
    Q = torch.linalg.qr(torch.randn(6, 6, dtype=F64))[0]
    exact = made(margin=0)
    exact.weight = Q
    torch.testing.assert_close(exact.weight, Q)


@pytest.mark.parametrize(
    ("margin", "W", "said"),
    [
        (0.2, 1.3 * torch.eye(6), "singular values must be strictly between 0.8 and 1.2, got 1.3 to 1.3"),
        (0.2, torch.diag(torch.tensor([1, 1, 1, 1, 1, 0.79])), "must be strictly between 0.8 and 1.2, got 0.79 to 1"),
        (0, 1.001 * torch.eye(6), "strictly between 1 and 1, got 1.001 to 1.001"),
        (0.2, torch.eye(6) * torch.nan, "the weight must be finite"),
        (0.2, torch.eye(5), r"the weight must be \(6, 6\), got \(5, 5\)"),
    ],
)
def test_others_are_refused(margin, W, said):
    with pytest.raises(ValueError, match=said):
        made(margin=margin).weight = W.double()


def test_copies_checkpoints_and_devices():
    module, again = moved(made(dtype=torch.float32)), made(dtype=torch.float32)
    again.load_state_dict(module.state_dict())
    for other in (again, copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert torch.equal(other.weight, module.weight)
        reset_parameters(other, "weight")
        assert not torch.equal(other.weight, module.weight)
    meta = spectral_margin(torch.nn.Linear(4, 4, device="meta"), "weight")
    assert (meta.weight.shape, meta.weight.device.type) == ((4, 4), "meta")
    meta.to_empty(device="cpu")
    reset_parameters(meta, "weight")
    torch.testing.assert_close(meta.weight.T @ meta.weight, torch.eye(4))


def test_heads_are_a_batch():
    module = torch.nn.Module()
    module.weight = torch.nn.Parameter(torch.empty(3, 4, 4, dtype=F64))
    spectral_margin(module, "weight", 0.3, "haar")
    with torch.no_grad():
        for k in range(3):
            x = getattr(module.parametrizations.weight, f"original{k}")
            x.copy_(torch.randn(x.shape))
    torch.testing.assert_close(module.weight, formula(module))
    assert isinstance(module.parametrizations.weight[0], SpectralMargin)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"margin": -0.1}, "spectral_margin: `margin` must be a number from 0 to 1, got -0.1"),
        ({"margin": 1.1}, "got 1.1"),
        ({"margin": "wide"}, "got 'wide'"),
        ({"init": "eye"}, "`init` must be one of .*, got 'eye'"),
    ],
)
def test_wrong_options(options, said):
    with pytest.raises(ValueError, match=said):
        made(**options)
    with pytest.raises(ValueError, match=r"spectral_margin: `weight` must be \(..., N, N\), got \(4, 3\)"):
        spectral_margin(torch.nn.Linear(3, 4), "weight")
