"""HenaffRNN: the constructed solutions of the copy task and the adding problem."""

import pytest
import torch
from torch.nn import Linear

from perf import tasks
from perf.recall import RECALL
from rnnkern.nn import HenaffRNN
from rnnkern.nn.init import adding_solution_, copy_solution_

T, B, I, H = 7, 3, 4, 6  # noqa: E741
F64 = torch.float64


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
        (lambda: copy_solution_(HenaffRNN(10, 16), Linear(16, 9), 5, 2), "at least 3 inputs and 2 A"),
        (lambda: copy_solution_(HenaffRNN(10, 17), Linear(17, 9), 0, 2), "at least 1, got 0 and 2"),
        (lambda: copy_solution_(HenaffRNN(10, 17), Linear(17, 8), 5, 2), r"`head` must have a weight \(9, 17\)"),
        (lambda: copy_solution_(HenaffRNN(10, 17, bias=False), Linear(17, 9), 5, 2), "HenaffRNN with biases and relu"),
        (lambda: adding_solution_(HenaffRNN(3, 4), Linear(4, 1)), "2 inputs, got 3"),
        (lambda: adding_solution_(HenaffRNN(2, 4, 2), Linear(4, 1)), "one layer, one direction and one head"),
    ):
        with pytest.raises(ValueError, match=said):
            call()
