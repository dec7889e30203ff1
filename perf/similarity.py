"""Measures similarity against plain PyTorch, a training step of CoRelNet with it, and the recurrence of ESBN against
the published loop.

``python -m perf.similarity --help``. The floor of similarity, in the same run, is the larger of two times: a copy that
moves as many bytes as must cross memory (forward: x in and R out; backward: x and the gradient of R in, that of x out),
and one matrix product with as many multiplications. That of ESBN are its products alone.
"""

import functools
import statistics
import sys
import time
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from perf import family, harness
from perf.harness import OURS, Case, Effort, Problem, labels
from perf.providers import compiled_function
from perf.relational_models import FEATURES, Network
from perf.relational_peers import FORMS, esbn, instance_norm
from perf.relational_shapes import SIDE, shapes
from rnnkern import reference
from rnnkern.nn import ESBN, CoRelNet
from rnnkern.ops import binding_recurrence, similarity

SHAPES = ((96, 9, 128), (4096, 9, 128), (4096, 6, 128), (512, 30, 128), (1024, 16, 64))
QUICK_SHAPES = ((3, 4, 8),)
"""(B, T, d)"""
STEPS, BINDINGS = ((96, 9, 5),), ((96, 9, 512), (32, 9, 512))
"""(B, T, number of pictures) of a training step, and (B, T, H) of ESBN."""
CASES = ("operator", "step", "esbn")
COMPILED = "compiled"
WIDTH = 256  # of the matrix product in the floor

Function = Callable[[Tensor, Tensor, Tensor], Tensor]


