import pytest

from python_tests.parametrizations.linear import made


@pytest.fixture
def linear():
    return made()
