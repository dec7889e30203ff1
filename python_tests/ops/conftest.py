import pytest
import torch

from rnnkern import _extension

if not _extension.available:
    pytest.skip(f"no compiled part: {_extension.reason}", allow_module_level=True)


@pytest.fixture(autouse=True)
def uninitialized(nan_memory):
    """All tests of operators run with ``nan_memory``."""


@pytest.fixture
def simd():
    """Sets the SIMD level for one test."""
    before = _extension.build_facts()["simd_level"]
    yield torch.ops.rnnkern.set_simd_level
    torch.ops.rnnkern.set_simd_level(before)


@pytest.fixture
def threads():
    """Sets the number of threads for one test."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)
