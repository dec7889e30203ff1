"""Complex weights that stay unitary: factors, gradients, training, copies."""

import copy
import pickle

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import rnnkern
from rnnkern import reference
from rnnkern.ops import explain, givens_product
from rnnkern.parametrizations import ComplexGivens, Fourier, reset_parameters, unitary, unitary_matrix

C64, C128, F64 = torch.complex64, torch.complex128, torch.float64
MAPS = [
    {"unitary_map": "fourier"},
    {"unitary_map": "givens"},
    {"unitary_map": "givens", "style": "butterfly", "layers": 5},
    {"unitary_map": "exp"},
    {"unitary_map": "scaled_cayley", "base": "dynamic", "rebase_every": 2},
]
maps = pytest.mark.parametrize("options", MAPS, ids=str)


INITIAL = {"exp": "haar", "scaled_cayley": "cayley"}


def made(*sizes, dtype=C128, **options):
    options = {"init": INITIAL.get(options.get("unitary_map"), "uniform")} | options
    module = torch.nn.Module()
    module.W = torch.nn.Parameter(torch.empty(*(sizes or (8, 8)), dtype=dtype))
    return unitary(module, "W", **options)


def distance(W):
    W = W.detach().to(C128)
    return (W.mH @ W - torch.eye(W.shape[-1], dtype=C128)).abs().max().item()


def originals(module):
    return list(module.parametrizations.W.parameters())


@maps
def test_initial_weights_are_unitary_and_held(options):
    for sizes in ((8, 8), (2, 4, 4)):
        module = made(*sizes, **options)
        assert module.W.shape == sizes
        assert module.W is module.W
        assert module.W.imag.abs().max() > 0.01
        assert distance(module.W) < 1e-14


def test_one_unit():
    for map in ("fourier", "givens"):
        torch.testing.assert_close(made(1, 1, unitary_map=map).W.abs(), torch.ones(1, 1, dtype=F64))


def test_the_fourier_factors_are_those_of_the_paper():
    module = made(5, 5)
    parametrization, (phases, vectors) = module.parametrizations.W[0], originals(module)
    assert isinstance(parametrization, Fourier)
    assert phases.numel() + vectors.numel() == 7 * 5
    D1, D2, D3 = (torch.diag(torch.exp(1j * phase)) for phase in phases)
    R1, R2 = (
        torch.eye(5) - 2 * torch.outer(v, v.conj()) / v.abs().square().sum() for v in torch.view_as_complex(vectors)
    )
    k = torch.arange(5, dtype=F64)
    F = torch.exp(-2j * torch.pi * torch.outer(k, k) / 5) / 5**0.5
    Pi = torch.eye(5, dtype=C128)[parametrization.order]
    torch.testing.assert_close(module.W, D3 @ R2 @ F.mH @ D2 @ Pi @ R1 @ F @ D1)


def hermitian(A):
    """-i S for the skew-Hermitian S of a real A, entry by entry."""
    N, K = len(A), torch.zeros(*A.shape, dtype=C128)
    for i in range(N):
        K[i, i] = A[i, i]
        for j in range(i):
            K[i, j] = A[j, i] - 1j * A[i, j]
            K[j, i] = K[i, j].conj()
    return K


@pytest.mark.parametrize("init", ["haar", "henaff", "cayley", "identity"])
def test_maps_from_skew_hermitian_matrices(init):
    """Against the eigenvalues of the Hermitian matrix: exp(i K), and the Cayley transform of i K times D."""
    for unitary_map in ("exp", "scaled_cayley"):
        module = made(5, 5, unitary_map=unitary_map, init=init)
        B, (A, *phases) = module.W.detach().clone(), originals(module)
        D = torch.diag(torch.exp(1j * phases[0].detach())) if phases else torch.eye(5, dtype=C128)
        B = B @ D.mH
        with torch.no_grad():
            A.copy_(torch.randn(5, 5))
        values, vectors = torch.linalg.eigh(hermitian(A.detach()))
        of = torch.exp(1j * values) if unitary_map == "exp" else (1 - 1j * values) / (1 + 1j * values)
        torch.testing.assert_close(module.W, B @ vectors @ torch.diag(of) @ vectors.mH @ D, rtol=1e-12, atol=1e-12)
        assert sum(p.numel() for p in module.parameters()) == 25 + 5 * len(phases)


