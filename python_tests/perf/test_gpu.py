"""The stages of ``make gpu``, without a GPU: their commands, and how the runner handles failures."""

import os
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest
import torch
from torch.nn import ModuleList

from perf import gpu, gpu_kernels, gpu_stages, record
from perf.gpu_stages import CALLS, FAMILIES, Command, Stage, Target
from rnnkern import _compiler, _extension, _precompile

FOLDER = Path("results")


def python(code: str, name: str = "a", limit: float = 30.0, **options) -> Stage:
    return Stage(name, limit, lambda left: [Command("code", [sys.executable, "-c", code])], **options)


def ended(stages: list[Stage], logs: Path, total: float = 60.0) -> list[gpu.Result]:
    return list(gpu.run(stages, logs, total))


def stage_of(name: str, call: int | None = None, quick: bool = False) -> Stage:
    (stage,) = gpu_stages.plan([name], Target(FOLDER, call, quick))
    return stage


def commands(name: str, left: float = 100.0, **options) -> list[str]:
    return [shlex.join(command.arguments) for command in stage_of(name, **options).commands(left)]


def run_script(*arguments: str, **options) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "perf.gpu", *arguments]
    return subprocess.run(command, cwd=record.ROOT, capture_output=True, text=True, check=False, **options)


# ---- without a GPU


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("fails", [False, True])
def test_a_dry_run_says_what_each_stage_would_do(call, fails, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(gpu_stages, "rehearsal", lambda: [python(f"raise SystemExit({fails:d})", "compile")])
    monkeypatch.setattr(record, "ROOT", tmp_path)
    handler = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as ended:
        gpu.main(["--call", str(call), "--dry-run", "--out", str(tmp_path / "out")])
    signal.signal(signal.SIGTERM, handler)
    assert ended.value.code == fails
    (packed,) = (tmp_path / "out").iterdir()
    with tarfile.open(packed) as tar:
        said = tar.extractfile(f"call{call}/logs/plan.log").read().decode()
    assert logs_in(packed) == {"plan.log", "compile-code.log"}
    printed = capsys.readouterr().out
    assert printed.startswith(said)
    assert f"compile {' ' * 4}" in printed
    for name, seconds in CALLS[call].items():
        assert f"{name}: at most {seconds:g} s" in said
        for command in gpu_stages.plan([name], Target(FOLDER, call))[0].commands(seconds):
            assert shlex.join(command.arguments[:3]) in said


@pytest.mark.proof
@pytest.mark.skipif(_compiler.nvrtc() is None, reason=f"{_compiler.LIBRARY} was not found")
def test_a_dry_run_compiles_kernels_and_starts_them_on_a_stand_in(tmp_path):
    done = run_script("--call", "1", "--dry-run", "--out", str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    ran = [line.split()[0] for line in done.stdout.splitlines() if line.endswith(" passed")]
    assert ran == [stage.name for stage in gpu_stages.rehearsal()]
    with tarfile.open(tmp_path / "call1.tar.gz") as tar:
        said = tar.extractfile("call1/logs/compile-kernels.log").read().decode()
    assert int(said.splitlines()[-1].removesuffix(" kernels were compiled")) > 5


@pytest.mark.parametrize("call", CALLS)
def test_limits_add_up_to_less_than_the_calls(call):
    assert sum(CALLS[call].values()) <= gpu_stages.CALL_SECONDS - gpu_stages.RESERVED
    assert (CALLS[call]["build"], CALLS[1]["smoke"]) == (180, 90)
    assert all(seconds > gpu.GRACE for seconds in CALLS[call].values())


def test_without_a_gpu_it_says_what_it_needs():
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    done = run_script("--call", "1")
    assert done.returncode != 0
    assert "needs a CUDA device and a C++ compiler: PyTorch" in done.stderr
    assert "Traceback" not in done.stderr


def test_it_builds_before_it_needs_what_is_built(tmp_path):
    for folder in ("perf", "rnnkern"):
        without = shutil.ignore_patterns("*.so", "results", "__pycache__")
        shutil.copytree(record.ROOT / folder, tmp_path / folder, ignore=without)
    code = "import sys, perf.gpu; sys.exit(not perf.gpu.__file__.startswith(sys.argv[1]))"
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path)], cwd=tmp_path).returncode == 0


