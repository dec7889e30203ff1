"""The cases of the GPU measurements, and a complete run on a CPU."""

import csv
import itertools
import json
import os
import subprocess
import sys
import time
import types

import pytest
import torch

from perf import flashrnn_peer, gpu_tables, harness, measure_gpu, orthogonal, providers, record, relevancy
from perf import recurrence_gpu as cases
from perf.harness import OURS, Effort, NoKernel
from perf.recurrence_gpu import Spec
from python_tests.gpu import drivers, relevancies
from rnnkern import reference
from rnnkern.ops import use
from rnnkern.ops._recurrence.recurrence import KERNEL_CELLS
from rnnkern.reference._relevancy import RELEVANCY_CELLS

CPU = torch.device("cpu")
EFFORT = Effort(0.0, 2, 2)
RATE = 1e9
NAMES = (
    "recurrence",
    "relevancy",
    "orthogonal",
    "linear_scan",
    "moment_filter",
    "givens_recurrence",
    "gather_attention",
)
"""Names of the CSVs that have a table."""

compiled_part = pytest.mark.skipif(not KERNEL_CELLS, reason="the compiled part is missing: nothing to measure")


def small(spec: Spec) -> Spec:
    return spec.small()._replace(dtype="float32")


# ---- the cases


def test_the_plain_cases_are_the_full_product():
    wanted = itertools.product(
        ("lstm", "gru", "tanh", "modrelu"),
        (1, 16, 64),
        ((1, 256), (1, 512), (1, 768), (1, 1024), (12, 64), (24, 32)),
        ("bfloat16", "float16", "float32"),
    )
    found = [(spec.cell, spec.batch, (spec.heads, spec.width), spec.dtype) for spec in cases.PLAIN]
    assert sorted(found) == sorted(wanted)
    assert {spec.steps for spec in cases.PLAIN} == {1024}
    assert {spec.kind for spec in cases.PLAIN} == {"plain"}


def test_the_other_cases():
    kinds = ("packed", "two layers", "two directions")
    assert {(spec.kind, spec.cell) for spec in cases.VARIANTS} == set(itertools.product(kinds, cases.CELLS))
    assert len(cases.SHORT) == 4
    assert {spec.steps for spec in cases.SHORT} == {64}
    assert {spec.cell for spec in cases.SHORT} == {"lstm", "gru", "modrelu"}
    assert any(spec.heads > 1 for spec in cases.SHORT)
    assert (cases.MEMORY_STEPS[0], cases.MEMORY_STEPS[-1]) == (256, 8192)


def test_skew_exp_is_measured_on_every_way_of_a_gpu():
    """One program per matrix, Triton's products with both tile sizes, and ATen's products."""
    assert [shape[-1] for shape in orthogonal.GPU_SHAPES] == [32, 64, 128, 256, 512, 1024]
    assert orthogonal.GPU_SHAPES[0] == (256, 32, 32)


def test_relevancy_attention_is_measured_on_every_kernel():
    """The block kernel, the cluster kernel and, for sizes that neither supports, the stepwise kernels."""
    todo = relevancy.cases(RELEVANCY_CELLS, relevancy.GPU_SHAPES, "float32", CPU, relevancy.GPU_PEERS, True)
    assert all(case.proof for case in todo)
    found = {(case.labels["cell"], case.labels["shape"]) for case in todo}
    shapes = [f"128x{batch}x{hidden}" for hidden in (128, 512) for batch in (16, 64)]
    assert found == set(itertools.product(RELEVANCY_CELLS, shapes))
    h200 = (9, 0, 132, 232448, 16, 7)

    def plan(cell, dtype, shape):
        return json.loads(drivers.interpreted(relevancies.FAMILY).relevancy_plan(cell, dtype, shape, h200))

    ran = {plan(cell, "float32", shape)["forward"] for cell in RELEVANCY_CELLS for shape in relevancy.GPU_SHAPES}
    assert ran == {"block", "cluster", "stepwise"}
    narrow = [plan(cell, "bfloat16", shape) for cell in ("tanh", "lstm") for shape in relevancy.GPU_NARROW_SHAPES]
    assert {found["forward"] for found in narrow} >= {"block", "cluster"}
    assert sum("16 bits" in found["reason"] for found in narrow) == 5


