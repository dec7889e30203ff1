"""Covering arrays of options."""

import itertools
import random
from typing import Any


def covering_rows(factors: dict[str, list[Any]]) -> list[dict[str, Any]]:
    """A covering array: rows in which any two values of any two factors occur together at least once. The algorithm is
    greedy and deterministic."""
    draw = random.Random(0)
    names = list(factors)
    missing = {
        ((a, i), (b, j))
        for a, b in itertools.combinations(names, 2)
        for i in range(len(factors[a]))
        for j in range(len(factors[b]))
    }
    rows = []
    while missing:
        best, most, wanted = None, -1, sorted(missing)
        for _ in range(30):  # candidates: one missing pair, the rest at random
            row = {name: draw.randrange(len(factors[name])) for name in names}
            row.update(draw.choice(wanted))
            covered = sum(pair in missing for pair in itertools.combinations(row.items(), 2))
            if covered > most:
                best, most = row, covered
        missing -= set(itertools.combinations(best.items(), 2))
        rows.append({name: factors[name][index] for name, index in best.items()})
    return rows
