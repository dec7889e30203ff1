"""The commands `python -m rnnkern.profile` and `python -m rnnkern.bench`, on small shapes."""

import os
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest
import torch

import rnnkern
from perf import record
from rnnkern import bench, profile

ROOT = Path(__file__).parents[1]
CPU = torch.device("cpu")
OWN = """
import torch

class Own(torch.nn.LSTM):
    pass

class Doubled(torch.nn.LSTM):
    def forward(self, x):
        return 2 * super().forward(x)[0]

class Narrow(torch.nn.Module):
    def __init__(self, inputs, hidden):
        super().__init__()
        self.linear = torch.nn.Linear(inputs, hidden)

    def forward(self, x):
        return self.linear(x)
"""


def run(folder, *arguments):
    (folder / "mypackage.py").write_text(OWN)
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", *map(str, arguments)]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


def test_profile_prints_and_writes(tmp_path):
    names = ["RelRNN", "torch.nn.GRU", "mypackage.Narrow"]
    sizes = ["--lengths", 8, 4, "--hidden", 6, "--inputs", 3, "--batch", 2]
    done = run(tmp_path, "rnnkern.profile", "--layer", *names, *sizes)
    assert done.returncode == 0, done.stderr
    rows = record.read(tmp_path / "profile.csv")
    wanted = ["rnnkern.nn.RelRNN", "torch.nn.GRU", "mypackage.Narrow"]
    assert [(row["layer"], row["T"]) for row in rows] == [(name, T) for name in wanted for T in ("4", "8")]
    assert all(int(row["peak_bytes"]) > int(row["saved_bytes"]) >= 0 for row in rows)
    assert all(name in done.stdout for name in (*wanted, "T^"))
    assert [f"{name}, T = {T}" for name in wanted for T in (4, 8)] == done.stderr.splitlines()
    assert (tmp_path / "profile.png").read_bytes().startswith(b"\x89PNG")


def test_bench_prints_and_writes(tmp_path):
    peers = ["mypackage.Own", "mypackage.Doubled", "mypackage.Narrow"]
    options = ["--shape", "3x2x4", "--seconds", 0.01, "--out", tmp_path / "out"]
    done = run(tmp_path, "rnnkern.bench", "--module", "LSTM", "--peer", *peers, *options)
    assert done.returncode == 0, done.stderr
    rows = record.read(tmp_path / "out" / "bench.csv")
    providers = ["rnnkern.nn.LSTM", "torch.nn.LSTM", *peers, "matrix products"]
    found = [(row["direction"], row["provider"]) for row in rows]
    assert found == [(direction, name) for direction in bench.DIRECTIONS for name in providers]
    assert [row["result"] for row in rows[:6]] == ["", "same", "same", "differs", "other parameters", ""]
    assert all(float(row["ms"]) > 0 and float(row["over_products"]) > 0 for row in rows)
    assert all(name in done.stdout for name in ("3x2x4", *providers))


@pytest.mark.parametrize(
    ("command", "arguments", "said"),
    [
        (bench, ["--module", "LSTMM", "--shape", "1x1x1"], "no layer 'LSTMM'"),
        (bench, ["--module", "torch.tensor", "--shape", "1x1x1"], "must be a torch.nn.Module"),
        (bench, ["--module", "LSTM", "--shape", "3x0x2"], "the shape must be TxBxN, such as 200x64x256, got '3x0x2'"),
        (profile, ["--layer", "nopackage.Layer"], "no layer 'nopackage.Layer': No module named 'nopackage'"),
    ],
)
def test_wrong_arguments(command, arguments, said, capsys):
    with pytest.raises(SystemExit):
        command.main(arguments)
    assert said in capsys.readouterr().err


def test_a_layer_that_torch_lacks_is_compared_with_its_reference():
    x = torch.randn(5, 2, 4)
    ours, loop = bench.providers(rnnkern.nn.ExpRNN, [], x)
    assert (ours.name, loop.name, loop.result) == ("rnnkern.nn.ExpRNN", "rnnkern.nn.ExpRNN as a loop", "same")
    with loop.context():
        assert rnnkern.explain(loop.module, x)[0].implementation == "reference"


def test_the_matrix_products_of_a_stack():
    shape = bench.Shape(3, 2, 4)
    assert set(bench.products(rnnkern.nn.LSTM(4, 4, 2), shape)) == set(bench.DIRECTIONS)
    assert bench.products(torch.nn.Linear(4, 4), shape) == {}


def test_a_layer_s_rows_end_where_memory_ends(monkeypatch):
    def measure(module, x):
        if len(x) > 4:
            raise torch.OutOfMemoryError
        return {"saved_bytes": 8, "peak_bytes": 16, "seconds": 1.0}

    monkeypatch.setattr(profile, "measure", measure)
    said = []
    found = profile.profiles([torch.nn.RNN, torch.nn.GRU], [2, 4, 8, 16], 3, 4, 2, CPU, said.append)
    assert [(row["layer"], row["T"]) for row in found] == list(product(("torch.nn.RNN", "torch.nn.GRU"), (2, 4)))
    assert said.count("torch.nn.RNN, T = 8: out of memory") == 1


def test_growth_is_the_exponent_of_a_layer():
    rows = [
        {"layer": "a", "T": T, "saved_bytes": T**2, "peak_bytes": 3 * T, "seconds": T**0.5} for T in (10, 100, 1000)
    ]
    assert profile.growth(rows) == [{"layer": "a", "kept ~": "T^2.00", "peak ~": "T^1.00", "time ~": "T^0.50"}]
