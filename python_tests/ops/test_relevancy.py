"""relevancy_recurrence: the kernels against the reference, which is the definition itself."""

import random

import torch

from python_tests.ops.relevancy_sample import everything, random_call, same_selection
from rnnkern import reference
from rnnkern.ops import relevancy_recurrence


def test_500_random_calls_in_float64_are_the_references():
    draw = random.Random(0)
    for number in range(500):
        call = random_call(draw)
        found, truth = everything(relevancy_recurrence, call), everything(reference.relevancy_recurrence, call)
        assert same_selection(found, truth), f"call {number}: other events were selected"
        for name, x in truth.items():
            scale = max(1.0, x.abs().max().item()) if x.numel() else 1.0
            torch.testing.assert_close(found[name], x, rtol=0, atol=1e-10 * scale, msg=lambda m, n=name: f"{n}: {m}")
