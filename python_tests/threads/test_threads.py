"""The thread sanitizer on the CPU kernels: `make proof` runs the highest SIMD level, `make sanitize` all levels."""

import os

import pytest

from python_tests.threads.sanitizer import check_level
from python_tests.tiers import LEVELS

ALL = "RNNKERN_SANITIZE" in os.environ


@pytest.mark.proof
@pytest.mark.parametrize("level", LEVELS if ALL else LEVELS[-1:])
def test_no_races_and_the_same_bits_for_every_team(level, tmp_path):
    check_level(level, tmp_path)
