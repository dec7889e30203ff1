"""Derives the polynomials of skew_exp and writes them to the C++ header and the Python module that contain them.

    python python_tests/ops/derive_skew_schemes.py

The eigenvalues of a skew-symmetric S are in i[-rho, rho]. On this interval exp(z) - 1 = z q(z), where q is the
truncated Chebyshev series of (exp(z) - 1) / z, whose error is 2^degree times smaller than that of Taylor's polynomial.
rho is the largest value for which the error of q is at most the unit roundoff, so that small angles keep full relative
accuracy. A scheme is used up to 0.95 rho: near the ends of the interval the error of the derivative of a Chebyshev
series is up to degree^2 times larger.

A scheme evaluates z q(z) with few matrix products. Each product multiplies two linear combinations of S and earlier
products, and adds a third; the last product is exp(S) - I:

- degree 4 with 2 products, for small norms;
- degree 8 with 3 products (the form of Bader, Blanes and Casas 2019, section 3, with Chebyshev coefficients);
- degree 12 with 4 products (the same section: p = b1 + (b2 + P) P with P = b3 + b4^2; solved here by a square root of
  series).

The constants of the bound on the 2-norm (``BOUND``, explained in csrc/orthogonal/cpu/bound.h) are defined here too, so
that CPU and GPU kernels use the same ones.
"""

import textwrap
from pathlib import Path

from mpmath import chop, cos, exp, findroot, mp, mpc, mpf, pi, polyval, sqrt

ROOT = Path(__file__).resolve().parents[2]
HEADER = ROOT / "csrc/orthogonal/cpu/schemes.h"
MODULE = ROOT / "rnnkern/ops/_orthogonal/schemes.py"
ROUNDOFF = {"float": mpf(2) ** -24, "double": mpf(2) ** -53}
SCHEMES = {"float": ((4, 1), (8, 1), (8, 16)), "double": ((4, 1), (8, 1), (12, 1))}
"""Degrees, and the divisor of the roundoff that the error of the series must not exceed: the result of the last scheme
of float is squared repeatedly, which increases its error."""
NAMES = {"float": "float32", "double": "float64"}
BOUND = {"power_steps": 6, "doublings": 3, "inside": 0.95, "rounding": 1e-5}
"""Number of steps of the power method on S^2; largest number of doublings of the Chebyshev polynomial T_2; its interval
as a fraction of the result of the power method; and what is added for rounding errors of the bound."""
NODES = 40
INNER = mpf("0.95")

mp.dps = 60


def phi(z):
    return (exp(z) - 1) / z if z else mpf(1)


def chebyshev(rho, degree: int) -> list:
    """Coefficients c_0..c_degree of z q(z), c_0 = 0, by discrete orthogonality at the Chebyshev nodes."""
    nodes = [cos(pi * (k + mpf(1) / 2) / NODES) for k in range(NODES)]
    values = [phi(mpc(0, rho * t)) for t in nodes]
    T = [[mpf(1)], [mpf(0), mpf(1)]]  # coefficients of polynomials in t
    while len(T) < degree:
        twice, before = [mpf(0), *(2 * c for c in T[-1])], [*T[-2], mpf(0), mpf(0)]
        T.append([a - b for a, b in zip(twice, before, strict=True)])
    q = [mpc(0)] * degree
    for k in range(degree):
        angle = [cos(pi * k * (j + mpf(1) / 2) / NODES) for j in range(NODES)]
        c = sum(v * a for v, a in zip(values, angle, strict=True)) * (2 if k else 1) / NODES
        for power, coefficient in enumerate(T[k]):
            q[power] += c * coefficient
    return [mpf(0), *(chop(c / mpc(0, rho) ** power, tol=mpf(10) ** -40).real for power, c in enumerate(q))]


def error(rho, degree: int):
    """The largest |q - phi| on the interval."""
    q = chebyshev(rho, degree)[:0:-1]
    points = [mpc(0, rho * k / 24) for k in range(1, 25)]
    return max(abs(polyval(q, z) - phi(z)) for z in points)


