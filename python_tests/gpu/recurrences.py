"""The CUDA kernels of the recurrence as a function for tests: on a GPU, or on the interpreter with CPU tensors."""

import json
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest
import torch
import torch.nn.functional as F

from python_tests.gpu import builder, drivers
from python_tests.samples import Sample, check_recurrence, outputs_and_gradients
from python_tests.samples.rounded import RoundedProducts, to_tf32
from rnnkern import _extension, ops, reference
from rnnkern.ops import Choice
from rnnkern.reference import _noise as noise
from rnnkern.reference._recurrence import product_of
from rnnkern.testing import assert_close

KERNELS = tuple(
    f"kernels.cpp -DRNNKERN_KERNELS_OF={dtype}"
    for dtype in ("float", "device::bfloat16", "device::float16", "device::tfloat32", "double")
)
DRIVERS = ("plan.cpp", "forward.cpp", "backward.cpp")
FAMILY = drivers.Family(
    "recurrence",
    (*(f"csrc/recurrence/cuda/{name}" for name in (*KERNELS, *DRIVERS)), "csrc/recurrence/registered.cpp"),
    ("recurrence", "recurrence_backward", "recurrence_plan"),
)
FACTS = {
    "block": (9, 0, 1, 232448),
    "cluster": (9, 0, 1, 232448, 4, 2),
    "cluster_tf32": (9, 0, 1, 232448, 4, 2),
    "grid": (9, 0, 5, 232448),
    "stepwise": (7, 5, 1, 65536),
}
"""Device facts for the interpreter, for each kernel."""
FACE = sys.modules["rnnkern.ops._recurrence.recurrence"]
DERIVATIVES = sys.modules["rnnkern.ops._recurrence.autograd"]


def lacks(name: str) -> str:
    """What this machine lacks for running the recurrence's kernels on a backend; empty if nothing."""
    if not _extension.available:
        return _extension.reason
    if name == "interpret":
        return "" if shutil.which(builder.compiler()[0]) else "no C++ compiler"
    if not torch.cuda.is_available():
        return "no GPU"
    return _extension.cuda_refusal(torch.device("cuda", torch.cuda.current_device())) or ""


class Place(drivers.Place):
    """``rnnkern.ops.recurrence`` by its CUDA drivers, inside :func:`routed`."""

    def __init__(self, name: str, kernel: str, operators=None):
        super().__init__(name, FAMILY, FACTS[kernel], operators)
        self.kernel = kernel

    def set_facts(self, *facts: int) -> None:
        super().set_facts(*facts)
        self.facts = facts
        if self.name == "cuda":
            self.facts = _extension.device_facts(torch.device("cuda", torch.cuda.current_device()))

    def __call__(self, *args, **kwargs):
        if kwargs.get("save_gates") is None:
            kwargs["save_gates"] = None if self.name == "cuda" else False
        return ops.recurrence(*args, **kwargs)

    def plan(self, cell, dtype, steps, batch, hidden, heads=1, noisy=False) -> dict:
        tf32 = _extension.allows_tf32()
        return plan(cell, dtype, (steps, batch, hidden, heads), self.facts, noisy, tf32, self.operators)

    def sample(self, sample: Sample) -> Sample:
        """The sample on this device, with new leaves."""
        return moved(sample, self.device)


