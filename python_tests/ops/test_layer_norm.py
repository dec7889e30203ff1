"""Cells with LayerNorm against simple loops with torch.nn.functional.layer_norm, and variances near zero."""

import pytest
import torch
import torch.nn.functional as F

from python_tests.samples import check_recurrence, draws, outputs_and_gradients, recurrence_sample
from rnnkern.ops import recurrence

CELLS = ("lstm_layer_norm", "gru_layer_norm")
CLOSE = {"rtol": 1e-10, "atol": 1e-10}
KINDS = [torch.float32, torch.bfloat16, torch.float16]


def loop(cell, u, R, state, bias, params, **_):
    """A simple loop, without options."""
    outputs = []
    for u_t in u:
        r = F.layer_norm(F.linear(state[0], R), (R.shape[0],), params[0], bias)
        if cell == "lstm_layer_norm":
            i, f, g, o = (u_t + r).chunk(4, 1)
            c = torch.sigmoid(f) * state[1] + torch.sigmoid(i) * torch.tanh(g)
            state = torch.sigmoid(o) * torch.tanh(F.layer_norm(c, (c.shape[1],), *params[1:])), c
        else:
            H = R.shape[1]
            r_gate, z = torch.sigmoid(u_t + r)[:, : 2 * H].chunk(2, 1)
            n = torch.tanh(u_t[:, 2 * H :] + r_gate * r[:, 2 * H :])
            state = ((1 - z) * n + z * state[0],)
        outputs.append(state[0])
    return torch.stack(outputs), state


@pytest.mark.parametrize("save_gates", [True, False])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("hidden", [1, 5, 33])
@pytest.mark.parametrize("cell", CELLS)
def test_a_plain_loop_gives_the_same(cell, hidden, bias, save_gates):
    sample = recurrence_sample(cell, 6, 3, hidden, bias=bias, requires_grad=True)
    kernel = lambda *args, **kwargs: recurrence(*args, **kwargs, save_gates=save_gates)  # noqa: E731
    torch.testing.assert_close(outputs_and_gradients(kernel, sample), outputs_and_gradients(loop, sample), **CLOSE)


@pytest.mark.parametrize("cell", CELLS)
def test_constant_rows(cell):
    """All elements of R h are equal, and those of c too, so eps is all that remains of a variance."""
    sample = recurrence_sample(cell, 4, 3, 8, bias=False)
    name, u, R, state = sample.args
    args = name, u[..., :1].expand_as(u), R[:1].expand_as(R), tuple(s[:, :1].expand_as(s) for s in state)
    kwargs = sample.kwargs | {"params": tuple(torch.full_like(p, 0.7) for p in sample.kwargs["params"])}
    sample = sample._replace(args=args, kwargs=kwargs).to(torch.float64, requires_grad=True)
    actual, wanted = outputs_and_gradients(recurrence, sample), outputs_and_gradients(loop, sample)
    torch.testing.assert_close(actual, wanted, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("dtype", KINDS, ids=str)
@pytest.mark.parametrize("cell", CELLS)
def test_a_mean_far_above_the_deviation(cell, dtype):
    """A variance computed as the difference of two large sums would lose all digits."""

    def sample():
        drawn = recurrence_sample(cell, 3, 19, 36)
        name, u, R, state = drawn.args
        state = (state[0] * 0 + 1, *(s + 30 for s in state[1:]))
        return drawn._replace(args=(name, u, R + 2, state)).to(dtype, requires_grad=True)

    check_recurrence(recurrence, draws(sample))
