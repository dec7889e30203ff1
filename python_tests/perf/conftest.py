import pytest
import torch


@pytest.fixture(autouse=True)
def threads():
    """One, which does not mind what else runs; and gives back what a benchmark has set."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
