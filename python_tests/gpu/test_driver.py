"""The launcher on a stand-in for the driver: messages, errors that must not surface later, modules, rejected calls."""

import ctypes
import importlib.util
import os
import subprocess
import threading
import zlib
from pathlib import Path

import pytest
import torch

from python_tests.gpu import builder, standin
from python_tests.gpu.standin import H100
from rnnkern import _compiler

pytestmark = pytest.mark.skipif(bool(standin.missing()), reason=standin.missing())
ALONE = "rnnkern::cuda::AloneKernel"
operators = torch.ops.rnnkern_stub


@pytest.fixture
def driver() -> standin.Driver:
    """The stand-in with the facts of an H100 and nothing loaded."""
    return standin.Driver(standin.load(), H100)


# ---- errors


def largest():
    """Launches that need all attributes."""
    operators.start(16, 100_000, 16)
    operators.start(132, 100_000, 1, True)


FAILURES = {
    "cuDeviceGet": (lambda: operators.enter(3), "a device"),
    "cuDevicePrimaryCtxRetain": (lambda: operators.enter(3), "a device"),
    "cuCtxSetCurrent": (lambda: operators.enter(3), "this thread"),
    "cuCtxGetCurrent": (largest, "this thread"),
    "cuCtxGetDevice": (largest, "the current context"),
    "cuDeviceGetAttribute": (largest, "a device"),
    "cuModuleGetFunction": (largest, ALONE),
    "cuFuncSetAttribute": (largest, ALONE),
    "cuOccupancyMaxActiveBlocksPerMultiprocessor": (largest, ALONE),
    "cuStreamIsCapturing": (largest, "a stream"),
    "cuLaunchKernelEx": (largest, ALONE),
}


@pytest.mark.parametrize("name", FAILURES)
def test_a_failure_is_told_once(name, driver):
    call, what = FAILURES[name]
    if call is not largest:
        driver.library.standin_context(ctypes.c_int64(0), driver.device)
    driver.fail(name, 719)
    with pytest.raises(RuntimeError) as raised:
        call()
    assert f"rnnkern: {name} of {what}: the driver's words for 719 (CUDA_ERROR_719)" in str(raised.value)
    call()
    assert name in [called for called, *_ in driver.calls()]


@pytest.mark.parametrize("lost", ["cuGetErrorName", "cuGetErrorString"])
def test_an_error_that_the_driver_does_not_know(lost, driver):
    driver.fail("cuLaunchKernelEx", 12345)
    driver.fail(lost, 1)
    known = "an unknown error (CUDA_ERROR_12345)" if lost == "cuGetErrorString" else "words for 12345 (12345)"
    with pytest.raises(RuntimeError) as raised:
        operators.start(1)
    assert known in str(raised.value)
    operators.start(1)
    assert len(driver.launches()) == 2


@pytest.mark.parametrize("name", ["cuCtxGetDevice", "cuDeviceGetAttribute", "cuFuncSetAttribute"])
def test_facts_that_fail_are_asked_again(name, driver):
    driver.fail(name, 3)
    with pytest.raises(RuntimeError, match=rf"{name} of .*: the driver's words for 3"):
        operators.device_facts(-1)
    assert operators.device_facts(-1) == str(list(H100))


def test_facts_are_asked_for_once(driver):
    assert operators.device_facts(-1) == str(list(H100))
    asked = driver.calls()
    shapes = [call[2:] for call in asked if call[0] == "cuOccupancyMaxActiveClusters"]
    assert shapes == [[[n, 1, 1], [256, 1, 1], 232448, [n, 1, 1]] for n in (8, 16)]  # all shared memory of the device
    assert ["cuFuncSetAttribute", "cuda_AloneKernel", 14, 1] in asked
    assert operators.device_facts(-1) == str(list(H100))
    assert [call[0] for call in driver.calls()] == ["cuCtxGetDevice"]


def test_clusters_that_the_device_refuses_are_no_error(driver):
    driver.set_facts(12, 0, 170, 101376, 16, -1)
    assert operators.device_facts(-1) == "[12, 0, 170, 101376, 16, 0]"


def test_before_clusters_nothing_is_asked_of_them(driver):
    driver.set_facts(8, 6, 84, 101376)
    assert operators.device_facts(-1) == "[8, 6, 84, 101376, 0, 0]"
    assert {call[0] for call in driver.calls()} == {"cuCtxGetDevice", "cuDeviceGetAttribute"}


# ---- contexts


def test_a_thread_without_a_context_gets_the_device_s_own(driver):
    driver.library.standin_context(ctypes.c_int64(0), driver.device)
    operators.enter(5)
    assert [call[0] for call in driver.calls()] == [
        "cuCtxGetCurrent", "cuDeviceGet", "cuDevicePrimaryCtxRetain", "cuCtxSetCurrent"
    ]  # fmt: skip
    operators.enter(5)
    assert [call[0] for call in driver.calls()] == ["cuCtxGetCurrent"]