def limit(roundoff, degree: int):
    """The largest rho, rounded down to three digits, for which the error of the series is at most the roundoff."""
    low, high = mpf("1e-5"), mpf(8)
    while high / low > mpf("1.0002"):
        middle = sqrt(low * high)
        low, high = (middle, high) if error(middle, degree) <= roundoff else (low, middle)
    return downwards(low)


def downwards(x):
    digit = mpf(10) ** (int(mp.floor(mp.log10(x))) - 2)
    return mp.floor(x / digit) * digit


# ---- schemes: a product is (left, right, added). Each of them contains the coefficients of S and of earlier products;
# the coefficient of I is the last one of `right`.


def scheme4(c, rho):
    left, right = [0, 1], [c[3], c[4], 0]
    return [([1], [1, 0], [0]), (left, right, [c[1], c[2]])]


def scheme8(c, rho):
    x3 = mpf(2) / 3
    r = c[7] / (2 * c[8])  # x1 / x2

    def unknowns(x2):
        x7 = c[8] / x2**2
        x6 = (c[6] - c[8] * r**2 - c[8] * x3 / x2) / x2
        x5 = (c[5] - r * x2 * x6 - x3 * c[8] * r / x2) / x2
        x4 = (c[4] - r * x2 * x5 - x3 * x6) / x2
        return x4, x5, x6, x7

    def residual(x2):
        x4, x5, _, _ = unknowns(x2)
        return r * x2 * x4 + x3 * x5 - c[3]

    taylor = x3 * (1 + sqrt(177)) / 352
    x2 = findroot(residual, (0.9 * taylor, 1.1 * taylor), solver="ridder", tol=mpf(10) ** -50)
    x4, x5, x6, x7 = unknowns(x2)
    return [
        ([1], [1, 0], [0]),
        ([0, 1], [r * x2, x2, 0], [0, 0]),
        ([0, x3, 1], [x5, x6, x7, x4], [c[1], c[2] - x3 * x4, 0]),
    ]


def scheme12(c, rho):
    """p = (P + b2 / 2)^2 - (b2 / 2)^2 + b1, with P of degree 6, and b1 and b2 of degree 3. The leading coefficients of
    a square root of p determine P + b2 / 2, and b2 accounts for the others. The leading coefficient of b2 is free: the
    value on a grid with the smallest sums of absolute terms is chosen. The constant of b2 is chosen such that that of P
    is zero."""
    candidates = (_scheme12(c, mpf(k) / 100, rho) for k in range(-100, 101) if k)
    _, b1, b2, b3, b4 = min(candidates, key=lambda found: found[0])
    return [
        ([1], [1, 0], [0]),
        ([0, 1], [1, 0, 0], [0, 0]),
        (b4[1:], [*b4[1:], 0], b3[1:]),
        ([0, 0, 0, 1], [*b2[1:], 1, b2[0]], [*b1[1:], 0]),
    ]


def _scheme12(c, lead, rho):
    root = [mpf(0)] * 6 + [sqrt(c[12])]
    for power in range(11, 6, -1):
        known = sum(root[a] * root[power - a] for a in range(power - 5, 6))
        root[power - 6] = (c[power] - known) / (2 * root[6])
    root[0] = (c[6] + lead**2 / 4 - sum(root[a] * root[6 - a] for a in range(1, 6))) / (2 * root[6])
    b2 = [2 * root[0], 0, 2 * (_times(root, root, 5) - c[5]) / lead, lead]
    b2[1] = (4 * (_times(root, root, 4) - c[4]) - b2[2] ** 2) / (2 * lead)
    P = [a - b / 2 for a, b in zip(root, [*b2, 0, 0, 0], strict=True)]
    d3 = sqrt(P[6])
    d2 = P[5] / (2 * d3)
    b4 = [mpf(0), (P[4] - d2**2) / (2 * d3), d2, d3]
    b3 = [P[n] - _times(b4, b4, n) for n in range(4)]
    right = [a + b for a, b in zip(P, [*b2, 0, 0, 0], strict=True)]
    b1 = [c[n] - _times(P, right, n) for n in range(4)]
    at = [mpf(rho) ** n for n in range(7)]
    sizes = [sum(abs(a) * b for a, b in zip(f, at, strict=False)) for f in (P, right, b1)]
    return sizes[0] * sizes[1] + sizes[2], b1, b2, b3, b4


