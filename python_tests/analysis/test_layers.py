"""Layers, directions and layouts of a module, over the functions of rnnkern.analysis that read one."""

import pytest
import torch

from rnnkern.analysis import gradient_norms, lyapunov_spectrum
from rnnkern.nn import GRU

F64 = torch.float64


def norms(rnn, x, reverse=False, **place):
    """The loss reads the last three units, of the last layer's last direction."""
    found = gradient_norms(rnn, x, lambda y: y[..., -3:].square().sum(), **place)
    return found.flip(0) if reverse else found


def exponents(rnn, x, reverse=False, **place):
    return lyapunov_spectrum(rnn, x, every=1, **place).exponents


@pytest.mark.parametrize("function", [norms, exponents])
def test_a_direction_of_a_layer_is_that_layer_alone(function):
    rnn, x = GRU(2, 3, num_layers=2, bidirectional=True, dtype=F64), torch.randn(20, 2, 2, dtype=F64)
    below, alone = GRU(2, 3, bidirectional=True, dtype=F64), GRU(6, 3, dtype=F64)
    with torch.no_grad():
        for name, p in below.named_parameters():
            p.copy_(getattr(rnn, name))
        for name, p in alone.named_parameters():
            p.copy_(getattr(rnn, f"{name[:-1]}1_reverse"))
        wanted = function(alone, below(x)[0].flip(0), reverse=True)
    found = function(rnn, x, layer=1, direction=1)
    torch.testing.assert_close(found, wanted, rtol=1e-11, atol=1e-12)
    rnn.batch_first = True
    torch.testing.assert_close(function(rnn, x.transpose(0, 1), layer=1, direction=1), found, rtol=0, atol=1e-14)
