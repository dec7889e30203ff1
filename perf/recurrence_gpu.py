"""Cases of the recurrence on a GPU: T = 1024, N = I = H, with the input projection.

Peers are cuDNN through torch.nn, in the same dtype and in float16. If torch.nn lacks the cell or heads, the peers are
the loop over T = 64 steps and ``torch.compile`` of it. For a dense R, the kernel of rnnkern that was not chosen is
measured too. ``perf.measure_gpu`` runs the cases.
"""

import functools
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import Module
from torch.nn.utils.rnn import PackedSequence

import rnnkern.nn
from perf import flashrnn_peer
from perf.harness import OURS, Case, NoKernel, Problem, Values, labels
from perf.providers import Layer, Provider, compiled, loop, of_module, weights_of
from perf.record import significant
from perf.recurrence import MODULES, draw_batch_sizes
from rnnkern import reference
from rnnkern.ops import explain

CELLS = ("lstm", "gru", "tanh", "modrelu")
KINKED = {"modrelu"}
"""Cells that are checked over ``SHORT_STEPS`` only: over many steps, some unit is on different sides of a kink in two
computations, and the comparison would depend on chance."""
BATCHES = (16, 64, 1)
SIZES = ((1, 256), (1, 512), (1, 768), (1, 1024), (12, 64), (24, 32))
"""(K, D): number of heads, and units per head."""
DTYPES = ("bfloat16", "float16", "float32")
BEST = "float16"
"""cuDNN's best dtype, in which it keeps the recurrent weights on the chip if it does so at all."""
RIVALS = ("cluster", "grid")
"""Kernels that keep the same R on the chip; if both can run, both are measured."""
STEPS, SHORT_STEPS = 1024, 64


class Spec(NamedTuple):
    """One case."""

    cell: str
    batch: int
    heads: int  # K
    width: int  # D
    dtype: str = "bfloat16"
    kind: str = "plain"  # plain, packed, two layers, two directions, short or flashrnn
    steps: int = STEPS

    @property
    def hidden(self) -> int:
        return self.heads * self.width

    @property
    def labels(self) -> dict[str, str]:
        heads = (self.heads,) if self.heads > 1 else ()
        case = self.kind if self.kind != "plain" else "heads" if heads else "dense"
        return labels("recurrence", case, self.cell, (self.steps, self.batch, *heads, self.width), self.dtype)

    @property
    def options(self) -> dict[str, Any]:
        """Options of the module."""
        return {
            "num_layers": 2 if self.kind == "two layers" else 1,
            "bidirectional": self.kind == "two directions",
        } | (MODULES[self.cell][2] if self.cell in MODULES else {"nonlinearity": self.cell})

    def small(self) -> "Spec":
        return self._replace(batch=3, heads=min(self.heads, 2), width=8, steps=6)


PLAIN = [
    Spec(cell, batch, *size, dtype) for batch in BATCHES for cell in CELLS for size in SIZES for dtype in DTYPES
]  # dtype varies fastest, because consecutive cases share one truth
VARIANTS = [Spec(cell, 16, 1, 768, kind=kind) for kind in ("packed", "two layers", "two directions") for cell in CELLS]
SHORT = [
    Spec("lstm", 16, 1, 768, "bfloat16", "short", SHORT_STEPS),
    Spec("lstm", 16, 12, 64, "bfloat16", "short", SHORT_STEPS),
    Spec("gru", 16, 1, 768, "float16", "short", SHORT_STEPS),
    Spec("modrelu", 16, 1, 768, "float32", "short", SHORT_STEPS),
]
"""Cases against the loop and ``torch.compile`` of it, which takes a minute for more steps."""
FLASHRNN = [Spec("lstm", 16, *size, kind="flashrnn") for size in ((1, 768), (12, 64), (24, 32))]
MEMORY = Spec("lstm", 16, 1, 768)
MEMORY_STEPS = (256, 512, 1024, 2048, 4096, 8192)
MEMORY_LOOP_STEPS = 1024


class Drawn(NamedTuple):
    """A case's weights and inputs in float32, with values that every dtype represents exactly."""

    module: Module
    x: Tensor  # (T, B, I) or packed
    grad_h: Tensor
    batch_sizes: Tensor | None

    def stack(self, module: Module, spec: Spec) -> list[list[Layer]]:
        """The parameters per layer and direction, for the loop."""
        cell, stack = reference.CELLS[spec.cell], []
        for k in range(module.num_layers):
            directions = []
            for suffix in (f"_l{k}", f"_l{k}_reverse")[: 2 if module.bidirectional else 1]:
                found = ((name, p) for name, p in module.named_parameters() if name.endswith(suffix))
                weights = {name.removesuffix(suffix): p for name, p in found}
                params = tuple(weights.pop(name) for name in cell.params)
                directions.append(Layer(spec.cell, spec.batch, self.batch_sizes, weights, params))
            stack.append(directions)
        return stack

    def naive(self, module: Module, spec: Spec) -> Provider:
        return Provider(functools.partial(network, self.stack(module, spec)), weights_of(module))


