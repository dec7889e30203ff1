"""`make gpu` without a GPU: its plan fits, its jobs cover every family, no failure takes down another job, and a
rehearsal on a stand-in driver succeeds."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from perf import record
from perf.gpu import __main__ as command
from perf.gpu import checks, jobs, pack, plan, recurrences, runner, speeds, tables
from perf.gpu.checks import Check, Place
from perf.gpu.plan import AGAIN, CALL_SECONDS, STAGES, Stage
from perf.gpu.recurrences import Spec
from perf.gpu.runner import Entry, Options
from perf.harness import OURS, Effort
from python_tests.gpu import standin
from rnnkern import _compiler, _extension

CPU = torch.device("cpu")
compiled_part = pytest.mark.skipif(not _extension.available, reason=f"no compiled part: {_extension.reason}")
lacks = standin.missing() or (_compiler.nvrtc() is None and f"{_compiler.LIBRARY} was not found")
on_stand_in = pytest.mark.skipif(bool(lacks), reason=str(lacks))


@pytest.fixture
def place(tmp_path, monkeypatch) -> Place:
    """A CPU in place of the GPU: its kernels compute, but no CUDA kernel is started."""
    monkeypatch.setattr(speeds, "EFFORT", Effort(0.0, 2, 2))
    monkeypatch.setattr(speeds, "MEMORY_LENGTHS", (4, 8))
    return Place(CPU, tmp_path, "make gpu", lambda: json.loads(torch.ops.rnnkern.kernel_counts()))


# ---- the plan


def test_the_plan_fits_into_the_time_of_a_machine():
    assert plan.seconds() < plan.DEVICE_SECONDS
    for call, stages in (("first", STAGES), ("again", AGAIN)):
        ends = [stage.until for stage in stages.values()]
        assert ends == sorted(ends)
        assert ends[-1] + plan.RESERVED <= CALL_SECONDS[call]
        assert sum(stage.estimate for stage in stages.values()) <= ends[-1]


@compiled_part
def test_jobs_have_names_of_their_own_and_every_family_and_kernel_has_both_directions():
    names = [name for stage in jobs.STAGES.values() for name, _ in stage()]
    assert len(names) == len(set(names))
    first = dict(jobs.first())
    wanted = {"block", "cluster", "cluster_tf32", "grid", "stepwise", "relevancy block", "relevancy cluster",
              "relevancy stepwise", "givens", "linear_scan", "moment_filter", "skew_exp", "gather_attention",
              "similarity", "own cell"}  # fmt: skip
    for name in wanted:
        for direction in checks.DIRECTIONS:
            assert any(job.startswith(name) and job.endswith(direction) for job in first), name
    for tool in plan.TOOLS:
        sanitized = [name.removeprefix(f"{tool} ") for name, _ in jobs.sanitizer() if name.startswith(tool)]
        judged = {name for name in wanted if tool == "memcheck" or not name.startswith(jobs.UNKNOWN)}
        assert all(any(job.startswith(name) for job in sanitized) for name in judged - {"own cell"})


# ---- what jobs say


def built(change=lambda values: values):
    """Calls of a GRU whose results are changed."""

    def build(device, rehearses, seed):
        problem = recurrences.call("gru", "float32", (5, 3, 8), device, seed)
        call = problem.calls["forward+backward"][OURS]
        return problem._replace(calls={"forward+backward": {OURS: lambda: change(call())}})

    return build


@compiled_part
def test_a_check_says_how_accurate_a_call_is(place):
    assert Check(built(), "backward")(place).startswith("agrees, ")
    wrong = Check(built(lambda values: values | {"h": -values["h"]}), "backward")
    with pytest.raises(AssertionError, match=r"^wrong, [\d.e+]+ times naive: h: .* \(at \[\d, \d, \d\] of \[5, 3, 8\]"):
        wrong(place)


@compiled_part
@pytest.mark.parametrize("name", [name for name in jobs.SMALL if not name.startswith("stepwise tanh")])
def test_small_calls_agree_on_a_cpu(name, place):
    builder, _, tf32 = jobs.SMALL[name]
    assert Check(builder, "backward", "", tf32)(place).startswith("agrees")


@compiled_part
@pytest.mark.parametrize("cell", [*recurrences.CELLS, *recurrences.OWN_CELLS])
def test_layers_are_checked_and_timed(cell, place):
    said = jobs.layer(Spec(cell, 3, 8, "float32", 16))(place)
    assert " times torch.nn, " in said
    rows = record.read(place.folder / "gpu-recurrence.csv")
    assert {row["provider"] for row in rows} == {OURS, "torch.nn"}
    assert {row["direction"] for row in rows} == set(tables.DIRECTIONS)


@compiled_part
def test_memory_is_measured(place):
    assert jobs.memory_of("LSTM", place).endswith("at T = 8")
    assert [row["T"] for row in record.read(place.folder / "gpu-memory.csv")] == ["4", "8"]


# ---- processes


def options(folder: Path, rehearse: bool = True) -> Options:
    return Options(folder, folder / "logs", "make gpu", None, rehearse, False)


FAKE = """
import json, os, signal, sys, time
tell = lambda **words: print(json.dumps(words), flush=True)
for name in sys.argv[1:]:
    if name.startswith("-"): break
    tell(name=name)
    if name == "hangs":
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        time.sleep(600)
    if name == "dies": os.kill(os.getpid(), signal.SIGKILL)
    if name == "exits": sys.exit("its last words")
    if name == "stuck":
        print("/x/csrc/cluster_tile.cuh:38: a wait: block: [0,0,0] Assertion `stuck` failed.", file=sys.stderr)
    status = "failed" if name in ("stuck", "lost") else "ok"
    tell(name=name, status=status, text="RuntimeError: CUDA error: an illegal memory access", seconds=1.0)
    if status == "failed": sys.exit(1)
