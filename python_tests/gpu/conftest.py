"""Backends: the interpreter and, if there is one, a GPU; RNNKERN_GPU_TESTS=interpret|cuda|all requests them."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import pytest
import torch

from python_tests.gpu import builder, drivers, kernels, recurrences
from rnnkern import _extension
from rnnkern.ops._recurrence.autograd import KERNEL_CELLS, RESIDENT_CELLS

WANTED = os.environ.get("RNNKERN_GPU_TESTS", "")
CLUSTERS = (9, 0)
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS warns otherwise with deterministic algorithms


ON_TRITON = ("test_skew_exp", "test_triton")
"""Files that mark their slow tests themselves; all tests on the interpreter are slow and get the marker ``proof``."""


def pytest_collection_modifyitems(items):
    for item in items:
        if "python_tests/gpu/" in item.nodeid and item.path.stem not in ON_TRITON:
            item.add_marker(pytest.mark.proof)


class Backend(NamedTuple):
    name: str
    seed: int = 0

    def __str__(self) -> str:
        return f"{self.name}{self.seed}" if self.name == "interpret" else self.name


ALL = {"interpret": [Backend("interpret", seed) for seed in range(6)], "cuda": [Backend("cuda")]}
CHOSEN = {"": ["interpret", *["cuda"] * torch.cuda.is_available()], "all": ["interpret", "cuda"]}.get(WANTED, [WANTED])


def require(missing: str) -> None:
    """Skips the test if something is missing, or fails if the backend was requested explicitly."""
    if missing and WANTED:
        pytest.fail(f"RNNKERN_GPU_TESTS={WANTED}, but {missing}")
    if missing:
        pytest.skip(missing)


@pytest.fixture(scope="session", params=[backend for name in CHOSEN for backend in ALL[name]], ids=str)
def backend(request) -> Backend:
    """A backend; the test is skipped if it is not available, unless it was requested."""
    if request.param.name == "interpret":
        if shutil.which(builder.compiler()[0]) is None:
            pytest.skip("no C++ compiler")
        kernels.library()  # built here, so that a failing build is reported once
        return request.param
    require(recurrences.lacks("cuda"))
    kernels.operators()
    return request.param


@pytest.fixture
def launch(backend):
    """Runs a conformance kernel on 32-bit words and returns the requested number of words."""

    def run(name, given, words):
        needs_clusters = name.startswith(("cluster", "mbarrier", "store_async"))
        if backend.name == "cuda" and needs_clusters and torch.cuda.get_device_capability() < CLUSTERS:
            pytest.skip("clusters need a GPU of capability 9.0")
        return kernels.launch(name, given, words, backend=backend.name, seed=backend.seed)

    return run


# ---- the recurrence


@contextmanager
def running(family, name: str, *kernel: str) -> Iterator[drivers.Place]:
    """A family's operator on a backend, by a kernel. Uses one thread, because calls are small."""
    require(recurrences.lacks(name))
    if name == "cuda" and any("cluster" in x for x in kernel):
        facts = _extension.device_facts(torch.device("cuda", torch.cuda.current_device()))
        if not all(facts[4:]):
            pytest.skip("no clusters of 16 blocks run on this GPU")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with family.routed(family.Place(name, *kernel)) as place:
        yield place
    torch.set_num_threads(threads)


@pytest.fixture(params=["block", "stepwise"])
def kernel(request) -> str:
    """Both kernels that support any number of units and heads; others are named by parameters of a test."""
    return request.param


@pytest.fixture(params=CHOSEN)
def place(request, kernel, nan_memory):
    """rnnkern.ops.recurrence on each backend, by one kernel."""
    cell = request.node.callspec.params.get("cell")
    if kernel == "block" and cell in set(KERNEL_CELLS) - set(RESIDENT_CELLS):
        pytest.skip("the cell runs step by step alone")
    with running(recurrences, request.param, kernel) as place:
        yield place


@pytest.fixture
def gpu():
    """A torch.device, for tests that need hardware."""
    if "cuda" not in CHOSEN:
        pytest.skip("of hardware alone")
    require(recurrences.lacks("cuda"))
    return torch.device("cuda", torch.cuda.current_device())
