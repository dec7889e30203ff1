"""Measures skew_exp against other ways to compute an orthogonal weight from an unconstrained one, and schur_weight
against its formula.

``python -m perf.orthogonal --help``; on a GPU ``make gpu`` runs the cases. Every provider of skew_exp reads the
strict lower triangle of the same matrices, whose skew-symmetric part has the requested 2-norm, and returns V and the
gradient of that triangle. GEMM reference: N x N products, as many as skew_exp needs for norms around 1, each by the
fastest available routine.
"""

import functools
import importlib
import importlib.util
import sys
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn.utils import parametrizations

from perf import family, harness
from perf.harness import OURS, Case, NoKernel, Problem, labels
from rnnkern import reference
from rnnkern._gemm import products, run
from rnnkern.ops import explain, schur_weight, skew_exp

PRODUCTS = {
    "skew_exp": {"forward": 3, "forward+backward": 8},
    "schur_weight": {"forward": 2, "forward+backward": 6},
}
"""Number of N x N products of the scheme of degree 8 and of its backward pass, and of the formula and its gradients
(docs/developers/orthogonal.md)."""

GPU_SHAPES = ((256, 32, 32), (64, 64), (128, 128), (256, 256), (512, 512), (1024, 1024))
SHAPES = ((128, 128), (256, 256), (512, 512), (1024, 1024), (256, 32, 32))
QUICK_SHAPES = ((24, 24), (4, 8, 8))
"""(..., N, N)."""

PEERS = ("torch.matrix_exp", "torch.nn.utils.parametrizations", "geotorch")
FORMULA = "the formula"
"""P (Lambda + T) P^T in plain PyTorch; no installed library has it."""

Function = Callable[..., Tensor]
OPS = tuple(PRODUCTS)


def matrix_exp(A: Tensor) -> Tensor:
    lower = A.tril(-1)
    return torch.matrix_exp(lower - lower.mT)


class _Weight(torch.nn.Module):
    def __init__(self, A: Tensor):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.eye(A.shape[-1]).to(A).expand(A.shape).clone())


def parametrized(A: Tensor) -> Function:
    """torch.nn.utils.parametrizations.orthogonal as a function of its unconstrained parameter."""
    module = parametrizations.orthogonal(_Weight(A), orthogonal_map="matrix_exp", use_trivialization=False)
    return module.parametrizations.weight[0]


def geotorch_so(A: Tensor) -> Function:
    """geotorch's SO(N) with the identity as base, because it multiplies by its base in any case."""
    geotorch = importlib.import_module("geotorch")
    module = geotorch.SO(A.shape).to(A)
    module.base.copy_(torch.eye(A.shape[-1]))
    return module


def problem_of(shape: tuple[int, ...], norm: float, dtype: torch.dtype, device: torch.device, seed: int) -> Problem:
    torch.manual_seed(seed)
    A = torch.randn(shape, dtype=torch.float64)
    lower = A.tril(-1)
    A = (A * norm / torch.linalg.matrix_norm(lower - lower.mT, 2, keepdim=True)).to(device, dtype)
    refuse_reference(skew_exp, A)
    upstream = torch.randn(shape, dtype=dtype).to(device)
    functions = {OURS: skew_exp} | dict(zip(PEERS, (matrix_exp, parametrized(A)), strict=False))
    absent = {}
    if importlib.util.find_spec(PEERS[2]):
        functions[PEERS[2]] = geotorch_so(A)
    else:
        absent[PEERS[2]] = "it is not installed"
    return problem(functions, {"A": A}, upstream, reference.skew_exp, PRODUCTS["skew_exp"], absent)


