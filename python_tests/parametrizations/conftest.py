"""The fixture of a linear layer with an orthogonal weight."""

import pytest
import torch

from python_tests.samples.parametrizations import moved
from rnnkern.parametrizations import orthogonal


@pytest.fixture
def linear():
    """A linear layer with an orthogonal weight whose A is not 0."""
    return moved(orthogonal(torch.nn.Linear(6, 6), "weight", init="henaff"))
