"""`make mutate` can still break the sources in every way that it lists."""

from pathlib import Path

from python_tests.mutation.__main__ import sources
from python_tests.mutation.mutants import MUTANTS


def test_each_replaced_text_occurs_once():
    texts = sources()
    counts = {mutant: texts.get(Path(mutant.place), "").count(mutant.old) for mutant in MUTANTS}
    assert MUTANTS
    assert not [(mutant.place, mutant.old, count) for mutant, count in counts.items() if count != 1]
