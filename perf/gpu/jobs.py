"""The jobs of ``make gpu``: what each line of the report stands for. A job is a name and a function that does the work
and returns the words of the line."""

import functools
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch

from perf import gather_attention, givens_recurrence, linear_scan, memory, moment_filter, orthogonal, record, relevancy
from perf.gpu import recurrences
from perf.gpu.checks import DIRECTIONS, Builder, Check, Job, Place
from perf.gpu.plan import TOOLS
from perf.gpu.speeds import REHEARSED_STEPS, Timing, copy_rate, memory_of
from perf.harness import OURS, Case, Problem, Values
from python_tests.gpu import kernels
from python_tests.samples import covering_rows, similarity_sample
from python_tests.samples.similarity import similarity_outputs_and_gradients
from rnnkern import _compiler, ops, reference

# ---- calls


def recurrence(cell: str, precision: str, sizes: tuple[int, int, int], **options) -> Builder:
    def build(device: torch.device, rehearses: bool, seed: int) -> Problem:
        steps, *rest = sizes
        steps = min(steps, REHEARSED_STEPS) if rehearses else steps
        return recurrences.call(cell, precision, (steps, *rest), device, seed, **options)

    return build


def timed_layer(spec: recurrences.Spec) -> Builder:
    def build(device: torch.device, rehearses: bool, seed: int) -> Problem:
        steps = REHEARSED_STEPS if rehearses else spec.steps
        return recurrences.build(spec._replace(steps=steps), device, 1e9, seed)

    return build


def attention(cell: str, dtype: str, shape: tuple[int, ...]) -> Builder:
    def build(device: torch.device, rehearses: bool, seed: int) -> Problem:
        steps = REHEARSED_STEPS if rehearses else shape[0]
        return relevancy.problem_of(cell, (steps, *shape[1:]), getattr(torch, dtype), seed, device, {})

    return build


def family(
    cases: Callable[..., list[Case]], shape: tuple[int, ...], dtype: str = "float32", number: int = 0,
    rehearsed: tuple[int, ...] = (),
) -> Builder:  # fmt: skip
    """The case with this number of a family's benchmark; ``rehearsed`` is the shape in a rehearsal, if another."""

    def build(device: torch.device, rehearses: bool, seed: int) -> Problem:
        return cases([rehearsed or shape if rehearses else shape], dtype, device)[number].build(seed)

    return build


def skew_exp(shapes: Sequence[tuple[int, ...]], dtype: str, device: torch.device) -> list[Case]:
    return orthogonal.cases(shapes, 1.0, dtype, device, ["skew_exp"])


def similarity(shape: tuple[int, int, int]) -> Builder:
    def build(device: torch.device, rehearses: bool, seed: int) -> Problem:
        torch.manual_seed(seed)
        with device:
            drawn = similarity_sample(*shape, dtype=torch.float32)

        def both(operator: Callable, dtype: torch.dtype | None = None) -> Values:
            return similarity_outputs_and_gradients(operator, drawn, dtype)

        calls = {direction: {OURS: functools.partial(both, ops.similarity)} for direction in DIRECTIONS.values()}
        naive, truth = (functools.partial(both, reference.similarity, dtype) for dtype in (None, torch.float64))
        return Problem(calls, {}, naive, truth)

    return build