def test_relevancy_attention_has_a_time_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setattr(measure_gpu, "RELEVANCY_SECONDS", -1)
    outcome = measure_gpu.attention(measure_gpu.Run(CPU, tmp_path, True, time.monotonic() + 60, "test"))
    assert [why for _, why in outcome.left_out] == ["the time was up"] * (len(RELEVANCY_CELLS) + 2)


def test_labels_tell_all_cases_apart():
    specs = [*cases.PLAIN, *cases.VARIANTS, *cases.SHORT, *cases.FLASHRNN]
    assert len({tuple(spec.labels.values()) for spec in specs}) == len(specs)
    assert Spec("lstm", 16, 12, 64).labels["shape"] == "1024x16x12x64"


# ---- contents of a case


def test_values_are_the_same_in_every_dtype():
    x = cases.common(torch.randn(100_000) * torch.tensor([1.0, 1e-4, 1e-7, 30.0]).repeat(25_000))
    assert x.count_nonzero() > 70_000
    for dtype in cases.DTYPES:
        assert torch.equal(x.to(getattr(torch, dtype)).float(), x)


def test_one_truth_serves_all_dtypes():
    cases.truth.cache_clear()
    for dtype in ("float32", "float64"):
        cases.build(small(cases.PLAIN[0])._replace(dtype=dtype), CPU, RATE, 0).truth()
    assert cases.truth.cache_info().misses == 1


@compiled_part
@pytest.mark.parametrize("cell", cases.CELLS)
@pytest.mark.parametrize("heads", [1, 2])
def test_peers(cell, heads):
    peers = {OURS}
    if cell in cases.MODULES:
        peers |= {"torch.nn dense"} if heads > 1 else {"torch.nn", "torch.nn float16"}
    rows = harness.measure(cases.case(Spec(cell, 3, heads, 8, "float32", steps=5), CPU, RATE), CPU, EFFORT)
    assert {(row["direction"], row["provider"]) for row in rows} == set(
        itertools.product(("forward", "forward+backward"), peers)
    )
    assert all(row["kernel"] == ("the cpu kernel serves this call" if row["provider"] == OURS else "") for row in rows)
    assert all(row["over_baseline"] > 0 for row in rows)


@compiled_part
@pytest.mark.parametrize("spec", [small(spec) for spec in cases.VARIANTS], ids=lambda spec: f"{spec.kind}-{spec.cell}")
def test_variants_compute_what_their_peers_compute(spec):
    problem = harness.checked(cases.case(spec, CPU, RATE))
    assert set(problem.calls["forward"]) >= ({OURS, "torch.nn"} if spec.cell in cases.MODULES else {OURS})
    width = 2 if spec.kind == "two directions" else 1
    assert problem.naive()["h"].shape[-1] == 8 * width


def test_a_kernel_that_could_serve_too_is_measured_alone(monkeypatch):
    """The test pretends that the plan chooses the cluster kernel."""
    chosen = lambda: os.environ.get("RNNKERN_CUDA_KERNELS")  # noqa: E731
    ran, run = [], providers.module
    monkeypatch.delenv("RNNKERN_CUDA_KERNELS", raising=False)
    monkeypatch.setattr(
        cases, "kernel_of", lambda *_: f"the cuda kernel serves this call: {chosen() or 'cluster'}, for R"
    )
    monkeypatch.setattr(providers, "module", lambda *args: ran.append(chosen()) or run(*args))
    problem = cases.build(spec := Spec("tanh", 3, 1, 8, "float32", steps=5), CPU, RATE, 0)
    for calls in problem.calls.values():
        assert list(calls) == [OURS, f"{OURS}, grid", "torch.nn", "torch.nn float16"]
        ran.clear()
        same = [calls[provider]()["h"] for provider in (OURS, f"{OURS}, grid", OURS)]
        assert ran == [None, "grid", None]
        assert torch.equal(same[0], same[1])
    said = [problem.columns(provider)["kernel"].partition(": ")[2] for provider in (OURS, f"{OURS}, grid", "torch.nn")]
    assert said == ["cluster, for R", "grid, for R", ""]
    for other in (spec._replace(heads=2), spec._replace(kind="two layers")):
        assert f"{OURS}, grid" not in cases.build(other, CPU, RATE, 0).calls["forward"]


