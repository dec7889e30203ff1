"""The two tiers: `make test` runs what is not marked `proof`, `make proof` what is."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest

import rnnkern

LEVELS = rnnkern.build_info()["simd_levels"]
"""SIMD levels that were built and that this processor has, lowest first."""


def quick_where(chosen: Callable[[Any], bool], values: Iterable[Any]) -> list:
    """Parameters of a test: the chosen ones for `make test`, the others for `make proof`."""

    def parameter(value):
        if chosen(value):
            return value
        values = value if type(value) is tuple else (value,)  # of several arguments, or of one
        return pytest.param(*values, marks=pytest.mark.proof)

    return [parameter(value) for value in values]


each_level = pytest.mark.parametrize("level", quick_where(lambda level: level == LEVELS[-1], LEVELS))
"""A test at every level, of which `make test` runs the highest."""
