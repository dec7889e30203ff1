import os
import sys
from pathlib import Path

import pytest
import torch

from python_tests.progress import Progress

# Keeps CUDA kernels that tests compile out of the user's cache.
os.environ.setdefault("RNNKERN_CACHE_DIR", str(Path(__file__).parents[1] / "build/test_kernels"))


@pytest.hookimpl(trylast=True)  # runs after the terminal reporter is registered
def pytest_configure(config):
    reporter = config.pluginmanager.getplugin("terminalreporter")
    if reporter and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Progress(reporter))


def pytest_collection_modifyitems(items):
    """Runs tests that compile for a long time first; at the end they would run alone on one core."""
    items.sort(key=lambda item: not item.nodeid.startswith(("python_tests/threads", "python_tests/packaging")))


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def compiled_anew():
    """Resets torch.compile before each test: code that it failed to compile in one test would otherwise be skipped for
    the rest of the process."""
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()


@pytest.fixture
def nan_memory():
    """Fills uninitialized memory with NaN, also in allocations of C++ code, so that values that are never written are
    noticed."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    yield
    torch.use_deterministic_algorithms(False)