def test_without_a_compiler_it_says_what_it_needs(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setenv("CXX", "no-such-compiler -O2")
    with pytest.raises(SystemExit, match="a C\\+\\+ compiler: the C\\+\\+ compiler 'no-such-compiler' is not on PATH"):
        gpu.main(["--stages", "build"])


@pytest.mark.skipif(shutil.which("make") is None, reason="make is absent")
@pytest.mark.parametrize(
    ("given", "wanted"),
    [([], "--call 1"), (["CALL=3", "DRY=1"], "--call 3 --dry-run"),
     (["OUT=some folder", "STAGES=smoke tables"], "--stages smoke tables --out 'some folder'")],
    ids=str,
)  # fmt: skip
def test_make_uses_the_python_that_is_there(given, wanted):
    done = subprocess.run(
        ["make", "-n", "--no-print-directory", "gpu", "PYTHON=python9", *given],
        cwd=record.ROOT, env=os.environ | {"MAKEFLAGS": ""}, check=True, capture_output=True, text=True,
    )  # fmt: skip
    assert " ".join(done.stdout.replace("\\\n", "").split()) == f"python9 -m perf.gpu {wanted}"


# ---- commands of the stages


def test_stages_come_in_order_and_alone():
    names = list(CALLS[1])
    assert [stage.name for stage in gpu_stages.plan(names[::-1], Target(FOLDER, 1))] == names
    assert [stage.name for stage in gpu_stages.plan(["tables", "smoke"], Target(FOLDER))] == ["smoke", "tables"]
    with pytest.raises(SystemExit):
        gpu.parse(["--stages", "made_up"])


def test_a_build_compiles_what_the_call_uses(monkeypatch):
    found = [stage_of("build", call=call).environment["RNNKERN_SIMD_LEVELS"] for call in CALLS]
    assert found == ["plain", "plain", "host"]
    package, primitives, _ = commands("build")
    assert package == f"{sys.executable} setup.py build_ext --inplace"
    assert "build_library" in primitives


def test_all_stages_of_a_call_share_compiled_kernels(monkeypatch):
    monkeypatch.delenv("RNNKERN_CUDA_FLAGS", raising=False)
    for call, stages in CALLS.items():
        found = [dict(stage.environment) for stage in gpu_stages.plan(list(stages), Target(FOLDER, call))]
        assert {made["RNNKERN_CACHE_DIR"] for made in found} == {str(record.ROOT / "build" / "cuda_kernels")}
        flags = {1: "-lineinfo -DRNNKERN_SPIN_LIMIT=2000000000", 2: "-lineinfo"}.get(call)
        assert {made.get("RNNKERN_CUDA_FLAGS") for made in found} == {flags}
    monkeypatch.setenv("RNNKERN_CUDA_FLAGS", "-DSOME")
    assert stage_of("tests", call=2).environment["RNNKERN_CUDA_FLAGS"] == "-DSOME -lineinfo"
    assert stage_of("smoke").environment["RNNKERN_CUDA_FLAGS"] == "-DSOME"


@pytest.mark.skipif(not _extension.available, reason=f"no compiled part: {_extension.reason}")
@pytest.mark.skipif(_compiler.nvrtc() is None, reason=f"{_compiler.LIBRARY} was not found")
def test_kernels_that_are_compiled_ahead_are_of_every_kind(monkeypatch):
    wanted = set()
    monkeypatch.setattr(_precompile, "_compile", wanted.update)
    model = ModuleList(layer for hidden in gpu_kernels.SIZES for layer in gpu_kernels.layers(hidden))
    for dtype in gpu_kernels.DTYPES:
        _precompile.precompile(model, dtype=dtype, arch="sm_90")
    headers = {program.header for program in wanted}
    for kind in ("block", "cluster", "grid"):
        assert {f"recurrence/cuda/{kind}_{way}.cuh" for way in ("forward", "backward")} <= headers
    kinds = ("per_sequence", "cluster", "stepwise_attention")
    assert {f"relevancy/cuda/{kind}_forward.cuh" for kind in kinds} <= headers
    assert len(wanted) > 200


@pytest.mark.parametrize("name", ["families", "sanitize", "tests"])
def test_each_family_has_a_process_of_its_own(name, monkeypatch):
    monkeypatch.setattr(gpu_stages, "find", lambda program: f"/opt/{program}")
    found = commands(name)
    assert all("--maxfail=3" in command for command in found)
    times = {"sanitize": len(gpu_stages.TOOLS)}.get(name, 1)
    for file, *_ in FAMILIES.values():
        assert sum(f"/{file}" in command for command in found) == times * sum(f[0] == file for f in FAMILIES.values())


def test_memcheck_and_racecheck_run(monkeypatch):
    monkeypatch.setattr(gpu_stages, "find", lambda program: f"/opt/{program}")
    found = commands("sanitize")
    assert {command.split(" --tool ")[1].split()[0] for command in found} == {"memcheck", "racecheck"}
    assert all(command.startswith("/opt/compute-sanitizer --error-exitcode 1") for command in found)


@pytest.mark.parametrize("mark", ["smoke", "sanitize"])
def test_every_family_has_a_first_call_and_one_for_the_sanitizer(mark):
    """Pytest fails if no test is selected."""
    command = [sys.executable, "-m", "pytest", "python_tests/gpu", "--collect-only", "-q", "-m", mark]
    environment = os.environ | {"RNNKERN_GPU_TESTS": "cuda"}
    done = subprocess.run(command, cwd=record.ROOT, env=environment, capture_output=True, text=True, check=True)
    found = [line for line in done.stdout.splitlines() if "::" in line]
    for name, (file, *options) in FAMILIES.items():
        wanted = options[1] if options else ""
        assert any(f"/{file}::" in test and wanted in test.partition("::")[2] for test in found), name


def test_measurements_get_the_time_that_is_left():
    (command,) = commands("tables", left=85.0)
    assert "-m perf.measure_gpu --out results --minutes 1.00 --sections short" in command
    (command,) = commands("memory", left=1.0, quick=True)
    assert command.endswith("--minutes 0.08 --quick --sections memory")


def test_a_cpu_is_measured_by_its_threads(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    found = [command.split("--threads ")[1].split()[0] for command in commands("cpu")]
    assert found == ["1", "2", "4", "8", "16"]


def test_what_is_absent_is_said(monkeypatch, tmp_path):
    monkeypatch.setattr(gpu_stages, "importable", lambda package: False)
    monkeypatch.setattr(gpu_stages, "find", lambda program: None)
    assert "matplotlib is absent: no pictures" in gpu_stages.absent()
    assert stage_of("sanitize").lacks == "pytest"
    (result,) = ended([stage_of("smoke")], tmp_path)
    assert (result.said, result.failed) == ("left out: pytest is absent", ())
    monkeypatch.setattr(gpu_stages, "importable", lambda package: True)
    assert stage_of("sanitize").lacks == "compute-sanitizer"


# ---- the runner


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(gpu, "GRACE", 0.5)


def test_a_stage_over_its_limit_is_killed_with_all_that_it_started(impatient, tmp_path):
    """Even if it ignores interrupts."""
    marker = tmp_path / "alive"
    deaf = "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN)"
    child = f"{deaf}; import pathlib; time.sleep(4); pathlib.Path({str(marker)!r}).touch()"
    code = f"{deaf}; import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    begun = time.monotonic()
    first, second = ended([python(code, limit=1.0), python("pass", "b")], tmp_path)
    assert time.monotonic() - begun < 4
    assert first.said == "code was stopped at the limit"
    assert first.failed == (tmp_path / "a-code.log",)
    assert (second.said, second.failed) == ("passed", ())
    time.sleep(max(begun + 5 - time.monotonic(), 0))
    assert not marker.exists()


@pytest.fixture
def in_background():
    """Ctrl-C is ignored, as in a process that a shell started in the background."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGINT, before)


def test_what_is_stopped_says_where_it_stood(in_background, monkeypatch, tmp_path):
    monkeypatch.setattr(gpu, "GRACE", 10)  # a busy machine may need seconds; the wait ends with the process
    code = "import time\ndef hangs():\n    print('begun', flush=True)\n    time.sleep(30)\nhangs()"
    (result,) = ended([python(code, limit=14.0)], tmp_path)
    assert result.said == "code was stopped at the limit"
    log = result.failed[0].read_text()
    assert "begun" in log
    assert "in hangs" in log
    assert "KeyboardInterrupt" in log


@pytest.mark.parametrize(("name", "runs"), [("smoke", False), ("build", False), ("families", True), ("tests", True)])
def test_what_a_failure_stops(name, runs, tmp_path):
    failing, later = ended([python("raise SystemExit(3)", name), python("pass", "tables")], tmp_path)
    assert failing.said == "code failed with 3"
    assert failing.failed
    assert later.said == ("passed" if runs else f"not run, since {name} has failed")
    assert not later.failed


def test_a_stage_may_take_what_those_before_it_left(impatient, tmp_path):
    stages = [python("pass", limit=8.0), python("import time; time.sleep(2)", "b", limit=1.0)]
    assert [result.said for result in ended(stages, tmp_path)] == ["passed", "passed"]


def test_nothing_begins_when_the_time_is_up(impatient, tmp_path):
    deaf = Stage("a", 30, lambda left: [Command("code", ["sh", "-c", "trap '' INT; sleep 9"])])
    first, second = ended([deaf, python("pass", "b")], tmp_path, total=1.0)
    assert "stopped" in first.said
    assert second.said == "not run: the time is up"
    assert second.failed


def test_every_command_of_a_stage_runs_with_a_log_of_its_own(tmp_path):
    codes = {"x": 1, "y": 0, "z": 2}
    todo = [Command(name, [sys.executable, "-c", f"raise SystemExit({code})"]) for name, code in codes.items()]
    for at_once in (1, 2):
        (result,) = ended([Stage("sanitize", 30, lambda left: list(todo), at_once=at_once)], tmp_path)
        assert sorted(result.said.split(", ")) == ["x failed with 1", "z failed with 2"]
        assert sorted(log.name for log in result.failed) == ["sanitize-x.log", "sanitize-z.log"]
        assert (tmp_path / "sanitize-y.log").read_text().startswith("$ ")


def test_commands_run_at_once(tmp_path):
    """Each command waits for output of the other."""
    code = (
        "import pathlib, sys, time\nmine, other = map(pathlib.Path, sys.argv[1:])\nmine.touch()\n"
        "while not other.exists(): time.sleep(0.01)"
    )
    a, b = str(tmp_path / "a"), str(tmp_path / "b")
    todo = [Command(name, [sys.executable, "-c", code, *files]) for name, files in (("x", (a, b)), ("y", (b, a)))]
    (result,) = ended([Stage("families", 20, lambda left: list(todo), at_once=2)], tmp_path)
    assert result.said == "passed"


def test_a_stage_finds_the_checkout_and_knows_of_the_hardware(tmp_path):
    code = "import os, rnnkern; print(os.environ['RNNKERN_GPU_TESTS'], os.environ['MORE'], rnnkern.__file__)"
    (result,) = ended([python(code, environment={"MORE": "said"})], tmp_path)
    assert not result.failed
    assert f"cuda said {record.ROOT}/rnnkern" in (tmp_path / "a-code.log").read_text()


def test_logs_stay_small(tmp_path):
    ended([python("[print('y' * 79) for _ in range(9999)]")], tmp_path)
    text = (tmp_path / "a-code.log").read_text()
    assert len(text) < gpu.LOG_BYTES + 99
    assert text.startswith("...\n")
    assert text.endswith("y\n")


# ---- the whole script, on a simulated device

PRETENDED = """
import sys, torch
from perf import gpu, gpu_stages, record
from perf.gpu_stages import Command, Stage
torch.cuda.is_available = lambda: True
record.device_name = lambda device: "NVIDIA H200"
def stage(name, code):
    return Stage(name, 60, lambda left: [Command("code", [sys.executable, "-c", code])])
gpu_stages.plan = lambda names, target: [stage("tests", {code!r}), stage("tables", "pass")]
gpu.main(["--stages", "tests", "tables", "--out", {out!r}])
"""


def logs_in(packed: Path) -> set[str]:
    with tarfile.open(packed) as tar:
        return {Path(name).name for name in tar.getnames() if name.endswith(".log")}


@pytest.mark.parametrize("fails", [False, True])
def test_what_is_printed_and_archived(fails, tmp_path):
    code = PRETENDED.format(code="print('why')\nraise SystemExit(1)" if fails else "pass", out=str(tmp_path))
    done = subprocess.run([sys.executable, "-c", code], cwd=record.ROOT, capture_output=True, text=True)
    assert done.returncode == fails, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("NVIDIA H200, PyTorch")
    said = "code failed with 1" if fails else "passed"
    assert any(line.startswith("tests ") and line.endswith(said) for line in lines)
    assert ("    why" in lines) == fails
    assert "recurrence.csv: nothing was measured" in lines
    assert lines[-1].startswith("failed: tests; " if fails else "all passed; ")
    assert [path.name for path in tmp_path.iterdir()] == ["stages.tar.gz"]
    assert logs_in(tmp_path / "stages.tar.gz") == {"tests-code.log", "tables-code.log"}


def test_what_there_is_is_archived_when_the_script_is_ended(tmp_path):
    begun = tmp_path / "begun"
    code = PRETENDED.format(
        code=f"import pathlib, time; pathlib.Path({str(begun)!r}).touch(); time.sleep(60)", out=str(tmp_path / "out")
    )
    with subprocess.Popen([sys.executable, "-c", code], cwd=record.ROOT, stderr=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + 60
        while not begun.exists() and time.monotonic() < deadline:
            time.sleep(0.1)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) != 0
    assert logs_in(tmp_path / "out" / "stages.tar.gz") == {"tests-code.log"}
