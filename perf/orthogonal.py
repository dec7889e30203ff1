"""skew_exp, forward and backward, against what else gives an orthogonal weight from a free one.

``python -m perf.orthogonal --help``. Every provider reads the strict lower triangle of the same matrices, whose skew
part has the 2-norm that is asked for, and gives V and the gradient of that triangle. Floor: the N x N products left
when everything else is free, three forwards and five backwards for norms around 1, each by the fastest product at hand;
``over_floor`` times their number is the time in products. ``peak_bytes`` over 4 N^2 is the memory in matrices.
"""

import functools
import importlib
import importlib.util
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.utils import parametrizations

from perf import harness, record
from perf.floors import products, run
from perf.harness import OURS, Case, Effort, NoKernel, Problem
from rnnkern import reference
from rnnkern.ops import explain, skew_exp

PRODUCTS = {"forward": 3, "forward+backward": 8}
"""Of the scheme of degree 8 and of its reverse sweep (docs/orthogonal.md)."""

SHAPES = ((128, 128), (256, 256), (512, 512), (1024, 1024), (256, 32, 32))
QUICK_SHAPES = ((24, 24), (4, 8, 8))
"""(..., N, N)."""

PEERS = ("torch.matrix_exp", "torch.nn.utils.parametrizations", "geotorch")

Function = Callable[[Tensor], Tensor]


def matrix_exp(A: Tensor) -> Tensor:
    lower = A.tril(-1)
    return torch.matrix_exp(lower - lower.mT)


class _Weight(torch.nn.Module):
    def __init__(self, A: Tensor):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.eye(A.shape[-1], dtype=A.dtype).expand(A.shape).clone())


def parametrized(A: Tensor) -> Function:
    """torch.nn.utils.parametrizations.orthogonal as a function of its unconstrained parameter."""
    module = parametrizations.orthogonal(_Weight(A), orthogonal_map="matrix_exp", use_trivialization=False)
    return module.parametrizations.weight[0]


def geotorch_so(A: Tensor) -> Function:
    """geotorch's SO(N), from the identity: it multiplies by its base whatever that is."""
    geotorch = importlib.import_module("geotorch")
    module = geotorch.SO(A.shape).to(A.dtype)
    module.base.copy_(torch.eye(A.shape[-1]))
    return module


def problem_of(shape: tuple[int, ...], norm: float, dtype: torch.dtype, seed: int) -> Problem:
    torch.manual_seed(seed)
    A = torch.randn(shape, dtype=torch.float64)
    lower = A.tril(-1)
    A = (A * norm / torch.linalg.matrix_norm(lower - lower.mT, 2, keepdim=True)).to(dtype)
    if explain(skew_exp, A).implementation == "reference":
        raise NoKernel(f"there is no kernel to measure: {explain(skew_exp, A).reason}")
    upstream = torch.randn(shape, dtype=dtype)
    functions = {OURS: skew_exp} | dict(zip(PEERS, (matrix_exp, parametrized(A)), strict=False))
    absent = {}
    if importlib.util.find_spec(PEERS[2]):
        functions[PEERS[2]] = geotorch_so(A)
    else:
        absent[PEERS[2]] = "it is not installed"
    return Problem(
        calls={
            "forward": {name: functools.partial(value, f, A) for name, f in functions.items()},
            "forward+backward": {name: functools.partial(both, f, A, upstream) for name, f in functions.items()},
        },
        floors={direction: floor(A, count) for direction, count in PRODUCTS.items()},
        naive=functools.partial(both, reference.skew_exp, A, upstream),
        truth=functools.partial(both, reference.skew_exp, A.double(), upstream.double()),
        columns=lambda provider: {"norm": norm, "matrix_bytes": A.nbytes},
        absent=absent,
    )


def value(function: Function, A: Tensor) -> dict[str, Tensor]:
    with torch.no_grad():
        return {"V": function(A)}


def both(function: Function, A: Tensor, upstream: Tensor) -> dict[str, Tensor]:
    leaf = A.detach().requires_grad_()
    V = function(leaf)
    return {"V": V.detach(), "gradient": torch.autograd.grad(V, leaf, upstream)[0]}


def floor(A: Tensor, count: int) -> Callable[[], None]:
    if A.dim() == 2:
        jobs = products(A, A.clone(), [A.shape[0]], constant=False)
    else:
        out = torch.empty_like(A)
        jobs = [functools.partial(torch.bmm, A, A.clone(), out=out)]
    return functools.partial(run, jobs * count)


def cases(shapes: Sequence[tuple[int, ...]], norm: float, dtype: str) -> list[Case]:
    return [
        Case(
            {
                "op": "skew_exp",
                "case": f"norm {norm:g}",
                "cell": "exp",
                "shape": "x".join(map(str, shape)),
                "dtype": dtype,
            },
            functools.partial(problem_of, shape, norm, getattr(torch, dtype)),
        )
        for shape in shapes
    ]


def shape(text: str) -> tuple[int, ...]:
    sizes = tuple(map(int, text.split("x")))
    if len(sizes) < 2 or sizes[-1] != sizes[-2]:
        raise ValueError(text)
    return sizes


def main(argv: Sequence[str], results: Path = record.RESULTS) -> None:
    parser = harness.arguments("Times skew_exp, forward and forward+backward.")
    parser.add_argument("--shapes", nargs="+", type=shape, metavar="NxN|BxNxN", help="instead of the usual five")
    parser.add_argument("--norm", type=float, default=1.0, help="2-norm of every matrix")
    chosen = parser.parse_args(argv)
    if chosen.dtype == "bfloat16":
        parser.error("--dtype must be float32 or float64: 16 bits are computed in float32")
    torch.set_num_threads(chosen.threads)
    device = torch.device("cpu")
    shapes = chosen.shapes or (QUICK_SHAPES if chosen.quick else SHAPES)
    path = None if chosen.quick else record.folder(device, results) / "orthogonal.csv"
    effort = Effort(0.1, 3, 5) if chosen.quick else Effort(chosen.seconds)
    command = shlex.join(["python", "-m", "perf.orthogonal", *argv])
    harness.run(cases(shapes, chosen.norm, chosen.dtype), path, device, command, effort)


if __name__ == "__main__":
    main(sys.argv[1:])
