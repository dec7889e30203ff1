"""The seed of a run, ``RNNKERN_TEST_SEED``. Every seed that a test sets counts from it, so another one draws other
numbers in all tests."""

import os
import random

import hypothesis
import torch

SEED = int(os.environ.get("RNNKERN_TEST_SEED", "0"))
FIRST = 1000 * SEED


class Random(random.Random):
    """Python's generator."""

    def seed(self, value=0, version=2):
        super().seed(value + FIRST, version)


class _Generator(torch.Generator):
    def manual_seed(self, seed):
        return super().manual_seed(seed + FIRST)


def install() -> None:
    manual_seed = torch.manual_seed
    torch.manual_seed = lambda seed: manual_seed(seed + FIRST)
    torch.Generator = _Generator
    hypothesis.settings.register_profile("rnnkern", deadline=None, derandomize=SEED == 0, database=None)
    hypothesis.settings.load_profile("rnnkern")


def begin() -> None:
    torch.manual_seed(0)
    random.seed(FIRST)
