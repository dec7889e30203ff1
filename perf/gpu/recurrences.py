"""The recurrence on a GPU: calls that are compared with the reference, and layers that are timed against cuDNN."""

import functools
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import Module

import rnnkern.nn
from perf.harness import OURS, Case, NoKernel, Problem, Values, labels
from perf.providers import Layer, Provider, loop, of_function, of_module, weights_of
from perf.record import significant
from perf.recurrence import MODULES
from python_tests.gpu.recurrences import moved
from python_tests.samples import Sample, outputs_and_gradients, recurrence_sample
from python_tests.samples.rounded import RoundedProducts, to_tf32
from rnnkern import ops, reference
from rnnkern.ops import explain

PRECISIONS = ("float32", "tf32", "bfloat16", "float16")
SHAPES = ((16, 256), (16, 512), (16, 768), (16, 1024), (64, 512), (1, 512))
"""(B, H) of the timed layers, which have as many inputs as units."""
STEPS, PROOF_STEPS = 1024, 64
"""Timed steps, and those of the check that comes before; longer sequences have checks of their own."""
CELLS = ("lstm", "gru", "tanh")
OWN_CELLS = {"own lstm": ("lstm", lambda: rnnkern.cells.lstm())}
"""Cells of rnnkern.cell, with the layer of torch.nn that computes the same."""
RIVALS = ("cluster", "grid")
"""Kernels that keep the same R on the chip; if both can run, both are measured."""


def dtype_of(precision: str) -> torch.dtype:
    return torch.float32 if precision == "tf32" else getattr(torch, precision)


@contextmanager
def tf32(allowed: bool) -> Iterator[None]:
    """Context manager that allows TF32 to all products of PyTorch and rnnkern, or to none."""
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = allowed
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


@contextmanager
def only(kernel: str) -> Iterator[None]:
    """Context manager that excludes all CUDA kernels but this one and the stepwise one; an empty name excludes none."""
    name = "RNNKERN_CUDA_KERNELS"
    before = os.environ.pop(name, None)
    if kernel:
        os.environ[name] = kernel
    try:
        yield
    finally:
        os.environ.pop(name, None)
        if before is not None:
            os.environ[name] = before


def rounded(precision: str, naive: Callable[[], Values]) -> Callable[[], Values]:
    """Rounds the factors of all products if the precision is TF32, because cuBLAS uses TF32 for some sizes only."""

    def run() -> Values:
        with RoundedProducts(to_tf32):
            return naive()

    return run if precision == "tf32" else naive


# ---- calls that are compared with the reference


def call(cell: str, precision: str, sizes: tuple[int, int, int], device: torch.device, seed: int, **options) -> Problem:
    """A call of the operator with random arguments; ``sizes`` are T, B and H, ``options`` those of
    :func:`python_tests.samples.recurrence_sample`."""
    torch.manual_seed(seed)
    drawn = recurrence_sample(cell, *sizes, requires_grad=True, dtype=dtype_of(precision), **options)
    sample = moved(drawn, device.type)

    def both(op: Callable, dtype: torch.dtype) -> Values:
        return outputs_and_gradients(op, sample.to(dtype))

    return Problem(
        calls={
            "forward": {OURS: functools.partial(outputs, sample)},
            "forward+backward": {OURS: functools.partial(both, ops.recurrence, dtype_of(precision))},
        },
        baselines={},
        naive=rounded(precision, functools.partial(both, reference.recurrence, dtype_of(precision))),
        truth=functools.partial(both, reference.recurrence, torch.float64),
    )


def outputs(sample: Sample) -> Values:
    with torch.no_grad():
        h, state = ops.recurrence(*sample.args, **sample.kwargs)
    return {"h": h, **{f"final state[{k}]": s for k, s in enumerate(state)}}


# ---- timed layers


class Spec(NamedTuple):
    """A layer and its input, (T, B, H)."""

    cell: str
    batch: int
    hidden: int
    precision: str
    steps: int = STEPS

    @property
    def labels(self) -> dict[str, str]:
        return labels("recurrence", "dense", self.cell, (self.steps, self.batch, self.hidden), self.precision)

    def modules(self, device: torch.device) -> tuple[Module, Module]:
        """The layer of rnnkern and that of torch.nn, with the same weights."""
        name, own = OWN_CELLS.get(self.cell, (self.cell, None))
        theirs, ours, options = MODULES[name]
        sizes, where = (self.hidden, self.hidden), {"device": device, "dtype": dtype_of(self.precision)}
        peer = theirs(*sizes, **options, **where)
        module = rnnkern.nn.Recurrent(own(), *sizes, **where) if own else ours(*sizes, **options, **where)
        module.load_state_dict(peer.state_dict())
        return module, peer


