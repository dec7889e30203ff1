"""Measures relevancy_recurrence, forward and backward, against plain PyTorch (perf/relevancy_peers.py).

``python -m perf.relevancy --help``; on a GPU ``make gpu`` runs the cases. No provider includes the input
projection. GEMM reference: products of R and W_a with s and of U_a with h at each step, with their transposes in the
backward pass, and the gradients of the three weights over all steps at once; each by the fastest available routine. On
a GPU each product is computed for all steps at once, although each s depends on the previous one.
"""

import functools
import sys
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from perf import family, harness
from perf.harness import OURS, Case, NoKernel, Problem, labels
from perf.relevancy_peers import cached_keys, recomputed_keys
from rnnkern import reference
from rnnkern._gemm import products, run
from rnnkern.ops import explain, relevancy_recurrence
from rnnkern.reference import CELLS
from rnnkern.reference._relevancy import RELEVANCY_CELLS

PEERS = {"PyTorch, cached keys": cached_keys, "PyTorch, keys recomputed": recomputed_keys}

SHAPES = ((120, 64, 128, 10, 10), (120, 10, 128, 10, 10), (400, 16, 64, 10, 10), (60, 16, 512, 10, 5))
QUICK_SHAPES = ((20, 3, 16, 4, 4),)
GPU_SHAPES = tuple((128, batch, hidden, 10, 10) for hidden in (128, 512) for batch in (16, 64))
GPU_NARROW_SHAPES = tuple((128, batch, hidden, 10, 10) for hidden in (128, 256) for batch in (16, 64, 128))
"""(T, B, n, buffer_size, relevant_size). The narrow shapes are for 16-bit dtypes, for which a block holds up to 256
units."""

GPU_PEERS = {"PyTorch, cached keys": cached_keys}
"""Peers on a GPU; the other implementation synchronizes with the device at every step."""

PROOF = (25, 2)
"""Number of steps and samples for the check, because the reference computes each sample separately."""

Function = Callable[..., Tensor]
CPU = torch.device("cpu")


def ours(*args, **kwargs) -> Tensor:
    return relevancy_recurrence(*args, **kwargs)[0]


def by_reference(*args, **kwargs) -> Tensor:
    return reference.relevancy_recurrence(*args, **kwargs)[0]


def problem_of(
    cell: str, shape: Sequence[int], dtype: torch.dtype, seed: int, device: torch.device = CPU,
    peers: Mapping[str, Function] = PEERS, names_kernel: bool = False,
) -> Problem:  # fmt: skip
    torch.manual_seed(seed)
    steps, batch, hidden, buffer_size, relevant_size = shape
    gates, states, params = CELLS[cell].gates, CELLS[cell].states, CELLS[cell].params
    bound = hidden**-0.5
    weights = [torch.empty(rows, hidden).uniform_(-bound, bound) for rows in (gates * hidden, hidden, hidden)]
    tensors = {
        "u": torch.randn(steps, batch, gates * hidden),
        **dict(zip(("V", "W_a", "U_a", "v"), (*weights, torch.empty(hidden).uniform_(-bound, bound)), strict=True)),
        **{name: torch.zeros(batch, hidden) for name in ("s0", "c0")[:states]},
        **{name: 0.1 * torch.randn(hidden) for name in params},
    }
    tensors = {name: x.to(device, dtype) for name, x in tensors.items()}
    sizes = {"buffer_size": buffer_size, "relevant_size": relevant_size}
    chosen = explain(relevancy_recurrence, *arguments(cell, tensors), **options(cell, tensors), **sizes)
    if chosen.implementation == "reference":
        raise NoKernel(f"there is no kernel to measure: {chosen.reason}")
    upstream = torch.randn(steps, batch, hidden, dtype=dtype).to(device)
    functions = {name: functools.partial(f, **sizes) for name, f in {OURS: ours, **peers}.items()}
    exact = functools.partial(by_reference, **sizes)
    return Problem(
        calls={
            "forward": {name: functools.partial(value, f, cell, tensors) for name, f in functions.items()},
            "forward+backward": {name: functools.partial(both, f, cell, tensors, upstream)
                                 for name, f in functions.items()},
        },
        baselines=gemm_reference(tensors, steps, batch),
        naive=functools.partial(both, exact, cell, tensors, upstream),
        truth=lambda: both(exact, cell, {name: x.double() for name, x in tensors.items()}, upstream.double()),
        columns=lambda provider: {"kernel": chosen.reason if provider == OURS else ""} if names_kernel else {},
    )  # fmt: skip


