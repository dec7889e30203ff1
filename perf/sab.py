"""Measures sab_recurrence, forward and backward, against plain PyTorch.

``python -m perf.sab --help``. No provider includes the input projection. GEMM reference: the product of R and h at each
step, its transpose in the backward pass, and the gradient of R over all steps at once.
"""

import functools
import sys
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from perf import family, harness
from perf.harness import OURS, Case, NoKernel, Problem, labels
from rnnkern import reference
from rnnkern._gemm import gemm_reference
from rnnkern.ops import explain, sab_recurrence
from rnnkern.ops._relevancy.sab import ALIGNMENTS
from rnnkern.reference import CELLS
from rnnkern.reference._relevancy import ABOVE_THRESHOLD

SHAPES = ((100, 64, 128, 5, 1), (400, 16, 128, 5, 2), (1000, 16, 128, 10, 5))
QUICK_SHAPES = ((20, 3, 16, 3, 2),)
"""(T, B, n, top_k, attend_every)."""
TRUNCATION = 10
"""Number of steps between two truncations of the gradient through h and c."""
PROOF = (25, 2)
"""Number of steps and samples for the check."""

Function = Callable[..., Tensor]
CPU = torch.device("cpu")


def plain(
    u: Tensor, R: Tensor, state: Sequence[Tensor], attention_weights: Sequence[Tensor], *, bias: Tensor, top_k: int,
    attend_every: int, truncation: int, alignment: str,
) -> Tensor:  # fmt: skip
    """An optimized loop in plain PyTorch: all samples at once, and the part of a score that depends only on the memory
    is computed once."""
    (h, c), (*W, w) = state, attention_weights
    hidden = h.shape[1]
    of_h, of_memory = (x.t() for x in W[0].split(hidden, 1)) if W else w.split(hidden)

    def part(x: Tensor, weight: Tensor) -> Tensor:
        return x @ weight if W else (torch.tanh(x) @ weight).unsqueeze(-1)

    memory, keys = h.unsqueeze(1), part(h, of_memory).unsqueeze(1)
    outputs = []
    for t, u_t in enumerate(u.unbind(0), 1):
        old = (h.detach(), c.detach()) if t % truncation == 0 else (h, c)
        h, c = CELLS["lstm"].step(u_t, lambda x: F.linear(x, R, bias), old)
        e = part(h, of_h).unsqueeze(1) + keys
        weights = torch.tanh(e) @ w if W else e.squeeze(-1)
        if memory.shape[1] > top_k:
            over = torch.relu(weights - (weights.topk(top_k).values[:, -1:] + ABOVE_THRESHOLD))
            weights = over / (over.sum(1, keepdim=True) + ABOVE_THRESHOLD)
        context = (weights.unsqueeze(1) @ memory).squeeze(1)
        h = h + context
        outputs.append(torch.cat([h, context], -1))
        if t % attend_every == 0:
            memory = torch.cat([memory, h.unsqueeze(1)], 1)
            keys = torch.cat([keys, part(h, of_memory).unsqueeze(1)], 1)
    return torch.stack(outputs)


def first_of(function: Callable) -> Function:
    return lambda *args, **options: function(*args, **options)[0]


def problem_of(alignment: str, shape: Sequence[int], dtype: torch.dtype, seed: int) -> Problem:
    torch.manual_seed(seed)
    steps, batch, hidden, top_k, attend_every = shape
    bound = hidden**-0.5
    sizes = {"R": (4 * hidden, hidden), "bias": (4 * hidden,)}
    sizes |= {"W": (hidden, 2 * hidden), "w": (hidden,)} if alignment == "mlp" else {"w": (2 * hidden,)}
    tensors = {"u": torch.randn(steps, batch, 4 * hidden)}
    tensors |= {name: torch.empty(size).uniform_(-bound, bound) for name, size in sizes.items()}
    tensors |= {name: torch.zeros(batch, hidden) for name in ("h0", "c0")}
    tensors = {name: x.to(dtype) for name, x in tensors.items()}
    options = {"top_k": top_k, "attend_every": attend_every, "truncation": TRUNCATION, "alignment": alignment}
    args, bias = arguments(tensors)
    chosen = explain(sab_recurrence, *args, **bias, **options)
    if chosen.implementation == "reference":
        raise NoKernel(f"there is no kernel to measure: {chosen.reason}")
    upstream = torch.randn(steps, batch, 2 * hidden, dtype=dtype)
    functions = {OURS: first_of(sab_recurrence), "PyTorch": plain}
    functions = {name: functools.partial(f, **options) for name, f in functions.items()}
    exact = functools.partial(first_of(reference.sab_recurrence), **options)
    return Problem(
        calls={
            "forward": {name: functools.partial(value, f, tensors) for name, f in functions.items()},
            "forward+backward": {name: functools.partial(both, f, tensors, upstream) for name, f in functions.items()},
        },
        baselines=gemm_reference([(None, tensors["R"])], [batch] * steps),
        naive=functools.partial(both, exact, tensors, upstream),
        truth=lambda: both(exact, {name: x.double() for name, x in tensors.items()}, upstream.double()),
    )


def arguments(tensors: dict[str, Tensor]) -> tuple[tuple, dict[str, Tensor]]:
    attention = tuple(tensors[name] for name in ("W", "w") if name in tensors)
    return (tensors["u"], tensors["R"], (tensors["h0"], tensors["c0"]), attention), {"bias": tensors["bias"]}


def value(function: Function, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    args, bias = arguments(tensors)
    with torch.no_grad():
        return {"out": function(*args, **bias)}


def both(function: Function, tensors: dict[str, Tensor], upstream: Tensor) -> dict[str, Tensor]:
    leaves = {name: x.detach().requires_grad_() for name, x in tensors.items()}
    args, bias = arguments(leaves)
    out = function(*args, **bias)
    gradients = torch.autograd.grad(out, list(leaves.values()), upstream)
    return {"out": out.detach(), **{f"gradient of {name}": g for name, g in zip(leaves, gradients, strict=True)}}


def cases(shapes: Sequence[tuple[int, ...]], dtype: str) -> list[Case]:
    return [
        Case(
            labels("sab_recurrence", f"k {shape[3]}, every {shape[4]}", alignment, shape[:3], dtype),
            functools.partial(problem_of, alignment, shape, getattr(torch, dtype)),
            functools.partial(problem_of, alignment, (*PROOF, *shape[2:]), getattr(torch, dtype)),
            kinked=True,  # of two almost equal scores, either may be among the top k
        )
        for alignment in ALIGNMENTS
        for shape in shapes
    ]


def main(argv: Sequence[str]) -> None:
    parser = family.arguments("Times sab_recurrence of both alignments, forward and forward+backward.", family.WIDE)
    family.add_shapes(parser, "TxBxNxKxEVERY", "three")
    chosen, setup = family.begin(parser, argv, "sab")
    shapes = chosen.shapes or (QUICK_SHAPES if chosen.quick else SHAPES)
    harness.run(cases(shapes, chosen.dtype), *setup)


if __name__ == "__main__":
    main(sys.argv[1:])