def test_what_the_environment_leaves_out_is_left_out_again(monkeypatch):
    monkeypatch.setenv("RNNKERN_CUDA_KERNELS", "block,grid")
    with cases.only("cluster"):
        assert os.environ["RNNKERN_CUDA_KERNELS"] == "cluster"
    assert os.environ["RNNKERN_CUDA_KERNELS"] == "block,grid"


def test_a_cell_with_a_kink_is_checked_over_few_steps():
    long = cases.case(Spec("modrelu", 3, 1, 8, "float32", steps=70), CPU, RATE)
    assert long.proof(0).naive()["h"].shape[0] == 64
    assert long.build(0).naive()["h"].shape[0] == 70
    assert cases.case(cases.SHORT[-1], CPU, RATE).proof is None
    assert cases.case(Spec("lstm", 3, 1, 8), CPU, RATE).proof is None


@pytest.mark.parametrize(("kind", "heads", "count"), [("plain", 1, 2), ("plain", 2, 2), ("two layers", 1, 4)])
def test_the_reference_makes_every_product_once(kind, heads, count):
    spec = Spec("lstm", 3, heads, 8, "float32", kind, steps=5)
    drawn = cases.draw(spec, CPU, 0)
    reference = cases.products(spec, drawn.x, drawn.module)
    for direction, wanted in (("forward", count), ("forward+backward", 3 * count)):
        with torch.profiler.profile() as profile:
            reference[direction]()
        found = sum(event.count for event in profile.key_averages() if event.key in ("aten::mm", "aten::bmm"))
        assert found == wanted


@compiled_part
def test_memory_moves_what_nobody_avoids():
    spec = Spec("tanh", 3, 1, 8, "float32", steps=5)
    moving = cases.build(spec, CPU, 1.0, 0).moving
    values = 2 * 5 * 3 * 8 + 2 * (8 * 8 + 8)  # x and h, weights and biases
    assert moving == {"forward": 4 * values, "forward+backward": 8 * values}


def test_without_a_kernel_a_case_is_left_out(tmp_path, capsys):
    todo = [cases.case(Spec("tanh", 3, 1, 8, "bfloat16", steps=5), CPU, RATE)]
    with use("reference"):
        outcome = harness.attempt(todo, tmp_path / "a.csv", CPU, "test", EFFORT)
    with pytest.raises(NoKernel, match="there is no kernel to measure"):
        outcome.settle()
    assert "recurrence dense tanh 5x3x8 bfloat16" in capsys.readouterr().out


@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("cell", cases.CELLS)
def test_the_loop_compiles_as_one_graph(cell, heads):
    drawn = cases.draw(spec := Spec(cell, 3, heads, 4, "float32", "short", steps=3), CPU, 0)
    naive = drawn.naive(drawn.module, spec)
    compiled = cases.compiled(naive, backend="eager")
    x, wanted = drawn.x.requires_grad_(), naive.training(drawn.x.requires_grad_(), drawn.grad_h)
    for name, value in compiled.training(x, drawn.grad_h).items():
        torch.testing.assert_close(value, wanted[name])


def test_the_compiled_loop_computes_the_same():
    drawn = cases.draw(spec := Spec("tanh", 2, 1, 4, "float32", "short", steps=2), CPU, 0)
    naive = drawn.naive(drawn.module, spec)
    torch.testing.assert_close(cases.compiled(naive).inference(drawn.x)["h"], naive.inference(drawn.x)["h"])


# ---- FlashRNN, replaced by an LSTM with its layout


