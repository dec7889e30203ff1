"""similarity on a GPU: its kernels in Triton's interpreter, and compiled ahead of time for three architectures."""

import re

import pytest
import torch

from python_tests.gpu import triton_interpreter
from python_tests.gpu.graphs import captured
from python_tests.samples import similarity_outputs_and_gradients, similarity_sample
from rnnkern import _extension
from rnnkern.ops import similarity, triton_launch
from rnnkern.ops._relational import similarity_triton

triton = pytest.importorskip("triton")

pytestmark = pytest.mark.skipif(not _extension.available, reason=f"no compiled part: {_extension.reason}")


def test_the_interpreter_finds_the_references_answers():
    triton_interpreter.check("similarity")


def test_the_operator_of_a_gpu_is_this_one():
    for name in ("similarity", "similarity_backward"):
        assert torch._C._dispatch_has_kernel_for_dispatch_key(f"rnnkern::{name}", "CUDA")
    assert similarity_triton.refusal(128) is None
    assert similarity_triton.refusal(129) == "more than 128 objects, here 129, do not fit into a program's registers"


CALLS = [(9, torch.float32, 90), (9, torch.float32, 80), (9, torch.float32, 100), (9, torch.float64, 90),
         (64, torch.float32, 90), (128, torch.float32, 90)]  # fmt: skip


@pytest.mark.proof
@pytest.mark.parametrize(("objects", "dtype", "arch"), CALLS)
def test_kernels_compile_ahead_of_time(objects, dtype, arch):
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    kernels = similarity_triton.kernels()
    block_t, block_d, warps = similarity_triton.blocks(objects)
    flags = ("PACKED", "TWO", "HAS_WEIGHT", "HAS_VALUES", "HAS_LENGTHS", "HAS_R", "HAS_S", "HAS_P", "SCORES")
    constants = dict.fromkeys(flags, True) | {
        "SCALE": 1.0, "EPS": 1e-8, "CORRECTION": 1, "MASK": "causal", "TINY": torch.finfo(dtype).tiny,
        "BLOCK_T": block_t, "BLOCK_D": block_d,
    }  # fmt: skip
    pointer = {torch.float32: "*fp32", torch.float64: "*fp64"}[dtype]
    kinds = dict.fromkeys(("T", "d", "e", "segments", "share"), "i32")
    kinds |= {"lengths": "*i64", "starts": "*i32"}
    for name in ("forward", "backward"):
        kernel = getattr(kernels, name)
        names = kernel.arg_names
        signature = {name: "constexpr" if name in constants else kinds.get(name, pointer) for name in names}
        given = {(names.index(name),): value for name, value in constants.items() if name in names}
        source, target = ASTSource(kernel, signature, given), GPUTarget("cuda", arch, 32)
        made = triton.compile(source, target=target, options={"num_warps": warps} | triton_launch.OPTIONS)
        assert made.asm["cubin"]
        assert not re.search(r"\b(atom|red)\.", made.asm["ptx"])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_the_first_call_on_a_gpu():
    call = similarity_sample(5, 9, 128, values=3, two=True)
    wanted = similarity_outputs_and_gradients(similarity, call)
    tensors = {name: t.float().cuda() for name, t in call.tensors.items()}
    found = similarity_outputs_and_gradients(similarity, call._replace(tensors=tensors))
    for name, t in wanted.items():
        assert (found[name].cpu() - t).norm() <= 1e-5 * t.norm()


@pytest.mark.proof
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("objects", [1, 9, 17, 64, 128])
def test_on_a_gpu_and_in_a_cuda_graph(objects, dtype):
    call = similarity_sample(33, objects, 100, dtype=dtype, packed=True)
    x = call.tensors["x"].cuda().requires_grad_()

    def step():
        R = similarity(x, packed=True)
        return R.detach(), *torch.autograd.grad(R, x, torch.ones_like(R))

    found = step()
    on_cpu = x.detach().cpu().double().requires_grad_()
    R = similarity(on_cpu, packed=True)
    bound = {torch.float32: 1e-4, torch.float64: 1e-12}[dtype]
    for a, b in zip(found, (R, *torch.autograd.grad(R, on_cpu, torch.ones_like(R))), strict=True):
        assert (a.cpu() - b).norm() <= bound * max(b.norm().item(), 1.0)
    graph, results = captured(step)
    graph.replay()
    for a, b in zip(results, found, strict=True):
        assert torch.equal(a, b)
