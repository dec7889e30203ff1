"""skew_exp's way on a GPU: its kernels in Triton's interpreter, and compiled ahead of time for three architectures."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from python_tests.ops.orthogonal_oracle import Spectrum
from rnnkern import _extension
from rnnkern.ops import orthogonal_triton, skew_exp

triton = pytest.importorskip("triton")

pytestmark = pytest.mark.skipif(not _extension.available, reason=f"no compiled part: {_extension.reason}")


def test_the_interpreter_finds_the_eigenvalues_answers():
    file = Path(__file__).with_name("interpreted_skew_exp.py")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(file)],
        cwd=file.parents[2], env={**os.environ, "TRITON_INTERPRET": "1"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:]


def test_the_norm_is_never_far_below_what_it_is():
    for size in (65, 100, 200):
        lower = torch.randn(3, size, size, dtype=torch.float64).tril(-1)
        lower[1] *= torch.arange(size) == 0  # two eigenvalues alone
        S = lower - lower.mT
        found, truth = orthogonal_triton._norm(S @ S), torch.linalg.matrix_norm(S, 2)
        assert ((0.95 * truth <= found) & (found <= 1.06 * truth)).all()


def test_the_operator_of_a_gpu_is_this_one():
    """As many squarings as the largest norm wants; and the dispatcher's table has it."""
    for dtype in (torch.float32, torch.float64):
        _, limits, _, most = orthogonal_triton.scheme(dtype)
        assert limits[1] * 2 ** (most - 1) < 1050 * orthogonal_triton.MARGIN <= limits[1] * 2**most
    for name in ("skew_exp", "skew_exp_backward"):
        assert torch._C._dispatch_has_kernel_for_dispatch_key(f"rnnkern::{name}", "CUDA")


@pytest.mark.parametrize("arch", [80, 90, 100])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_kernels_compile_ahead_of_time(dtype, arch):
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    kernels = orthogonal_triton.kernels()
    coefficients, limits, places, most = orthogonal_triton.scheme(dtype)
    constants = {
        "BLOCK": 16, "KEPT": orthogonal_triton.KEPT[dtype], "TRAINING": True, "MINUS_IDENTITY": False,
        "C": coefficients, "LIMITS": limits, "SCHEMES": places, "MARGIN": 1.05, "MOST": most, "FLIP_LEFT": True,
        "FLIP_RIGHT": False, "TIMES": 2, "MORE": True, "DEPTH": 16,
    }  # fmt: skip
    for kernel in (kernels.small_forward, kernels.small_backward, kernels.product_if):
        names = kernel.arg_names
        pointer = {torch.float32: "*fp32", torch.float64: "*fp64"}[dtype]
        kinds = {"n": "i32", "k": "i32", "plan": "*i64"}
        signature = {name: "constexpr" if name in constants else kinds.get(name, pointer) for name in names}
        given = {(names.index(name),): value for name, value in constants.items() if name in names}
        source, target = ASTSource(kernel, signature, given), GPUTarget("cuda", arch, 32)
        made = triton.compile(source, target=target, options=orthogonal_triton.OPTIONS)
        assert made.asm["cubin"]
        assert "tf32" not in made.asm["ptx"]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("size", [2, 16, 64, 100, 600])
def test_on_a_gpu_and_in_a_cuda_graph(size):
    spectrum = Spectrum(size)
    factors = [spectrum.factor(rho) for rho in (1e-3, 1.0, 8.0)]
    A = torch.stack([c * spectrum.matrix for c in factors]).float().cuda().requires_grad_()
    upstream = torch.randn(3, size, size, device="cuda")

    def step():
        V = skew_exp(A)
        return V, torch.autograd.grad(V, A, upstream)[0]

    V, gradient = step()
    for k, c in enumerate(factors):
        truth = spectrum.gradient(c, upstream[k].double().cpu())
        assert (V[k].cpu() - spectrum.exp(c)).norm() <= 6e-7 * size**0.5
        assert (gradient[k].cpu() - truth).norm() <= 1e-6 * upstream[k].norm().cpu()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    with torch.no_grad():
        A.mul_(0.5)
    graph.replay()
    for found, wanted in zip(captured, step(), strict=True):
        assert torch.equal(found, wanted)