SMALL: dict[str, tuple[Builder, str, bool]] = {
    f"{kernel} {cell} {precision}": (recurrence(cell, precision, (12, 5, hidden), **options), kernel,
                                     precision == "tf32")
    for kernel, cell, precision, hidden, options in (
        ("block", "lstm", "bfloat16", 64, {}),
        ("block", "gru", "float32", 128, {"heads": 2}),
        ("cluster", "lstm", "bfloat16", 256, {}),
        ("cluster", "gru", "float32", 256, {}),
        ("cluster", "gru_reset_before", "float16", 512, {}),
        ("cluster_tf32", "lstm", "tf32", 256, {}),
        ("grid", "lstm", "bfloat16", 512, {}),
        ("grid", "gru", "float32", 512, {}),
        ("stepwise", "lstm", "float32", 33, {}),
        ("stepwise", "gru", "bfloat16", 33, {}),
        ("stepwise", "tanh", "float64", 33, {}),
    )
} | {
    f"relevancy {kernel} {cell} {dtype}": (attention(cell, dtype, (12, 3, hidden, 4, 4)), kernel, False)
    for kernel, cell, dtype, hidden in (
        ("block", "tanh", "float32", 64),
        ("block", "lstm", "bfloat16", 64),
        ("cluster", "tanh", "float32", 256),
        ("cluster", "lstm", "bfloat16", 256),
        ("stepwise", "tanh", "float32", 64),
    )
} | {
    name: (builder, "", False)
    for name, builder in {
        "own cell bfloat16": timed_layer(recurrences.Spec("own lstm", 5, 64, "bfloat16", 12)),
        "givens float32": family(givens_recurrence.cases, (12, 3, 64, 6)),
        "linear_scan constant float32": family(linear_scan.cases, (200, 3, 64)),
        "linear_scan per step complex64": family(linear_scan.cases, (200, 3, 64), "complex64", number=1),
        "moment_filter momentum float32": family(moment_filter.cases, (200, 3, 64)),
        "moment_filter adam float32": family(moment_filter.cases, (200, 3, 64), number=1),
        "skew_exp 4x16x16 float32": family(skew_exp, (4, 16, 16)),
        "skew_exp 256x256 float32": family(skew_exp, (256, 256)),
        "gather_attention float32": family(gather_attention.cases, (2, 12, 6, 16)),
        "similarity float32": similarity((4, 9, 32)),
    }.items()
}  # fmt: skip
"""For each family and kind of kernel a call that is small: its builder, the kernel that must run, and whether in
TF32."""
SANITIZED = ("block lstm", "cluster lstm", "cluster_tf32", "grid lstm", "stepwise lstm", "relevancy", "givens",
             "linear_scan constant", "moment_filter adam", "skew_exp", "gather_attention", "similarity")  # fmt: skip
"""Beginnings of the names of the calls that run under the sanitizer."""
UNKNOWN = ("cluster", "relevancy cluster", "gather_attention")
"""Those that racecheck would call wrong: it does not know that mbarriers order accesses, nor that several threads of a
Triton program write the same value to the same place."""


def first() -> Iterator[tuple[str, Job]]:
    yield "primitives", primitives
    for name, (builder, kernel, tf32) in SMALL.items():
        for direction in DIRECTIONS:
            yield f"{name} {direction}", Check(builder, direction, kernel, tf32)


LAYOUTS = {name: {name: True} for name in ("packed", "reset", "reverse")} | {"plain": {}, "heads": {"heads": 8}}


def truth() -> Iterator[tuple[str, Job]]:
    """Cells, precisions and layouts at the timed sizes, every two of them together at least once; then the other
    operators at theirs."""
    factors = {
        "shape": list(recurrences.SHAPES),
        "cell": [*recurrences.CELLS, "gru_reset_before"],
        "precision": list(recurrences.PRECISIONS),
        "layout": list(LAYOUTS),
    }
    for row in covering_rows(factors):
        sizes = recurrences.STEPS, *row["shape"]
        name = f"{row['cell']} {'x'.join(map(str, sizes))} {row['precision']} {row['layout']}"
        builder = recurrence(row["cell"], row["precision"], sizes, **LAYOUTS[row["layout"]])
        yield f"truth {name}", Check(builder, "backward", "", row["precision"] == "tf32")
    for cell, hidden, dtype in itertools.product(("tanh", "lstm"), (128, 256, 512), ("float32", "bfloat16")):
        builder = attention(cell, dtype, (25, 2, hidden, 10, 10))
        yield f"truth relevancy {cell} {hidden} {dtype}", Check(builder, "backward", kinked=True)
    for case, builder in others():
        yield f"truth {' '.join(case.values())}", Check(builder, "backward", kinked=case["op"] == "givens_recurrence")


