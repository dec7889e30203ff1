import os
import sys
from pathlib import Path
from zlib import crc32

import pytest
import torch

from python_tests import seeds
from python_tests.progress import Progress
from python_tests.seeds import SEED

# Keeps CUDA kernels that tests compile out of the user's cache.
os.environ.setdefault("RNNKERN_CACHE_DIR", str(Path(__file__).parents[1] / "build/test_kernels"))
seeds.install()


def pytest_cmdline_main(config):
    config.option.hypothesis_seed = SEED or None


@pytest.hookimpl(trylast=True)  # runs after the terminal reporter is registered
def pytest_configure(config):
    reporter = config.pluginmanager.getplugin("terminalreporter")
    if reporter and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Progress(reporter))


QUICK = 4
"""Of the cases of a test that is marked `sampled` one in so many is quick, and of one that is marked `drawn` one in so
many of the others runs."""

PART, PARTS = map(int, os.environ.get("RNNKERN_PROOF_PART", "0/1").split("/"))
"""Which part of the tests runs, and the number of parts. Each has tests of every table."""

DRAW = os.environ.get("RNNKERN_PROOF_DRAW")
"""Which cases of tests that are marked `drawn` run; all if it is not set."""


def number(item):
    """A number that looks random and belongs to the test's name."""
    return crc32(item.nodeid.encode())


def pytest_itemcollected(item):
    if item.get_closest_marker("sampled"):
        item.add_marker("drawn")
        if number(item) % QUICK:
            item.add_marker("proof")


def runs(item):
    drawn = DRAW and item.get_closest_marker("drawn") and item.get_closest_marker("proof")
    return number(item) // QUICK % PARTS == PART and (not drawn or number(item) % QUICK == int(DRAW) % QUICK)


@pytest.hookimpl(trylast=True)  # after other files have marked tests
def pytest_collection_modifyitems(config, items):
    """Leaves out tests of other parts. Runs tests that compile for a long time first; at the end they would run
    alone on one core."""
    config.hook.pytest_deselected(items=[x for x in items if not runs(x)])
    items[:] = filter(runs, items)
    items.sort(key=lambda item: not item.nodeid.startswith(("python_tests/threads", "python_tests/packaging")))


def pytest_collectstart(collector):
    if isinstance(collector, pytest.Module):
        seeds.begin()


@pytest.fixture(autouse=True)
def seed():
    seeds.begin()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport():
    """Prints the seed with each failure."""
    report = (yield).get_result()
    if hasattr(report.longrepr, "addsection"):
        report.longrepr.reprcrash.message = f"RNNKERN_TEST_SEED={SEED}: {report.longrepr.reprcrash.message}"
        report.longrepr.addsection("drawn with", f"RNNKERN_TEST_SEED={SEED}")


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
