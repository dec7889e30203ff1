"""Measures skew_exp of many small matrices against torch.matrix_exp, and steps of an orthogonal weight against the five
matrix products of a POGO step (Javaloy and Vergari 2026, arXiv 2602.14656).

``python -m perf.orthogonal_small --help``. A step of ``orthogonal(base="dynamic")`` with ``rebase_every=1`` is the
gradient at the base B, tril(B^H G), one product, and the new base B exp(L - L^H), an exponential and a product.
Ratios are the peer's time over rnnkern's in the same run; results are checked against torch.matrix_exp in float64
before they are measured.
"""

import functools
import statistics
import sys
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from perf import family, harness, record
from perf.harness import OURS
from perf.orthogonal import shape
from perf.progress import Progress
from rnnkern import _report
from rnnkern.ops import skew_exp
from rnnkern.reference._orthogonal import skew

SHAPES = ((10000, 3, 3), (4096, 8, 8), (1024, 16, 16))
DTYPES = ("float32", "float64", "complex64", "complex128")
STEPS = (*SHAPES[::2], (128, 128), (512, 512))
QUICK_SHAPES = ((10, 3, 3),)
PEER = "torch.matrix_exp"
POGO = "five products"


def matrix_exp(L: Tensor) -> Tensor:
    return torch.matrix_exp(skew(L))


def drawn(size: Sequence[int], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """L such that its skew-Hermitian matrix has norm 1, and a gradient."""
    L, upstream = (torch.randn(size, dtype=torch.promote_types(dtype, torch.float64)) for _ in range(2))
    L = L / torch.linalg.matrix_norm(skew(L), 2, keepdim=True)
    return L.to(dtype), upstream.to(dtype)


def forward(function: Callable, L: Tensor) -> Tensor:
    with torch.no_grad():
        return function(L)


def both(function: Callable, L: Tensor, upstream: Tensor) -> tuple[Tensor, Tensor]:
    leaf = L.detach().requires_grad_()
    V = function(leaf)
    return V.detach(), torch.autograd.grad(V, leaf, upstream)[0]


def exponentials(size: Sequence[int], dtype: torch.dtype) -> dict[str, dict[str, Callable]]:
    """By direction and provider, checked: errors in eps, of norms around 1."""
    L, upstream = drawn(size, dtype)
    wide = torch.promote_types(dtype, torch.float64)
    truth = both(matrix_exp, L.to(wide), upstream.to(wide))
    for found, exact in zip(both(skew_exp, L, upstream), truth, strict=True):
        assert (found - exact).abs().max() <= 100 * torch.finfo(dtype).eps * exact.abs().max(), "skew_exp is wrong"
    functions = {OURS: skew_exp, PEER: matrix_exp}
    return {
        "forward": {name: functools.partial(forward, f, L) for name, f in functions.items()},
        "forward+backward": {name: functools.partial(both, f, L, upstream) for name, f in functions.items()},
    }


def steps(size: Sequence[int], dtype: torch.dtype) -> dict[str, dict[str, Callable]]:
    L, G = drawn(size, dtype)
    base, other, out = skew_exp(L), G.clone(), torch.empty_like(G)

    def step() -> Tensor:
        gradient = (base.mH @ G).tril(-1)
        return base.copy_(base @ skew_exp(gradient.mul_(-1e-3)))

    def products() -> None:
        for _ in range(5):
            torch.matmul(base, other, out=out)

    step()
    deviation = (base.mH @ base - torch.eye(size[-1], dtype=dtype)).abs().max()
    assert deviation <= 100 * torch.finfo(dtype).eps, "the base is not orthogonal"
    return {"step": {OURS: step, POGO: products}}


def main(argv: Sequence[str]) -> None:
    parser = family.arguments("Times skew_exp of small matrices, and steps of orthogonal weights.", DTYPES)
    parser.add_argument("--shapes", nargs="+", type=shape, metavar="BxNxN", help="instead of the usual ones")
    chosen, setup = family.begin(parser, argv, "orthogonal_small", name="orthogonal_small")
    shapes = chosen.shapes or (QUICK_SHAPES if chosen.quick else SHAPES)
    cases = [("skew_exp", exponentials, size, name) for size in shapes for name in DTYPES]
    cases += [("step", steps, size, "float32") for size in chosen.shapes or (shapes if chosen.quick else STEPS)]
    facts, rows = record.facts(setup.device, setup.command), []
    with Progress("small orthogonal matrices", len(cases), "case") as progress:
        for op, build, size, name in cases:
            torch.manual_seed(0)
            for direction, calls in build(size, getattr(torch, name)).items():
                found = harness.interleave(calls, setup.device, setup.effort)
                mine, theirs = found.values()
                ms = [_report.significant(1e3 * statistics.median(times)) for times in (mine, theirs)]
                row = {"op": op, "shape": "x".join(map(str, size)), "dtype": name, "direction": direction}
                row |= {"rnnkern_ms": ms[0], "peer": list(calls)[1], "peer_ms": ms[1]}
                rows.append(row | {"ratio": _report.significant(statistics.median(harness.ratios(theirs, mine)))})
            progress.advance()
    if setup.path is not None:
        _report.append(setup.path, [facts | row for row in rows])
    print(_report.table(rows))


if __name__ == "__main__":
    main(sys.argv[1:])