def arguments(cell: str, tensors: dict[str, Tensor]) -> tuple:
    attention = tuple(tensors[name] for name in ("W_a", "U_a", "v"))
    return cell, tensors["u"], tensors["V"], tuple(tensors[name] for name in ("s0", "c0") if name in tensors), attention


def options(cell: str, tensors: dict[str, Tensor]) -> dict[str, tuple[Tensor, ...]]:
    return {"params": tuple(tensors[name] for name in CELLS[cell].params)}


def value(function: Function, cell: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    with torch.no_grad():
        return {"h": function(*arguments(cell, tensors), **options(cell, tensors))}


def both(function: Function, cell: str, tensors: dict[str, Tensor], upstream: Tensor) -> dict[str, Tensor]:
    leaves = {name: x.detach().requires_grad_() for name, x in tensors.items()}
    h = function(*arguments(cell, leaves), **options(cell, leaves))
    gradients = torch.autograd.grad(h, list(leaves.values()), upstream)
    return {"h": h.detach(), **{f"gradient of {name}": g for name, g in zip(leaves, gradients, strict=True)}}


def gemm_reference(tensors: dict[str, Tensor], steps: int, batch: int) -> dict[str, Callable[[], None]]:
    V, W_a, U_a = (tensors[name] for name in ("V", "W_a", "U_a"))
    joint, rows = torch.cat([V, W_a]), steps * batch
    sizes = [batch] * steps if V.device.type == "cpu" else [rows]
    s, h = (V.new_empty(rows, V.shape[1]).normal_() for _ in range(2))
    pre, dkey = (V.new_empty(rows, W.shape[0]).normal_() for W in (joint, U_a))
    ahead = products(s, joint.t(), sizes) + products(h, U_a.t(), sizes)
    back = products(pre, joint, sizes) + products(dkey, U_a, sizes)
    for left, right in ((pre, s), (dkey, h)):
        back += products(left.t(), right, [left.shape[1]], constant=False)
    return {"forward": functools.partial(run, ahead), "forward+backward": functools.partial(run, ahead + back)}


def cases(
    cells: Sequence[str], shapes: Sequence[tuple[int, ...]], dtype: str, device: torch.device = CPU,
    peers: Mapping[str, Function] = PEERS, names_kernel: bool = False,
) -> list[Case]:  # fmt: skip
    """The cases; ``names_kernel`` adds a column with the kernel that ran."""
    options = {"device": device, "peers": peers, "names_kernel": names_kernel}
    return [
        Case(
            labels("relevancy_recurrence", f"nu {shape[3]}, rho {shape[4]}", cell, shape[:3], dtype),
            functools.partial(problem_of, cell, shape, getattr(torch, dtype), **options),
            functools.partial(problem_of, cell, (*PROOF, *shape[2:]), getattr(torch, dtype), **options),
            kinked=True,  # of two events with almost equal scores, either may be kept
        )
        for cell in cells
        for shape in shapes
    ]


def main(argv: Sequence[str]) -> None:
    parser = family.arguments("Times relevancy_recurrence of every cell, forward and forward+backward.", family.WIDE)
    parser.add_argument("--cells", nargs="+", choices=RELEVANCY_CELLS, default=RELEVANCY_CELLS, metavar="CELL",
                        help=f"of {', '.join(RELEVANCY_CELLS)}")  # fmt: skip
    family.add_shapes(parser, "TxBxNxNUxRHO", "four")
    chosen, setup = family.begin(parser, argv, "relevancy")
    shapes = chosen.shapes or (QUICK_SHAPES if chosen.quick else SHAPES)
    harness.run(cases(chosen.cells, shapes, chosen.dtype), *setup)


if __name__ == "__main__":
    main(sys.argv[1:])