@contextmanager
def routed(place: Place) -> Iterator[Place]:
    """Context manager in which the public function calls the operators of ``place``, which use its kernel for every
    call that the kernel supports; TF32 is disabled for all others than cluster_tf32."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.backends.cudnn, "allow_tf32", False)
        if place.kernel == "cluster_tf32":  # for recurrent layers alone
            patch.setattr(torch.backends.cudnn.rnn, "fp32_precision", "tf32")
        patch.setenv("RNNKERN_CUDA_KERNELS", place.kernel.removesuffix("_tf32"))
        if place.name == "interpret":
            for module in (FACE, DERIVATIVES):
                patch.setattr(module, "_operators", place.operators)
            patch.setattr(FACE, "_choose", lambda *_: Choice("cuda", "the cuda kernel serves this call"))
            patch.setattr(_extension, "device_facts", lambda device: place.facts)
        yield place


def plan(
    cell: str,
    dtype: torch.dtype,
    sizes: tuple[int, ...],
    facts: tuple[int, ...],
    noisy: bool = False,
    tf32: bool = False,
    operators=None,
) -> dict:
    asked = (operators or torch.ops.rnnkern).recurrence_plan
    return json.loads(asked(cell, str(dtype).removeprefix("torch."), sizes, facts, noisy, tf32))


def moved(sample: Sample, device: str) -> Sample:
    def move(x):
        if isinstance(x, (tuple, list)):
            return tuple(map(move, x))
        if not isinstance(x, torch.Tensor):
            return x
        return x.detach().to(device).requires_grad_(x.requires_grad)

    kwargs = {key: x if key == "batch_sizes" else move(x) for key, x in sample.kwargs.items()}
    return Sample(sample.name, move(sample.args), kwargs)


def check(place: Place, samples: Sequence[Sample], kernel: str = "", **options) -> None:
    """Compares calls with the reference, in TF32 with one whose products round like tensor cores, and checks which
    kernel ran: that of ``place`` unless another is named."""
    samples = [place.sample(off_kinks(sample)) for sample in samples]

    def op(*args, **kwargs):
        return place(*args, **kwargs, **options)

    compare = rounds_like_tensor_cores if place.kernel == "cluster_tf32" else check_recurrence
    entered = place.entered(lambda: compare(op, samples))
    name = f"{samples[0].name}/{kernel or place.kernel}"
    assert entered == {f"recurrence/cuda/{way}/{name}": len(samples) for way in ("forward", "backward")}


def rounds_like_tensor_cores(op, samples: Sequence[Sample]) -> None:
    """Uses the factor for 16-bit dtypes; also checks that the results are less accurate than exact products."""
    for sample in samples:
        results = outputs_and_gradients(op, sample)
        with RoundedProducts(to_tf32):
            naive = outputs_and_gradients(reference.recurrence, sample)
        exact = outputs_and_gradients(reference.recurrence, sample)
        truth = outputs_and_gradients(reference.recurrence, sample.to(torch.float64))
        for name, result in results.items():
            assert_close(result, naive[name], truth[name], f"{sample.name}: {name}", factor=2.0)
        with pytest.raises(AssertionError, match="exceeds"):
            assert_close(results["h"], exact["h"], truth["h"])


# ---- cells with a kink

MARGIN = 0.25


def off_elman(kink):
    """Moves u such that |z| is not within a margin of kink(*params), where z = u + r."""

    def move(margin, u, r, *params):
        z, at = u + r, kink(*params)
        near = (z.abs() - at).abs() < margin
        return torch.where(near, z.sign() * (at + margin), z) - r

    return move


def of_modrelu(bias):
    return (-bias).clamp_min(0)


def off_goru(margin, u, r, bias):
    gate, candidate = (x.chunk(3, -1) for x in (u, r))
    damped = torch.sigmoid(gate[0] + candidate[0]) * candidate[2]
    return torch.cat([*gate[:2], off_elman(of_modrelu)(margin, gate[2], damped, bias)], -1)


def off_complex_modrelu(margin, u, r, bias):
    z = u + r
    length, at = torch.hypot(*z.chunk(2, -1)), of_modrelu(bias)
    scale = torch.where((length - at).abs() < margin, (at + margin) / length, 1)
    return z * scale.repeat(1, 2) - r


KINKS = {
    "relu": off_elman(lambda: 0.0),
    "hardtanh": off_elman(lambda: 1.0),
    "modrelu": off_elman(of_modrelu),
    "goru": off_goru,
    "complex_modrelu": off_complex_modrelu,
}


def off_kinks(sample: Sample, margin: float = MARGIN) -> Sample:
    """The sample with u moved if an argument of the nonlinearity is within a margin of a kink. Rounding errors, which
    are smaller, then never decide the side of a kink. Samples of other cells are unchanged."""
    cell, u, R, state = sample.args
    if cell not in KINKS:
        return sample
    kwargs = {key: sample.to(torch.float64, False).kwargs[key] for key in ("bias", "params")}
    _, wide, matrix, (h0,) = sample.to(torch.float64, False).args
    sizes, reset = sample.kwargs["batch_sizes"], sample.kwargs.get("reset")
    rates, dropout, seed, keep = sample.noise()
    zoneout = rates[0] if rates else 0.0
    sizes = [u.shape[1]] * u.shape[0] if sizes is None else sizes.tolist()
    kept = noise.dropout_mask(seed, dropout, h0) if dropout and seed is not None else None
    product = product_of(matrix, kwargs["bias"], reference.CELLS[cell].gates, None, kept)
    wide = wide.contiguous()
    rows = list(wide.flatten(0, -2).split(sizes))  # views
    for t in reversed(range(len(sizes))) if sample.kwargs["reverse"] else range(len(sizes)):
        h = h0[: sizes[t]] if reset is None else h0[: sizes[t]].masked_fill(reset[t, : sizes[t], None], 0)
        rows[t].copy_(KINKS[cell](margin, rows[t], product(h), *kwargs["params"]))
        new = reference.recurrence(cell, rows[t][None], matrix, (h,), **kwargs, dropout=dropout, seed=seed)[1][0]
        if keep is not None:
            new = noise.mixed(noise.of_step(keep, t, sizes[t]).double(), h, new)
        h0[: sizes[t]] = noise.zoned(seed, zoneout, t, 0, h, new)
    return sample._replace(args=(cell, wide.to(u.dtype).requires_grad_(u.requires_grad), R, state))


def smooth(sample: Sample) -> Sample:
    """The sample with its input scaled until finite differences cross no kink, also if the call projects the input."""
    cell, x, *rest = sample.args
    projection = {name: sample.kwargs.get(name) for name in ("weight_ih", "bias_ih")}
    u = x if projection["weight_ih"] is None else F.linear(x, *projection.values())
    projected = Sample(sample.name, (cell, u, *rest), sample.kwargs | dict.fromkeys(projection))
    if torch.allclose(off_kinks(projected, 1e-4).args[1], u, rtol=0, atol=1e-9):
        return sample
    return smooth(sample._replace(args=(cell, 1.01 * x, *rest)))