def _times(a, b, power: int):
    """A coefficient of the product of two polynomials."""
    return sum(a[n] * b[power - n] for n in range(len(a)) if 0 <= power - n < len(b))


SOLVERS = {4: scheme4, 8: scheme8, 12: scheme12}


def derived() -> dict[str, list[tuple[int, float, list]]]:
    """For float and double: the schemes as (degree, limit, products), by increasing degree."""
    found = {}
    for dtype, wanted in SCHEMES.items():
        found[dtype] = []
        for degree, part in wanted:
            rho = limit(ROUNDOFF[dtype] / part, degree)
            products = SOLVERS[degree](chebyshev(rho, degree), rho)
            rounded = [tuple([float(x) for x in part] for part in product) for product in products]
            found[dtype].append((degree, float(downwards(INNER * rho)), rounded))
    return found


def header(found) -> str:
    lines = [
        "// Written by python_tests/ops/derive_skew_schemes.py, which says what they are: the polynomials of skew_exp.",
        "#pragma once",
        "",
        "namespace rnnkern {",
        "",
        "constexpr int most_products = 4;",
        "",
        "// The bound of the 2-norm (bound.h).",
        *(f"constexpr {'int' if isinstance(x, int) else 'double'} {name} = {x};" for name, x in BOUND.items()),
        "",
        "// left * right + added, each a sum over S and the products before; `identity` is the part of I on the right.",
        "struct SkewProduct {",
        "  double left[most_products], right[most_products], identity, added[most_products];",
        "};",
        "",
        "struct SkewScheme {",
        "  int degree, products;",
        "  double limit;  // of the 2-norm",
        "  SkewProduct product[most_products];",
        "};",
        "",
    ]
    lines += ["// clang-format off"]
    for dtype, schemes in found.items():
        lines += [f"constexpr SkewScheme {dtype}_schemes[] = {{"]
        for degree, rho, products in schemes:
            lines += [f"    {{{degree}, {len(products)}, {rho!r}, {{"]
            for left, right, added in products:
                sums = [f"{{{', '.join(map(repr, part))}}}" for part in (left, right[:-1], added)]
                lines += [f"        {{{sums[0]},", f"         {sums[1]}, {right[-1]!r},", f"         {sums[2]}}},"]
            lines += ["    }},"]
        lines += ["};", ""]
    return "\n".join([*lines[:-1], "// clang-format on", "", "}  // namespace rnnkern", ""])


def module(found) -> str:
    lines = [
        '"""The polynomials of skew_exp, written by python_tests/ops/derive_skew_schemes.py, which derives them.',
        "",
        "For each dtype (degree, limit of the 2-norm, products), each product (left, right, added): sums over S and",
        'the products before, with the part of I as the last of ``right``. Above it, how the 2-norm is bounded."""',
        "",
        *(f"{name.upper()} = {x}" for name, x in BOUND.items()),
        "",
        "# fmt: off",
        "SCHEMES = {",
    ]
    for dtype, schemes in found.items():
        lines += [f'    "{NAMES[dtype]}": [']
        for degree, rho, products in schemes:
            lines += [f"        ({degree}, {rho!r}, ["]
            for left, right, added in products:
                text = f"({left!r}, {right!r}, {added!r}),"
                lines += textwrap.wrap(text, 120, initial_indent=" " * 12, subsequent_indent=" " * 13)
            lines += ["        ]),"]
        lines += ["    ],"]
    return "\n".join([*lines, "}", ""])


if __name__ == "__main__":
    FOUND = derived()
    HEADER.write_text(header(FOUND))
    MODULE.write_text(module(FOUND))
