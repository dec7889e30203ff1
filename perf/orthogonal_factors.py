"""Measures householder_product against torch.linalg's by the number of reflections, and givens_product of 100 vectors
by the number of layers.

``python -m perf.orthogonal_factors --help``. torch.linalg takes vectors in LAPACK's format, below a diagonal of ones,
so all providers receive such vectors. GEMM references: for householder_product N x m x N products, one forward and
three with the backward pass; for givens_product the product of the vectors with an N x N matrix, which the layers
replace, also one and three.
"""

import functools
import sys
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from perf import family, harness, orthogonal
from perf.harness import OURS, Case, Problem, labels
from rnnkern import ops, reference
from rnnkern._gemm import products, run

SHAPES = {
    "householder_product": tuple((size, m) for size in (128, 512) for m in (size // 32, size // 8, size // 2, size)),
    "givens_product": ((128, 7), (512, 9), (1024, 10), (128, 4), (512, 4), (512, 16), (512, 64)),
}
"""(N, m) and (N, L)."""
QUICK_SHAPES = {"householder_product": ((24, 5),), "givens_product": ((16, 4), (16, 3))}
VECTORS = 100

LAPACK = "torch.linalg.householder_product"
FORMULA = "the formula"
"""Layer by layer in plain PyTorch; no installed library has it."""

Function = Callable[..., Tensor]


def below(V: Tensor) -> Tensor:
    return V.tril(-1) + torch.eye(*V.shape[-2:], dtype=V.dtype, device=V.device)


def ours(V: Tensor) -> Tensor:
    return ops.householder_product(below(V))


def formula(V: Tensor) -> Tensor:
    return reference.householder_product(below(V))


def lapack(V: Tensor) -> Tensor:
    """Pads V to N columns: LAPACK returns as many columns as it is given, and columns of zeros are no reflections."""
    vectors = below(V)
    size, count = vectors.shape
    tau = 2 / vectors.square().sum(-2)
    padded = torch.cat([vectors, vectors.new_zeros(size, size - count)], -1)
    return torch.linalg.householder_product(padded, torch.cat([tau, tau.new_zeros(size - count)]))


def reflections(shape: tuple[int, int], dtype: torch.dtype, seed: int) -> Problem:
    torch.manual_seed(seed)
    V, upstream = torch.randn(shape, dtype=dtype), torch.randn(shape[0], shape[0], dtype=dtype)
    orthogonal.refuse_reference(ops.householder_product, V)
    return problem({OURS: ours, LAPACK: lapack}, formula, {"V": V}, upstream, (V, V.mT.contiguous()))


def layers(shape: tuple[int, int], dtype: torch.dtype, seed: int) -> Problem:
    """Uses the style "butterfly" if the number of layers is log2 N, otherwise "tunable"."""
    torch.manual_seed(seed)
    size, count = shape
    style = style_of(shape)
    angles, x, upstream = (torch.randn(s, dtype=dtype) for s in ((count, size // 2), *2 * ((VECTORS, size),)))
    orthogonal.refuse_reference(ops.givens_product, angles)
    functions = {
        OURS: functools.partial(ops.givens_product, style=style),
        FORMULA: functools.partial(reference.givens_product, style=style),
    }
    matrix = torch.randn(size, size, dtype=dtype)
    return problem(functions, functions[FORMULA], {"angles": angles, "x": x}, upstream, (x, matrix))


def style_of(shape: tuple[int, int]) -> str:
    size, count = shape
    return "butterfly" if 1 << count == size else "tunable"


def problem(
    functions: dict[str, Function], formula: Function, inputs: dict[str, Tensor], upstream: Tensor,
    factors: tuple[Tensor, Tensor],
) -> Problem:  # fmt: skip
    """``factors``: the two matrices whose product is the GEMM reference."""
    once = products(*factors, [factors[0].shape[0]], constant=False)
    return Problem(
        calls={
            "forward": {name: functools.partial(orthogonal.value, f, inputs) for name, f in functions.items()},
            "forward+backward": {
                name: functools.partial(orthogonal.both, f, inputs, upstream) for name, f in functions.items()
            },
        },
        baselines={"forward": functools.partial(run, once), "forward+backward": functools.partial(run, 3 * once)},
        naive=functools.partial(orthogonal.both, formula, inputs, upstream),
        truth=functools.partial(
            orthogonal.both, formula, {name: x.double() for name, x in inputs.items()}, upstream.double()
        ),
    )


def cases(shapes: dict[str, Sequence[tuple[int, int]]], dtype: str) -> list[Case]:
    made = []
    for op, build in (("householder_product", reflections), ("givens_product", layers)):
        for shape in shapes.get(op, ()):
            case = "reflections" if build is reflections else style_of(shape)
            made.append(
                Case(labels(op, case, op, shape, dtype), functools.partial(build, shape, getattr(torch, dtype)))
            )
    return made


def main(argv: Sequence[str]) -> None:
    parser = family.arguments(
        "Times householder_product and givens_product, forward and forward+backward.", family.WIDE
    )
    parser.add_argument("--ops", nargs="+", choices=tuple(SHAPES), default=tuple(SHAPES))
    chosen, setup = family.begin(parser, argv, "orthogonal_factors")
    shapes = {op: (QUICK_SHAPES if chosen.quick else SHAPES)[op] for op in chosen.ops}
    harness.run(cases(shapes, chosen.dtype), *setup)


if __name__ == "__main__":
    main(sys.argv[1:])