"""


@pytest.fixture
def fake(monkeypatch, tmp_path):
    """A worker of few lines, in place of the one that imports torch."""
    path = tmp_path / "fake.py"
    path.write_text(FAKE)
    start = subprocess.Popen

    def popen(command, **rest):
        if "perf.gpu.worker" in command:
            command = [sys.executable, str(path), *command[command.index("perf.gpu.worker") + 1 :]]
        return start(command, **rest)

    monkeypatch.setattr(runner.subprocess, "Popen", popen)


@pytest.mark.parametrize(("together", "at_once"), [(1, 8), (100, 2)])
def test_a_job_that_fails_takes_down_its_own_line_alone(together, at_once, fake, tmp_path):
    stage = Stage("first", 60, 1, 4.0, at_once, together)
    names = ["a", "hangs", "b", "dies", "c", "stuck", "d", "lost", "e", "exits", "f"]
    found = {entry.name: entry for entry in runner.run(stage, names, time.monotonic(), options(tmp_path))}
    assert sorted(found) == sorted(names)
    assert {name for name in names if found[name].status == "ok"} == set("abcdef")
    assert found["hangs"].text == "hangs: killed after 4 s"
    assert found["dies"].text.startswith("its process killed by signal 9")
    assert found["stuck"].text == "stuck in barrier cluster_tile.cuh:38"
    assert found["lost"].text == "illegal address"
    assert found["exits"].text == "its process ended with 1: its last words"


def test_what_does_not_begin_in_time_is_cut(fake, tmp_path):
    stage = Stage("truth", 5.0, 1, 60.0, 1, 2)
    found = list(runner.run(stage, ["a", "hangs", "b", "c"], time.monotonic(), options(tmp_path)))
    assert [entry.name for entry in found] == ["a", "hangs", "b", "c"]
    assert [entry.status for entry in found] == ["ok", "cut", "cut", "cut"]


def test_without_the_sanitizer_its_jobs_are_left_out(fake, tmp_path, monkeypatch):
    monkeypatch.setattr(runner.shutil, "which", lambda program: None)
    found = list(runner.run(STAGES["sanitizer"], ["memcheck a"], time.monotonic(), options(tmp_path, rehearse=False)))
    assert found == [Entry("sanitizer", "memcheck a", "cut", "compute-sanitizer is absent", 0.0)]


RACE = "Error: Race reported between Read access at {}+0xb00\n========= RACECHECK SUMMARY: 1 hazard"


@pytest.mark.parametrize(
    ("said", "verdict"),
    [
        (RACE.format("nvjet_sm90_tst"), "ok"),
        (RACE.format("BlockKernel"), "wrong"),
        ("ERROR SUMMARY: 2 errors", "wrong"),
    ],
    ids=["a race of cuBLAS", "a race of ours", "errors"],
)
def test_the_verdict_of_the_sanitizer(said, verdict):
    assert runner.sanitized(SimpleNamespace(said=lambda: f"========= {said}"), "ok", "agrees")[0] == verdict


# ---- the report


def test_the_second_call_does_what_failed_or_was_cut(tmp_path):
    ended = [("first", "a", "ok"), ("first", "b", "failed"), ("truth", "c", "wrong"), ("speed", "d", "cut"),
             ("truth", "e", "cut"), ("speed", "f", "wrong"), ("first", "primitives", "failed")]  # fmt: skip
    entries = [Entry(*each, "", 1.0) for each in ended]
    (tmp_path / "report.json").write_text(json.dumps({"entries": [entry._asdict() for entry in entries]}))
    chosen = command.parse(["--again", str(tmp_path / "report.json")])
    found = {stage.name: names for stage, names in command.todo(chosen)}
    assert found == {"faults": ["b"], "wrong": ["c"], "first": ["primitives"], "truth": ["e"], "speed": ["d", "f"]}


def test_a_run_writes_report_results_and_archive(fake, tmp_path, monkeypatch, capsys):
    """On a pretended device, with a few jobs."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(record, "device_name", lambda device: "NVIDIA H100 80GB HBM3")
    monkeypatch.setattr(record, "folder", lambda device: tmp_path / "perf" / "results" / "nvidia-h100")
    monkeypatch.setattr(command, "ROOT", tmp_path)
    monkeypatch.setattr(pack, "unpack", lambda: "there is no pack")
    monkeypatch.setattr(pack, "FACTS", tmp_path / "facts.json")
    todo = [(STAGES["first"], ["a", "lost"]), (STAGES["speed"], ["b", "c"])]
    monkeypatch.setattr(command, "todo", lambda chosen: todo)
    handler = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as ended:
        command.main(["--out", str(tmp_path / "out")])
    signal.signal(signal.SIGTERM, handler)
    assert ended.value.code == 1
    for text in (capsys.readouterr().out, (tmp_path / "out" / "report.txt").read_text()):
        assert "NVIDIA H100 80GB HBM3, commit " in text
        assert "lost: illegal address" in text
    rows = record.read(tmp_path / "perf" / "results" / "nvidia-h100" / "gpu-report.csv")
    assert {row["name"]: row["status"] for row in rows} == {"a": "ok", "lost": "failed", "b": "ok", "c": "ok"}
    with tarfile.open(tmp_path / "out" / "results.tar.gz") as tar:
        assert {"build/gpu/report.json", "perf/results/nvidia-h100/gpu-report.csv"} <= set(tar.getnames())


