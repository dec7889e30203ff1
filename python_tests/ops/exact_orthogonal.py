"""cayley and schur_weight with their gradients in double-double arithmetic, about 32 digits: the truth for kernels in
float64. A number is the sum of two float64 tensors."""

import mpmath
import torch
from torch import Tensor

Number = tuple[Tensor, Tensor]


def _sum(a, b) -> Number:
    """The rounded sum and its rounding error (Knuth)."""
    s = a + b
    v = s - a
    return s, (a - (s - v)) + (b - v)


def _product(a, b) -> Number:
    """The rounded product and its rounding error (Dekker)."""
    (a1, a0), (b1, b0) = ((h := (c := 134217729 * x) - (c - x), x - h) for x in (a, b))
    p = a * b
    return p, ((a1 * b1 - p) + a1 * b0 + a0 * b1) + a0 * b0


def _add(a: Number, b: Number, sign: int = 1) -> Number:
    hi, lo = _sum(a[0], sign * b[0])
    return _sum(hi, lo + a[1] + sign * b[1])


def _times(a: Number, b: Number) -> Number:
    hi, lo = _product(a[0], b[0])
    return _sum(hi, lo + a[0] * b[1] + a[1] * b[0])


def _matmul(*matrices: Number) -> Number:
    a, *rest = matrices
    for b in rest:
        total = _exact(torch.zeros_like(a[0] @ b[0]))
        for k in range(b[0].shape[-2]):
            total = _add(total, _times([x[..., k : k + 1] for x in a], [x[..., k : k + 1, :] for x in b]))
        a = total
    return a


def _exact(x: Tensor) -> Number:
    return x.double(), torch.zeros_like(x, dtype=torch.float64)


def _each(function, *numbers: Number) -> Number:
    """Applies a function that does not round to both parts."""
    return tuple(map(function, *numbers))


def cayley(A: Tensor, G: Tensor) -> list[Tensor]:
    """(I + S)^-1 (I - S), and the gradient of its sum of products with G."""
    S, I = _exact(A.tril(-1) - A.tril(-1).mT), _exact(torch.eye(A.shape[-1]).expand_as(A))  # noqa: E741
    M = _exact(torch.linalg.inv(_add(I, S)[0]))
    for _ in range(3):  # Newton: each step doubles the digits
        M = _add(_each(lambda x: 2 * x, M), _matmul(M, _add(I, S), M), -1)
    V = _matmul(M, _add(I, S, -1))
    dS = _matmul(_each(lambda x: -x.mT, M), _exact(G), _each(lambda x: x.mT, _add(V, I)))
    dA = _add(dS, _each(lambda x: x.mT, dS), -1)
    return [sum(V), sum(dA).tril(-1)]


def schur_weight(P: Tensor, theta: Tensor, gamma: Tensor, T: Tensor, G: Tensor) -> list[Tensor]:
    """P (Lambda + T) P^T, and the gradients of its sum of products with G."""
    n, pairs = T.shape[-1], theta.shape[-1]

    def of_angles(function):
        with mpmath.workdps(40):
            values = [function(mpmath.mpf(x)) for x in theta.flatten().tolist()]
            parts = [[float(y) for y in values], [float(y - float(y)) for y in values]]
        return _each(lambda x: torch.tensor(x, dtype=torch.float64).view_as(theta), parts)

    first, P = torch.arange(pairs) * 2, _exact(P)
    cos, sin, gamma = of_angles(mpmath.cos), of_angles(mpmath.sin), _exact(gamma)
    turning = _each(lambda x: x[..., :pairs], gamma)
    Theta = _exact(T.tril(-1))
    for values, rows, columns in (
        (_times(turning, cos), first, first), (_times(turning, cos), first + 1, first + 1),
        (_times(turning, sin), first + 1, first), (_each(torch.neg, _times(turning, sin)), first, first + 1),
        (_each(lambda x: x[..., pairs:], gamma), [n - 1] * (n % 2), [n - 1] * (n % 2)),
    ):  # fmt: skip
        block = _exact(torch.zeros_like(T))
        for part, value in zip(block, values, strict=True):
            part[..., rows, columns] = value
        Theta = _add(Theta, block)
    G, transposed = _exact(G), lambda x: _each(lambda y: y.mT, x)
    dTheta = _matmul(transposed(P), G, P)
    dP = _add(_matmul(G, P, transposed(Theta)), _matmul(transposed(G), P, Theta))
    at = lambda rows, columns: _each(lambda x: x[..., rows, columns], dTheta)  # noqa: E731
    along = _add(at(first, first), at(first + 1, first + 1))
    across = _add(at(first + 1, first), at(first, first + 1), -1)
    dgamma = sum(_add(_times(cos, along), _times(sin, across)))
    dtheta = sum(_times(turning, _add(_times(cos, across), _times(sin, along), -1)))
    dgamma = torch.cat([dgamma, sum(dTheta)[..., [n - 1] * (n % 2), [n - 1] * (n % 2)]], -1)
    return [sum(_matmul(P, Theta, transposed(P))), sum(dP), dtheta, dgamma, sum(dTheta).tril(-1)]
