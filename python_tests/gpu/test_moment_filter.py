"""moment_filter on a GPU: its kernels in Triton's interpreter, and compiled ahead of time for three architectures."""

import re

import pytest
import torch

from python_tests.gpu import triton_interpreter
from python_tests.samples import FILTER_OPTIONS, filter_outputs_and_gradients, filter_sample
from python_tests.tiers import quick_where
from rnnkern import _extension
from rnnkern.ops import explain, moment_filter, triton_launch
from rnnkern.ops._scan import filter_triton
from rnnkern.ops._scan.moment_filter import EVERY

triton = pytest.importorskip("triton")

pytestmark = pytest.mark.skipif(not _extension.available, reason=f"no compiled part: {_extension.reason}")

NAMES = {torch.float32: "fp32", torch.float64: "fp64", torch.bfloat16: "bf16"}


def test_the_interpreter_finds_the_references_answers():
    triton_interpreter.check("moment_filter")


def test_the_operator_of_a_gpu_is_this_one():
    for name in ("moment_filter", "moment_filter_backward"):
        assert torch._C._dispatch_has_kernel_for_dispatch_key(f"rnnkern::{name}", "CUDA")


def compiled(name, dtype, arch, **flags):
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    kernel = getattr(filter_triton.kernels(), name)
    constants = {key: key.isupper() for key in kernel.arg_names if key.isupper() and key not in "TNC"}
    constants |= {"MU": 0.6, "S": 0.7, "BETA": 0.9, "EPS": 0.01, "EVERY": EVERY, "BLOCK": filter_triton.BLOCK} | flags
    constants |= {key: None for key, flag in (("offsets", "PACKED"), ("reset", "RESET")) if not constants[flag]}
    kinds = dict.fromkeys(("T", "N", "C"), "i32") | {"offsets": "*i64", "reset": "*u8"}
    kinds |= dict.fromkeys(("u", "y", "grad_y", "grad_u"), f"*{NAMES[dtype]}")
    wide = f"*{NAMES[torch.promote_types(dtype, torch.float32)]}"
    names = kernel.arg_names
    signature = {key: "constexpr" if key in constants else kinds.get(key, wide) for key in names}
    given = {(names.index(key),): value for key, value in constants.items()}
    multiples = [key for key, kind in signature.items() if kind.startswith("*") or key in ("N", "C")]
    multiples = {(names.index(key),): [["tt.divisibility", 16]] for key in multiples}  # as in a launch
    source, target = ASTSource(kernel, signature, given, multiples), GPUTarget("cuda", arch, 32)
    return triton.compile(source, target=target, options={"num_warps": 2} | triton_launch.OPTIONS)


@pytest.mark.parametrize(("dtype", "arch", "flags"), quick_where(lambda case: case[1] == 90, [
    (torch.float32, 90, {"PACKED": False}),
    (torch.bfloat16, 80, {"SQUARES": False}),
    (torch.float64, 100, {"SQUARES": False, "RESET": False, "FLIP": False}),
]), ids=str)  # fmt: skip
def test_kernels_compile_ahead_of_time(dtype, arch, flags):
    for name in ("forward", "backward"):
        made = compiled(name, dtype, arch, **flags)
        assert made.asm["cubin"]
        assert not re.search(r"\b(atom|red)\.", made.asm["ptx"])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_the_first_call_on_a_gpu():
    test_on_a_gpu("adam", (20, 3, 40), torch.float32)


@pytest.mark.proof
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("sizes", [(300, 3, 40), (50, 64, 1024)], ids=str)
@pytest.mark.parametrize("option", FILTER_OPTIONS)
def test_on_a_gpu(option, sizes, dtype):
    sample = filter_sample(*sizes, dtype=dtype, **FILTER_OPTIONS[option])
    wanted = filter_outputs_and_gradients(moment_filter, sample)
    lengths = sample.kwargs["batch_sizes"]
    kwargs = {key: y.cuda() if isinstance(y, torch.Tensor) else y for key, y in sample.kwargs.items()}
    there = type(sample)(*(None if y is None else y.cuda() for y in sample[:3]), kwargs | {"batch_sizes": lengths})
    assert explain(moment_filter, *there[:3], **there.kwargs).implementation == "triton"
    found = filter_outputs_and_gradients(moment_filter, there)
    bound = {torch.float32: 1e-5, torch.float64: 1e-13, torch.bfloat16: 1e-2}[dtype]
    for (name, x), again in zip(
        found.items(), filter_outputs_and_gradients(moment_filter, there).values(), strict=True
    ):
        error = x.cpu().double() - wanted[name].double()
        assert error.norm() <= bound * wanted[name].double().norm()
        assert torch.equal(x, again)
