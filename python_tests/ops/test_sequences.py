"""Parts of a sequence are the whole, a packed one is that one alone, and NaN ends at a reset, over the recurrences."""

import pytest
import torch
from torch.utils._pytree import tree_leaves

from python_tests.samples.operators import draw, floating, outputs
from rnnkern import ops
from rnnkern.ops._scan.moment_filter import EVERY

STEPS = 2 * EVERY + 8
WHOLE = [[2 * EVERY], [0, EVERY, EVERY, 2 * EVERY]]
EACH = [[1, 2, 3], list(range(1, STEPS))]
PARTS = [
    *(("linear_scan", {"reset": True, "reverse": reverse}, cuts) for cuts in WHOLE + EACH for reverse in (False, True)),
    *(("linear_scan", {"per_step": True}, cuts) for cuts in WHOLE),
    # Blocks of steps, and therefore bits, are equal only where the filter keeps its state.
    *(("moment_filter", {"beta": beta, "reset": True, "reverse": reverse}, cuts)
      for cuts in WHOLE for beta in (None, 0.9) for reverse in (False, True)),
    *(("givens_recurrence", {"reset": True, "reverse": reverse}, cuts) for cuts in WHOLE for reverse in (False, True)),
    *(("relevancy_recurrence", {"cell": cell, "buffer_size": 5} | options, cuts)
      for cuts in WHOLE + EACH for cell in ("tanh", "lstm")
      for options in ({"reset": 0.1}, {"buffer_size": 50}, {"relevant_size": 0},
                      {"relevance": "given", "relevant_size": 4, "carried": 2})),
    *(("sab_recurrence", {"width": width, "attend_every": 3, "truncation": 4, "top_k": 2, "resets": True}, cuts)
      for cuts in WHOLE + EACH for width in (None, 6)),
]  # fmt: skip


def in_parts(op, arguments, cuts):
    """The results of a call that is split before some steps, with the state passed on."""
    found, state = [], arguments["state"]
    parts = [slice(*ends) for ends in zip([0, *cuts], [*cuts, STEPS], strict=True)]
    for part in reversed(parts) if arguments.get("reverse") else parts:
        own = {
            name: x[part]
            for name, x in arguments.items()
            if isinstance(x, torch.Tensor) and x.dim() > 1 and len(x) == STEPS
        }
        y, state, *_ = op(**arguments | own | {"state": state})
        found.append(y)
    return torch.cat(found[::-1] if arguments.get("reverse") else found), state


@pytest.mark.parametrize(("name", "options", "cuts"), PARTS, ids=str)
@pytest.mark.sampled
def test_parts_are_the_whole(name, options, cuts):
    """To the bit; and their gradients are those of the whole."""
    op, call = getattr(ops, name), draw(name, STEPS, 3, **options)
    call = call.with_tensors({key: x.requires_grad_() for key, x in call.tensors.items()})
    y, state, *_ = op(**call.arguments())
    parts, last = in_parts(op, call.arguments(), cuts)
    assert torch.equal(parts, y)
    for mine, other in zip(tree_leaves(last), tree_leaves(state), strict=True):
        assert torch.equal(mine, other) if isinstance(mine, torch.Tensor) else mine == other
    losses = (sum(x.sin().sum() for x in floating(result) if x.requires_grad) for result in ((parts, last), (y, state)))
    found, wanted = (torch.autograd.grad(loss, list(call.tensors.values()), materialize_grads=True) for loss in losses)
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9)


NAMES = ("linear_scan", "moment_filter", "givens_recurrence")
STATES = {"linear_scan": ["state"], "moment_filter": ["v0", "q0"], "givens_recurrence": ["state"]}


@pytest.mark.parametrize("option", ["packed", "packed-reset-reverse"])
@pytest.mark.parametrize("name", NAMES)
def test_what_packed_means(name, option):
    """Equal to each sequence alone, with its own length."""
    call = draw(name, 2 * EVERY + 3, 4, option=option)
    sizes, reset = call.options["batch_sizes"], call.options.get("reset")
    whole, *last = outputs(call)
    given = next(key for key in call.tensors if key in ("u", "x"))
    begins = torch.cat([torch.zeros(1, dtype=torch.long), sizes.cumsum(0)])
    for b in range(4):
        rows = [int(begins[t]) + b for t in range(len(sizes)) if sizes[t] > b]
        own = {"batch_sizes": None, "reset": None if reset is None else reset[: len(rows), b : b + 1]}
        tensors = {key: call.tensors[key][b : b + 1] for key in STATES[name]}
        tensors[given] = call.tensors[given][rows].unsqueeze(1)
        found, *state = outputs(call.with_tensors(tensors)._replace(options=call.options | own))
        assert torch.equal(found.squeeze(1), whole[rows])
        assert all(torch.equal(mine, other[b : b + 1]) for mine, other in zip(state, last, strict=True))


@pytest.mark.parametrize("name", [*NAMES, "relevancy_recurrence"])
def test_nan_stays_in_its_sequence_and_ends_at_a_reset(name):
    call = draw(name, 40, 3)
    given = next(key for key in call.tensors if key in ("u", "x"))
    call.tensors[given][2, 0, 1] = torch.nan
    reset = torch.zeros(40, 3, dtype=torch.bool)
    reset[20, 0] = True
    y, *_ = floating(getattr(ops, name)(**call.arguments() | {"reset": reset}))
    wanted = torch.zeros(40, 3, dtype=torch.bool)
    wanted[2:20, 0] = True
    assert torch.equal(y.isnan().any(-1), wanted)
    if name in ("linear_scan", "moment_filter"):  # the others mix channels
        assert y[..., [0, 2, 3]].isfinite().all()
