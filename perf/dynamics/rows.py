"""Rows of dynamics.csv: a number of a picture beside the interval in which theory, or an earlier computation, says it
is."""

from collections.abc import Iterable, Mapping
from typing import Any

from perf.record import Row

NAME = "dynamics.csv"


class Rows(list[Row]):
    """The rows of one picture."""

    def __init__(self, picture: str) -> None:
        super().__init__()
        self.picture = picture

    def add(self, case: str, quantity: str, at: float, value: float, least: float, most: float) -> None:
        """``at`` is the position on the picture's horizontal axis. An unlimited interval is of a number that is only
        reported."""
        numbers = {"at": at, "value": value, "least": least, "most": most}
        self.append(
            {"picture": self.picture, "case": case, "quantity": quantity}
            | {name: float(f"{number:.12g}") for name, number in numbers.items()}
        )


def outside(rows: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The rows whose value is outside of its interval."""
    return [row for row in rows if not float(row["least"]) <= float(row["value"]) <= float(row["most"])]