def test_a_kernel_is_loaded_once_in_each_context(driver):
    def loads():
        return sum(call[0] == "cuModuleLoadData" for call in driver.calls())

    operators.start(1)
    assert loads() == 1
    operators.start(1)
    other = threading.Thread(target=operators.start, args=(1,))
    other.start()
    other.join()
    assert loads() == 0
    driver.library.standin_context(ctypes.c_int64(driver.context + 1_000_000), driver.device)
    operators.start(1)
    assert loads() == 1


# ---- attributes of launches


def test_no_blocks_are_no_launch(driver):
    operators.start(0)
    assert driver.calls() == []


def test_too_many_blocks(driver):
    with pytest.raises(RuntimeError, match=f"{ALONE} would need 2147483648 blocks, more than a CUDA grid can have"):
        operators.start(1 << 31)
    assert driver.calls() == []
    operators.start((1 << 31) - 1)
    assert [launch.blocks for launch in driver.launches()] == [(1 << 31) - 1]


def test_a_launch_that_cannot_be_resident_is_refused(driver):
    with pytest.raises(RuntimeError, match=f"{ALONE} needs 133 blocks at once, and this device runs 132"):
        operators.start(133, 0, 1, True)
    driver.library.standin_occupancy(2)
    operators.start(264, 0, 1, True)
    (launch,) = driver.launches()
    assert launch.cooperative
    assert launch.blocks == 264


# ---- modules