def other_lstm(Wx, R, b, states, function, backend):
    assert function == "lstm"
    if backend == "triton_fused":
        raise RuntimeError("no such size")
    h, c = states[0, :, 0], states[1, :, 0]
    hs, cs = [], []
    for u in Wx.unbind(1):  # (B, G, K, D)
        i, f, g, o = (u + torch.einsum("bkp,gkdp->bgkd", h, R) + b).unbind(1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
        hs.append(h)
        cs.append(c)
    states = torch.stack([torch.stack(hs, 1), torch.stack(cs, 1)])
    return states, states[:, :, -1:]


@compiled_part
@pytest.mark.parametrize("heads", [1, 2])
def test_flashrnn_is_measured_where_it_runs(heads, monkeypatch, capsys):
    module = types.ModuleType("flashrnn")
    module.flashrnn = other_lstm
    monkeypatch.setitem(sys.modules, "flashrnn", module)
    rows = harness.measure(cases.case(Spec("lstm", 3, heads, 8, "float32", "flashrnn", 5), CPU, RATE), CPU, EFFORT)
    assert {row["provider"] for row in rows} == {OURS, "flashrnn cuda_fused"}
    assert f"flashrnn triton_fused, {heads} heads, left out: RuntimeError: no such size" in capsys.readouterr().out


# ---- the run


@compiled_part
def test_a_run(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(flashrnn_peer, "installed", lambda: False)
    monkeypatch.setattr(relevancy, "PROOF", (8, 2))
    options = [
        "--sections",
        "memory",
        "plain",
        "orthogonal",
        "relevancy",
        "scans",
        "flashrnn",
        "--out",
        str(tmp_path),
        "--quick",
        "--device",
        "cpu",
    ]
    measure_gpu.main(options)
    rows = record.read(tmp_path / "recurrence.csv")
    assert {(row["case"], row["cell"]) for row in rows} == set(itertools.product(("dense", "heads"), cases.CELLS))
    weights = record.read(tmp_path / "orthogonal.csv")
    assert {row["op"] for row in weights} == {"skew_exp", "schur_weight"}
    scans = [row for name in NAMES[3:] for row in record.read(tmp_path / f"{name}.csv")]
    assert {row["op"] for row in scans} == set(NAMES[3:])
    attention = record.read(tmp_path / "relevancy.csv")
    assert {(row["cell"], row["provider"]) for row in attention} == set(
        itertools.product(RELEVANCY_CELLS, (OURS, "PyTorch, cached keys"))
    )
    assert {row["kernel"] for row in attention if row["provider"] == OURS} == {"the cpu kernel serves this call"}
    command = "python -m perf.measure_gpu --device cpu --quick"
    assert all(row["command"] == command for row in rows + weights + attention + scans)
    memory = record.read(tmp_path / "memory.csv")
    assert {row["provider"] for row in memory} == {OURS, "torch.nn", "loop"}
    assert all(int(row["peak_bytes"]) > 0 for row in memory)
    assert {path.name for path in tmp_path.glob("*.png")} == {"recurrence-float32.png", "memory.png"}
    out = capsys.readouterr().out
    assert "times faster, geometric mean over sizes" in out
    assert "no comparison with FlashRNN: flashrnn is absent" in out


def test_a_run_needs_a_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit, match="needs a CUDA device"):
        measure_gpu.main([])


def test_without_matplotlib_pictures_are_left_out(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(measure_gpu.importlib.util, "find_spec", lambda name: None)
    measure_gpu.pictures(tmp_path)
    assert capsys.readouterr().out == "no pictures: matplotlib is absent\n"


def child(code: str) -> subprocess.Popen:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, "-c", code], **pipes)


