"""perf.programs: each program at tiny sizes where its packages are present, the command, the clock and the table."""

import importlib
import subprocess
import sys
import time

import pytest
import torch

from perf.programs import __main__ as command
from perf.programs import measure, tables
from perf.progress import Progress


@pytest.mark.proof
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.parametrize("name", command.REQUIREMENTS)
def test_a_program_agrees_with_the_published_one(name):
    program = pytest.importorskip(f"perf.programs.{name}", exc_type=ImportError)
    for case in program.cases(tiny=True):
        rows = measure.measured(case, 1, Progress("test"))
        assert [row["way"] for row in rows] == list(case.ways)
        assert all(row["seconds"] > 0 and 0 <= row["of_recurrent"] < 1 for row in rows)
        assert rows[-1]["of_recurrent"] > 0
        assert rows[-1]["difference"] <= case.tolerance


class Sleep(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        time.sleep(0.02)
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        time.sleep(0.04)
        return grad


class Model:
    """The layer takes 20 ms forward and 40 ms backward, and what follows it as much."""

    def __init__(self):
        self.weight = torch.ones(3, requires_grad=True)

    def layer(self, x):
        return Sleep.apply(x * self.weight)

    def step(self):
        Sleep.apply(self.layer(torch.ones(3))).sum().backward()
        return [self.weight.grad]


def run_of(factor, clock):
    model = Model()
    clock.watch(model, "layer", [model.weight])
    return [factor * x for x in clock.run(model.step)]


def test_the_clock_counts_forward_and_backward_passes():
    clock = measure.Clock()
    run_of(1, clock)
    assert clock.whole >= 0.12
    assert clock.parts["recurrent"] / clock.whole == pytest.approx(0.5, abs=0.15)
    assert torch.Tensor.backward.__module__ == "torch._tensor"


def case_of(factor):
    ways = {"as published": lambda clock: run_of(1, clock), "rnnkern": lambda clock: run_of(factor, clock)}
    return measure.Case("Program", "case", ways, 100, "frame", tolerance=1e-3, threads=torch.get_num_threads())


def test_other_results_are_an_error():
    with pytest.raises(RuntimeError, match=r"Program, case: the results of rnnkern differ by 5\.0e-01, which is more"):
        measure.measured(case_of(1.5), 1, Progress("test"))


def test_the_table_has_a_line_for_each_case():
    rows = [{k: str(x) for k, x in row.items()} for row in measure.measured(case_of(1.0005), 1, Progress("test"))]
    [line] = tables.of_programs(rows)
    assert list(line.values())[:3] == ["Program", "case", "frame"]
    assert line["as published"].endswith(" ms")
    assert line["difference"] == "5e-04"
    assert float(line["times as fast"]) == pytest.approx(1, abs=0.3)
    assert tables.of_ppo(rows) == []


def test_what_cannot_be_installed_is_left_out_by_name(monkeypatch, tmp_path, capsys):
    def refused(arguments, **options):
        raise subprocess.CalledProcessError(1, arguments)

    def made(folder, **options):
        (folder / "lib" / "python3" / "site-packages").mkdir(parents=True)

    monkeypatch.setattr(command.venv, "create", made)
    monkeypatch.setattr(command, "BUILT", tmp_path / "built")
    monkeypatch.setattr(subprocess, "run", refused)
    monkeypatch.setattr(sys, "argv", ["perf.programs", "medaka", "--out", str(tmp_path / "rows")])
    threads = torch.get_num_threads()
    command.main()
    torch.set_num_threads(threads)
    assert "medaka is left out: its packages cannot be installed" in capsys.readouterr().out


def test_an_unknown_name_is_an_error(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["perf.programs", "medoka"])
    with pytest.raises(SystemExit):
        command.main()
    assert "NAME must be one of recurrent_ppo, tirex, medaka," in capsys.readouterr().err


def test_every_program_has_a_file():
    for name in command.REQUIREMENTS:
        assert importlib.util.find_spec(f"perf.programs.{name}")