def draw(spec: Spec, device: torch.device, seed: int) -> Drawn:
    torch.manual_seed(seed)
    packed = spec.kind == "packed"
    batch_sizes = draw_batch_sizes(spec.steps, spec.batch) if packed else None
    rows = (int(batch_sizes.sum()),) if packed else (spec.steps, spec.batch)
    _, ours, _ = MODULES.get(spec.cell, (None, rnnkern.nn.RNN, None))
    module = ours(spec.hidden, spec.hidden, num_heads=spec.heads, device=device, **spec.options)
    columns = spec.hidden * (2 if module.bidirectional else 1)
    x, grad_h = (torch.randn(*rows, n, device=device) for n in (spec.hidden, columns))
    with torch.no_grad():
        for p in module.parameters():
            p.copy_(common(p))
    return Drawn(module, common(x), common(grad_h), batch_sizes)


def common(x: Tensor) -> Tensor:
    """Rounds to values that both bfloat16 and float16 represent exactly."""
    return x.bfloat16().half().float()


@functools.lru_cache(maxsize=1)
def truth(spec: Spec, device: torch.device, seed: int) -> Values:
    drawn = draw(spec, device, seed)
    x = drawn.x.double().requires_grad_()
    return drawn.naive(drawn.module.double(), spec).training(x, drawn.grad_h.double())


