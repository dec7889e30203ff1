"""The table of mutants fits the sources: every text that it breaks stands there once. `make mutate` runs it."""

from collections import Counter
from pathlib import Path

import pytest

from python_tests.mutation.mutants import MUTANTS, ONE_LEVEL

ROOT = Path(__file__).parents[2]
EDITS = [(m.place, m.old, m.new) for m in MUTANTS] + ONE_LEVEL


@pytest.mark.parametrize(("file", "old", "new"), EDITS, ids=[f"{file}-{k}" for k, (file, *_) in enumerate(EDITS)])
def test_what_is_broken_stands_in_its_file_once(file, old, new):
    assert (ROOT / file).read_text().count(old) == 1
    assert old != new


def test_the_table_is_long_enough_and_names_tests_that_are_there():
    assert len(MUTANTS) >= 30
    assert all((ROOT / mutant.tests[0]).exists() for mutant in MUTANTS)
    assert max(Counter((m.file, m.breaks) for m in MUTANTS).values()) == 1
