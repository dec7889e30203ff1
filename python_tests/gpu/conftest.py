"""Backends: kernels run on the interpreter, and on a GPU where there is one. RNNKERN_GPU_TESTS=interpret|cuda|all."""

import os
import shutil
from typing import NamedTuple

import pytest

from python_tests.gpu import builder, kernels

WANTED = os.environ.get("RNNKERN_GPU_TESTS", "")
CLUSTERS = (9, 0)


class Backend(NamedTuple):
    name: str
    seed: int = 0

    def __str__(self) -> str:
        return f"{self.name}{self.seed}" if self.name == "interpret" else self.name


ALL = {"interpret": [Backend("interpret", seed) for seed in range(6)], "cuda": [Backend("cuda")]}
CHOSEN = {"": ["interpret", "cuda"], "all": ["interpret", "cuda"]}.get(WANTED, [WANTED])


@pytest.fixture(scope="session", params=[backend for name in CHOSEN for backend in ALL[name]], ids=str)
def backend(request) -> Backend:
    """Skipped where it is not there, unless it was asked for."""
    if request.param.name == "interpret":
        if shutil.which(builder.compiler()[0]) is None:
            pytest.skip("no C++ compiler")
        kernels.library("interpret")  # here, so that a failing build is told once
        return request.param
    missing = "no GPU" if kernels.capability() is None else "no nvcc" if builder.nvcc() is None else ""
    if missing and WANTED:
        pytest.fail(f"RNNKERN_GPU_TESTS={WANTED}, but {missing}")
    if missing:
        pytest.skip(missing)
    kernels.library("cuda")
    return request.param


@pytest.fixture
def launch(backend):
    """Runs a conformance kernel on words; returns as many as are asked for."""

    def run(name, given, words):
        needs_clusters = name.startswith(("cluster", "mbarrier", "store_async"))
        if backend.name == "cuda" and needs_clusters and kernels.capability() < CLUSTERS:
            pytest.skip("clusters need a GPU of capability 9.0")
        return kernels.launch(name, given, words, backend=backend.name, seed=backend.seed)

    return run
