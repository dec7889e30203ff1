"""HenaffRNN against a loop, and the constructed solutions of the copy task and the adding problem."""

import pytest
import torch
from torch.nn import Linear
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from perf import tasks
from perf.recall import RECALL
from rnnkern.nn import HenaffRNN
from rnnkern.nn.init import adding_solution_, copy_solution_

T, B, I, H = 7, 3, 4, 6  # noqa: E741
F64 = torch.float64
FUNCTIONS = {"relu": torch.relu, "tanh": torch.tanh, "identity": lambda x: x}


def loop(module, x, h0, reset):
    """Layer by layer, step by step; ends[t] of the reverse direction is the start of an episode at t + 1."""
    act, directions = FUNCTIONS[module.input_nonlinearity], 2 if module.bidirectional else 1
    ends, finals = torch.cat([reset[1:], torch.zeros_like(reset[:1])]), []
    for layer in range(module.num_layers):
        results = []
        for k in range(directions):
            end = f"l{layer}{'_reverse' if k else ''}"
            W, R, *b = (
                getattr(module, f"{name}_{end}", None) for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
            )
            b_ih, b_hh = b if module.bias else (0, 0)
            h, outputs = h0[layer * directions + k], [None] * len(x)
            for t in reversed(range(len(x))) if k else range(len(x)):
                h = torch.where((ends if k else reset)[t, :, None], 0, h)
                outputs[t] = h = act(x[t] @ W.T + b_ih) + h @ R.T + b_hh
            results.append(torch.stack(outputs))
            finals.append(h)
        x = torch.cat(results, -1)
    return x, torch.stack(finals)


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize(("nonlinearity", "bias"), [("relu", True), ("tanh", False), ("identity", True)])
def test_as_the_loop(nonlinearity, bias, bidirectional):
    module = HenaffRNN(I, H, 3, input_nonlinearity=nonlinearity, bias=bias, bidirectional=bidirectional, dtype=F64)
    for name, parameter in module.named_parameters():
        if name.startswith("bias"):
            assert not parameter.any()
            torch.nn.init.normal_(parameter)
    x, h0 = torch.randn(T, B, I, dtype=F64), torch.randn(6 if bidirectional else 3, B, H, dtype=F64)
    reset = torch.rand(T, B) < 0.2
    found, wanted = module(x, h0, reset), loop(module, x, h0, reset)
    torch.testing.assert_close(found, wanted)
    grads = [torch.autograd.grad(y.sin().sum() + h.sum(), list(module.parameters())) for y, h in (found, wanted)]
    torch.testing.assert_close(*grads)
    with torch.no_grad():  # one step at a time
        one, _ = module(x[:1], h0)
        torch.testing.assert_close(one, loop(module, x[:1], h0, torch.zeros(1, B, dtype=torch.bool))[0])
    output, _ = pad_packed_sequence(module(pack_padded_sequence(x, [7, 5, 2]), h0)[0])
    for b, length in enumerate((7, 5, 2)):
        alone = loop(module, x[:length, b : b + 1], h0[:, b : b + 1], torch.zeros(length, 1, dtype=torch.bool))[0]
        torch.testing.assert_close(output[:length, b], alone[:, 0])


@torch.no_grad()
@pytest.mark.parametrize("length", [20, 200])
def test_the_solution_of_the_copy_task_needs_no_training(length):
    layer, head = HenaffRNN(10, 1281), Linear(1281, 9)
    copy_solution_(layer, head, length, 10)
    R = layer.weight_hh_l0.double()
    torch.testing.assert_close(torch.linalg.matrix_power(R, length + 10), torch.eye(1281, dtype=F64), rtol=0, atol=1e-3)
    torch.testing.assert_close(R @ R.T, torch.eye(1281, dtype=F64), rtol=0, atol=1e-6)
    x, y, _ = RECALL["copy"].batch(length, 10, 50, torch.Generator().manual_seed(0))
    assert (head(layer(x)[0]).argmax(-1) == y).float().mean() > 0.9999  # in all steps, blanks too
    other, _, _ = RECALL["copy"].batch(length + 1, 10, 50, torch.Generator().manual_seed(0))
    answers = head(layer(other)[0]).argmax(-1)[-10:]
    assert (
        answers == RECALL["copy"].batch(length + 1, 10, 50, torch.Generator().manual_seed(0)).y[-10:]
    ).float().mean() < 0.5


@torch.no_grad()
def test_the_solution_of_the_adding_problem_needs_no_training():
    layer, head = HenaffRNN(2, 8), Linear(8, 1)
    adding_solution_(layer, head)
    x, y, _ = tasks.sums(400, 50, torch.Generator().manual_seed(0))
    torch.testing.assert_close(head(layer(x)[0][-1]).squeeze(-1), y, rtol=0, atol=1e-5)


def test_wrong_arguments():
    for call, said in (
        (lambda: HenaffRNN(2, 3, input_nonlinearity="sin"), "`input_nonlinearity` must be one of .* got 'sin'"),
        (lambda: copy_solution_(HenaffRNN(10, 16), Linear(16, 9), 5, 2), "at least 3 inputs and 2 A"),
        (lambda: copy_solution_(HenaffRNN(10, 17), Linear(17, 9), 0, 2), "at least 1, got 0 and 2"),
        (lambda: copy_solution_(HenaffRNN(10, 17), Linear(17, 8), 5, 2), r"`head` must have a weight \(9, 17\)"),
        (lambda: copy_solution_(HenaffRNN(10, 17, bias=False), Linear(17, 9), 5, 2), "HenaffRNN with biases and relu"),
        (lambda: adding_solution_(HenaffRNN(3, 4), Linear(4, 1)), "2 inputs, got 3"),
        (lambda: adding_solution_(HenaffRNN(2, 4, 2), Linear(4, 1)), "one layer, one direction and one head"),
    ):
        with pytest.raises(ValueError, match=said):
            call()
