"""The CSVs of results, and where each device's lie."""

import argparse
from pathlib import Path

import pytest
import torch

from perf import record

CPU = torch.device("cpu")


def test_a_csv_only_grows(tmp_path):
    path = tmp_path / "device" / "op.csv"
    record.append(path, [{"a": 1, "b": "x, y"}])
    first = path.read_bytes()
    record.append(path, [{"a": 2, "b": "z"}, {"a": 3, "b": ""}])
    assert path.read_bytes().startswith(first)
    assert record.read(path) == [{"a": "1", "b": "x, y"}, {"a": "2", "b": "z"}, {"a": "3", "b": ""}]


def test_other_columns_are_refused(tmp_path):
    path = tmp_path / "op.csv"
    record.append(path, [{"a": 1, "b": 2}])
    before = path.read_bytes()
    with pytest.raises(ValueError, match=r"op\.csv: the header must be \['a', 'c'\], got \['a', 'b'\]"):
        record.append(path, [{"a": 1, "c": 2}])
    assert path.read_bytes() == before


def chosen(*argv: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    record.add_output_arguments(parser)
    return parser.parse_args(argv)


def test_only_publishing_changes_what_git_tracks(monkeypatch):
    monkeypatch.setattr(record, "device_name", lambda device: "some GPU")
    gpu = torch.device("cuda")
    built = record.ROOT / "build" / "perf" / "some-gpu"
    assert record.output(chosen(), gpu) == (built, built)
    assert record.output(chosen("--out", "here"), gpu) == (Path("here"), Path("here"))
    published = (record.ROOT / "perf" / "results" / "some-gpu", record.ROOT / "docs" / "images")
    assert record.output(chosen("--publish"), gpu) == published
    with pytest.raises(SystemExit):
        chosen("--publish", "--out", "here")
