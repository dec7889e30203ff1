"""The two groups of tests: `make test` runs those without the marker `proof`, `make proof` those with it."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest

import rnnkern

LEVELS = rnnkern.build_info()["simd_levels"]
"""SIMD levels that were built and that this processor supports, lowest first."""


PAIRS = [level for level in LEVELS if level in ("avx512_bf16", "amx")]
"""Those that multiply bfloat16 rows as they are stored."""


def quick_where(chosen: Callable[[Any], bool], values: Iterable[Any]) -> list:
    """Parameters of a test: the chosen ones run in `make test`, the others in `make proof`."""

    def parameter(value):
        if chosen(value):
            return value
        values = value if type(value) is tuple else (value,)  # several arguments or one
        return pytest.param(*values, marks=pytest.mark.proof)

    return [parameter(value) for value in values]


each_level = pytest.mark.parametrize("level", quick_where(lambda level: level == LEVELS[-1], LEVELS))
"""Runs a test at every SIMD level; `make test` runs only the highest one."""
