"""The memory contract: what a call keeps for its backward, in elements per step and sequence."""

import pytest
import torch

from rnnkern.ops import recurrence
from rnnkern.ops.recurrence import KERNEL_CELLS
from rnnkern.testing import recurrence_sample

STEPS, BATCH, HIDDEN = 7, 3, 16


def kept(call) -> list[torch.Tensor]:
    """The distinct tensors that autograd saves during a call."""
    saved = {}
    with torch.autograd.graph.saved_tensors_hooks(lambda x: saved.setdefault(x.data_ptr(), x), lambda x: x):
        call()
    return list(saved.values())


@pytest.mark.parametrize("save_gates", [True, False])
@pytest.mark.parametrize("cell", KERNEL_CELLS)
def test_the_backward_needs_h_and_c_and_the_gates_if_saved(cell, save_gates):
    sample = recurrence_sample(cell, STEPS, BATCH, HIDDEN, requires_grad=True)
    inputs = {x.data_ptr() for x in sample.leaves()}
    extra = [x for x in kept(lambda: recurrence(*sample.args, **sample.kwargs, save_gates=save_gates))
             if x.data_ptr() not in inputs]  # fmt: skip
    facts = KERNEL_CELLS[cell]
    per_unit = facts["states"] - 1 + (facts["saved"] if save_gates else 0)  # for an LSTM c, and the gates
    h = sample.args[3][0].shape[1]
    assert sum(x.numel() for x in extra) == (h + per_unit * HIDDEN) * STEPS * BATCH


@pytest.mark.parametrize("cell", KERNEL_CELLS)
def test_inference_keeps_nothing(cell):
    sample = recurrence_sample(cell, STEPS, BATCH, HIDDEN)
    assert kept(lambda: recurrence(*sample.args, **sample.kwargs)) == []
    bias, params = sample.kwargs["bias"], sample.kwargs["params"]
    outputs = torch.ops.rnnkern.recurrence(*sample.args, bias, params, None, None, False, False, False)
    assert len(outputs) == 1 + KERNEL_CELLS[cell]["states"]  # h and the final state, neither c nor gates
