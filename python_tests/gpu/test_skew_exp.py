"""skew_exp on a GPU: its kernels in Triton's interpreter, and compiled ahead of time for three architectures."""

import pytest
import torch

from python_tests.gpu import triton_interpreter
from python_tests.gpu.graphs import captured
from python_tests.gpu.skew_launches import KERNELS, forward_and_backward, recording
from python_tests.ops.orthogonal_oracle import Spectrum
from python_tests.tiers import quick_where
from rnnkern import _extension
from rnnkern.ops import skew_exp
from rnnkern.ops._orthogonal import triton as orthogonal_triton
from rnnkern.ops._orthogonal.schemes import DOUBLINGS

triton = pytest.importorskip("triton")

pytestmark = pytest.mark.skipif(not _extension.available, reason=f"no compiled part: {_extension.reason}")


@pytest.mark.parametrize("only", ["matrix_per_program and dtype1", pytest.param("", marks=pytest.mark.proof)])
def test_the_interpreter_finds_the_eigenvalues_answers(only):
    triton_interpreter.check("skew_exp", only)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [3, 64, 65, 512, 513])
def test_nothing_waits_for_the_device(size, dtype, monkeypatch):
    """Uses tensors without values: reading one raises an error, and all launches must follow from the sizes."""
    A = torch.empty(2, size, size, dtype=dtype, device="meta")
    upstream = torch.empty_like(A)
    with recording(monkeypatch, "meta") as recorder:
        _, gradient, _ = forward_and_backward(A, upstream)
    assert gradient.shape == A.shape
    names = [launch[0] for launch in recorder.launches]
    most = orthogonal_triton.scheme(dtype)[3]
    if size <= orthogonal_triton.LARGEST:
        assert [name for name in names if name in KERNELS] == ["small_forward", "small_backward"]
    else:
        squarings = [
            x for x in recorder.launches if x[0] == "product" and "('IF', 'copy')" in str(x[3]).replace('"', "")
        ]
        assert len(squarings) == DOUBLINGS + 4 * most + 2


@pytest.mark.parametrize(
    "wait",
    [
        lambda x: x.sum().item(), lambda x: bool(x[0] > 0), lambda x: x.nonzero(), lambda x: x[x > 0],
        lambda x: x.cpu(), lambda x: x.tolist(), lambda x: torch.equal(x, x), lambda x: x + torch.ones(3),
        lambda x: x.copy_(torch.ones(3)),
    ],
)  # fmt: skip
def test_what_waits_would_be_seen(wait, monkeypatch):
    with (
        recording(monkeypatch, "meta"),
        pytest.raises((AssertionError, NotImplementedError, RuntimeError)),
    ):
        wait(torch.ones(3, device="meta"))


def test_the_operator_of_a_gpu_is_this_one():
    """It launches the squarings for the largest norm, and the dispatcher's table contains it."""
    for dtype in (torch.float32, torch.float64):
        _, limits, _, most = orthogonal_triton.scheme(dtype)
        assert limits[1] * 2 ** (most - 1) < 1000 <= limits[1] * 2**most
    for name in ("skew_exp", "skew_exp_backward"):
        assert torch._C._dispatch_has_kernel_for_dispatch_key(f"rnnkern::{name}", "CUDA")


SHARED = 99 * 1024
"""Bytes of shared memory that a program can use on every GPU from Ampere on."""


def compiled(kernel, signature, constants, arch, **options):
    """Compiles a kernel ahead of time, with arguments by name and without TF32."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    names = kernel.arg_names
    kinds = {name: "constexpr" if name in constants else signature[name] for name in names}
    given = {(names.index(name),): value for name, value in constants.items() if name in names}
    options |= orthogonal_triton.OPTIONS
    made = triton.compile(ASTSource(kernel, kinds, given), target=GPUTarget("cuda", arch, 32), options=options)
    assert made.asm["cubin"]
    assert "tf32" not in made.asm["ptx"]
    return made


POINTERS = {torch.float32: "*fp32", torch.float64: "*fp64", torch.int64: "*i64"}


def compile_small(dtype, arch, block):
    kernels = orthogonal_triton.kernels()
    coefficients, limits, places, most = orthogonal_triton.scheme(dtype)
    constants = {
        "BLOCK": block, "KEPT": orthogonal_triton.KEPT[dtype], "TRAINING": True, "MINUS_IDENTITY": False,
        "C": coefficients, "LIMITS": limits, "SCHEMES": places, "BOUND": orthogonal_triton.BOUND, "MOST": most,
    }  # fmt: skip
    for kernel in (kernels.small_forward, kernels.small_backward):
        kinds = dict.fromkeys(kernel.arg_names, POINTERS[dtype]) | {"n": "i32", "plan": "*i64"}
        given = {name: value for name, value in constants.items() if name in kernel.arg_names}
        made = compiled(kernel, kinds, given, arch, num_warps=orthogonal_triton._warps(block))
        assert made.metadata.shared <= SHARED


@pytest.mark.parametrize("arch", quick_where(lambda arch: arch == 90, [80, 90, 100]))
@pytest.mark.parametrize("dtype", quick_where(lambda dtype: dtype == torch.float32, [torch.float32, torch.float64]))
def test_kernels_of_small_matrices_compile_ahead_of_time(dtype, arch):
    compile_small(dtype, arch, 16)


@pytest.mark.proof
def test_the_largest_matrix_of_a_program_fits_every_gpu():
    """In float64, which needs twice the memory."""
    compile_small(torch.float64, 90, orthogonal_triton._block(orthogonal_triton.LARGEST))


class Launches(list):
    """Replaces a kernel and records the arguments of its launches."""

    def __getitem__(self, grid):
        return lambda *args, **constants: self.append((args, constants))


def products(size, dtype, monkeypatch):
    """The distinct launches of a forward and a backward pass."""
    A, plan = torch.zeros(1, size, size, dtype=dtype), torch.zeros(1, 2, dtype=torch.int64)
    kept, launches = A.new_zeros(1, orthogonal_triton.KEPT[dtype], size, size), Launches()
    with monkeypatch.context() as patch:
        patch.setattr(orthogonal_triton.kernels(), "product", launches)
        orthogonal_triton._large_forward(A, kept, plan, False)
        orthogonal_triton._large_backward(A, A, kept, plan)
    return list({repr(constants): (args, constants) for args, constants in launches}.values())


def compile_product(args, constants, arch):
    kernel = orthogonal_triton.kernels().product
    options = {name: constants.pop(name) for name in ("num_warps", *orthogonal_triton.OPTIONS)}

    def kind(x):
        return tuple(map(kind, x)) if isinstance(x, tuple) else "i32" if isinstance(x, int) else POINTERS[x.dtype]

    kinds = dict(zip(kernel.arg_names, map(kind, args), strict=False))
    made = compiled(kernel, kinds, constants, arch, num_warps=options["num_warps"])
    assert made.metadata.shared <= SHARED
    return made


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
def test_the_first_call_on_a_gpu():
    spectrum = Spectrum(16)
    A = spectrum.matrix.to("cuda", torch.float32).requires_grad_()
    V = skew_exp(A)
    (gradient,) = torch.autograd.grad(V, A, torch.eye(16, device="cuda"))
    assert (V.cpu() - spectrum.exp(1.0)).norm() <= 6e-7 * 4
    assert (gradient.cpu() - spectrum.gradient(1.0, torch.eye(16, dtype=torch.float64))).norm() <= 1e-6 * 4


@pytest.mark.proof
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("size", [2, 16, 64, 100, 300, 600])
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