def others() -> Iterator[tuple[dict[str, str], Builder]]:
    """The cases of the families that have no dtype but float32 here, with tiny sizes for a rehearsal."""
    for cases, shapes, quick in (
        (skew_exp, orthogonal.GPU_SHAPES, (4, 8, 8)),
        (linear_scan.cases, linear_scan.GPU_SHAPES, linear_scan.QUICK_SHAPES[0]),
        (moment_filter.cases, linear_scan.GPU_SHAPES, linear_scan.QUICK_SHAPES[0]),
        (givens_recurrence.cases, givens_recurrence.GPU_SHAPES, None),
        (gather_attention.cases, gather_attention.SHAPES, gather_attention.QUICK_SHAPES[0]),
    ):  # fmt: skip
        for shape in shapes:
            small = quick or (REHEARSED_STEPS, *shape[1:])
            for number, case in enumerate(cases([shape], "float32", torch.device("cpu"))):
                yield case.labels, family(cases, shape, number=number, rehearsed=small)


# ---- primitives


def primitives(place: Place) -> str:
    """Tests of every device primitive, in a process of their own; a rehearsal compiles their kernels."""
    if place.rehearses:
        programs = json.loads(kernels.operators().programs())
        for header, type in programs:
            _compiler.cubin_of(_compiler.Program(header, type, "sm_90"))
        return f"{len(programs)} kernels are compiled"
    options = ["-v", "-p", "no:cacheprovider", "-p", "no:benchmark", "-W", "default"]
    command = [sys.executable, "-m", "pytest", "python_tests/gpu/test_primitives.py", *options]
    environment = os.environ | {"RNNKERN_GPU_TESTS": "cuda"}
    lines = []
    with subprocess.Popen(command, cwd=record.ROOT, env=environment, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout:
            print(line, end="", flush=True)  # the log says how far they came if no time is left
            lines.append(line.rstrip())
    assert process.returncode == 0, "; ".join(line for line in lines if line.startswith(("FAILED", "E  ")))
    return f"agree, {lines[-1].strip('= ')}"


# ---- speed


def layer(spec: recurrences.Spec) -> Timing:
    def case(device: torch.device) -> Case:
        return recurrences.case(spec, device, copy_rate(device))

    return Timing(case, "recurrence", timed_layer(spec), spec.precision == "tf32")


def speed() -> Iterator[tuple[str, Job]]:
    for spec in recurrences.SPECS + recurrences.OWN:
        yield f"speed {' '.join([*spec.labels.values()][2:])}", layer(spec)
    for name in dict.fromkeys(subject.name for subject in memory.SUBJECTS):
        yield f"memory {name}", functools.partial(memory_of, name)
    for cell, (dtype, shapes) in itertools.product(("tanh", "lstm"), ATTENTION.items()):
        peers = relevancy.GPU_PEERS if (cell, dtype) != ("lstm", "bfloat16") else {}  # PyTorch's is too inaccurate
        for shape in shapes:
            case = functools.partial(one_attention, cell, shape, dtype, peers)
            name = f"speed relevancy {cell} {'x'.join(map(str, shape[:3]))} {dtype}"
            yield name, Timing(case, "operators", attention(cell, dtype, shape))
    for labels, build in others():

        def case(device: torch.device, labels: dict = labels, build: Builder = build) -> Case:
            return Case(labels, functools.partial(build, device, False), kinked=labels["op"] == "givens_recurrence")

        yield f"speed {' '.join(labels.values())}", Timing(case, "operators", build)


ATTENTION = {"float32": relevancy.GPU_SHAPES, "bfloat16": relevancy.GPU_NARROW_SHAPES[:4]}


def one_attention(cell: str, shape: tuple[int, ...], dtype: str, peers: Mapping, device: torch.device) -> Case:
    return relevancy.cases((cell,), [shape], dtype, device, peers)[0]


def sanitizer() -> Iterator[tuple[str, Job]]:
    """The calls of ``first`` for a few steps, under each tool of compute-sanitizer; their names begin with it."""
    for tool in TOOLS:
        for name, job in first():
            if tool == "racecheck" and name.startswith(UNKNOWN):
                continue
            if name.startswith(SANITIZED) and name.endswith("backward"):
                yield f"{tool} {name}", job._replace(alone=True)


STAGES: dict[str, Callable[[], Iterator[tuple[str, Job]]]] = {
    "first": first, "truth": truth, "speed": speed, "sanitizer": sanitizer
}  # fmt: skip


def jobs() -> dict[str, Job]:
    """All jobs by name."""
    return {name: job for stage in STAGES.values() for name, job in stage()}