SPECS = [Spec(cell, *shape, precision) for shape in SHAPES for cell in CELLS for precision in PRECISIONS]
OWN = [Spec(cell, *SHAPES[1], precision) for cell in OWN_CELLS for precision in ("float32", "bfloat16")]


def kernel_of(module: Module, x: Tensor) -> str:
    """The reason in the result of :func:`rnnkern.ops.explain`, which names the kernel.

    Raises:
        NoKernel: the reference would run.
    """
    (choice,) = explain(module, x)
    if choice.implementation == "reference":
        raise NoKernel(f"there is no kernel to measure: {choice.reason}")
    return choice.reason.partition(";")[0]  # without what is compiled already


def rivals(kernel: str, module: Module, x: Tensor) -> dict[str, str]:
    """Kernels that could run the call but were not chosen, with their reasons."""
    found = {}
    for name in RIVALS:
        with only(name):
            said = kernel_of(module, x)
        if re.search(rf": {name}\w*, for", said) and said != kernel:
            found[name] = said
    return found


def build(spec: Spec, device: torch.device, rate: float, seed: int) -> Problem:
    """All providers of a layer; ``rate`` is the result of :func:`perf.harness.copy_rate`."""
    torch.manual_seed(seed)
    ours, theirs = spec.modules(device)
    cell, _ = OWN_CELLS.get(spec.cell, (spec.cell, None))
    x, grad_h = (torch.randn(spec.steps, spec.batch, spec.hidden, device=device).to(dtype_of(spec.precision))
                 for _ in range(2))  # fmt: skip
    x.requires_grad_()
    kernel = kernel_of(ours, x)
    kernels = {OURS: kernel} | {f"{OURS}, {name}": said for name, said in rivals(kernel, ours, x).items()}
    layer = Layer(cell, spec.batch, None, weights_of(theirs), ())
    naive, exact = (of_function(loop, layer.map(lambda w, d=d: w.detach().to(d).requires_grad_()))
                    for d in (x.dtype, torch.float64))  # fmt: skip
    providers = dict.fromkeys(kernels, of_module(ours, None)) | {"torch.nn": of_module(theirs, None)}

    def run(name: str, function: Callable[..., Values], *args: Tensor) -> Values:
        with only(name.partition(", ")[2]):
            return function(*args)

    def calls(of: Callable[[Provider], Callable], *args: Tensor) -> dict[str, Callable[[], Values]]:
        return {name: functools.partial(run, name, of(p), *args) for name, p in providers.items()}

    once = 2 * x.nbytes + sum(p.nbytes for p in ours.parameters())  # x, h and weights
    return Problem(
        calls={
            "forward": calls(lambda p: p.inference, x),
            "forward+backward": calls(lambda p: p.training, x, grad_h),
        },
        baselines=products(x, ours),
        naive=rounded(spec.precision, functools.partial(naive.training, x, grad_h)),
        truth=lambda: exact.training(x.detach().double().requires_grad_(), grad_h.double()),
        moving={"forward": once / rate, "forward+backward": 2 * once / rate},
        columns=lambda provider: {"kernel": kernels.get(provider, ""), "copy_gb_s": significant(rate / 1e9)},
    )


def products(x: Tensor, module: Module) -> dict[str, Callable[[], None]]:
    """The products with W and R, each for all steps at once, although each h depends on the previous one. The backward
    pass adds two products per weight."""
    jobs = []
    for name, weight in module.named_parameters():
        if "weight" in name:
            w, a = weight.detach(), x.detach().flatten(0, 1)
            b = a.new_empty(len(a), len(w)).normal_()
            jobs.append((w, a, b, torch.empty_like(b), torch.empty_like(a), torch.empty_like(w)))

    def forward() -> None:
        for w, a, _, out, _, _ in jobs:
            torch.matmul(a, w.mT, out=out)

    def both() -> None:
        forward()
        for w, a, b, _, da, dw in jobs:
            torch.matmul(b, w, out=da)
            torch.matmul(b.mT, a, out=dw)

    return {"forward": forward, "forward+backward": both}


def case(spec: Spec, device: torch.device, rate: float) -> Case:
    timed, proof = (functools.partial(build, each, device, rate) for each in (spec, spec._replace(steps=PROOF_STEPS)))
    return Case(spec.labels, timed, proof)
