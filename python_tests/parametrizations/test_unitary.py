"""What only complex factors have: layers of rotations with phases, in the operator and in the weight."""

import pytest
import torch

from python_tests.samples.parametrizations import originals, registered
from rnnkern.ops import explain, givens_product

C128, F64 = torch.complex128, torch.float64


def test_rotations_with_phases_layer_by_layer():
    module = registered("unitary-givens")
    angles, phases, first = originals(module)
    W = torch.eye(4, dtype=C128)
    for layer, pairs in enumerate([[(0, 1), (2, 3)], [(1, 2)]] * 2):
        for k, (a, b) in enumerate(pairs):
            theta, phase = angles[layer, k], torch.exp(1j * phases[layer, k])
            F = torch.eye(4, dtype=C128)
            F[a, a], F[a, b], F[b, a], F[b, b] = phase * theta.cos(), -phase * theta.sin(), theta.sin(), theta.cos()
            W = F @ W
    torch.testing.assert_close(module.weight, W @ torch.diag(torch.exp(1j * first)))


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
