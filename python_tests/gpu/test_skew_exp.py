"""skew_exp on a GPU: its kernels in Triton's interpreter, which products it launches, and their machine code."""

from types import SimpleNamespace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from python_tests.gpu import triton_calls
from python_tests.gpu.graphs import captured
from python_tests.ops.orthogonal_oracle import Spectrum
from python_tests.tiers import quick_where
from rnnkern import _extension
from rnnkern.ops import skew_exp
from rnnkern.ops._orthogonal import skew_exp_triton
from rnnkern.ops._orthogonal.schemes import DOUBLINGS

pytest.importorskip("triton")

pytestmark = pytest.mark.skipif(not _extension.available, reason=f"no compiled part: {_extension.reason}")


@pytest.mark.proof
def test_the_interpreter_finds_the_answers_of_the_eigenvalues():
    triton_calls.check_interpreted("interpreted_skew_exp.py", "")


class Launches(list):
    """Replaces a kernel and records the arguments of its launches."""

    def __getitem__(self, grid):
        return lambda *args, **constants: self.append((args, constants))


class OneDevice(TorchDispatchMode):
    """Refuses tensors of other devices than this."""

    def __init__(self, device):
        super().__init__()
        self.device = device

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        tensors = [x for x in tree_leaves((args, kwargs, result)) if isinstance(x, torch.Tensor)]
        assert {x.device.type for x in tensors} <= {self.device}, function
        return result


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [3, 64, 65, 512, 513])
def test_nothing_waits_for_the_device(size, dtype, monkeypatch):
    """Uses tensors without values: reading one raises an error, and all launches must follow from the sizes."""
    small_forward, small_backward, product = (Launches() for _ in range(3))
    kernels = SimpleNamespace(small_forward=small_forward, small_backward=small_backward, product=product)
    monkeypatch.setattr(skew_exp_triton, "kernels", lambda: kernels)
    A = torch.empty(2, size, size, dtype=dtype, device="meta")
    with OneDevice("meta"):
        _, kept, plan = skew_exp_triton.forward(A, False, True)
        assert skew_exp_triton.backward(torch.empty_like(A), A, kept, plan).shape == A.shape
    if size <= skew_exp_triton.LARGEST:
        assert (len(small_forward), len(small_backward), len(product)) == (1, 1, 0)
    else:
        squarings = [constants for _, constants in product if constants["IF"] == "copy"]
        assert len(squarings) == DOUBLINGS + 4 * skew_exp_triton.scheme(dtype)[3] + 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_squarings_are_those_of_the_largest_norm(dtype):
    _, limits, _, most = skew_exp_triton.scheme(dtype)
    assert limits[1] * 2 ** (most - 1) < 1000 <= limits[1] * 2**most


SHARED = 99 * 1024
"""Bytes of shared memory that a program can use on every GPU from Ampere on."""


def compiled(kernel, kinds, constants, arch, warps):
    """Compiles a kernel, without TF32."""
    made = triton_calls.compiled(kernel, arch, constants, kinds, warps)
    assert "tf32" not in made.asm["ptx"]
    assert made.metadata.shared <= SHARED
    return made


POINTERS = {torch.float32: "*fp32", torch.float64: "*fp64", torch.int64: "*i64"}


def compile_small(dtype, arch, block):
    kernels = skew_exp_triton.kernels()
    coefficients, limits, places, most = skew_exp_triton.scheme(dtype)
    constants = {
        "BLOCK": block, "KEPT": skew_exp_triton.KEPT[dtype], "TRAINING": True, "MINUS_IDENTITY": False,
        "C": coefficients, "LIMITS": limits, "SCHEMES": places, "BOUND": skew_exp_triton.BOUND, "MOST": most,
    }  # fmt: skip
    for kernel in (kernels.small_forward, kernels.small_backward):
        kinds = dict.fromkeys(kernel.arg_names, POINTERS[dtype]) | {"n": "i32", "plan": "*i64"}
        given = {name: value for name, value in constants.items() if name in kernel.arg_names}
        compiled(kernel, kinds, given, arch, skew_exp_triton._warps(block))