def test_compiling_processes_are_timed_one_by_one(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(measure_gpu, "COMPILE_SECONDS", 2)
    path = tmp_path / "turns"
    ready = "import time\nprint('ready', flush=True)\ninput()\n"
    write = f"open({str(path)!r}, 'a').write(str(time.time()) + '\\n'); time.sleep(0.2)"
    processes = [child(ready + write), child("raise SystemExit('broken')"), child(ready + write), child("input()")]
    failed = measure_gpu.finish_short(processes, time.monotonic() + 60)
    said = [line.split(": ")[1] for line in failed]
    assert said == ["its process failed, as said above", "its process took too long"]
    first, second = map(float, path.read_text().split())
    assert abs(second - first) > 0.2
    assert "broken" in capfd.readouterr().err


# ---- the tables


def table_row(spec: Spec, provider: str, direction: str, **values) -> dict:
    facts = {"date": "2026-01-02", "device": "NVIDIA H200", "torch": "2.11", "commit": "abc"}
    values = {"ms_50": 2.048, "ratio_50": 1.0, "over_baseline": 9.0, "peak_bytes": 10**6} | values
    return facts | spec.labels | {"direction": direction, "provider": provider} | values


def test_tables(tmp_path):
    dense, heads, short = Spec("lstm", 16, 1, 768), Spec("lstm", 16, 12, 64), cases.SHORT[3]
    rows = [
        table_row(dense, OURS, "forward", ms_50=9.0),
        table_row(dense, OURS, "forward"),  # newer
        table_row(dense, "torch.nn", "forward", ratio_50=4.0),
        table_row(dense, f"{OURS}, grid", "forward", ratio_50=1.5),
        table_row(dense._replace(width=512), OURS, "forward"),
        table_row(dense._replace(width=512), "torch.nn", "forward", ratio_50=1.0),
        table_row(heads, OURS, "forward+backward"),
        table_row(heads, "torch.nn dense", "forward+backward", ratio_50=7.0),
        table_row(short, OURS, "forward", ms_50=0.32),
        table_row(short, "loop", "forward", ratio_50=50.0),
        table_row(dense, OURS, "forward") | {"date": "2026-01-01", "cell": "gru"},
    ]
    with (tmp_path / "recurrence.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    lines = gpu_tables.text(tmp_path, since="2026-01-02").splitlines()
    assert lines[0] == "device NVIDIA H200, torch 2.11, commit abc"
    line, rival = (line for line in lines if line.startswith("lstm  1024x16x768 "))
    assert line.split()[2:5] == ["2.0", "4.0", "9.0"]
    assert rival.split() == ["lstm", "1024x16x768", "bfloat16", "2.0", "1.5"]
    (line,) = (line for line in lines if line.startswith("bfloat16  16  fwd "))
    assert line.split()[3] == "2.0"  # geometric mean of 4 and 1
    assert any(line.split()[-1] == "7.0" for line in lines if line.startswith("bfloat16  16  both"))
    (line,) = (line for line in lines if line.startswith("short"))
    assert line.split()[4] == "5.0"
    assert "loop 50.0" in line
    assert not any("gru" in line for line in lines)
    assert "gru" in gpu_tables.text(tmp_path)
    none = "\n\n".join(f"{name}.csv: nothing was measured" for name in NAMES)
    assert gpu_tables.text(tmp_path / "none") == none


def test_the_table_of_orthogonal_weights(tmp_path):
    (case,) = orthogonal.cases([(256, 32, 32)], 1.0, "float32", CPU, ["skew_exp"])
    facts = {"date": "2026-01-02", "device": "NVIDIA H200", "over_baseline": 9.0, "ms_50": 0.5} | case.labels
    figures = [(OURS, "forward+backward", 1.0), ("torch.matrix_exp", "forward+backward", 8.0)]
    rows = [facts | {"provider": name, "direction": way, "ratio_50": ratio} for name, way, ratio in figures]
    record.append(tmp_path / "orthogonal.csv", rows)
    *_, head, line = gpu_tables.text_of(tmp_path / "orthogonal.csv", "").splitlines()
    assert head.split() == ["matrices", "both", "ms", "both", "over", "GEMM", "both", "/matrix_exp"]
    assert line.split() == ["exp", "256x32x32", "0.5", "9.0", "8.0"]


def test_a_reference_is_no_kernel():
    with use("reference"), pytest.raises(NoKernel):
        cases.build(Spec("lstm", 2, 1, 4, "float16", steps=2), CPU, RATE, 0)
    assert set(cases.CELLS) <= set(reference.CELLS)
