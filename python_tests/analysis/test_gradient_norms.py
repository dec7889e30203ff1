"""Norms of gradients through time, against automatic differentiation of a loop over the steps."""

import pytest
import torch

import rnnkern
from rnnkern import reference
from rnnkern.analysis import gradient_norms
from rnnkern.reference import CELLS

F64 = torch.float64
CELL_OF = {"tanh": ("RNN", {}), "lstm": ("LSTM", {}), "gru": ("GRU", {}), "lstm_projected": ("LSTM", {"proj_size": 2})}


def by_a_loop(cell, rnn, x, loss):
    """Each step a call of the reference; the gradients of the loss with respect to the h of all steps."""
    widths = [rnn.proj_size or rnn.hidden_size] + [rnn.hidden_size] * (CELLS[cell].states - 1)
    state, hs = [x.new_zeros(x.shape[1], width) for width in widths], []
    params = (rnn.weight_hr_l0,) if rnn.proj_size else ()
    for row in x:
        u = torch.nn.functional.linear(row[None], rnn.weight_ih_l0, rnn.bias_ih_l0)
        _, state = reference.recurrence(cell, u, rnn.weight_hh_l0, state, bias=rnn.bias_hh_l0, params=params)
        hs.append(state[0])
    gradients = torch.autograd.grad(loss(torch.stack(hs)), hs, materialize_grads=True)
    return torch.stack([g.norm(dim=-1) for g in gradients])


@pytest.mark.parametrize("loss", [lambda y: y[-1].sin().sum(), lambda y: y.square().sum()], ids=["last", "all"])
@pytest.mark.parametrize("cell", CELL_OF)
def test_they_are_those_of_a_loop(cell, loss):
    torch.manual_seed(0)
    cls, options = CELL_OF[cell]
    rnn, x = getattr(rnnkern.nn, cls)(3, 5, dtype=F64, **options), torch.randn(8, 2, 3, dtype=F64)
    found = gradient_norms(rnn, x, loss)
    assert not found.requires_grad
    torch.testing.assert_close(found, by_a_loop(cell, rnn, x, loss), rtol=1e-12, atol=0)


def test_a_layer_below_sees_the_gradient_through_the_layers_above():
    torch.manual_seed(1)
    rnn, x = rnnkern.nn.GRU(3, 5, num_layers=2, dtype=F64), torch.randn(6, 2, 3, dtype=F64)
    lower, upper = rnnkern.nn.GRU(3, 5, dtype=F64), rnnkern.nn.GRU(5, 5, dtype=F64)
    with torch.no_grad():
        for k, layer in enumerate((lower, upper)):
            for name, p in layer.named_parameters():
                p.copy_(getattr(rnn, f"{name[:-1]}{k}"))
    loss = lambda y: y.sin().sum()  # noqa: E731
    wanted = by_a_loop("gru", lower, x, lambda h: loss(upper(h)[0]))
    torch.testing.assert_close(gradient_norms(rnn, x, loss, layer=0), wanted, rtol=1e-12, atol=0)


def test_it_reads_a_module_of_torch_and_an_initial_state():
    torch.manual_seed(3)
    rnn, x = torch.nn.LSTM(3, 5, dtype=F64), torch.randn(6, 2, 3, dtype=F64)
    hx = tuple(torch.randn(1, 2, 5, dtype=F64) for _ in range(2))
    first = gradient_norms(rnn, x, lambda y: y[-1].sum(), hx)
    _, state = rnn(x[:3], hx)
    second = gradient_norms(rnn, x[3:], lambda y: y[-1].sum(), tuple(s.detach() for s in state))
    torch.testing.assert_close(first[3:], second, rtol=1e-12, atol=0)
