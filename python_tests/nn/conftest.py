"""Runs each test of layers with one and with two threads."""

import pytest
import torch


@pytest.fixture(autouse=True, params=[1, 2], ids=["1 thread", "2 threads"])
def thread_count(request):
    """Tests run with one and with two threads; with two, both directions and two layers run concurrently."""
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


def pytest_collection_modifyitems(items):
    """`make test` runs them with two threads, the usual case for users."""
    for item in items:
        if "python_tests/nn/" in item.nodeid and item.callspec.params["thread_count"] == 1:
            item.add_marker(pytest.mark.proof)
