"""perf.stream at a tiny size, and the tables of its rows."""

from perf import record, stream, tables


def test_a_small_run_fills_the_tables(tmp_path):
    stream.main(["--sizes", "8", "--seconds", "0.05", "--out", str(tmp_path)])
    rows = record.read(tmp_path / "stream.csv")
    providers = {row["provider"] for row in rows if row["case"] == "step"}
    assert providers | {stream.ONNX} == {stream.STREAM, stream.FLOOR, *stream.PEERS}
    assert all(0 < float(row["us_50"]) <= float(row["us_99"]) for row in rows if row["case"] == "step")
    assert all(float(row["per_second"]) > 0 for row in rows if row["case"] == "server")
    assert [line.split(" | ")[:2] for line in tables.of_latency(rows).splitlines()[2:4]] == [
        ["| `LSTM`", "8"],
        ["| `GRU`", "8"],
    ]
    assert tables.of_server(rows).splitlines()[2].startswith("| 8 | ")
