"""A row of the tables of mutants: a change of the sources, and the tests that must detect it."""

from typing import NamedTuple

RECURRENCE = "python_tests/ops/test_recurrence.py"
ON_A_GPU = "python_tests/gpu/test_recurrence.py"
SIMD_ROWS = "python_tests/ops/test_simd_rows.py"


def named(words: str, file: str = RECURRENCE) -> tuple[str, ...]:
    return file, "-k", words


def interpreted(words: str, file: str = ON_A_GPU) -> tuple[str, ...]:
    return file, "-k", f"interpret and ({words})"


def valued(operator: str) -> tuple[str, ...]:
    return named(f"values_and_gradients and {operator}", "python_tests/ops/test_values.py")


class Mutant(NamedTuple):
    file: str  # relative to csrc, or starts with rnnkern/
    old: str  # occurs exactly once in the file
    new: str
    breaks: str
    tests: tuple[str, ...]
    explained: str = ""  # why no test can detect the change
    level: str = "plain"  # the SIMD level at which it is built and tested

    @property
    def place(self) -> str:
        return self.file if self.file.startswith(("rnnkern/", "python_tests/")) else f"csrc/{self.file}"

    @property
    def for_a_gpu(self) -> bool:
        return "/cuda/" in self.place or self.file.startswith("interpreter/")

    @property
    def built_by_its_tests(self) -> bool:
        return self.for_a_gpu or self.tests[0] == SIMD_ROWS
