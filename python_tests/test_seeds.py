"""RNNKERN_TEST_SEED."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
TEST = """
import random
import torch
from hypothesis import given, strategies

AT_IMPORT = torch.randn(())

def test():
    generator = torch.Generator().manual_seed(1)
    print("drawn", AT_IMPORT, torch.randn(()), torch.randn((), generator=generator), random.random())
    raise ValueError("so")

@given(strategies.integers(0, 10**6))
def test_given(number):
    print("drawn", number)
"""


def test_another_seed_draws_other_numbers_and_failures_print_it(tmp_path):
    (tmp_path / "test_it.py").write_text(TEST)
    command = [sys.executable, "-m", "pytest", "-s", "-q", "-c", "pyproject.toml", "--rootdir", ".", "-p",
               "python_tests.conftest", str(tmp_path)]  # fmt: skip

    def drawn(seed):
        done = subprocess.run(
            command, cwd=ROOT, env=os.environ | {"RNNKERN_TEST_SEED": seed}, capture_output=True, text=True
        )
        assert f"::test - RNNKERN_TEST_SEED={seed}: ValueError: so\n1 failed, 1 passed" in done.stdout
        return [line.split() for line in done.stdout.splitlines() if line.startswith("drawn")]

    one, again, other = map(drawn, ("1", "1", "2"))
    assert one == again
    assert len(one[0]) == 5
    assert not set(one[0][1:]) & set(other[0])
    assert one[1:] != other[1:]
