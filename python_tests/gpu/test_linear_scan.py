"""linear_scan on a GPU: its kernels in Triton's interpreter, and compiled ahead of time for three architectures."""

import re

import pytest
import torch

from python_tests.gpu import triton_interpreter
from python_tests.samples import SCAN_OPTIONS, scan_outputs_and_gradients, scan_sample
from python_tests.tiers import quick_where
from rnnkern import _extension
from rnnkern.ops import explain, linear_scan, triton_launch
from rnnkern.ops._scan import scan_triton
from rnnkern.testing import as_reals

triton = pytest.importorskip("triton")

pytestmark = pytest.mark.skipif(not _extension.available, reason=f"no compiled part: {_extension.reason}")

FLAGS = ("COMPLEX", "PACKED", "RESET", "PER_STEP", "FLIP")
OTHERS = ("HAS_H0", "HAS_X", "HAS_INITIAL", "HAS_GRAD", "HAS_LAST", "NEEDS_A", "SEQUENCE")
NAMES = {torch.float32: "fp32", torch.float64: "fp64", torch.bfloat16: "bf16"}


@pytest.mark.parametrize("only", ["nothing or small_factors or overflows", pytest.param("", marks=pytest.mark.proof)])
def test_the_interpreter_finds_the_references_answers(only):
    triton_interpreter.check("linear_scan", only)


def test_the_operator_of_a_gpu_is_this_one():
    for name in ("linear_scan", "linear_scan_backward"):
        assert torch._C._dispatch_has_kernel_for_dispatch_key(f"rnnkern::{name}", "CUDA")


@pytest.mark.parametrize(("columns", "steps", "chunks"), [
    (64 * 1024, 4096, 1), (16 * 128, 4096, 64), (1, 1 << 20, 1024), (128, 8, 1), (1, 0, 1), (40, 17, 2),
])  # fmt: skip
def test_few_columns_are_cut_in_time(columns, steps, chunks):
    plan = scan_triton.plan(columns, steps, 4)
    assert plan.chunks == chunks
    assert plan.length * plan.chunks >= steps
    assert plan.length * (plan.chunks - 1) < max(steps, 1)


def compiled(name, dtype, arch, flags, stages=scan_triton.STAGES):
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    kernel = getattr(scan_triton.kernels(), name)
    block = scan_triton.plan(4096, 100, dtype.itemsize).block
    constants = dict.fromkeys(FLAGS, False) | dict.fromkeys(OTHERS, True) | {"BLOCK": block, "STAGES": stages}
    constants |= {"BACKWARD": True} | flags
    constants |= {key: None for key, flag in (("offsets", "PACKED"), ("reset", "RESET")) if not constants[flag]}
    kinds = dict.fromkeys(("T", "N", "C", "length", "chunks"), "i32") | {"offsets": "*i64", "reset": "*u8"}
    kinds |= {"cuts": "*i8"}
    if dtype.itemsize < 4:
        kinds |= dict.fromkeys(("products", "ends", "begins"), "*fp32")
    names = kernel.arg_names
    signature = {key: "constexpr" if key in constants else kinds.get(key, f"*{NAMES[dtype]}") for key in names}
    given = {(names.index(key),): value for key, value in constants.items() if key in names}
    wide = [key for key, kind in signature.items() if kind.startswith("*") or key in ("N", "C")]
    multiples = {(names.index(key),): [["tt.divisibility", 16]] for key in wide}  # as in a launch
    source, target = ASTSource(kernel, signature, given, multiples), GPUTarget("cuda", arch, 32)
    return triton.compile(source, target=target, options={"num_warps": 4} | triton_launch.OPTIONS)


@pytest.mark.parametrize("arch", quick_where(lambda arch: arch == 90, [80, 90, 100]))
@pytest.mark.parametrize(("dtype", "flags"), quick_where(lambda case: case == (torch.float32, ()), [
    (torch.float32, ()), (torch.bfloat16, ("PER_STEP",)), (torch.float32, ("COMPLEX", "PACKED", "RESET", "FLIP")),
    (torch.float64, ("COMPLEX", "PER_STEP", "PACKED", "RESET")),
]))  # fmt: skip
def test_kernels_compile_ahead_of_time(dtype, flags, arch):
    for name in ("scan", "summarise", "carry", "backward"):
        made = compiled(name, dtype, arch, dict.fromkeys(flags, True))
        assert made.asm["cubin"]
        assert not re.search(r"\b(atom|red)\.", made.asm["ptx"])


@pytest.mark.parametrize("dtype", quick_where(lambda dtype: dtype == torch.float32, [torch.float32, torch.bfloat16]))
@pytest.mark.parametrize("name", ["scan", "summarise", "backward"])
def test_steps_are_read_ahead(name, dtype):
    assert "cp.async" in compiled(name, dtype, 90, {"PER_STEP": True}).asm["ptx"]
    assert "cp.async" not in compiled(name, dtype, 90, {"PER_STEP": True}, stages=1).asm["ptx"]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_the_first_call_on_a_gpu():
    test_on_a_gpu("reset", (20, 3, 40), torch.float32)


@pytest.mark.proof
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64])
@pytest.mark.parametrize("sizes", [(300, 3, 40), (50, 64, 1024), (5000, 1, 3)], ids=str)
@pytest.mark.parametrize("option", SCAN_OPTIONS)
def test_on_a_gpu(option, sizes, dtype):
    sample = scan_sample(*sizes, dtype=dtype, **SCAN_OPTIONS[option])
    wanted = scan_outputs_and_gradients(linear_scan, sample.to(torch.float64))
    lengths = sample.kwargs["batch_sizes"]
    kwargs = {key: y.cuda() if isinstance(y, torch.Tensor) else y for key, y in sample.kwargs.items()}
    there = type(sample)(*(None if y is None else y.cuda() for y in sample[:3]), kwargs | {"batch_sizes": lengths})
    assert explain(linear_scan, *there[:3], **there.kwargs).implementation == "triton"
    found = scan_outputs_and_gradients(linear_scan, there)
    for (name, x), again in zip(found.items(), scan_outputs_and_gradients(linear_scan, there).values(), strict=True):
        bound = 1e-5 if dtype.itemsize == 4 or dtype == torch.complex64 else 1e-13
        error = as_reals(x).cpu().double() - as_reals(wanted[name])
        assert error.norm() <= bound * as_reals(wanted[name]).norm()
        assert torch.equal(x, again)
