"""The tables of trainings; writes those of docs/training.md, each between its marks, and its pictures, from CSVs.

``python -m perf.train_tables cpu-amd-epyc-2t cpu-amd-epyc-1t``
"""

import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

from perf import record, tables, train_picture
from perf.record import Row, significant

PAGE = record.ROOT / "docs" / "training.md"
SAME = ("task", "data", "length", "batch", "metric", "held_out")
"""What two trainings must share to be compared."""


def newest(rows: Sequence[Row]) -> list[Row]:
    """Each model's newest run on what the last row was trained on."""
    rows = [row for row in rows if all(row[name] == rows[-1][name] for name in SAME)]
    dates = {row["model"]: row["date"] for row in rows}
    return [row for row in rows if row["date"] == dates[row["model"]]]


def summary(rows: Sequence[Row]) -> list[Row]:
    """A line per model: the metric after the last update, its mean and range over the seeds; what an update took."""
    lines = []
    for model in dict.fromkeys(row["model"] for row in rows):
        own = [row for row in rows if row["model"] == model]
        ends = list({row["seed"]: row for row in own}.values())
        measured = [float(row["measured"]) for row in ends]
        lines.append(
            {
                "model": model,
                "optimiser": f"{ends[0]['optimiser']} {ends[0]['rate']}",
                "hidden": int(ends[0]["hidden"]),
                "parameters": int(ends[0]["parameters"]),
                "updates": int(ends[0]["updates"]),
                "seeds": len(ends),
                "train loss": significant(statistics.fmean(float(row["train_loss"]) for row in ends)),
                ends[0]["metric"]: significant(statistics.fmean(measured)),
                "lowest": min(measured),
                "highest": max(measured),
                "ms per update": significant(statistics.median(float(row["update_ms"]) for row in own)),
            }
        )
    return lines


def text(rows: Sequence[Row]) -> str:
    """In Markdown, with a caption."""
    lines = [{"model": f"`{line.pop('model')}`", **line} for line in summary(rows)]
    words = list(lines[0]).index("optimiser") + 1
    body = tables.markdown(list(lines[0]), [list(map(str, line.values())) for line in lines], words)
    row, commits = rows[-1], dict.fromkeys(row["commit"] for row in rows)
    threads, simd = (" and ".join(dict.fromkeys(row[name] for row in rows)) for name in ("threads", "simd"))
    facts = f"{row['device']}, threads {threads}, {simd}, PyTorch {row['torch']}"
    return (
        f"{body}\n\n*{row['data']}; T = {row['length']}, B = {row['batch']}, clip {row['clip']}. A constant answer "
        f"gets {row['constant']}. {facts}, commit {', '.join(commits)}.*"
    )


def main(devices: Sequence[str], page: Path = PAGE, results: Path = record.RESULTS) -> None:
    """Of each task what the devices have, the last one's the newest."""

    def filled(match) -> str:
        paths = [results / device / f"train-{match[2]}.csv" for device in devices]
        rows = [row for path in paths if path.exists() for row in record.read(path)]
        if not rows:
            return f"{match[1]}*Not measured yet.*\n{match[3]}"
        rows = newest(rows)
        train_picture.draw(page.parent / "images" / f"train-{match[2]}.png", rows)
        return f"{match[1]}{text(rows)}\n{match[3]}"

    page.write_text(tables.MARKED.sub(filled, page.read_text()))


if __name__ == "__main__":
    main(sys.argv[1:])
