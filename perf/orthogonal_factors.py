"""householder_product beside torch.linalg's, by the number of reflections.

``python -m perf.orthogonal_factors --help``. torch.linalg takes vectors as LAPACK has them, below a diagonal of ones,
and so all are given such. Floor: the N x m x N products left when everything else is free, one forward and three with
the backward.
"""

import functools
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from perf import harness, orthogonal, record
from perf.floors import products, run
from perf.harness import OURS, Case, Effort, Problem
from rnnkern import ops, reference

SHAPES = tuple((size, m) for size in (128, 512) for m in (size // 32, size // 8, size // 2, size))
QUICK_SHAPES = ((24, 5),)
"""(N, m)."""

PEER = "torch.linalg.householder_product"


def below(V: Tensor) -> Tensor:
    return V.tril(-1) + torch.eye(*V.shape[-2:], dtype=V.dtype, device=V.device)


def ours(V: Tensor) -> Tensor:
    return ops.householder_product(below(V))


def formula(V: Tensor) -> Tensor:
    return reference.householder_product(below(V))


def lapack(V: Tensor) -> Tensor:
    """A square of which it makes the first m columns is the smallest that it makes whole."""
    vectors = below(V)
    tau = 2 / vectors.square().sum(-2)
    rest = vectors.new_zeros(vectors.shape[-2], vectors.shape[-2] - vectors.shape[-1])
    return torch.linalg.householder_product(
        torch.cat([vectors, rest], -1), torch.cat([tau, rest.new_zeros(rest.shape[1])])
    )


def problem_of(shape: tuple[int, int], dtype: torch.dtype, seed: int) -> Problem:
    torch.manual_seed(seed)
    V, upstream = torch.randn(shape, dtype=dtype), torch.randn(shape[0], shape[0], dtype=dtype)
    orthogonal.refuse_reference(ops.householder_product, V)
    inputs = {"V": V}
    functions = {OURS: ours, PEER: lapack}
    once = products(V, V.mT.contiguous(), [shape[0]], constant=False)
    return Problem(
        calls={
            "forward": {name: functools.partial(orthogonal.value, f, inputs) for name, f in functions.items()},
            "forward+backward": {
                name: functools.partial(orthogonal.both, f, inputs, upstream) for name, f in functions.items()
            },
        },
        floors={"forward": functools.partial(run, once), "forward+backward": functools.partial(run, 3 * once)},
        naive=functools.partial(orthogonal.both, formula, inputs, upstream),
        truth=functools.partial(orthogonal.both, formula, {"V": V.double()}, upstream.double()),
        columns=lambda provider: {"matrix_bytes": upstream.nbytes},
    )


def cases(shapes: Sequence[tuple[int, int]], dtype: str) -> list[Case]:
    labels = {"op": "householder_product", "case": "reflections", "cell": "householder", "dtype": dtype}
    return [
        Case(
            labels | {"shape": "x".join(map(str, shape))},
            functools.partial(problem_of, shape, getattr(torch, dtype)),
        )
        for shape in shapes
    ]


def main(argv: Sequence[str], results: Path = record.RESULTS) -> None:
    parser = harness.arguments("Times householder_product, forward and forward+backward.")
    chosen = parser.parse_args(argv)
    if chosen.dtype == "bfloat16":
        parser.error("--dtype must be float32 or float64: 16 bits are computed in float32")
    torch.set_num_threads(chosen.threads)
    device = torch.device("cpu")
    path = None if chosen.quick else record.folder(device, results) / "orthogonal-factors.csv"
    effort = Effort(0.1, 3, 5) if chosen.quick else Effort(chosen.seconds)
    command = shlex.join(["python", "-m", "perf.orthogonal_factors", *argv])
    harness.run(cases(QUICK_SHAPES if chosen.quick else SHAPES, chosen.dtype), path, device, command, effort)


if __name__ == "__main__":
    main(sys.argv[1:])
