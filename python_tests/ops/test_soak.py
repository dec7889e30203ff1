"""Random calls, one after the other in one process: 200 by default, or RNNKERN_SOAK, as in `make sanitize`.

Each kind of call meets the state that other calls leave behind (cached memory, counters, thread teams). Most results
are not compared, because other tests do that.
"""

import os
import random

import torch

import rnnkern
from python_tests.samples import outputs_and_gradients, recurrence_sample, takes
from python_tests.seeds import Random
from rnnkern import reference
from rnnkern.ops import recurrence
from rnnkern.ops._recurrence.recurrence import KERNEL_CELLS

CALLS = int(os.environ.get("RNNKERN_SOAK", "200"))
COMPARED = 20
"""One in this many calls is in float64 and compared with the reference."""
GROWING = ("identity", "relu", "modrelu", "complex_modrelu", "goru")
"""Cells whose state would overflow float16 over many steps, because dropout scales the kept units."""


def a_call(draw: random.Random, dtype: torch.dtype):
    cell = draw.choice(list(KERNEL_CELLS))
    heads = draw.choice([1, 1, 2, 3]) if takes(cell, {"heads"}) else 1
    large = draw.random() < 0.1  # large enough for several threads
    steps, dropout = draw.choice([0, 1, 1, 2, 5, 140 if large else 9]), draw.choice([0, 0, 0.3])
    keep = draw.choice([0, 0, 1, 2]) if takes(cell, {"keep"}) else 0
    sample = recurrence_sample(
        cell,
        steps,
        draw.randrange(8, 24) if large else draw.randrange(6),
        heads * draw.randrange(20, 40) if large else heads * draw.randrange(1, 19),
        heads=heads,
        bias=draw.random() < 0.7,
        packed=draw.random() < 0.4,
        reset=draw.random() < 0.4,
        reverse=draw.random() < 0.5,
        grad_scale=draw.randrange(3),
        inputs=draw.choice([0, 0, 1, 5, 33]),
        zoneout=draw.choice([0, 0, 0.3]) * (not keep),
        keep=keep,
        dropout=0 if steps > 100 and cell in GROWING else dropout,
        drawn=draw.random() < 0.7,
        dtype=dtype,
        requires_grad=draw.random() < 0.8,
    )
    if draw.random() < 0.3:
        cell, u, R, state = sample.args
        sample = sample._replace(args=(cell, u.mT.contiguous().mT, R.mT.contiguous().mT, state))
    return sample, {"save_gates": draw.choice([None, True, False])}


def results_of(op, sample, **options):
    if sample.args[3][0].requires_grad:
        return outputs_and_gradients(lambda *args, **kwargs: op(*args, **kwargs, **options), sample)
    h, final = op(*sample.args, **sample.kwargs, **options)
    return {"h": h, **{f"final state[{k}]": s for k, s in enumerate(final)}}


def test_soak(simd, threads):
    draw = Random(0)
    levels = rnnkern.build_info()["simd_levels"]
    for number in range(CALLS):
        compared = number % COMPARED == 0
        dtype = draw.choice([torch.float32, torch.float64, torch.bfloat16, torch.float16])
        sample, options = a_call(draw, torch.float64 if compared else dtype)
        simd(draw.choice(levels))
        threads(draw.randrange(1, 4))
        actual = results_of(recurrence, sample, **options)
        for name, value in actual.items():
            assert value.isfinite().all(), (number, sample.name, name)
        if compared:
            for name, value in results_of(reference.recurrence, sample).items():
                torch.testing.assert_close(
                    actual[name], value, rtol=1e-9, atol=1e-9, msg=f"{number} {sample.name} {name}"
                )
