"""Measures the errors that csrc/common/simd_math.h states, at every SIMD level through the public operator."""

import re
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from python_tests.tiers import each_level
from rnnkern.ops import recurrence

HEADER = (Path(__file__).parents[2] / "csrc/common/simd_math.h").read_text()
STATED = {
    (getattr(torch, dtype.replace("float", "float32").replace("double", "float64")), function): float(ulp)
    for dtype, errors in re.findall(r"(float|double): ((?:\w+ \d+(?:, )?)+)[;.]", HEADER)
    for function, ulp in re.findall(r"(\w+) (\d+)", errors)
}
"""Errors in units in the last place, by dtype and function."""

LIMITS = dict(zip((torch.float32, torch.float64), map(float, re.findall(r"limit = ([\d.]+)", HEADER)), strict=True))
"""The largest x for which exp(-x) is a normal number; sigmoid(-x) is constant beyond it."""

WIDTH = 16
"""A multiple of the vector length at every level."""


def through_the_operator(function, x):
    """tanh(x) as a step of the cell tanh, and sigmoid(x) as the forget gate of an LSTM with c = 1. All elements of R
    are -0.0, so that its product does not change -0.0; there are at least five rows, because fewer would use an
    unpacked R."""
    rows = max(-(-x.numel() // WIDTH), 5)
    padded = torch.cat([x, x.new_zeros(rows * WIDTH - x.numel())]).view(1, rows, WIDTH)
    gates = 1 if function == "tanh" else 4
    R, bias = x.new_full((gates * WIDTH, WIDTH), -0.0), x.new_full((gates * WIDTH,), -0.0)
    ones = x.new_ones(rows, WIDTH)
    if function == "tanh":
        y, _ = recurrence("tanh", padded, R, (ones,), bias=bias)
    else:
        zero = torch.zeros_like(padded)
        _, (_, y) = recurrence("lstm", torch.cat([zero, padded, zero, zero], -1), R, (ones, ones), bias=bias)
    return y.flatten()[: x.numel()]


@cache
def arguments(dtype):
    """Finite values: a sweep over all bit patterns, denser where the functions are nonlinear. In float32 without
    subnormal numbers, which kernels take for zero."""
    if dtype == torch.float32:  # every 4,093rd float
        swept = torch.arange(-(2**31), 2**31, 4093).to(torch.int32).view(torch.float32)
        dense = torch.cat([torch.linspace(-100, 100, 200_001), torch.linspace(-2, 2, 200_001)])
    else:
        swept = torch.arange(-(2**63), 2**63 - 2**51, 2**51 + 12345678901).view(torch.float64)
        dense = [torch.linspace(-end, end, 3001, dtype=dtype) for end in (1, 2, 40, LIMITS[dtype])]
        dense = torch.cat([*dense, torch.logspace(-320, 3, 1001, dtype=dtype), 2 * torch.randn(3000, dtype=dtype)])
    info = torch.finfo(dtype)
    tiny = torch.tensor([info.tiny, info.tiny * info.eps, 0.0], dtype=dtype)
    x = torch.cat([swept, dense, tiny, -tiny])
    return x[x.isfinite() & ((x.abs() >= info.tiny) | (x == 0) | (dtype == torch.float64))]


def errors(function, x, y):
    """In units in the last place of the exact value, which are constant below the smallest normal number."""
    wide = x.numpy().astype(np.longdouble)
    exact = np.tanh(wide) if function == "tanh" else 1 / (1 + np.exp(-wide))
    info = torch.finfo(x.dtype)
    _, exponent = np.frexp(np.maximum(np.abs(exact), info.tiny))
    unit = np.ldexp(np.longdouble(info.eps), exponent - 1)
    return torch.from_numpy((np.abs(y.numpy() - exact) / unit).astype(np.float64))


def test_the_header_states_all_four_errors_in_units_of_this_yardstick():
    assert set(STATED) == {(dtype, f) for dtype in (torch.float32, torch.float64) for f in ("tanh", "sigmoid")}
    x = arguments(torch.float64)
    assert 0.5 < errors("tanh", x, torch.tanh(x)).max() < 2  # the error of the C library


@each_level
@pytest.mark.parametrize(("dtype", "function"), STATED, ids=str)
def test_errors_are_as_stated(function, dtype, level, simd):
    simd(level)
    x = arguments(dtype)
    y = through_the_operator(function, x)
    where = x >= -LIMITS[dtype] if function == "sigmoid" else x.isfinite()
    worst = errors(function, x[where], y[where])
    at = worst.argmax()
    assert worst[at] <= STATED[dtype, function], f"{worst[at]:.2f} at {x[where][at]!r}"
    assert y.abs().max() == 1
    if function == "sigmoid":
        assert y.min() > 0


@each_level
@pytest.mark.parametrize("dtype", LIMITS)
def test_below_its_limit_sigmoid_stays_at_its_smallest_result(dtype, level, simd):
    simd(level)
    limit = torch.tensor([-LIMITS[dtype]], dtype=dtype)
    y = through_the_operator(
        "sigmoid", torch.cat([limit, limit.nextafter(limit - 1), limit * torch.linspace(1, 5, 100)])
    )
    assert (y == y[0]).all()
    assert y[0] >= torch.finfo(dtype).tiny


@each_level
@pytest.mark.parametrize("dtype", LIMITS)
def test_special_values(dtype, level, simd):
    """tanh is odd, and exact where it is its argument."""
    simd(level)
    inf, nan = float("inf"), float("nan")
    x = torch.tensor([0.0, -0.0, inf, -inf, nan, -nan, torch.finfo(dtype).max, torch.finfo(dtype).min], dtype=dtype)
    y = through_the_operator("tanh", x)
    assert y[:4].tolist() == [0, 0, 1, -1]
    assert y[:4].signbit().tolist() == [False, True, False, True]
    assert y[6:].tolist() == [1, -1]
    assert y[4:6].isnan().all()
    y = through_the_operator("sigmoid", x)
    assert y[:3].tolist() == [0.5, 0.5, 1]
    assert y[6] == 1
    assert y[3] == y[7] > 0
    assert y[4:6].isnan().all()
    x = arguments(dtype)
    y, small = through_the_operator("tanh", x), x.abs() < torch.finfo(dtype).eps / 8
    assert torch.equal(through_the_operator("tanh", -x), -y)
    assert torch.equal(y[small], x[small])