@pytest.mark.parametrize("unitary_map", ["exp", "scaled_cayley"])
def test_a_dynamic_base_moves_with_the_weight(unitary_map):
    """Moving the base does not change the weight, and every unitary target is reached: W stays unitary all the way."""
    module = made(4, 4, unitary_map=unitary_map, base="dynamic", rebase_every=3)
    target, optimizer = unitary_matrix(module.W), torch.optim.Adam(module.parameters(), 0.05)
    parametrization, A = module.parametrizations.W[0], originals(module)[0]
    for step in range(1, 301):
        optimizer.zero_grad()
        loss = (module.W - target).abs().square().sum()
        loss.backward()
        optimizer.step()
        assert (A == 0).all() == (step % 3 == 0)
    assert loss < 1e-3
    assert distance(module.W) < 1e-13
    before = module.W.detach().clone()
    with torch.no_grad():
        A.copy_(torch.randn(4, 4) / 10)
    moved = module.W.detach().clone()
    parametrization.rebase()
    torch.testing.assert_close(module.W, moved, rtol=1e-13, atol=1e-13)
    assert (moved - before).abs().max() > 0.01


def test_a_unitary_matrix_can_be_assigned():
    for unitary_map in ("exp", "scaled_cayley"):
        module, W = made(4, 4, unitary_map=unitary_map), unitary_matrix(torch.empty(4, 4, dtype=C128))
        module.W = W
        torch.testing.assert_close(module.W, W)
        with pytest.raises(ValueError, match=r"unitary: the weight must be unitary, got max \|W\^H W - I\|"):
            module.W = 2 * W
    with pytest.raises(ValueError, match="unitary: `base` applies only to the maps"):
        made(4, 4, base="dynamic")
    with pytest.raises(ValueError, match="`rebase_every` must be a positive integer, got 0"):
        made(4, 4, unitary_map="exp", rebase_every=0)


def test_rotations_with_phases_layer_by_layer():
    module = made(4, 4, unitary_map="givens")
    assert isinstance(module.parametrizations.W[0], ComplexGivens)
    angles, phases, first = originals(module)
    W = torch.eye(4, dtype=C128)
    for layer, pairs in enumerate([[(0, 1), (2, 3)], [(1, 2)]] * 2):
        for k, (a, b) in enumerate(pairs):
            theta, phase = angles[layer, k], torch.exp(1j * phases[layer, k])
            F = torch.eye(4, dtype=C128)
            F[a, a], F[a, b], F[b, a], F[b, b] = phase * theta.cos(), -phase * theta.sin(), theta.sin(), theta.cos()
            W = F @ W
    torch.testing.assert_close(module.W, W @ torch.diag(torch.exp(1j * first)))


@pytest.mark.parametrize("style", ["tunable", "butterfly"])
def test_phases_of_the_operator(style):
    angles, phases = torch.randn(2, 3, 2, 2, dtype=F64).unbind()
    x = torch.randn(3, 5, 4, dtype=C128)
    W = givens_product(angles, phases=phases, style=style)
    torch.testing.assert_close(givens_product(angles, x, phases=phases, style=style), x @ W.mT)
    zero = torch.zeros_like(phases)
    torch.testing.assert_close(
        givens_product(angles, phases=zero, style=style).real, givens_product(angles, style=style)
    )
    leaves = [y[:1, :1].clone().requires_grad_() for y in (angles, phases)]
    function = lambda *y: givens_product(y[0], phases=y[1], style=style)  # noqa: E731
    assert gradcheck(function, leaves)
    assert gradgradcheck(function, leaves)
    choice = explain(givens_product, angles, x, phases=phases)
    assert choice.implementation == "reference"
    assert "no kernel supports `phases`" in choice.reason


def test_wrong_phases():
    angles = torch.zeros(3, 2)
    for phases, x, kind, said in (
        (torch.zeros(2, 2), None, ValueError, r"`phases` must be like `angles` = \(3, 2\), got \(2, 2\)"),
        (torch.zeros(3, 2, dtype=F64), None, TypeError, "`phases` must be of dtype torch.float32 like `angles`"),
        (angles, torch.zeros(1, 4), TypeError, "`x` must have one of the dtypes .*complex64.*, got torch.float32"),
    ):
        with pytest.raises(kind, match=said):
            givens_product(angles, x, phases=phases)


