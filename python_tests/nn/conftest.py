import pytest
import torch


@pytest.fixture(autouse=True, params=[1, 2], ids=["1 thread", "2 threads"])
def thread_count(request):
    """Tests run with one and with two threads; with two, both directions and two layers run concurrently."""
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


SLOW = ("test_distributed.py", "test_ecosystem.py", "compile", "gradcheck")
"""Parts of names of tests that `make test` runs with two threads only, the usual case for users."""


def pytest_collection_modifyitems(items):
    for item in items:
        slow = "python_tests/nn/" in item.nodeid and any(word in item.nodeid for word in SLOW)
        if slow and item.callspec.params["thread_count"] == 1:
            item.add_marker(pytest.mark.proof)