@pytest.fixture
def cache(monkeypatch, tmp_path) -> Path:
    """An empty cache, in a process that has compiled nothing."""
    monkeypatch.setenv("RNNKERN_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(_compiler, "_in_memory", {})
    return tmp_path


def test_a_file_that_does_not_load_is_compiled_again_and_replaced(driver, cache):
    program = _compiler.Program("cuda/alone.cuh", ALONE, "sm_90")
    place = _compiler.place_of(program)
    _compiler.write_file(place, zlib.compress(b"whole, and no cubin"))
    operators.start(1)
    assert [call[0] for call in driver.calls()].count("cuModuleLoadData") == 2
    assert list(cache.iterdir()) == [place]
    assert _compiler._read(place).startswith(b"\x7fELF")


def test_what_does_not_load_even_when_compiled_is_told(driver, cache):
    driver.fail("cuModuleLoadData", standin.INVALID_IMAGE, 2)
    with pytest.raises(RuntimeError, match=rf"cuModuleLoadData of {ALONE}: the driver's words for 200"):
        operators.start(1)
    operators.start(1)
    assert len(driver.launches()) == 1


@pytest.mark.parametrize("error", [_compiler.CompilationError("line 1\nline 2"), OSError("no such header")])
def test_what_the_compiler_says_is_told(error, driver, cache, monkeypatch):
    def refuse(program):
        raise error

    with monkeypatch.context() as broken:
        broken.setattr(_compiler, "compile_now", refuse)
        with pytest.raises(RuntimeError) as raised:
            operators.start(1)
    assert f"rnnkern: the CUDA kernel {ALONE} does not compile for sm_90: {error}" in str(raised.value)
    operators.start(1)


# ---- capture


def test_a_first_call_under_capture_is_refused_with_the_remedy(driver):
    driver.set_capturing(True)
    for call in (lambda: operators.start(1), lambda: operators.device_facts(-1)):
        with pytest.raises(RuntimeError, match=rf"captured, and the kernel {ALONE} is not loaded.*rnnkern.precompile"):
            call()
    operators.load_kernel("cuda/alone.cuh", ALONE, -1)
    operators.start(1)
    assert operators.device_facts(-1) == str(list(H100))
    assert len(driver.launches()) == 1


# ---- the installed library, in separate processes


def library_says(code: str, **environment: str) -> str:
    done = builder.run_python("-c", "import ctypes, torch, rnnkern\n" + code, **environment)
    return done.stdout + done.stderr


LOAD = f'torch.ops.rnnkern.load_kernel("cuda/alone.cuh", "{ALONE}", -1)'


def test_without_a_driver_the_loader_s_words_are_told():
    if "True" in library_says("try: print(bool(ctypes.CDLL('libcuda.so.1')))\nexcept OSError: print(False)"):
        pytest.skip("this machine has a driver")
    said = library_says(f"for _ in range(2):\n try: {LOAD}\n except RuntimeError as error: print(error)")
    assert said.count("rnnkern: the CUDA driver does not open: libcuda.so.1: cannot open shared object file") == 2


def test_a_driver_without_a_function_is_too_old():
    source = builder.BUILD / "old.cpp"
    (builder.ROOT / source).parent.mkdir(parents=True, exist_ok=True)
    text = 'extern "C" { int cuGetErrorName() { return 0; } int cuGetErrorString() { return 0; } }\n'
    (builder.ROOT / source).write_text(text)
    old = standin.build_libcuda("old", str(source))
    said = library_says(LOAD, LD_LIBRARY_PATH=str(old.parent))
    assert "rnnkern: the CUDA driver has no cuDeviceGet: it is too old for CUDA 13" in said


def test_the_library_that_users_have_loads_kernels():
    facts = "driver = ctypes.CDLL('libcuda.so.1')\nfor fact in ((75, 9), (76, 0)): driver.standin_fact(*fact)\n"
    told = "\ndriver.standin_calls.restype = ctypes.c_char_p\nprint(driver.standin_calls().decode())"
    said = library_says(facts + LOAD + told, LD_LIBRARY_PATH=str(standin.build_driver().parent))
    assert '["cuModuleLoadData"], ["cuModuleGetFunction", "cuda_AloneKernel"]' in said


# ---- cuda.h

CHECK = """
#include "cuda/libcuda.h"
#include <cstddef>
#include <type_traits>
#include <cuda.h>

using namespace rnnkern::cuda;

static_assert(sizeof(LaunchAttribute) == sizeof(CUlaunchAttribute));
static_assert(alignof(LaunchAttribute) == alignof(CUlaunchAttribute));
static_assert(offsetof(LaunchAttribute, id) == offsetof(CUlaunchAttribute, id));
static_assert(offsetof(LaunchAttribute, sizes) == offsetof(CUlaunchAttribute, value.clusterDim));
static_assert(offsetof(LaunchAttribute, on) == offsetof(CUlaunchAttribute, value.cooperative));
static_assert(sizeof(LaunchConfig) == sizeof(CUlaunchConfig));
static_assert(offsetof(LaunchConfig, blocks) == offsetof(CUlaunchConfig, gridDimX));
static_assert(offsetof(LaunchConfig, threads) == offsetof(CUlaunchConfig, blockDimX));
static_assert(offsetof(LaunchConfig, shared_bytes) == offsetof(CUlaunchConfig, sharedMemBytes));
static_assert(offsetof(LaunchConfig, stream) == offsetof(CUlaunchConfig, hStream));
static_assert(offsetof(LaunchConfig, attributes) == offsetof(CUlaunchConfig, attrs));
static_assert(offsetof(LaunchConfig, attribute_count) == offsetof(CUlaunchConfig, numAttrs));

static_assert(LaunchAttribute::cooperative == CU_LAUNCH_ATTRIBUTE_COOPERATIVE);
static_assert(LaunchAttribute::cluster_dimension == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION);
static_assert(int(DeviceAttribute::multiprocessors) == CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
static_assert(int(DeviceAttribute::major) == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
static_assert(int(DeviceAttribute::minor) == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
static_assert(int(DeviceAttribute::shared_bytes_per_block) == CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
static_assert(int(FunctionAttribute::shared_bytes) == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES);
static_assert(int(FunctionAttribute::clusters_above_8) == CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED);

// Pointers, to pointers or to what is none, and numbers of a size.
template <class T>
constexpr int stars = std::is_pointer_v<T> + std::is_pointer_v<std::remove_pointer_t<T>>;
template <class Ours, class Theirs>
constexpr bool alike = sizeof(Ours) == sizeof(Theirs) && stars<Ours> == stars<Theirs>;

template <class... Ours, class... Theirs>
constexpr bool same(Function<Ours...> Libcuda::*, CUresult (*)(Theirs...)) {
  if constexpr (sizeof...(Ours) == sizeof...(Theirs)) {
    return (alike<Ours, Theirs> && ...);
  } else {
    return false;
  }
}
"""


def header() -> Path | None:
    """Path of cuda.h in a CUDA toolkit, or in the one that Triton includes."""
    triton = importlib.util.find_spec("triton")
    folders = [Path(os.environ.get("CUDA_HOME", "/usr/local/cuda"), "include")]
    folders += [Path(triton.origin).parent / "backends/nvidia/include"] if triton else []
    return next((path for folder in folders if (path := folder / "cuda.h").exists()), None)


@pytest.mark.skipif(header() is None, reason="no cuda.h")
def test_structures_numbers_and_functions_are_those_of_cuda_h():
    assert len(standin.FUNCTIONS) == 15
    checks = [f"#ifdef {name}\n#error {name} is another function's name\n#endif\n" for name in standin.FUNCTIONS]
    checks += [f"static_assert(same(&Libcuda::{name}, &{name}));\n" for name in standin.FUNCTIONS]
    command = [*builder.compiler(), "-std=c++20", "-fsyntax-only", "-Wall", "-Wno-invalid-offsetof", "-Icsrc"]
    command += ["-isystem", str(header().parent), "-x", "c++", "-"]
    given = CHECK + "".join(checks)
    done = subprocess.run(command, cwd=builder.ROOT, input=given, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
