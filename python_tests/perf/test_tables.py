"""The tables in README and docs, written from CSVs."""

import pytest

from perf import record, recurrence, speed_tables, tables

FACTS = {"device": "a processor", "threads": "2", "simd": "avx2", "torch": "2.13.0", "commit": "abc", "date": "2026"}


def row(provider, ratio=1.0, *, case="dense", cell="gru", shape="5x4x3", direction=speed_tables.BOTH, **others):
    labels = {"op": "recurrence", "case": case, "cell": cell, "shape": shape, "dtype": "float32"}
    figures = {"provider": provider, "steady": True, "ms_50": 2.5, "ratio_50": ratio, "over_baseline": 3.0}
    more = {"direction": direction, "baseline": "GEMM", "peak_bytes": 1_500_000}
    return {name: str(x) for name, x in (FACTS | labels | figures | more | others).items()}


def text(page, name, *rows):
    return tables.TABLES[page][name].text(speed_tables.publishable(rows))


def test_the_newest_row_counts_and_losses_are_bold():
    rows = [row("rnnkern"), row("torch.nn", 3.0), row("torch.nn", 0.514), row("loop", 2.0, cell="modrelu")]
    others = [row("torch.nn", 9.0, case="packed"), row("torch.nn", 8.0, dtype="bfloat16"), row("loop", 7.0)]
    lines = text("docs/benchmarks.md", "dense", *rows, *others).splitlines()
    assert lines[0] == "| Forward and backward | 5, 4, 3 |"
    assert lines[2:4] == ["| `gru` over torch.nn | **0.51** |", "| `modrelu` over the loop | 2.00 |"]
    assert lines[-1].endswith("Float32; a processor, 2 threads, avx2, PyTorch 2.13.0, commit abc.*")
    assert "| `gru` over torch.nn | 8.00 |" in text("docs/benchmarks.md", "bfloat16", *others)


@pytest.mark.parametrize("other", [{"steady": False}, {"commit": "abc-dirty"}, {"commit": "unknown"}])
def test_a_row_that_gave_up_or_has_no_clean_commit_is_not_published(other):
    rows = [row("torch.nn", 3.0), row("torch.nn", 9.0, **other), row("torch.nn", 8.0, cell="lstm", **other)]
    assert [found["ratio_50"] for found in speed_tables.publishable(rows)] == ["3.0"]
    assert text("docs/benchmarks.md", "dense", *rows[1:]) == tables.NOTHING


def test_rows_of_an_older_commit_are_not_published():
    rows = [row("torch.nn", 3.0, cell="lstm", commit="old"), row("torch.nn", 4.0)]
    assert [found["ratio_50"] for found in speed_tables.publishable(rows)] == ["4.0"]


def test_memory_stands_beside_the_speed():
    rows = [row("rnnkern"), row("torch.nn", peak_bytes=2e6), row(recurrence.RECOMPUTED, 1.25, peak_bytes=123_456_789)]
    assert "| `gru` | 5, 4, 3 | 1.25 | 123 | 1.5 | 2 |" in text("docs/benchmarks.md", "recomputed", *rows)


def test_claims_are_those_of_the_rows():
    rows = [row("torch.nn", 3.0), row("torch.nn", 0.8, shape="9x9x9"), row("torch.nn", 2.0, direction="forward")]
    rows += [row("torch.nn", 8.0, case="packed"), row(recurrence.PADDED, 4.0, case="packed")]
    rows += [row("rnnkern"), row(recurrence.RECOMPUTED, 0.5)]
    found = text("README.md", "claims", *rows)
    assert "`gru` over torch.nn: forward and backward **0.80** to 3.00, forward 2.00" in found
    assert "packed and padded forms: forward and backward 4.00" in found
    assert "Slower than the peer in 1 of 5 figures" in found


def test_pages_have_what_is_between_the_marks_alone(tmp_path):
    for page in {*tables.TABLES, *tables.RUNS}:
        (tmp_path / page).parent.mkdir(exist_ok=True)
        (tmp_path / page).write_text(
            "before\n<!-- copy:begin -->\nold\n<!-- copy:end -->\nafter\n" * ("docs/tr" in page)
        )
    page = tmp_path / "docs" / "benchmarks.md"
    page.write_text("a <!-- dense:begin -->\nold\n<!-- dense:end --> b\n")
    record.append(tmp_path / "results" / "slow" / "speed.csv", [row("torch.nn", 7.0, date="2025")])
    record.append(tmp_path / "results" / "fast" / "speed.csv", [row("torch.nn", 2.0)])
    tables.main(tmp_path, tmp_path / "results")
    assert "| `gru` over torch.nn | 2.00 |" in page.read_text()
    assert page.read_text().endswith("<!-- dense:end --> b\n")
    nothing = f"before\n<!-- copy:begin -->\n{tables.NOTHING}\n<!-- copy:end -->\nafter\n"
    assert (tmp_path / "docs" / "training.md").read_text() == nothing


def test_every_table_has_its_place():
    for page in {*tables.TABLES, *tables.RUNS}:
        marks = [name for _, name, _ in tables.MARKED.findall((record.ROOT / page).read_text())]
        assert sorted(marks) == sorted({*tables.TABLES.get(page, {}), *tables.RUNS.get(page, {})})
