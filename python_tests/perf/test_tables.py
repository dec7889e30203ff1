"""The tables of README and docs, made from a CSV."""

import csv

from perf import tables

FIELDS = ["case", "cell", "shape", "dtype", "direction", "provider", "ratio_50"]
FACTS = {"device": "a processor", "threads": "2", "simd": "avx2", "torch": "2.13.0", "commit": "abc"}


def rows(ratio, cell="gru", peer="torch.nn", shape="5x4x3"):
    same = {"case": "dense", "cell": cell, "shape": shape, "dtype": "float32", "direction": tables.DIRECTION, **FACTS}
    return [{**same, "provider": "rnnkern", "ratio_50": 1.0}, {**same, "provider": peer, "ratio_50": ratio}]


def test_the_newest_row_counts_and_losses_are_shown(tmp_path):
    path = tmp_path / "recurrence.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, [*FIELDS, *FACTS])
        writer.writeheader()
        writer.writerows([*rows(3.0), *rows(0.514), *rows(2.0, cell="modrelu", peer="loop")])
        writer.writerow({**rows(9.0)[1], "case": "packed"})
    text = tables.table(tables.newest(path))
    assert text.splitlines()[0] == "| T, B, N | `gru` over torch.nn | `modrelu` over the loop |"
    assert "| 5, 4, 3 | 0.51 | 2.00 |" in text
    assert "a processor, 2 threads" in text


def test_only_what_stands_between_the_marks_changes():
    page = "before\n<!-- speed:begin -->\nold\n<!-- speed:end -->\nafter\n"
    new = tables.MARKED.sub(lambda match: match[1] + "new\n" + match[2], page)
    assert new == "before\n<!-- speed:begin -->\nnew\n<!-- speed:end -->\nafter\n"
