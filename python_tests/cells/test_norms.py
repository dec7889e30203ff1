"""Cells with norms: against PyTorch's norms in simple loops, where variances are small, and over random equations."""

import random

import pytest
import torch
import torch.nn.functional as F

import rnnkern
from python_tests.cells.test_derivation import agrees_with_the_function, expression
from python_tests.samples import NORMALISED, check_recurrence, draws, outputs_and_gradients, recurrence_sample
from rnnkern import _extension, cells
from rnnkern.nn import Recurrent
from rnnkern.ops import recurrence, recurrence_tangent

F64 = torch.float64
kernels = pytest.mark.skipif(not _extension.available, reason=f"no compiled part: {_extension.reason}")


def dreamer(layer, x, h, is_first):
    """DreamerV3's GRU as its code writes it: one norm over the gates of both products."""
    outputs = []
    norm = (3 * h.shape[1],), layer.weight_ln_l0, layer.bias_ln_l0, 1e-3
    for x_t, first in zip(x, is_first, strict=True):
        h = torch.where(first[:, None], 0, h)
        parts = F.layer_norm(F.linear(x_t, layer.weight_ih_l0) + F.linear(h, layer.weight_hh_l0), *norm)
        reset, candidate, update = parts.chunk(3, -1)
        update = torch.sigmoid(update - 1)
        h = update * torch.tanh(torch.sigmoid(reset) * candidate) + (1 - update) * h
        outputs.append(h)
    return torch.stack(outputs)


@pytest.mark.parametrize("threads", [1, 2])
def test_dreamers_gru(threads):
    torch.manual_seed(0)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        layer = Recurrent(cells.dreamer_gru, 5, 21, bias=False, dtype=F64)
        assert layer.weight_ln_l0.eq(1).all()
        assert layer.bias_ln_l0.eq(0).all()
        for p in (layer.weight_ln_l0, layer.bias_ln_l0):
            p.data += 0.3 * torch.randn_like(p)
        x, h0 = torch.randn(7, 6, 5, dtype=F64, requires_grad=True), torch.randn(6, 21, dtype=F64, requires_grad=True)
        is_first, upstream = torch.rand(7, 6) < 0.3, torch.randn(7, 6, 21, dtype=F64)
        leaves = [x, h0, *layer.parameters()]
        wanted, (found, _) = dreamer(layer, x, h0, is_first), layer(x, h0[None], reset=is_first)
        torch.testing.assert_close(found, wanted, rtol=1e-11, atol=1e-11)
        pairs = (torch.autograd.grad(h, leaves, upstream) for h in (found, wanted))
        for a, b in zip(*pairs, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)
    finally:
        torch.set_num_threads(before)


def test_of_what_is_no_value():
    with pytest.raises(
        TypeError, match=r"layer_norm: `input` must be a value of a cell, `u`, `r` or `u \+ r`, got float"
    ):
        rnnkern.layer_norm(0.5)


@pytest.mark.parametrize("cell", NORMALISED)
def test_constant_rows(cell):
    """All inputs of each norm are equal, so eps is all that remains of a variance."""
    name, u, R, state = recurrence_sample(cell, 4, 3, 8, bias=False).args
    args = name, u[..., :1].expand_as(u), R[:1].expand_as(R), tuple(s[:, :1].expand_as(s) for s in state)
    sample = recurrence_sample(cell, 4, 3, 8, bias=False)
    kwargs = sample.kwargs | {"params": tuple(torch.full_like(p, 0.7) for p in sample.kwargs["params"])}
    sample = sample._replace(args=args, kwargs=kwargs).to(F64, requires_grad=True)
    actual = outputs_and_gradients(recurrence, sample)
    wanted = outputs_and_gradients(rnnkern.reference.recurrence, sample)
    torch.testing.assert_close(actual, wanted, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("cell", NORMALISED)
@pytest.mark.sampled
def test_a_mean_far_above_the_deviation(cell, dtype):
    """A variance computed as the difference of two large sums would lose all digits."""

    def sample():
        drawn = recurrence_sample(cell, 3, 19, 36)
        name, u, R, state = drawn.args
        state = (state[0] * 0 + 1, *(s + 30 for s in state[1:]))
        return drawn._replace(args=(name, u, R + 2, state)).to(dtype, requires_grad=True)

    check_recurrence(recurrence, draws(sample))


def drawn_cell(seed: int):
    """A cell with three norms: over the gates of u, r or both, of a value, and of one that depends on the others."""
    draw = random.Random(seed)
    kinds = [f"rnnkern.{draw.choice(['layer_norm', 'rms_norm'])}" for _ in range(3)]
    affine = draw.choice(["", ", w, b", ", w", ", None, b"])
    lines = [
        f"    n = {kinds[0]}({draw.choice(['u', 'r', 'u + r'])}{affine})",
        f"    v = {kinds[1]}({expression(draw, 2)} + h, p)",
        f"    y = {kinds[2]}({expression(draw, 2)} * n.a + v * {expression(draw, 1)}, None, c * 0.1, 0.1)",
        f"    x0, x1 = {expression(draw, 2)} + n.b, y * {expression(draw, 3)}",
    ]
    use = "u.a + u.b + r.a + r.b + p + c"
    params = ", ".join(["p", *(name for name in "wb" if name in affine)])
    text = "\n".join(
        [
            f"def drawn_{seed}(u, r, h, c, *, {params}):",
            *lines,
            f"    return torch.tanh(x0) + 0.01 * torch.sin({use}), torch.tanh(x1)",
        ]
    )
    names = {"torch": torch, "F": F, "rnnkern": rnnkern}
    exec(text, names)
    return rnnkern.cell(names[f"drawn_{seed}"], gates="ab", save=draw.choice([None, (), "y"])), text


@kernels
@pytest.mark.parametrize("seed", [*range(3), *(pytest.param(k, marks=pytest.mark.proof) for k in range(3, 30))])
@pytest.mark.drawn
def test_random_equations(seed):
    made, text = drawn_cell(seed)
    torch.manual_seed(seed)
    H = 19

    def drawn(*shape):
        return torch.randn(shape, dtype=F64).requires_grad_()

    leaves = [
        drawn(3, 2, 2 * H),
        drawn(2 * H, H),
        *(drawn(2, H) for _ in made.states),
        *(drawn(n * H) for n in made.rows),
    ]
    dots = [torch.randn_like(x)[None] for x in leaves[2:]]

    def outputs():
        u, R, *rest = leaves
        state, params = rest[:2], rest[2:]
        h, final = recurrence(made, u, R / H, state, params=params)
        results = [h, *final, *torch.autograd.grad(sum((y * y).sum() for y in (h, *final)), leaves)]
        with torch.no_grad():
            inferred, end = recurrence(made, u, R / H, state, params=params)
            results += [inferred, *end]
            found = recurrence_tangent(
                made, u, R / H, state, dots[:2], params=params, params_tangent=dots[2:], sequence=True
            )
        return [*results, found.h_tangent, *found.tangents]

    agrees_with_the_function(made, text, outputs)
