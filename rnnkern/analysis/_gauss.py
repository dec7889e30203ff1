"""Integrals over normal variables and roots of functions of one variable, in float64."""

import itertools
import math
from collections.abc import Callable

import torch
from torch import Tensor

REACH = 10.0
"""Largest node; the normal measure beyond it is 1e-23."""


def nodes(*steepness: float) -> tuple[Tensor, Tensor]:
    """Nodes and weights (M,) of the trapezoid rule for the standard normal measure.

    Its error falls exponentially with the distance of the integrand's poles from the real axis. ``steepness`` are the
    factors by which sigmoids and tanh multiply the variable; the step is so small that their poles, at pi and pi / 2
    over the steepness, cost less than 1e-14. Gauss-Hermite rules err by 1e-4 for steepnesses from 5 on.
    """
    step = min(0.1, 0.2 / max(1.0, *steepness))
    count = math.ceil(REACH / step)
    x = step * torch.arange(-count, count + 1, dtype=torch.float64)
    w = torch.exp(-x.square() / 2)
    return x, w / w.sum()


def mean_square_of(f: Callable[[Tensor], Tensor], bias: float, deviation: float) -> float:
    """E f(x)^2 of a normal x."""
    x, w = nodes(deviation)
    return float(w @ f(bias + deviation * x).square())


def slope(x: Tensor) -> Tensor:
    """sigma'(x), accurate where the gate is closed and where it is open."""
    return torch.sigmoid(x) * torch.sigmoid(-x)


def sech2(x: Tensor) -> Tensor:
    """tanh'(x), accurate where tanh is saturated."""
    return 4 * slope(2 * x)


def root(f: Callable[[float], float], low: float, high: float) -> float:
    """A zero of a continuous function whose signs at ``low`` and ``high`` differ: Ridders' method, which takes f to be
    an exponential times a line, until the bracket or the last step is within 1e-14."""
    f_low, f_high, last = f(low), f(high), math.inf
    if f_low == 0 or f_high == 0:
        return low if f_low == 0 else high
    while True:
        middle = (low + high) / 2
        f_middle = f(middle)
        scale = math.sqrt(f_middle * f_middle - f_low * f_high)
        if f_middle == 0 or scale == 0:
            return middle
        x = middle + (middle - low) * math.copysign(1.0, f_low) * f_middle / scale
        f_x = f(x)
        ends = sorted([(low, f_low), (middle, f_middle), (x, f_x), (high, f_high)])
        for (a, f_a), (b, f_b) in itertools.pairwise(ends):
            if f_a == 0 or (f_a > 0) != (f_b > 0):
                low, f_low, high, f_high = a, f_a, b, f_b
                break
        if min(abs(x - last), high - low) <= 1e-14 * max(1.0, abs(x)) or f_x == 0:
            return x
        last = x


GOLDEN = (math.sqrt(5) - 1) / 2


def peak(f: Callable[[float], float], low: float, high: float, steps: int = 45) -> tuple[float, float]:
    """The maximum of a function with one peak between ``low`` and ``high``: (x, f(x)), by golden sections."""
    a, b = high - GOLDEN * (high - low), low + GOLDEN * (high - low)
    f_a, f_b = f(a), f(b)
    for _ in range(steps):
        if f_a > f_b:
            high, b, f_b = b, a, f_a
            a = high - GOLDEN * (high - low)
            f_a = f(a)
        else:
            low, a, f_a = a, b, f_b
            b = low + GOLDEN * (high - low)
            f_b = f(b)
    return (a, f_a) if f_a > f_b else (b, f_b)
