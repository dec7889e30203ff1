"""The tables of README and docs, made from CSVs."""

import pytest

from perf import overhead, record, recurrence, tables

FACTS = {"device": "a processor", "threads": "2", "simd": "avx2", "torch": "2.13.0", "commit": "abc"}


def row(provider, ratio=1.0, *, case="dense", cell="gru", shape="5x4x3", direction=tables.BOTH, **others):
    labels = {"case": case, "cell": cell, "shape": shape, "dtype": "float32", "direction": direction, "op": ""}
    figures = {"provider": provider, "ms_50": 2.5, "ratio_50": ratio, "over_floor": 3.0, "peak_bytes": 1_500_000}
    return {name: str(x) for name, x in ({"date": "2099"} | FACTS | labels | figures | others).items()}


def text(name, *rows):
    return tables.TABLES[name].text(tables.newest(rows))


def test_the_newest_row_counts_and_losses_are_bold():
    rows = [row("rnnkern"), row("torch.nn", 3.0), row("torch.nn", 0.514), row("loop", 2.0, cell="modrelu")]
    others = [row("torch.nn", 9.0, case="packed"), row("torch.nn", 8.0) | {"dtype": "bfloat16"}]
    lines = text("speed", *rows, *others, row("loop", 7.0), row("torch.nn", 7.0, cell="relu")).splitlines()
    assert lines[0] == "| T, B, N | `gru` over torch.nn | `modrelu` over the loop |"
    assert lines[2] == "| 5, 4, 3 | **0.51** | 2.00 |"
    assert "Float32; a processor, 2 threads" in lines[-1]
    lines = text("bfloat16", *rows, *others).splitlines()
    assert "| `gru` over torch.nn | 8.00 |" in lines
    assert "Bfloat16; a processor" in lines[-1]


@pytest.mark.parametrize("case", ["dense", "packed"])
def test_every_cell_and_peer_has_its_line_and_every_shape_its_column(case):
    rows = [row("torch.nn", 2.0, case=case), row("loop", 0.9, case=case), row("rnnkern", case=case)]
    rows += [row("torch.nn", 4.0, case=case, shape="50x40x30"), row("loop", 6.0, case=case, cell="euler")]
    rows += [row("torch.nn", 5.0, case=case, direction="forward"), row("torch.nn", 9.0, case="other")]
    forward, both, caption = text(case, *rows, row("rnnkern, gates recomputed", 9.0, case=case)).split("\n\n")
    assert forward.splitlines() == ["| Forward | 5, 4, 3 |", "|---|---:|", "| `gru` over torch.nn | 5.00 |"]
    assert both.splitlines()[0] == "| Forward and backward | 50, 40, 30 | 5, 4, 3 |"
    assert both.splitlines()[2:] == [
        "| `gru` over torch.nn | 4.00 | 2.00 |",
        "| `gru` over the loop |  | **0.90** |",
        "| `euler` over the loop |  | 6.00 |",
    ]
    assert "commit abc" in caption


def test_rows_of_another_floor_are_not_shown():
    old = row("rnnkern", date="2026-11-20", over_floor=0.1)
    assert text("floor", old) == "*Not measured yet.*"
    assert "| `lstm`, torch.nn | 2.50 |" in text("floor", old, row("torch.nn", cell="lstm", over_floor=2.5))


def test_stacks_stand_beside_one_layer():
    rows = [row("torch.nn", 2.0), row("torch.nn", 2.0, cell="tanh"), row("torch.nn", 0.9, case="dense, 2 layers")]
    found = text("stacks", *rows, row("torch.nn", 1.5, case="dense, 2 directions")).splitlines()
    wanted = ["| `gru`, 1 layer | 2.00 |", "| `gru`, 2 layers | **0.90** |", "| `gru`, 2 directions | 1.50 |"]
    assert [line for line in found if "`" in line] == wanted


def test_another_processor_has_means():
    """Over all six shapes, and over the five smaller ones."""
    shapes = ["x".join(map(str, shape)) for shape in recurrence.SHAPES]
    ratios = dict(zip(shapes, (0.5, 2.0, 2.0, 2.0, 2.0, 4.0), strict=True))
    rows = [row("torch.nn", x, shape=shape) for shape, x in ratios.items()]
    rows += [row("torch.nn", x, shape=shape, case="dense, 2 layers") for shape, x in list(ratios.items())[1:]]
    rows += [row("torch.nn", 7.0, shape=shapes[5], case="packed"), row("loop", 6.0, shape=shapes[5], cell="modrelu")]
    rows += [row("loop", 5.0, shape=shapes[5]), row("torch.nn", 3.0, shape=shapes[5], dtype="bfloat16")]
    found = text("another", *rows, row("torch.nn", 9.0, shape=shapes[0], direction="forward")).splitlines()
    assert found[0].endswith("| mean | of the last five |")
    assert found[2] == "| `gru`, 1 layer | **0.50** | 2.00 | 2.00 | 2.00 | 2.00 | 4.00 | 1.78 | 2.30 |"
    assert found[3] == "| `gru`, 2 layers |  | 2.00 | 2.00 | 2.00 | 2.00 | 4.00 |  | 2.30 |"
    assert found[4] == "| `gru`, packed |  |  |  |  |  | 7.00 |  |  |"
    assert found[5] == "| `modrelu`, 1 layer, over the loop |  |  |  |  |  | 6.00 |  |  |"
    assert not found[6]
    assert "| `gru`, 1 layer |  |  |  |  |  | 3.00 |  |  |" in text("another_bfloat16", *rows)