def schur_problem_of(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, seed: int) -> Problem:
    torch.manual_seed(seed)
    P, _ = torch.linalg.qr(torch.randn(shape, dtype=torch.float64))
    *batch, size = shape[:-1]
    theta, gamma = torch.rand(*batch, size // 2), torch.rand(*batch, (size + 1) // 2)
    drawn = {"P": P.contiguous(), "theta": 6 * theta, "gamma": gamma, "T": torch.randn(shape) / size**0.5}
    inputs = {name: x.to(device, dtype) for name, x in drawn.items()}
    refuse_reference(schur_weight, *inputs.values())
    upstream = torch.randn(shape, dtype=dtype).to(device)
    functions = {OURS: schur_weight, FORMULA: reference.schur_weight}
    return problem(functions, inputs, upstream, reference.schur_weight, PRODUCTS["schur_weight"])


def refuse_reference(function: Function, *args: Tensor) -> None:
    choice = explain(function, *args)
    if choice.implementation == "reference":
        raise NoKernel(f"there is no kernel to measure: {choice.reason}")


def problem(
    functions: dict[str, Function], inputs: dict[str, Tensor], upstream: Tensor, formula: Function,
    counts: dict[str, int], absent: dict[str, str] | None = None,
) -> Problem:  # fmt: skip
    """``formula`` is the reference; the first of the inputs is a matrix."""
    A = next(iter(inputs.values()))
    exact = {name: x.double() for name, x in inputs.items()}
    return Problem(
        calls={
            "forward": {name: functools.partial(value, f, inputs) for name, f in functions.items()},
            "forward+backward": {name: functools.partial(both, f, inputs, upstream) for name, f in functions.items()},
        },
        baselines={direction: gemm_reference(A, count) for direction, count in counts.items()},
        naive=functools.partial(both, formula, inputs, upstream),
        truth=functools.partial(both, formula, exact, upstream.double()),
        absent=absent or {},
    )


def value(function: Function, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    with torch.no_grad():
        return {"V": function(*inputs.values())}


def both(function: Function, inputs: dict[str, Tensor], upstream: Tensor) -> dict[str, Tensor]:
    leaves = [x.detach().requires_grad_() for x in inputs.values()]
    V = function(*leaves)
    gradients = torch.autograd.grad(V, leaves, upstream)
    return {"V": V.detach()} | {f"gradient of {name}": g for name, g in zip(inputs, gradients, strict=True)}


def gemm_reference(A: Tensor, count: int) -> Callable[[], None]:
    if A.dim() == 2 and A.device.type == "cpu":
        jobs = products(A, A.clone(), [A.shape[0]], constant=False)
    else:
        jobs = [functools.partial(torch.matmul, A, A.clone(), out=torch.empty_like(A))]
    return functools.partial(run, jobs * count)


def cases(
    shapes: Sequence[tuple[int, ...]], norm: float, dtype: str, device: torch.device, ops: Sequence[str] = OPS
) -> list[Case]:
    kind = getattr(torch, dtype)
    made = {
        "skew_exp": (f"norm {norm:g}", "exp", lambda shape: functools.partial(problem_of, shape, norm, kind, device)),
        "schur_weight": ("angles", "schur", lambda shape: functools.partial(schur_problem_of, shape, kind, device)),
    }
    return [
        Case(labels(op, case, cell, shape, dtype), build(shape))
        for op in ops
        for case, cell, build in [made[op]]
        for shape in shapes
    ]


def shape(text: str) -> tuple[int, ...]:
    sizes = tuple(map(int, text.split("x")))
    if len(sizes) < 2 or sizes[-1] != sizes[-2]:
        raise ValueError(text)
    return sizes


def main(argv: Sequence[str]) -> None:
    parser = family.arguments("Times skew_exp and schur_weight, forward and forward+backward.", family.WIDE)
    parser.add_argument("--ops", nargs="+", choices=OPS, default=OPS)
    parser.add_argument("--shapes", nargs="+", type=shape, metavar="NxN|BxNxN", help="instead of the usual five")
    parser.add_argument("--norm", type=float, default=1.0, help="2-norm of what skew_exp is given")
    chosen, setup = family.begin(parser, argv, "orthogonal")
    shapes = chosen.shapes or (QUICK_SHAPES if chosen.quick else SHAPES)
    harness.run(cases(shapes, chosen.norm, chosen.dtype, setup.device, chosen.ops), *setup)


if __name__ == "__main__":
    main(sys.argv[1:])
