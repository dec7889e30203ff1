"""gather_attention on a GPU: its kernels in Triton's interpreter, and compiled ahead of time for three
architectures."""

import pytest
import torch

from python_tests.gpu import triton_interpreter
from python_tests.gpu.graphs import captured
from python_tests.samples import gather_sample
from python_tests.tiers import quick_where
from rnnkern import _extension
from rnnkern.ops import explain, gather_attention, triton_launch
from rnnkern.ops._relevancy import gather_triton

triton = pytest.importorskip("triton")

pytestmark = pytest.mark.skipif(not _extension.available, reason=f"no compiled part: {_extension.reason}")


def test_the_interpreter_finds_the_references_answers():
    triton_interpreter.check("gather_attention")


def test_the_operator_of_a_gpu_is_this_one():
    for name in ("gather_attention", "gather_attention_backward"):
        assert torch._C._dispatch_has_kernel_for_dispatch_key(f"rnnkern::{name}", "CUDA")
    assert triton_launch.refusal(torch.device("cuda")) is None


CALLS = [
    (128, 20, torch.float32, 80), (128, 20, torch.float32, 90), (128, 20, torch.float32, 100),
    (40, 3, torch.float64, 80), (40, 3, torch.float64, 90), (40, 3, torch.float64, 100), (3000, 20, torch.float32, 90),
]  # fmt: skip


@pytest.mark.parametrize(("hidden", "slots", "dtype", "arch"), quick_where(lambda call: call == CALLS[1], CALLS))
def test_kernels_compile_ahead_of_time(hidden, slots, dtype, arch):
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    kernels = gather_triton.kernels()
    block_k, block_n = gather_triton._blocks(hidden, slots)
    constants = {
        "DOT": False, "ROWS": gather_triton.ROWS, "PIECE": gather_triton.PIECE, "BLOCK_K": block_k, "BLOCK_N": block_n,
        "BLOCK_P": gather_triton._blocks(hidden, gather_triton.PIECE)[0],
    }  # fmt: skip
    pointer = {torch.float32: "*fp32", torch.float64: "*fp64"}[dtype]
    kinds = dict.fromkeys(("T", "M", "K", "n", "share", "memories"), "i32") | {"idx": "*i32"}
    kinds |= dict.fromkeys(("order", "begins", "pieces", "firsts", "spares", "memory_of"), "*i64")
    for name in ("forward", "weigh", "backward_queries", "backward_memories", "add_pieces"):
        kernel = getattr(kernels, name)
        names = kernel.arg_names
        signature = {name: "constexpr" if name in constants else kinds.get(name, pointer) for name in names}
        given = {(names.index(name),): value for name, value in constants.items() if name in names}
        source, target = ASTSource(kernel, signature, given), GPUTarget("cuda", arch, 32)
        made = triton.compile(source, target=target, options={"num_warps": 4} | triton_launch.OPTIONS)
        assert made.asm["cubin"]
        assert "atom" not in made.asm["ptx"]
        assert "red.global" not in made.asm["ptx"]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_the_first_call_on_a_gpu():
    q, u, h, idx, v = gather_sample(2, 5, 7, 4, 9, dtype=torch.float64)
    results = []
    for device, dtype in (("cuda", torch.float32), ("cpu", torch.float64)):
        leaves = [x.to(device, dtype).requires_grad_() for x in (q, u, h, v)]
        out = gather_attention(*leaves[:3], idx.to(device), leaves[3])
        results.append((out, *torch.autograd.grad(out.sum(), leaves)))
    for found, wanted in zip(*results, strict=True):
        assert (found.cpu() - wanted).norm() <= 1e-5 * wanted.norm()


@pytest.mark.proof
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("sizes", [(2, 5, 7, 4, 9), (3, 300, 40, 20, 128), (2, 500, 3, 2, 33)], ids=str)
def test_on_a_gpu_and_in_a_cuda_graph(sizes, dtype):
    q, u, h, idx, v = (x.cuda() for x in gather_sample(*sizes, dtype=dtype))
    leaves = [x.requires_grad_() for x in (q, u, h, v)]
    assert explain(gather_attention, q, u, h, idx, v).implementation == "triton"

    def step():
        out = gather_attention(q, u, h, idx, v)
        return out.detach(), *torch.autograd.grad(out, leaves, torch.ones_like(out))

    found = step()
    on_a_cpu = [x.detach().cpu().double().requires_grad_() for x in leaves]
    q_, u_, h_, v_ = on_a_cpu
    out = gather_attention(q_, u_, h_, idx.cpu(), v_)
    wanted = out, *torch.autograd.grad(out, on_a_cpu, torch.ones_like(out))
    bound = {torch.float32: 1e-5, torch.float64: 1e-13}[dtype]
    for a, b in zip(found, wanted, strict=True):
        assert (a.cpu() - b).norm() <= bound * b.norm()
    graph, results = captured(step)
    graph.replay()
    for a, b, c in zip(results, found, step(), strict=True):
        assert torch.equal(a, b)
        assert torch.equal(b, c)