def network(stack: list[list[Layer]], x: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Loops over time, layer by layer; the second direction runs backwards in time."""
    finals = []
    for directions in stack:
        outputs = []
        for backwards, layer in enumerate(directions):
            h, final = loop(layer, x.flip(0) if backwards else x)
            outputs.append(h.flip(0) if backwards else h)
            finals.append(final)
        x = torch.cat(outputs, dim=-1) if len(outputs) > 1 else outputs[0]
    return x, tuple(torch.stack(states).squeeze(0) for states in zip(*finals, strict=True))


def kernel_of(module: Module, x: Tensor, batch_sizes: Tensor | None) -> str:
    """The reason in the result of :func:`rnnkern.ops.explain`, which names the kernel, without layer and direction.

    Raises:
        NoKernel: the reference would run.
    """
    choices = explain(module, x if batch_sizes is None else PackedSequence(x, batch_sizes))
    reasons = list(dict.fromkeys(re.sub("^layer [^:]*: ", "", choice.reason) for choice in choices))
    if any(choice.implementation == "reference" for choice in choices):
        raise NoKernel(f"there is no kernel to measure: {'; '.join(reasons)}")
    return "; ".join(reasons)


@contextmanager
def only(kernel: str) -> Iterator[None]:
    """Context manager that excludes all other CUDA kernels from the choice."""
    name = "RNNKERN_CUDA_KERNELS"
    before = os.environ.get(name)
    os.environ[name] = kernel
    try:
        yield
    finally:
        os.environ.pop(name)
        if before is not None:
            os.environ[name] = before


def alone(kernel: str, call: Callable[..., Values], *args: Tensor) -> Values:
    with only(kernel):
        return call(*args)


def rivals(kernel: str, module: Module, x: Tensor) -> dict[str, str]:
    """Kernels that could run the call but were not chosen, with their reasons."""
    found = {}
    for name in RIVALS:
        with only(name):
            said = kernel_of(module, x, None)
        if f": {name}, for" in said and said != kernel:
            found[name] = said
    return found


def peer(spec: Spec, drawn: Drawn, dtype: torch.dtype) -> Provider:
    """torch.nn's module, with the same weights if their shapes agree."""
    theirs, *_ = MODULES[spec.cell]
    module = theirs(spec.hidden, spec.hidden, device=drawn.x.device, dtype=dtype, **spec.options)
    if spec.heads == 1:
        module.load_state_dict(drawn.module.state_dict())
    return of_module(module, drawn.batch_sizes)


def build(spec: Spec, device: torch.device, rate: float, seed: int) -> Problem:
    """All providers of a case with the same weights and inputs; ``rate`` is the result of
    :func:`perf.harness.copy_rate`."""
    drawn, dtype, best = draw(spec, device, seed), getattr(torch, spec.dtype), getattr(torch, BEST)
    x = drawn.x.to(dtype)
    ours = drawn.module.to(dtype)
    kernel = kernel_of(ours, x, drawn.batch_sizes)
    naive = drawn.naive(ours, spec)
    like, unlike = {OURS: (of_module(ours, drawn.batch_sizes), dtype)}, {}
    others = rivals(kernel, ours, x) if spec.kind == "plain" and spec.heads == 1 else {}
    kernels = {OURS: kernel} | {f"{OURS}, {name}": said for name, said in others.items()}
    like |= dict.fromkeys(kernels, like[OURS])
    if spec.kind == "flashrnn":
        like |= {name: (provider, dtype) for name, provider in flashrnn_peer.providers(ours, spec.heads, x).items()}
    elif spec.cell in MODULES and spec.heads > 1:
        unlike["torch.nn dense"] = (peer(spec, drawn, dtype), dtype)
    elif spec.cell in MODULES:
        like["torch.nn"] = (peer(spec, drawn, dtype), dtype)
        if dtype != best:
            like[f"torch.nn {BEST}"] = (peer(spec, drawn, best), best)
    if spec.kind == "short":
        like |= {"loop": (naive, dtype), "torch.compile": (compiled(naive), dtype)}

    inputs = {d: (drawn.x.to(d).requires_grad_(), drawn.grad_h.to(d)) for _, d in [*like.values(), *unlike.values()]}

    def call_of(name: str, *call: Any) -> Callable[[], Values]:
        rival = name.partition(", ")[2] if name in kernels else ""
        return functools.partial(alone, rival, *call) if rival else functools.partial(*call)

    def calls(providers: dict[str, tuple[Provider, torch.dtype]]) -> dict[str, dict[str, Callable[[], Values]]]:
        return {
            "forward": {name: call_of(name, p.inference, inputs[d][0]) for name, (p, d) in providers.items()},
            "forward+backward": {name: call_of(name, p.training, *inputs[d]) for name, (p, d) in providers.items()},
        }

    once = x.nbytes + sum(p.nbytes for p in ours.parameters()) + drawn.grad_h.to(dtype).nbytes  # x, weights and h
    return Problem(
        calls=calls(like),
        baselines=products(spec, x, ours),
        naive=functools.partial(naive.training, *inputs[dtype]),
        truth=functools.partial(truth, spec._replace(dtype="float64"), device, seed),
        unlike=calls(unlike),
        moving={"forward": once / rate, "forward+backward": 2 * once / rate},  # the gradients of all three too
        columns=lambda provider: {
            "kernel": kernels.get(provider, ""),
            "copy_gb_s": significant(rate / 1e9),
        },
    )


def products(spec: Spec, x: Tensor, module: Module) -> dict[str, Callable[[], None]]:
    """The products with W and R, each for all steps at once, although each h depends on the previous one. The backward
    pass adds two products per weight."""
    rows, jobs = x.numel() // spec.hidden, []
    for name, weight in module.named_parameters():
        if "weight" not in name:
            continue
        w = weight.detach()
        lead, (outputs, inputs) = w.shape[:-2], w.shape[-2:]
        a, b = (torch.randn(*lead, rows, n, dtype=w.dtype, device=w.device) for n in (inputs, outputs))
        jobs.append((w, a, b, torch.empty_like(a), torch.empty_like(b), torch.empty_like(w)))

    def forward() -> None:
        for w, a, _, _, out, _ in jobs:
            torch.matmul(a, w.mT, out=out)

    def both() -> None:
        forward()
        for w, a, b, da, _, dw in jobs:
            torch.matmul(b, w, out=da)
            torch.matmul(b.mT, a, out=dw)

    return {"forward": forward, "forward+backward": both}


def case(spec: Spec, device: torch.device, rate: float) -> Case:
    def build_of(spec: Spec) -> Callable[[int], Problem]:
        return functools.partial(build, spec, device, rate)

    short = spec._replace(steps=min(spec.steps, SHORT_STEPS))
    proof = build_of(short) if spec.cell in KINKED and short != spec else None
    return Case(spec.labels, build_of(spec), proof)


def memory_providers(steps: int, small: bool, device: torch.device) -> tuple[Spec, dict[str, Callable[[], Values]]]:
    """Forward and backward of rnnkern, of torch.nn and, up to ``MEMORY_LOOP_STEPS``, of the loop."""
    spec = (MEMORY.small() if small else MEMORY)._replace(steps=steps)
    if device.type == "cpu":
        spec = spec._replace(dtype="float32")
    drawn, dtype = draw(spec, device, 0), getattr(torch, spec.dtype)
    x, grad_h = drawn.x.to(dtype).requires_grad_(), drawn.grad_h.to(dtype)
    ours = drawn.module.to(dtype)
    kernel_of(ours, x, None)
    providers = {OURS: of_module(ours, None), "torch.nn": peer(spec, drawn, dtype)}
    if steps <= MEMORY_LOOP_STEPS:
        providers["loop"] = drawn.naive(ours, spec)
    return spec, {name: functools.partial(p.training, x, grad_h) for name, p in providers.items()}
