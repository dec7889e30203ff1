import argparse
import math
from pathlib import Path

import pytest
import torch

import rnnkern
from perf import record
from rnnkern import _report

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


def test_facts():
    facts = record.facts(CPU, "python -m perf.recurrence")
    assert facts["threads"] == torch.get_num_threads()
    assert facts["rnnkern"] == rnnkern.__version__
    assert facts["torch"] == torch.__version__
    assert all(facts[name] for name in ("date", "commit", "device"))


def test_a_gpu_has_facts_of_its_own():
    assert list(record.accelerator()) == ["cuda", "cudnn", "matmul_tf32", "cudnn_tf32"]


def test_a_copy_without_git_is_told_the_commit(monkeypatch, tmp_path):
    monkeypatch.setattr(record, "ROOT", tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert record.commit() == "unknown"
    monkeypatch.setenv("RNNKERN_COMMIT", "abc1234")
    assert record.commit() == "abc1234"


def test_a_folder_for_each_device(tmp_path, monkeypatch):
    monkeypatch.setattr(record, "device_name", lambda device: "AMD EPYC 9B45 (Turin)")
    folder = record.folder(CPU, tmp_path)
    assert folder == tmp_path / f"cpu-amd-epyc-9b45-turin-{torch.get_num_threads()}t"


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


@pytest.mark.parametrize(
    ("name", "told"),
    [("AMD EPYC 9B45", "AMD EPYC 9B45"), ("AMD EPYC", "AMD EPYC family 26 model 2"), ("", "AMD EPYC 9B45")],
)
def test_a_cpu_whose_model_is_hidden_is_told_by_its_numbers(tmp_path, monkeypatch, name, told):
    monkeypatch.setattr(_report, "CPUINFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(_report.platform, "processor", lambda: "AMD EPYC 9B45")
    if name:
        _report.CPUINFO.write_text(f"cpu family\t: 26\nmodel\t\t: 2\nmodel name\t: {name}\n\n")
    assert record.device_name(CPU) == told


def test_table_aligns():
    lines = record.table([{"cell": "lstm", "ms": 1.5}, {"cell": "x", "ms": 10.25}]).splitlines()
    assert lines == ["cell     ms", "lstm    1.5", "x     10.25"]


def test_numbers_between_blanks_align():
    assert record.table([{"x": 1.5}, {"x": ""}, {"x": 10.25}]).splitlines() == ["    x", "  1.5", "", "10.25"]


@pytest.mark.parametrize(("x", "rounded"), [(0.0123456, 0.01235), (123456.0, 123500.0), (0.0, 0.0)])
def test_four_digits(x, rounded):
    assert record.significant(x) == rounded


def test_exponents():
    points = [(str(x), 3 * x**2) for x in (10, 20, 50)]
    assert record.exponent([*points, (99, 0)]) == pytest.approx(2)
    assert math.isnan(record.exponent(points[:1]))
    noisy = [(x, x**1.5 * (1.1 if k % 2 else 0.9)) for k, x in enumerate((1, 2, 4, 8, 16, 32))]
    assert record.exponent(noisy) == pytest.approx(1.5, abs=0.05)
