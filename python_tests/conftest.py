import os
import sys
from pathlib import Path

import pytest
import torch

from python_tests.progress import Progress

# CUDA kernels that tests compile stay out of the user's own cache.
os.environ.setdefault("RNNKERN_CACHE_DIR", str(Path(__file__).parents[1] / "build/test_kernels"))


@pytest.hookimpl(trylast=True)  # the reporter is there by then
def pytest_configure(config):
    reporter = config.pluginmanager.getplugin("terminalreporter")
    if reporter and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Progress(reporter))


def pytest_collection_modifyitems(items):
    """What compiles for long goes first: at the end it would run alone."""
    items.sort(key=lambda item: not item.nodeid.startswith(("python_tests/threads", "python_tests/packaging")))


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def compiled_anew():
    """What the compiler refused in one test, it would leave out in the next: in a process, code is skipped for good."""
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()
