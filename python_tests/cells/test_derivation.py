"""Kernels derived from a function have the values and gradients of autograd, over random expressions and over kinks."""

import random
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import rnnkern
from python_tests.tiers import LEVELS
from rnnkern import _extension, cell
from rnnkern.ops import recurrence

pytestmark = pytest.mark.skipif(not _extension.available, reason=f"no compiled part: {_extension.reason}")

UNARY = [
    "torch.tanh(X)", "torch.sigmoid(X)", "torch.sin(X)", "torch.cos(X)", "torch.abs(X)", "torch.sign(X)",
    "torch.square(X)", "-(X)", "torch.exp(-torch.abs(X))", "torch.expm1(torch.clamp(X, -2, 1))",
    "torch.log(torch.abs(X) + 0.5)", "torch.log1p(torch.abs(X))", "torch.sqrt(torch.abs(X) + 0.1)",
    "torch.rsqrt(torch.abs(X) + 0.5)", "torch.reciprocal(torch.abs(X) + 0.5)", "torch.clamp(X, -0.5, 0.7)",
    "F.relu(X)", "F.leaky_relu(X, 0.1)", "F.elu(X)", "F.softplus(X)", "F.silu(X)", 'F.gelu(X, approximate="tanh")',
    "F.hardtanh(X)", "F.softsign(X)", "F.logsigmoid(X)", "torch.clamp(X, -1, 1) ** 3", "(torch.abs(X) + 0.3) ** 1.5",
    "(torch.abs(X) + 0.5) ** -0.3",
]  # fmt: skip
BINARY = [
    "(X + Y)", "(X - Y)", "(X * Y)", "X / (torch.abs(Y) + 0.5)", "torch.maximum(X, Y)", "torch.minimum(X, Y)",
    "torch.where(X > Y, X, -Y)", "torch.where((X < 0.1) & ~(Y >= 0), X * Y, Y)",
]  # fmt: skip
LEAVES = ["u.a", "u.b", "r.a", "r.b", "h", "c", "p", "0.7 * u.a"]


def expression(draw: random.Random, depth: int) -> str:
    if depth == 0:
        return draw.choice(LEAVES)
    if draw.random() < 0.5:
        return draw.choice(UNARY).replace("X", expression(draw, depth - 1))
    X, Y = (expression(draw, draw.randrange(depth)) for _ in "XY")
    return draw.choice(BINARY).replace("X", "\0").replace("Y", Y).replace("\0", X)


def random_cell(seed: int):
    """Eight expressions of depth 1 to 6 per cell, so that they compile together."""
    draw = random.Random(seed)
    extra = "dfgijk"
    lines = [f"    x{k} = {expression(draw, 1 + k % 6)}" for k in range(8)]
    # Uses all inputs, and keeps the state from growing over time.
    use = " + ".join(["u.a", "u.b", "r.a", "r.b", "p", "c", *extra])
    states = ", ".join(f"torch.tanh(x{k})" for k in range(1, 8))
    last = f"    return torch.tanh(x0) + 0.01 * torch.sin({use}), {states}"
    text = "\n".join([f"def drawn_{seed}(u, r, h, c, {', '.join(extra)}, *, p):", *lines, last])
    names = {"torch": torch, "F": F}
    exec(text, names)
    return cell(names[f"drawn_{seed}"], gates="ab"), text


def agrees_with_the_function(made: rnnkern.Cell, text: str, outputs: Callable[[], list[torch.Tensor]]) -> None:
    """Compares the results of the kernels with those of the function, whose text an error shows."""
    with rnnkern.use("reference"), made._by_the_function():
        expected = outputs()
    with rnnkern.use("cpu"):
        found = outputs()
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-8, msg=lambda said: f"{said}\n{text}")


@pytest.mark.parametrize("seed", [*range(4), *(pytest.param(k, marks=pytest.mark.proof) for k in range(4, 38))])
@pytest.mark.drawn
def test_random_expressions(seed):
    made, text = random_cell(seed)
    torch.manual_seed(seed)
    H = 19

    def drawn(*shape):
        return torch.randn(shape, dtype=torch.float64).requires_grad_()

    leaves = [drawn(2, 2, 2 * H), drawn(2 * H, H), *(drawn(2, H) for _ in made.states), drawn(H)]

    def outputs():
        u, R, *state, p = leaves
        h, final = recurrence(made, u, R / H, state, params=(p,))
        return [h, *final, *torch.autograd.grad(sum((y * y).sum() for y in (h, *final)), leaves)]

    agrees_with_the_function(made, text, outputs)


@pytest.mark.proof
@pytest.mark.parametrize("level", LEVELS[:-1])
@pytest.mark.parametrize("seed", range(7))
@pytest.mark.drawn
def test_random_expressions_at_lower_levels(seed, level):
    before = torch.ops.rnnkern.set_simd_level(level)
    try:
        test_random_expressions(seed)
    finally:
        torch.ops.rnnkern.set_simd_level(before)


KINKED = [
    "F.relu(x)", "torch.clamp(x, -1, 1)", "torch.maximum(x, x * x)", "torch.minimum(x, x * x)", "torch.abs(x)",
    "F.hardtanh(x)", "F.leaky_relu(x)", "F.elu(x)", "torch.where(x > 0, x, 2 * x)", "F.softsign(x)", "F.logsigmoid(x)",
    "torch.sign(x) * x", "F.relu6(6 * x)", "torch.clamp(x, min=0)", "torch.maximum(x, -x)", "torch.abs(x) ** 2.5",
]  # fmt: skip


@pytest.mark.parametrize("first", [0, 8])
def test_gradients_at_kinks(first):
    """Equal to those of autograd at kinks of functions, and for equal arguments of max and min."""
    names = "abcdefg"
    text = "\n".join([
        f"def kinks_{first}(u, r, h, {', '.join(names)}):", f"    x = u + r + 0 * ({' + '.join(names)})",
        f"    return {', '.join(KINKED[first : first + 8])}",
    ])  # fmt: skip
    scope = {"torch": torch, "F": F}
    exec(text, scope)
    made = cell(scope[f"kinks_{first}"])
    u = torch.tensor([0.0, 1.0, -1.0, 0.5, -0.5, 2.0, -2.0], dtype=torch.float64).view(1, 1, 7).requires_grad_()
    zeros = [torch.zeros(1, 7, dtype=torch.float64) for _ in made.states]
    for k in range(8):
        results = []
        for use in ("reference", "cpu"):
            with rnnkern.use(use), made._by_the_function():
                _, final = recurrence(made, u, torch.zeros(7, 7, dtype=torch.float64), zeros)
                (gradient,) = torch.autograd.grad(final[k].sum(), u)
            results.append((final[k], gradient))
        for a, b in zip(*results, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12, equal_nan=True, msg=KINKED[first + k])
