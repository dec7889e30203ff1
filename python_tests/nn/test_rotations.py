"""Rotation layers inside the recurrence of EURNN and UnitaryRNN compute the same as their matrix."""

import copy
import json
import pickle

import pytest
import torch
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

import rnnkern
from rnnkern import _extension
from rnnkern.nn import EURNN, UnitaryRNN
from rnnkern.nn.filters import Momentum
from rnnkern.ops._orthogonal.givens_recurrence import pays

pytestmark = pytest.mark.skipif(not _extension.available, reason=f"no compiled part: {_extension.reason}")

T, B, I, H = 6, 3, 2, 8  # noqa: E741
F64 = torch.float64
CPU = torch.device("cpu")


def entered():
    counts = json.loads(torch.ops.rnnkern.kernel_counts())
    return sum(n for kernel, n in counts.items() if kernel.startswith("givens_recurrence/cpu/"))


def pair(cls, *args, **options):
    """Two modules with the same parameters: one applies the rotation layers, the other forms the matrix."""
    inside = cls(*args, fused=True, **options)
    matrix = copy.deepcopy(inside)
    matrix.fused = False
    return inside, matrix


def results(module, *args, **options):
    output, h_n = module(*args, **options)
    rows = output.data if isinstance(output, PackedSequence) else output
    loss = rows.sin().sum() + (torch.view_as_real(h_n) if h_n.is_complex() else h_n).cos().sum()
    return rows, h_n, *torch.autograd.grad(loss, list(module.parameters()))


@pytest.mark.parametrize("kind", ["plain", "state", "reset", "packed", "unbatched"])
@pytest.mark.parametrize(
    "flags",
    [{"style": "butterfly", "num_layers": 2}, {"num_layers": 2, "bidirectional": True, "bias": True},
     {"rotation_layers": 3, "batch_first": True}],
    ids=str,
)  # fmt: skip
def test_eurnn(flags, kind):
    inside, matrix = pair(EURNN, I, H, dtype=F64, **flags)
    rows = inside.num_layers * (2 if inside.bidirectional else 1)
    x, h0, reset = torch.randn(T, B, I, dtype=F64), torch.randn(rows, B, H, dtype=F64), torch.rand(T, B) < 0.4
    if inside.batch_first:
        x, reset = x.transpose(0, 1), reset.T
    given = {
        "plain": (x,), "state": (x, h0), "reset": (x, h0, reset), "unbatched": (x[0], h0[:, 0]),
        "packed": (pack_padded_sequence(x, [4, 6, 1], inside.batch_first, enforce_sorted=False), h0),
    }[kind]  # fmt: skip
    before = entered()
    found = results(inside, *given)
    assert entered() == before + 2 * rows
    torch.testing.assert_close(found, results(matrix, *given))
    assert entered() == before + 2 * rows


@pytest.mark.parametrize("style", ["tunable", "butterfly"])
def test_unitary_rnn(style):
    inside, matrix = pair(UnitaryRNN, I, H, 2, unitary_map="givens", style=style, dtype=F64)
    x, h0 = torch.randn(T, B, I, dtype=F64), torch.randn(2, B, H, dtype=torch.complex128)
    before = entered()
    found = results(inside, x, h0, torch.rand(T, B, generator=torch.Generator().manual_seed(0)) < 0.3)
    assert entered() == before + 4
    wanted = results(matrix, x, h0, torch.rand(T, B, generator=torch.Generator().manual_seed(0)) < 0.3)
    torch.testing.assert_close(found, wanted)


def test_where_it_is_the_faster_it_is_taken():
    assert pays(256, 8, 32, False, CPU)
    assert not pays(256, 256, 32, False, CPU)
    assert not pays(256, 8, 1, False, CPU)
    assert pays(256, 64, None, True, CPU)
    assert not pays(256, 65, None, True, CPU)
    assert not pays(64, 4, 32, False, CPU)
    assert not pays(256, 8, 32, False, torch.device("meta"))
    for layers, inside in ((4, True), (40, False)):
        module = EURNN(I, 128, rotation_layers=layers)
        (choice,) = rnnkern.ops.explain(module, torch.randn(2, 16, I))
        assert choice.implementation == "cpu"
        assert choice.reason.endswith("which applies the rotation layers inside the recurrence") == inside
        before = entered()
        module(torch.randn(2, 16, I))
        assert entered() == before + inside
    with rnnkern.use("reference"):
        assert rnnkern.ops.explain(EURNN(I, 128, rotation_layers=4), torch.randn(2, 16, I))[0][0] == "reference"


def test_what_it_does_not_serve_takes_the_matrix():
    module = EURNN(I, H, fused=True)
    x, before = torch.randn(T, B, I), entered()
    with torch.autocast("cpu", torch.bfloat16):
        assert module(x)[0].dtype == torch.bfloat16
    assert module.bfloat16()(x.bfloat16())[0].dtype == torch.bfloat16
    for options in ({"num_heads": 2}, {"nonlinearity": "tanh"}, {"zoneout": 0.1}, {"filter": Momentum(0.5, 0.5)}):
        EURNN(I, H, **options)(x)
        with pytest.raises(ValueError, match="EURNN: `fused` must be False or None with "):
            EURNN(I, H, fused=True, **options)
    assert entered() == before
    for cls, options in ((EURNN, {}), (UnitaryRNN, {"unitary_map": "givens"})):
        with pytest.raises(TypeError, match="`fused` must be True, False or None, got 1"):
            cls(I, H, fused=1, **options)
    with pytest.raises(ValueError, match="`fused` applies only to the map 'givens', got True"):
        UnitaryRNN(I, H, fused=True)


def test_it_trains_is_copied_and_compiled():
    torch.manual_seed(0)
    module = EURNN(1, 16, style="butterfly", fused=True)
    optimiser = torch.optim.Adam(rnnkern.optim.param_groups(module, 0.02))
    x, losses = torch.randn(4, 16, 1), []
    for _ in range(60):
        optimiser.zero_grad()
        loss = (module(x)[0][-1].mean(-1, keepdim=True) - x.sum(0)).square().mean()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.3 * losses[0]
    torch.testing.assert_close(pickle.loads(pickle.dumps(module))(x), module(x))
    R = module.weight_hh_l0.detach().double()
    assert (R.T @ R - torch.eye(16)).abs().max() < 1e-5
    for network in (module, UnitaryRNN(1, 16, unitary_map="givens", fused=True)):
        with torch._dynamo.config.patch(allow_rnn=True):
            compiled = torch.compile(network, fullgraph=True, backend="aot_eager")
            torch.testing.assert_close(results(compiled, x), results(network, x))