@pytest.mark.parametrize("arch", quick_where(lambda arch: arch == 90, [80, 90, 100]))
@pytest.mark.parametrize("dtype", quick_where(lambda dtype: dtype == torch.float32, [torch.float32, torch.float64]))
def test_kernels_of_small_matrices_compile_ahead_of_time(dtype, arch):
    compile_small(dtype, arch, 16)


@pytest.mark.proof
def test_the_largest_matrix_of_a_program_fits_every_gpu():
    """In float64, which needs twice the memory."""
    compile_small(torch.float64, 90, skew_exp_triton._block(skew_exp_triton.LARGEST))


def products(size, dtype, monkeypatch):
    """The distinct launches of a forward and a backward pass."""
    A, plan = torch.zeros(1, size, size, dtype=dtype), torch.zeros(1, 2, dtype=torch.int64)
    kept, launches = A.new_zeros(1, skew_exp_triton.KEPT[dtype], size, size), Launches()
    with monkeypatch.context() as patch:
        patch.setattr(skew_exp_triton.kernels(), "product", launches)
        skew_exp_triton._large_forward(A, kept, plan, False)
        skew_exp_triton._large_backward(A, A, kept, plan)
    return list({repr(constants): (args, constants) for args, constants in launches}.values())


def compile_product(args, constants, arch):
    kernel = skew_exp_triton.kernels().product
    constants = {name: x for name, x in constants.items() if name not in skew_exp_triton.OPTIONS}
    warps = constants.pop("num_warps")

    def kind(x):
        return tuple(map(kind, x)) if isinstance(x, tuple) else "i32" if isinstance(x, int) else POINTERS[x.dtype]

    kinds = dict(zip(kernel.arg_names, map(kind, args), strict=False))
    return compiled(kernel, kinds, constants, arch, warps)


@pytest.mark.parametrize("arch", quick_where(lambda arch: arch == 90, [80, 90, 100]))
@pytest.mark.parametrize("dtype", quick_where(lambda dtype: dtype == torch.float32, [torch.float32, torch.float64]))
def test_products_compile_ahead_of_time(dtype, arch, monkeypatch):
    """Compiles the launch with the most operands."""
    most = max(products(300, dtype, monkeypatch), key=lambda launch: len(launch[1]["LEFT"]) + len(launch[1]["RIGHT"]))
    assert [len(most[1][name]) for name in ("LEFT", "RIGHT", "ADDED")] == [2, 4, 2]
    compile_product(*most, arch)


@pytest.mark.proof
def test_every_product_of_a_forward_and_a_backward_compiles(monkeypatch):
    launches = products(100, torch.float32, monkeypatch)
    assert {constants["IF"] for _, constants in launches} == {"always", "squared", "copy"}
    for args, constants in launches:
        assert "cp.async" in compile_product(args, constants, 80).asm["ptx"]  # loads are asynchronous


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("size", quick_where(lambda size: size == 16, [2, 16, 64, 100, 300, 600]))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_on_a_gpu_and_in_a_cuda_graph(size, dtype):
    spectrum = Spectrum(size)
    factors = [spectrum.factor(rho) for rho in (1e-3, 1.0, 8.0)]
    A = torch.stack([c * spectrum.matrix for c in factors]).to("cuda", dtype).requires_grad_()
    upstream = torch.randn(3, size, size, device="cuda", dtype=dtype)
    scale = {torch.float32: 1.0, torch.float64: 1e-7}[dtype]

    def step():
        V = skew_exp(A)
        return V.detach(), torch.autograd.grad(V, A, upstream)[0]

    V, gradient = step()
    for k, c in enumerate(factors):
        truth = spectrum.gradient(c, upstream[k].double().cpu())
        assert (V[k].cpu() - spectrum.exp(c)).norm() <= scale * 6e-7 * size**0.5
        assert (gradient[k].cpu() - truth).norm() <= scale * 1e-6 * upstream[k].norm().cpu()
    torch.cuda.set_sync_debug_mode("error")  # on synchronization
    try:
        step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    graph, results = captured(step)
    for turn in (0.5, 1.0, 0.01):  # each matrix has each norm once, with different numbers of squarings
        with torch.no_grad():
            A.copy_(turn * A.roll(1, 0))
        graph.replay()
        for found, wanted in zip(results, step(), strict=True):
            assert torch.equal(found, wanted)
