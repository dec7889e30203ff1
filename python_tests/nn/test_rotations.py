"""Rotation layers inside the recurrence of EURNN and UnitaryRNN compute the same as their matrix."""

import copy
import json

import pytest
import torch
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

import rnnkern
from rnnkern import _extension
from rnnkern.nn import EURNN, UnitaryRNN
from rnnkern.nn.filters import Momentum

pytestmark = pytest.mark.skipif(not _extension.available, reason=f"no compiled part: {_extension.reason}")

T, I, H = 6, 2, 8  # noqa: E741
F64 = torch.float64


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


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    ("cls", "options"),
    [(EURNN, {"style": "butterfly"}), (EURNN, {"bidirectional": True, "bias": True}),
     (EURNN, {"rotation_layers": 3, "batch_first": True}), (UnitaryRNN, {"unitary_map": "givens"}),
     (UnitaryRNN, {"unitary_map": "givens", "style": "butterfly"})],
)  # fmt: skip
def test_inside_the_recurrence_they_are_their_matrix(cls, options, packed):
    inside, matrix = pair(cls, I, H, 2, dtype=F64, **options)
    x, reset = torch.randn(T, T, I, dtype=F64), torch.rand(T, T) < 0.4
    given = pack_padded_sequence(x, [4, 6, 1, 2, 3, 5], inside.batch_first, enforce_sorted=False) if packed else x
    _, h0 = matrix(given)
    before = entered()
    found = results(inside, given, h0.detach(), reset)
    assert entered() == before + 2 * len(h0)
    torch.testing.assert_close(found, results(matrix, given, h0.detach(), reset))
    assert entered() == before + 2 * len(h0)


def test_where_it_is_the_faster_it_is_taken():
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
    x, before = torch.randn(T, 3, I), entered()
    with torch.autocast("cpu", torch.bfloat16):
        assert module(x)[0].dtype == torch.bfloat16
    assert module.bfloat16()(x.bfloat16())[0].dtype == torch.bfloat16
    for options in ({"num_heads": 2}, {"nonlinearity": "tanh"}, {"zoneout": 0.1}, {"filter": Momentum(0.5, 0.5)}):
        EURNN(I, H, **options)(x)
        with pytest.raises(ValueError, match="EURNN: `fused` must be False or None with "):
            EURNN(I, H, fused=True, **options)
    assert entered() == before