# ---- a rehearsal


@on_stand_in
def test_a_rehearsal_with_faults(tmp_path, monkeypatch):
    """What is wrong arrives as such from the worker, and every other line still arrives."""
    kinds = {"givens float32 forward": "fault", "cluster lstm bfloat16 forward": "wrong"}
    others = ["block gru float32 forward", "similarity float32 backward"]
    monkeypatch.setenv("RNNKERN_GPU_FAULTS", json.dumps(kinds))
    monkeypatch.setenv("RNNKERN_CACHE_DIR", str(tmp_path / "kernels"))
    monkeypatch.setattr(runner, "ROOT", record.ROOT)
    stage = Stage("first", 600, 1, 500.0, 2, 4)
    found = {e.name: e for e in runner.run(stage, [*kinds, *others], time.monotonic(), options(tmp_path))}
    assert {name for name, entry in found.items() if entry.status == "ok"} == set(others)
    assert [found[name].text for name in kinds] == ["illegal address", "wrong, 31 times naive"]


ISOLATED = """
import ctypes, socket
opened = ctypes.CDLL.__init__
def refuse(self, name, *rest, **more):
    if name and "nvrtc" in str(name): raise OSError("no NVRTC")
    opened(self, name, *rest, **more)
def offline(*_, **__): raise OSError("no network")
ctypes.CDLL.__init__, socket.socket.connect = refuse, offline
"""


@on_stand_in
def test_a_copy_without_compiler_nvrtc_and_network_runs_from_a_pack_alone(tmp_path):
    """All jobs of one stage, with a pack of their kernels."""
    copy = tmp_path / "copy"
    without = shutil.ignore_patterns("*.so", "results", "__pycache__", "build", ".git", ".venv")
    for folder in ("perf", "rnnkern", "python_tests", "csrc"):
        shutil.copytree(record.ROOT / folder, copy / folder, ignore=without)
    stage = ["--stages", "sanitizer", "--out", str(tmp_path / "out")]

    def run(module, *arguments, folder=record.ROOT, **environment):
        given = {"cwd": folder, "env": os.environ | environment, "capture_output": True, "text": True}
        done = subprocess.run([sys.executable, "-m", module, *arguments], **given)
        assert done.returncode == 0, done.stdout + done.stderr

    run("perf.gpu.pack", *stage, RNNKERN_GPU_PACK=str(copy / "build" / "gpu_pack"))
    (tmp_path / "nothing").mkdir()
    (copy / "sitecustomize.py").write_text(ISOLATED)
    isolated = {"PYTHONPATH": str(copy), "PATH": str(tmp_path / "nothing"), "CXX": "no-such-compiler"}
    run("perf.gpu", "--rehearse", *stage, folder=copy, **isolated)
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert {entry["name"]: entry["status"] for entry in report["entries"]} == {
        name: "ok" for name, _ in jobs.sanitizer()
    }
    assert "the pack of commit" in report["head"]


def test_without_a_gpu_it_says_what_it_needs(monkeypatch):
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    monkeypatch.setattr(pack, "unpack", lambda: "")  # and nothing else is reached
    with pytest.raises(SystemExit, match=r"make gpu needs a CUDA device: PyTorch .* sees none"):
        command.main([])
