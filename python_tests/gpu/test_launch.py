"""Errors of the CUDA runtime: each is told once, by the call that it belongs to. Without a GPU, by a runtime that fails
as it is told."""

import ctypes

import pytest

from python_tests.gpu import builder

SOURCES = [f"python_tests/gpu/{name}" for name in ("launches.cu", "runtime.cpp")]
CALLS = {
    "launch_kernel": (
        "cudaFuncSetAttribute",
        "cudaGetDevice",
        "cudaDeviceGetAttribute",
        "cudaOccupancyMaxActiveBlocksPerMultiprocessor",
        "cudaLaunchKernelExC",
    ),
    "ask_facts": ("cudaDeviceGetAttribute", "cudaGetDevice", "cudaSetDevice"),
    "ask_capturing": ("cudaStreamIsCapturing",),
}
"""What each asks of the runtime."""


@pytest.fixture(scope="module")
def library():
    if builder.nvcc() is None:
        pytest.skip("no nvcc")
    sources = ["csrc/cuda/facts.cpp", *SOURCES]
    return ctypes.CDLL(str(builder.build("launches", sources, link=["-cudart=none"], target="sm_90")))


@pytest.fixture(autouse=True)
def fresh(library):
    library.fail_at(b"")
    library.cudaGetLastError()


@pytest.mark.parametrize(("asked", "call"), [(asked, call) for asked, calls in CALLS.items() for call in calls])
def test_a_failure_is_told_once(asked, call, library):
    library.fail_at(call.encode())
    assert getattr(library, asked)() != 0
    assert library.remembered() == 0, "whoever launches next takes the error for its own"
    library.fail_at(b"")
    assert getattr(library, asked)() == 0


def test_a_launch_that_cannot_be_resident_is_refused(library):
    assert library.launch_too_large() != 0
    assert library.remembered() == 0


def test_clusters_that_the_device_refuses_are_no_error(library):
    library.fail_at(b"cudaOccupancyMaxActiveClusters")
    assert library.ask_facts() == 0
    assert library.remembered() == 0


def test_an_error_that_another_left_is_not_ours(library):
    library.leave_error()
    assert library.launch_kernel() == 0
