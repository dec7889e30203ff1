"""Measures linear_scan, forward and backward, against loops and prefix sums in plain PyTorch, and on a GPU against
accelerated-scan and FLA if they are installed.

``python -m perf.linear_scan --help``. The baseline copies the data that must cross memory, in the same run: forward x
and h once, and a if it varies over time; with the backward pass also the gradients of h and x, h again, and a and its
gradient if they vary over time.
"""

import functools
import importlib
import sys
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from perf import family, harness
from perf.harness import OURS, Case, NoKernel, Problem, labels
from rnnkern import reference
from rnnkern.ops import explain, linear_scan
from rnnkern.testing import as_reals

SHAPES = ((512, 32, 1024), (4096, 16, 128), (16384, 1, 64))
GPU_SHAPES = ((2048, 32, 1024), (4096, 16, 128))
QUICK_SHAPES = ((12, 2, 16),)
"""(T, B, C)."""
KINDS = ("constant", "per step")
COPIES = {"constant": {"forward": 1.0, "forward+backward": 2.5}, "per step": {"forward": 1.5, "forward+backward": 4.0}}
"""Number of copies of x in the baseline, each of which reads and writes as many values as x has."""

Function = Callable[[Tensor, Tensor, Tensor], Tensor]


def ours(a: Tensor, x: Tensor, h0: Tensor) -> Tensor:
    return linear_scan(a, x, h0)[0]


def loop(a: Tensor, x: Tensor, h0: Tensor) -> Tensor:
    """The usual loop over time."""
    return reference.linear_scan(a, x, h0)[0]


def prefix_sums(a: Tensor, x: Tensor, h0: Tensor) -> Tensor:
    """h_t = p_t (h_0 + sum of x_s / p_s), where p are the prefix products of a. Computed in chunks, so short that no
    product leaves the range of float32 here; the state is carried from chunk to chunk."""
    factors = a.expand_as(x)
    found = []
    for factor, part in zip(factors.split(PIECE), x.split(PIECE), strict=True):
        products = factor.cumprod(0)
        found.append(products * (h0 + (part / products).cumsum(0)))
        h0 = found[-1][-1]
    return torch.cat(found)


PIECE = 16
"""Number of steps per chunk; factors are at least 0.9, so little precision is lost."""


PEERS = ("loop", "prefix sums")
"""Peers on every device."""


def peers(kind: str, x: Tensor) -> dict[str, Function]:
    """The peers on the device of x. Libraries for GPUs need factors for each step and have no initial state; there, the
    loop is hundreds of times slower than the other."""
    functions: dict[str, Function] = dict(zip(PEERS, (loop, prefix_sums), strict=True))
    if x.is_cuda:
        del functions[PEERS[0]]
        functions |= {name: make() for name, make in LIBRARIES.items() if is_there(name) and not x.is_complex()}
    return functions


def is_there(name: str) -> bool:
    try:
        importlib.import_module(MODULES[name])
    except ImportError:
        return False
    return True


MODULES = {"accelerated-scan": "accelerated_scan.scalar", "FLA": "fla.ops.hgrn"}


def _accelerated_scan() -> Function:
    """accelerated-scan; layout (B, C, T). The initial state is added to the first step's input."""
    scan = importlib.import_module(MODULES["accelerated-scan"]).scan

    def run(a: Tensor, x: Tensor, h0: Tensor) -> Tensor:
        factors = a.expand_as(x)
        x = torch.cat([x[:1] + factors[:1] * h0, x[1:]])
        return scan(factors.permute(1, 2, 0).contiguous(), x.permute(1, 2, 0).contiguous()).permute(2, 0, 1)

    return run


def _hgrn() -> Function:
    """FLA's HGRN; layout (B, T, C), factors as logarithms."""
    chunk_hgrn = importlib.import_module(MODULES["FLA"]).chunk_hgrn

    def run(a: Tensor, x: Tensor, h0: Tensor) -> Tensor:
        logarithms = a.expand_as(x).log().transpose(0, 1).contiguous()
        return chunk_hgrn(x.transpose(0, 1).contiguous(), logarithms, initial_state=h0)[0].transpose(0, 1)

    return run


LIBRARIES = {"accelerated-scan": _accelerated_scan, "FLA": _hgrn}


def problem_of(shape: tuple[int, ...], kind: str, dtype: torch.dtype, device: torch.device, seed: int) -> Problem:
    torch.manual_seed(seed)
    steps, batch, channels = shape
    x, h0 = torch.randn(steps, batch, channels, dtype=dtype), torch.randn(batch, channels, dtype=dtype)
    a = (0.9 + 0.1 * torch.rand(x.shape if kind == "per step" else (channels,))).to(dtype)
    a, x, h0 = tensors = tuple(y.to(device) for y in (a, x, h0))
    upstream = torch.randn_like(x)
    if explain(linear_scan, *tensors).implementation == "reference":
        raise NoKernel(f"there is no kernel to measure: {explain(linear_scan, *tensors).reason}")
    functions = {OURS: ours} | peers(kind, x)
    wide = torch.complex128 if dtype.is_complex else torch.float64
    return Problem(
        calls={
            "forward": {name: functools.partial(value, f, tensors) for name, f in functions.items()},
            "forward+backward": {name: functools.partial(both, f, tensors, upstream) for name, f in functions.items()},
        },
        baselines={direction: copies(x, count) for direction, count in COPIES[kind].items()},
        baseline="copy",
        naive=functools.partial(both, loop, tensors, upstream),
        truth=functools.partial(both, loop, [y.to(wide) for y in tensors], upstream.to(wide)),
    )


def value(function: Function, tensors: Sequence[Tensor]) -> dict[str, Tensor]:
    with torch.no_grad():
        return {"h": as_reals(function(*tensors))}


def both(function: Function, tensors: Sequence[Tensor], upstream: Tensor) -> dict[str, Tensor]:
    leaves = [y.detach().requires_grad_() for y in tensors]
    h = function(*leaves)
    gradients = torch.autograd.grad(h, leaves, upstream)
    found = {"h": h.detach()} | {f"gradient of {name}": g for name, g in zip(("a", "x", "h0"), gradients, strict=True)}
    return {name: as_reals(y) for name, y in found.items()}


def copies(x: Tensor, count: float) -> Callable[[], None]:
    whole, rest = int(count), int((count - int(count)) * len(x))
    pairs = [(torch.empty_like(x), x.clone()) for _ in range(whole)]
    pairs += [(torch.empty_like(x[:rest]), x[:rest].clone())] if rest else []

    def run() -> None:
        for target, source in pairs:
            target.copy_(source)

    return run


def cases(shapes: Sequence[tuple[int, ...]], dtype: str, device: torch.device) -> list[Case]:
    return [
        Case(
            labels("linear_scan", f"{kind} factors", "linear", shape, dtype),
            functools.partial(problem_of, shape, kind, getattr(torch, dtype), device),
        )
        for shape in shapes
        for kind in KINDS
    ]


def main(argv: Sequence[str]) -> None:
    parser = family.arguments("Times linear_scan, forward and forward+backward.", devices=True)
    family.add_shapes(parser, "TxBxC", "three")
    chosen, setup = family.begin(parser, argv, "linear_scan")
    shapes = chosen.shapes or (QUICK_SHAPES if chosen.quick else SHAPES)
    harness.run(cases(shapes, chosen.dtype, setup.device), *setup)


if __name__ == "__main__":
    main(sys.argv[1:])