def test_recomputed_gates_stand_beside_those_kept():
    rows = [row("rnnkern"), row("torch.nn", peak_bytes=2e6), row(recurrence.RECOMPUTED, 1.25, peak_bytes=123_456_789)]
    found = text("recomputed", *rows, row("rnnkern", cell="tanh"))
    assert "| `gru` | 5, 4, 3 | 1.25 | 123 | 1.5 | 2 |" in found
    assert "tanh" not in found


def test_the_compiled_loop():
    rows = [row(recurrence.COMPILED, 0.8), row(recurrence.COMPILED, 3.0, direction="forward"), row("torch.nn")]
    assert "| `gru` | 5, 4, 3 | 3.00 | **0.80** |" in text("compiled", *rows)


def test_one_call():
    rows = [row("rnnkern"), row(recurrence.OPERATOR, ms_50=0.01234), row("torch.nn", 0.5, ms_50=1.25)]
    rows = [r | {"case": overhead.CALL, "shape": "1x1x16"} for r in rows]
    assert "| `gru` | 16 | forward and backward | 12.3 | 2500 | 1250 | **0.50** |" in text("calls", *rows)


def test_step_by_step():
    rows = [row("rnnkern"), row("torch.nn", 1.5), row("torch.nn GRUCell", 0.75, ms_50=0.5)]
    rows = [r | {"case": overhead.STEPS, "shape": "100x1x64", "direction": "no_grad"} for r in rows]
    assert "| `gru` | 64 | `no_grad` | 25 | 25 | 1.50 | 5 | **0.75** |" in text("steps", *rows)


def test_orthogonal_weights():
    rows = [row("rnnkern"), row("torch.matrix_exp", 20.0), row("torch.nn.utils.parametrizations", 0.5)]
    rows = [r | {"op": "skew_exp", "case": "norm 1", "shape": "4x3x3", "matrix_bytes": "150000"} for r in rows]
    line = "| 4 x 3 x 3 | forward and backward | 2.5 | 24.0 | 20.00 | **0.50** |  | 10.0 |"
    assert line in text("orthogonal", *rows, row("torch.nn", op="recurrence"))
    rows = [rows[0], rows[1] | {"provider": tables.orthogonal.FORMULA}]
    line = "| 4 x 3 x 3 | forward and backward | 2.5 | 18.0 | 20.00 | 10.0 |"
    assert line in text("schur", *(r | {"op": "schur_weight", "case": "angles"} for r in rows))


def test_updates():
    rows = [row("rnnkern"), row("torch.nn.utils.parametrizations", 2.0), row("geotorch", 0.5)]
    assert "| 5, 4, 3 | 2.5 | 2.00 | **0.50** | 3.00 |" in text(
        "updates", *(r | {"op": "optimiser step"} for r in rows)
    )


def test_scans_have_a_share_of_the_copys_bandwidth():
    labels = {"op": "linear_scan", "case": "constant factors"}
    found = text("scans", row("rnnkern", over_floor=1.25, **labels), row("loop", 40.0, **labels), row("rnnkern"))
    assert "| 5, 4, 3 | constant factors | forward and backward | 2.5 | 80 % | 40.00 |  |" in found.splitlines()
    assert "over prefix sums |" in found


def test_only_what_stands_between_the_marks_changes():
    page = "a\n<!-- speed:begin -->\nold\n<!-- speed:end -->\nb\n<!-- steps:begin -->\n<!-- steps:end -->\nc\n"
    none = "*Not measured yet.*\n"
    new = tables.filled(page, [])
    assert new == page.replace("old\n", none).replace("steps:begin -->\n", f"steps:begin -->\n{none}")
    assert "| 5, 4, 3 | 2.00 |" in tables.filled(new, [row("torch.nn", 2.0)])
    with pytest.raises(KeyError):
        tables.filled(page.replace("speed", "sped"), [])


def test_pages_are_made_from_all_csvs(monkeypatch, tmp_path):
    monkeypatch.setattr(record, "RESULTS", tmp_path)
    record.append(tmp_path / "here" / "recurrence.csv", [row("torch.nn", 2.0)])
    page = tmp_path / "page.md"
    page.write_text("".join(f"<!-- {name}:begin -->\n<!-- {name}:end -->\n" for name in ("dense", "calls")))
    tables.main(["here"], [page])
    assert page.read_text().count("Not measured yet") == 1
    record.append(tmp_path / "here" / "overhead.csv", [row("torch.nn", 2.0, case=overhead.CALL)])
    tables.main(["here"], [page])
    assert "Not measured yet" not in page.read_text()
    record.append(tmp_path / "there" / "recurrence.csv", [row("torch.nn", 3.0, case="dense, 2 layers")])
    record.append(tmp_path / "there" / "overhead.csv", [row("torch.nn", 4.0, case=overhead.CALL)])
    page.write_text(page.read_text() + "<!-- another:begin -->\n<!-- another:end -->\n")
    tables.main(["here", "--another", "there"], [page])
    assert "| `gru` over torch.nn | 2.00 |" in page.read_text()
    assert "| `gru`, 2 layers |" in page.read_text()
    assert "| 4.00 |" in page.read_text()
    with pytest.raises(FileNotFoundError, match="nowhere has none of "):
        tables.main(["here", "nowhere"], [page])


def test_every_table_stands_on_a_page():
    pages = "".join((record.ROOT / page).read_text() for page in tables.PAGES)
    assert sorted(match[2] for match in tables.MARKED.finditer(pages)) == sorted(tables.TABLES)
