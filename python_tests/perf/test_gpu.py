"""The stages of ``make gpu``, without a GPU: what they would run, and how the runner treats what goes wrong."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from perf import gpu, record
from perf.gpu import Stage

FOLDER = Path("results")


def python(code: str, name: str = "a", limit: float = 30.0, **options) -> Stage:
    return Stage(name, limit, lambda left: [[sys.executable, "-c", code]], **options)


def ended(stages: list[Stage], logs: Path, total: float = 60.0) -> list[gpu.Result]:
    return list(gpu.run(stages, logs, total))


def commands(name: str, left: float = 100.0, quick: bool = False) -> list[str]:
    (stage,) = gpu.plan([name], FOLDER, quick, (9, 0))
    return [" ".join(command) for command in stage.commands(left)]


def test_without_a_gpu_it_says_what_it_needs():
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    done = subprocess.run([sys.executable, "-m", "perf.gpu"], cwd=record.ROOT, capture_output=True, text=True)
    assert done.returncode != 0
    assert "needs a CUDA device and nvcc: PyTorch" in done.stderr
    assert "Traceback" not in done.stderr


def test_it_builds_before_it_needs_what_is_built():
    code = "import sys, perf.gpu; sys.exit('rnnkern' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=record.ROOT).returncode == 0


def test_without_nvcc_it_says_what_it_needs(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(gpu, "find", lambda program: None)
    with pytest.raises(SystemExit, match="needs a CUDA device and nvcc: nvcc is not on PATH"):
        gpu.main(["--stages", "build"])


@pytest.mark.skipif(shutil.which("make") is None, reason="make is absent")
def test_make_uses_the_python_that_is_there():
    done = subprocess.run(
        ["make", "-n", "--no-print-directory", "gpu", "PYTHON=python9", "OUT=some folder", "STAGES=smoke measure"],
        cwd=record.ROOT, env=os.environ | {"MAKEFLAGS": ""}, check=True, capture_output=True, text=True,
    )  # fmt: skip
    assert done.stdout.strip() == "python9 -m perf.gpu --out 'some folder' --stages smoke measure"


def test_stages_come_in_order_and_alone():
    names = ["build", "smoke", "conformance", "tests", "sanitize", "measure"]
    assert [stage.name for stage in gpu.plan(names[::-1], FOLDER, False, (9, 0))] == names
    assert [stage.name for stage in gpu.plan(["measure", "smoke"], FOLDER, False, (9, 0))] == ["smoke", "measure"]
    with pytest.raises(SystemExit):
        gpu.parse(["--stages", "made_up"])


def test_the_build_is_for_this_device(monkeypatch):
    monkeypatch.delenv("TORCH_CUDA_ARCH_LIST", raising=False)
    (stage,) = gpu.plan(["build"], FOLDER, False, (9, 0))
    assert stage.environment == {"TORCH_CUDA_ARCH_LIST": "9.0", "RNNKERN_CUDA": "1"}
    package, primitives = commands("build")
    assert package == f"{sys.executable} setup.py build_ext --inplace"
    assert "build_library('cuda')" in primitives
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "8.0")
    (stage,) = gpu.plan(["build"], FOLDER, False, (9, 0))
    assert stage.environment["TORCH_CUDA_ARCH_LIST"] == "8.0"


def test_tests_on_the_gpu_run_in_one_process(monkeypatch):
    monkeypatch.setattr(gpu, "importable", lambda package: True)
    on_gpu, elsewhere = commands("tests")
    assert on_gpu.endswith("python_tests/gpu")
    assert "--ignore=python_tests/gpu --ignore=python_tests/packaging -n 4" in elsewhere
    for name in ("smoke", "conformance"):
        (command,) = commands(name)
        assert command.endswith(f"python_tests/gpu -m {name}")


def test_every_tool_of_the_sanitizer_runs(monkeypatch):
    monkeypatch.setattr(gpu, "find", lambda program: f"/opt/{program}")
    found = commands("sanitize")
    assert [command.split(" --tool ")[1].split()[0] for command in found] == ["memcheck", "racecheck", "synccheck"]
    assert all(command.startswith("/opt/compute-sanitizer --error-exitcode 1") for command in found)


def test_measurements_get_the_time_that_is_left():
    (command,) = commands("measure", left=85.0)
    assert command.endswith("-m perf.measure_gpu --out results --minutes 1.00")
    (command,) = commands("measure", left=1.0, quick=True)
    assert command.endswith("--minutes 0.00 --quick")


def test_what_is_absent_is_said(monkeypatch, tmp_path):
    monkeypatch.setattr(gpu, "importable", lambda package: False)
    monkeypatch.setattr(gpu, "find", lambda program: None)
    assert "matplotlib is absent: no pictures" in gpu.absent()
    assert "-n" not in commands("tests")[1].split()
    smoke, sanitize = gpu.plan(["smoke", "sanitize"], FOLDER, False, (9, 0))
    assert sanitize.lacks == "pytest"
    (result,) = ended([smoke], tmp_path)
    assert (result.said, result.failed) == ("left out: pytest is absent", False)
    monkeypatch.setattr(gpu, "importable", lambda package: True)
    (sanitize,) = gpu.plan(["sanitize"], FOLDER, False, (9, 0))
    assert sanitize.lacks == "compute-sanitizer"


def test_a_stage_over_its_limit_is_killed_with_all_that_it_started(tmp_path):
    marker = tmp_path / "alive"
    child = f"import time, pathlib; time.sleep(3); pathlib.Path({str(marker)!r}).touch()"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    begun = time.monotonic()
    first, second = ended([python(code, limit=0.5), python("pass", "b")], tmp_path)
    assert time.monotonic() - begun < 3
    assert (first.said, first.failed) == ("killed at its limit of 0 s", True)
    assert (second.said, second.failed) == ("passed", False)
    time.sleep(max(begun + 4 - time.monotonic(), 0))
    assert not marker.exists()


@pytest.mark.parametrize(("name", "runs"), [("smoke", False), ("build", False), ("conformance", True), ("tests", True)])
def test_what_a_failure_stops(name, runs, tmp_path):
    failing, later = ended([python("raise SystemExit(3)", name), python("pass", "measure")], tmp_path)
    assert (failing.said, failing.failed) == ("failed with 3", True)
    assert later.said == ("passed" if runs else f"not run, since {name} has failed")
    assert not later.failed


def test_nothing_begins_when_the_time_is_up(tmp_path):
    first, second = ended([python("import time; time.sleep(9)"), python("pass", "b")], tmp_path, total=0.5)
    assert "killed" in first.said
    assert (second.said, second.failed) == ("not run: the time is up", True)


def test_every_command_of_a_stage_runs(tmp_path):
    stage = Stage("sanitize", 30, lambda left: [[sys.executable, "-c", f"raise SystemExit({k})"] for k in (1, 0, 2)])
    (result,) = ended([stage], tmp_path)
    assert result.said == "failed with 1, failed with 2"
    assert (tmp_path / "sanitize.log").read_text().count("$ ") == 3


def test_a_stage_finds_the_checkout_and_knows_of_the_hardware(tmp_path):
    code = "import os, rnnkern; print(os.environ['RNNKERN_GPU_TESTS'], os.environ['MORE'], rnnkern.__file__)"
    (result,) = ended([python(code, environment={"MORE": "said"})], tmp_path)
    assert not result.failed
    assert f"cuda said {record.ROOT}/rnnkern" in (tmp_path / "a.log").read_text()


def test_logs_stay_small(tmp_path):
    ended([python("print('x' * 79 + '\\n' * 1, end='') or [print('y' * 79) for _ in range(9999)]")], tmp_path)
    text = (tmp_path / "a.log").read_text()
    assert len(text) < gpu.LOG_BYTES + 99
    assert text.startswith("...\n")
    assert text.endswith("y\n")


@pytest.mark.parametrize("fails", [False, True])
def test_what_is_printed(fails, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(record, "device_name", lambda device: "NVIDIA H200")
    stages = [python("print('why')\nraise SystemExit(1)" if fails else "pass", "tests"), python("pass", "measure")]
    monkeypatch.setattr(gpu, "plan", lambda *arguments: stages)
    with pytest.raises(SystemExit) as ending:
        gpu.main(["--stages", "tests", "measure", "--out", str(tmp_path)])
    assert bool(ending.value.code) == fails
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("NVIDIA H200, PyTorch")
    assert "python_tests/packaging is left out: it installs over the network" in lines
    assert any(line.startswith("tests ") and line.endswith("failed with 1" if fails else "passed") for line in lines)
    assert ("    why" in lines) == fails
    assert "recurrence.csv: nothing was measured" in lines
    assert lines[-1].startswith("failed: tests; " if fails else "all passed; ")