def ours(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return similarity(x, weight=weight, bias=bias, packed=True)


def plain(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return reference.similarity(x, weight=weight, bias=bias, packed=True)


def value(function: Function, tensors: Sequence[Tensor]) -> dict[str, Tensor]:
    with torch.no_grad():
        return {"R": function(*tensors)}


def both(function: Function, tensors: Sequence[Tensor], upstream: Tensor) -> dict[str, Tensor]:
    leaves = [x.detach().requires_grad_() for x in tensors]
    R = function(*leaves)
    names = (f"gradient of {name}" for name in ("x", "weight", "bias"))
    return {"R": R.detach()} | dict(zip(names, torch.autograd.grad(R, leaves, upstream), strict=True))


def doubled(tensors: Sequence[Tensor]) -> list[Tensor]:
    return [x.double() for x in tensors]


def product(multiplications: float, x: Tensor) -> Callable[[], Tensor]:
    """A matrix product with so many multiplications."""
    a, b = (x.new_ones(rows, WIDTH) for rows in (max(1, round(multiplications / WIDTH**2)), WIDTH))
    return lambda: a @ b


def copying(values: float, x: Tensor) -> float:
    """Seconds of a copy that reads and writes so many values together."""
    source = x.new_ones(int(values / 2))
    target = torch.empty_like(source)
    times = harness.interleave({"copy": lambda: target.copy_(source)}, x.device, Effort(0.2, 9, 50, 5e-3))
    return statistics.median(times["copy"])


def problem_of(shape: tuple[int, int, int], dtype: torch.dtype, seed: int) -> Problem:
    torch.manual_seed(seed)
    B, T, d = shape
    M = T * (T + 1) // 2
    x = torch.randn(shape, dtype=dtype)
    tensors = x, torch.full((d,), d**-0.5, dtype=dtype), torch.zeros(d, dtype=dtype)  # R is not saturated
    upstream = torch.randn(B, M, dtype=dtype)
    functions = {OURS: ours} | FORMS | {COMPILED: compiled_function(instance_norm)}
    moved = {"forward": B * (T * d + M), "forward+backward": B * (3 * T * d + 2 * M)}
    multiplications = {"forward": B * M * d, "forward+backward": B * d * (M + 2 * T * T)}
    return Problem(
        calls={
            "forward": {name: functools.partial(value, f, tensors) for name, f in functions.items()},
            "forward+backward": {name: functools.partial(both, f, tensors, upstream) for name, f in functions.items()},
        },
        baselines={direction: product(n, x) for direction, n in multiplications.items()},
        moving={direction: copying(n, x) for direction, n in moved.items()},
        baseline="floor",
        naive=functools.partial(both, plain, tensors, upstream),
        truth=functools.partial(both, plain, doubled(tensors), upstream.double()),
    )


# ---- a training step of CoRelNet


class Step:
    """Encodes each picture once, answers, and takes a step of fused Adam of size 0, so that all steps are the same."""

    def __init__(self, form: Function, shape: tuple[int, int, int], dtype: torch.dtype, seed: int) -> None:
        torch.manual_seed(seed)
        B, T, pictures = shape
        self.network = Network(CoRelNet(FEATURES, T, 4), SIDE).to(dtype)
        self.form = form
        self.pictures = shapes("bitmaps", seed)[:pictures].to(dtype)
        self.places, self.answers = torch.randint(pictures, (B, T)), torch.randint(4, (B,))
        self.optimizer = torch.optim.Adam(self.network.parameters(), 0.0, fused=True)

    def __call__(self) -> dict[str, Tensor]:
        layer, decoder = self.network.body.similarity, self.network.body.decoder
        R = self.form(self.network.encode(self.pictures)[self.places], layer.weight, layer.bias)
        loss = F.cross_entropy(decoder(R), self.answers)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return {"loss": loss.detach()}


def problem_of_step(shape: tuple[int, int, int], dtype: torch.dtype, seed: int) -> Problem:
    functions = {OURS: ours} | FORMS | {COMPILED: compiled_function(instance_norm)}
    calls = {name: Step(form, shape, dtype, seed) for name, form in functions.items()}
    step = calls[OURS]
    return Problem(
        calls={"forward+backward": calls},
        baselines={"forward+backward": lambda: step.network.encode(step.pictures).sum().backward()},
        baseline="encoder",
        naive=Step(plain, shape, dtype, seed),
        truth=Step(plain, shape, torch.float64, seed),
        factors={"loss": 1e4},  # one number, whose error is small by chance
    )


# ---- ESBN


def problem_of_esbn(shape: tuple[int, int, int], dtype: torch.dtype, seed: int) -> Problem:
    torch.manual_seed(seed)
    B, T, H = shape
    model, upstream = ESBN(FEATURES, 2, H // 2, H), torch.randn(B, H, dtype=dtype)
    parameters = {name: p.detach().to(dtype) for name, p in model.named_parameters() if "similarity" not in name}
    names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh", "key.weight", "key.bias", "gate.weight", "gate.bias")
    tensors = FEATURES**-0.25 * torch.randn(B, T, FEATURES, dtype=dtype), *(parameters[name] for name in names)

    def hoisted(z, *weights):
        w, S = similarity(z, norm=None, mask="strict", return_scores=True)
        return binding_recurrence(w, (w * torch.sigmoid(S)).sum(-1), weights)

    def loop(z, *weights):
        return esbn(z, weights, z.new_ones(()), z.new_zeros(()))

    def gradients(function, tensors, upstream):
        leaves = [x.detach().requires_grad_() for x in tensors]
        h = function(*leaves)
        return {"h": h.detach(), "gradient of z": torch.autograd.grad(h, leaves, upstream)[0]}

    read, h, key = (torch.randn(B, n, dtype=dtype) for n in (H // 2 + 1, H, H // 2))
    upstream_of_gates = torch.randn(B, 4 * H, dtype=dtype)
    W, W_k = torch.cat([tensors[1], tensors[2]], 1), tensors[5]

    def products():
        """T - 1 steps: the gates and the key, and the gradients of their inputs and weights."""
        joined = torch.cat([read, h], 1)
        for _ in range(T - 1):
            _ = joined @ W.T, upstream_of_gates @ W, upstream_of_gates.T @ joined
            _ = h @ W_k.T, key @ W_k, key.T @ h

    return Problem(
        calls={
            "forward+backward": {
                name: functools.partial(gradients, f, tensors, upstream)
                for name, f in {OURS: hoisted, "published": loop}.items()
            }
        },
        baselines={"forward+backward": products},
        naive=functools.partial(gradients, loop, tensors, upstream),
        truth=functools.partial(gradients, loop, doubled(tensors), upstream.double()),
    )


def cases(
    shapes: Sequence[tuple[int, ...]] = SHAPES, kinds: Sequence[str] = CASES, dtype: str = "float32"
) -> list[Case]:
    kept = getattr(torch, dtype)
    found = [
        Case(labels("similarity", "packed", "causal", s, dtype), functools.partial(problem_of, s, kept)) for s in shapes
    ]
    steps = [
        Case(labels("CoRelNet", "training step", "causal", s, dtype), functools.partial(problem_of_step, s, kept))
        for s in STEPS
    ]
    bindings = [
        Case(labels("binding_recurrence", "ESBN", "strict", s, dtype), functools.partial(problem_of_esbn, s, kept))
        for s in BINDINGS
    ]
    return [case for kind, own in zip(CASES, (found, steps, bindings), strict=True) if kind in kinds for case in own]


def main(argv: Sequence[str]) -> None:
    parser = family.arguments("Times similarity, a training step of CoRelNet, and ESBN.", family.WIDE)
    family.add_shapes(parser, "BxTxD", "five")
    parser.add_argument("--only", nargs="+", choices=CASES, default=CASES, help="what to measure")
    parser.add_argument("--processor-time", action="store_true", help="for one thread, on a busy machine")
    chosen, setup = family.begin(parser, argv, "similarity", name="similarity")
    if chosen.processor_time:
        if chosen.threads != 1:
            parser.error("--processor-time adds up the time of all threads: it needs --threads 1")
        harness.clock = time.process_time
    usual = QUICK_SHAPES if chosen.quick else SHAPES
    harness.run(cases(chosen.shapes or usual, chosen.only, chosen.dtype), *setup)


if __name__ == "__main__":
    main(sys.argv[1:])