@maps
def test_gradients_of_first_and_second_order(options):
    module = made(4, 4, **options)
    G = torch.randn(4, 4, dtype=C128)
    leaves = originals(module)
    found = torch.autograd.grad((module.W * G).real.sum(), leaves)
    wanted = torch.autograd.grad((module.parametrizations.W[0].weight(*leaves) * G).real.sum(), leaves)
    torch.testing.assert_close(found, wanted)
    assert all(g.abs().max() > 0 for g in found[:2])
    assert gradgradcheck(module.parametrizations.W[0].weight, leaves)


@maps
def test_10_000_updates_stay_unitary(options):
    module, generator = made(16, 16, dtype=C64, **options), torch.Generator().manual_seed(0)
    begun = module.W.detach().clone()
    leaves = originals(module)
    with torch.no_grad():
        for _ in range(10_000):
            for leaf in leaves[:2]:
                leaf.sub_(1e-3 * torch.randn(leaf.shape, generator=generator))
    assert (module.W - begun).abs().max() > 0.1
    assert distance(module.W) < 3e-6


def test_every_unitary_matrix_is_reached_by_rotations():
    target, reached = unitary_matrix(torch.empty(3, 3, dtype=C128)), []
    assert distance(target) < 1e-14
    for _ in range(3):  # some initial values lead to other minima
        module = made(3, 3, unitary_map="givens")
        optimiser = torch.optim.LBFGS(module.parameters(), max_iter=100, line_search_fn="strong_wolfe")

        def closure(module=module, optimiser=optimiser):
            optimiser.zero_grad()
            loss = torch.view_as_real(module.W - target).square().sum()
            loss.backward()
            return loss

        optimiser.step(closure)
        reached.append(closure().item())
    assert min(reached) < 1e-8


def test_random_matrices_are_uniform():
    """An entry has mean 0 and variance 1 / N, and the mean of its square is 0, because all phases are equally
    likely."""
    entries = unitary_matrix(torch.empty(4000, 3, 3, dtype=C128))[:, 0, 0]
    assert entries.mean().abs() < 0.06
    assert abs(entries.abs().square().mean() - 1 / 3) < 0.023
    assert entries.square().mean().abs() < 0.04


@maps
def test_checkpoints_copies_and_dtypes(options):
    module, again = made(dtype=C64, **options), made(dtype=C64, **options)
    again.load_state_dict(module.state_dict())
    for other in (again, copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert torch.equal(other.W, module.W)
        reset_parameters(other, "W")
        assert not torch.equal(other.W, module.W)
    assert module.double().W.dtype == C128
    assert distance(module.W) < 1e-14
    meta = torch.nn.Module()
    meta.W = torch.nn.Parameter(torch.empty(8, 8, dtype=C64, device="meta"))
    init = "haar" if options["unitary_map"] in INITIAL else "uniform"
    assert unitary(meta, "W", init=init, **options).W.shape == (8, 8)
    meta.to_empty(device="cpu")
    reset_parameters(meta, "W")
    assert distance(meta.W) < 1e-6


def test_the_rate_of_orthogonal_parameters():
    module = made(unitary_map="givens")
    (group,) = rnnkern.optim.param_groups(module, 1e-3)
    assert (len(group["params"]), group["lr"]) == (3, 1e-4)


def test_wrong_arguments():
    with pytest.raises(TypeError, match="unitary: `weight` must be complex, got "):
        unitary(torch.nn.Linear(3, 3), "weight", "exp")
    module = torch.nn.Module()
    module.W = torch.nn.Parameter(torch.empty(3, 3, dtype=C64))
    with pytest.raises(TypeError, match="orthogonal: `W` must be real and floating-point, got "):
        rnnkern.parametrizations.orthogonal(module, "W")
    with pytest.raises(ValueError, match="unitary: `unitary_map` must be one of"):
        made(unitary_map="log")
    with pytest.raises(ValueError, match="unitary: `layers` applies only to the map 'givens', got 3"):
        made(layers=3)
    with pytest.raises(ValueError, match="unitary: N must be a power of two"):
        made(6, 6, unitary_map="givens", style="butterfly")


def test_the_reference_is_what_runs():
    angles, phases = torch.randn(2, 3, 4).unbind()
    assert torch.equal(givens_product(angles, phases=phases), reference.givens_product(angles, phases=phases))
