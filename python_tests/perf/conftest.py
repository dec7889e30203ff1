import pytest
import torch

PROOF = ("test_commands", "test_demo", "test_gpu")


def pytest_collection_modifyitems(items):
    for item in items:
        if "python_tests/perf/" in item.nodeid and item.path.stem in PROOF:
            item.add_marker(pytest.mark.proof)


@pytest.fixture(autouse=True)
def threads():
    """One thread, so that other load matters less; restores settings that a benchmark changed."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
