"""Measures gather_attention, forward and backward, against plain PyTorch.

``python -m perf.gather_attention --help``. Lists are like those of a relevancy recurrence: one half are the last steps,
the other half earlier steps, and -1 where there is none yet. Baseline: one copy of queries, keys, values and lists, and
a second copy with the backward pass.
"""

import functools
import sys
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from perf import family, harness
from perf.harness import OURS, Case, NoKernel, Problem, labels
from rnnkern import reference
from rnnkern.ops import explain, gather_attention

SHAPES = ((64, 120, 20, 128), (10, 400, 20, 128), (4, 120, 120, 128), (1, 2000, 20, 128))
QUICK_SHAPES = ((2, 12, 6, 16),)
"""(B, T, kappa, n), with as many memories as queries."""
COPIES = {"forward": 1, "forward+backward": 2}
"""Number of copies in the baseline."""

Function = Callable[..., Tensor]


def plain(q: Tensor, u: Tensor, h: Tensor, idx: Tensor, v: Tensor) -> Tensor:
    """The usual code: gathers the keys and values of each list, and multiplies with v and the weights."""
    place, sample = idx.clamp_min(0).long(), torch.arange(len(q), device=q.device).view(-1, 1, 1)
    scores = torch.tanh(q.unsqueeze(2) + u[sample, place]) @ v
    alpha = torch.softmax(scores.masked_fill(idx < 0, -torch.inf), -1)
    return (alpha.unsqueeze(-2) @ h[sample, place]).squeeze(-2)


def lists(batch: int, steps: int, slots: int) -> Tensor:
    now = torch.arange(steps).view(-1, 1)
    last = now - torch.arange(slots - slots // 2)
    before = (torch.rand(batch, steps, slots // 2) * (now - slots + slots // 2 + 1)).floor().long()
    return torch.cat([last.expand(batch, -1, -1), before], -1).clamp_min(-1).int()


def problem_of(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, seed: int) -> Problem:
    torch.manual_seed(seed)
    batch, steps, slots, hidden = shape
    q, u, h = (torch.randn(batch, steps, hidden, dtype=dtype, device=device) for _ in range(3))
    v = torch.randn(hidden, dtype=dtype, device=device)
    tensors, upstream = (q, u, h, lists(batch, steps, slots).to(device), v), torch.randn_like(q)
    if explain(gather_attention, *tensors).implementation == "reference":
        raise NoKernel(f"there is no kernel to measure: {explain(gather_attention, *tensors).reason}")
    functions = {OURS: gather_attention, "PyTorch": plain}
    return Problem(
        calls={
            "forward": {name: functools.partial(value, f, tensors) for name, f in functions.items()},
            "forward+backward": {name: functools.partial(both, f, tensors, upstream) for name, f in functions.items()},
        },
        baselines={direction: copies(tensors, count) for direction, count in COPIES.items()},
        baseline="copy",
        naive=functools.partial(both, reference.gather_attention, tensors, upstream),
        truth=functools.partial(both, reference.gather_attention, [_double(x) for x in tensors], upstream.double()),
    )


def _double(x: Tensor) -> Tensor:
    return x.double() if x.is_floating_point() else x


def value(function: Function, tensors: Sequence[Tensor]) -> dict[str, Tensor]:
    with torch.no_grad():
        return {"out": function(*tensors)}


def both(function: Function, tensors: Sequence[Tensor], upstream: Tensor) -> dict[str, Tensor]:
    leaves = [x.detach().requires_grad_(x.is_floating_point()) for x in tensors]
    out = function(*leaves)
    names, leaves = zip(*((name, x) for name, x in zip("quhiv", leaves, strict=True) if x.requires_grad), strict=True)
    gradients = torch.autograd.grad(out, leaves, upstream)
    return {"out": out.detach(), **{f"gradient of {name}": g for name, g in zip(names, gradients, strict=True)}}


def copies(tensors: Sequence[Tensor], count: int) -> Callable[[], None]:
    pairs = [(torch.empty_like(x), x) for x in tensors] * count

    def run() -> None:
        for target, x in pairs:
            target.copy_(x)

    return run


def cases(shapes: Sequence[tuple[int, ...]], dtype: str, device: torch.device) -> list[Case]:
    return [
        Case(
            labels("gather_attention", "lists of a recurrence", "additive", shape, dtype),
            functools.partial(problem_of, shape, getattr(torch, dtype), device),
        )
        for shape in shapes
    ]


def main(argv: Sequence[str]) -> None:
    parser = family.arguments("Times gather_attention, forward and forward+backward.", devices=True)
    family.add_shapes(parser, "BxTxKAPPAxN", "four")
    chosen, setup = family.begin(parser, argv, "gather_attention")
    shapes = chosen.shapes or (QUICK_SHAPES if chosen.quick else SHAPES)
    harness.run(cases(shapes, chosen.dtype, setup.device), *setup)


if __name__ == "__main__":
    main(sys.argv[1:])
