"""The house stands as it was drawn: what a cell needs is all there, and Python's floors call downwards only.

Every rule is a function that returns its faults, so that it can be shown to find some.
"""

import ast
import importlib
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import rnnkern.nn
from rnnkern import _extension
from rnnkern.ops import recurrence
from rnnkern.ops.recurrence import KERNEL_CELLS
from rnnkern.reference import CELLS
from rnnkern.testing import RECURRENCE_OPTIONS, outputs_and_gradients, recurrence_sample, recurrence_samples, takes

ROOT = Path(__file__).parents[1]
HEADER_LINES = 60


# ---- a cell has all that its journey names


class Facts(NamedTuple):
    """As csrc/cells/cell.h orders them, and whether a GPU has kernels of the cell, and keeps its R."""

    first_gates: int
    gates: int
    states: int
    params: int
    saved: int
    joint: bool
    cuda: bool
    resident: bool


class Listed(NamedTuple):
    struct: str
    name: str | None  # None: the struct is in no header
    header: Path | None
    facts: Facts | None


def listed_cells(root: Path) -> list[Listed]:
    """The cells of csrc/cells/list.h, and what their headers say of them or the cell that they derive from."""
    folder = root / "csrc/cells"
    texts = {path: path.read_text() for path in sorted(folder.glob("*.h"))}
    number = r"(\d+), (\d+), (\d+), (\d+), (\d+), (true|false)"
    aliases = {
        name: facts
        for t in texts.values()
        for name, *facts in re.findall(rf"(?:using|struct) (\w+) (?:=|:) CellFacts<{number}>", t)
    }
    cells = []
    lists = re.split("#define RNNKERN_(?:CUDA_|CPU_)CELLS", texts[folder / "list.h"])
    resident, stepwise, on_a_cpu = (re.findall(r"\bX\((\w+)\)", part) for part in lists)
    for struct in resident + stepwise + on_a_cpu:
        found = Listed(struct, None, None, None)
        for path, text in texts.items():
            if base := re.search(rf"struct {struct} : (?:CellFacts<{number}>|(\w+))", text):
                *own, alias = base.groups()
                facts = dict(zip(Facts._fields, aliases.get(alias, own), strict=False))
                facts |= re.findall(r"\b(params|saved|joint) = (\w+)", text)  # where it differs from its base
                facts |= {fact: int(number) for fact, number in facts.items() if fact != "joint"}
                facts["params"] += "projected = true" in text
                facts |= {"joint": facts["joint"] == "true"}
                facts |= {"cuda": struct not in on_a_cpu, "resident": struct in resident}
                name = re.search(r'name = "(\w+)"', text)
                found = Listed(struct, name and name[1], path, Facts(**facts))
        cells.append(found)
    return cells


DERIVED = {"goru": "modrelu", "lstm_projected": "lstm", "lstm_layer_norm": "lstm", "gru_layer_norm": "gru"}
"""Cells that share another's equations."""


def faults_of_header(cell: str, root: Path) -> list[str]:
    path = root / f"csrc/cells/{cell}.h"
    if not path.exists():
        return [f"{cell}: there is no csrc/cells/{cell}.h"]
    text, faults = path.read_text(), []
    if text.count("\n") > HEADER_LINES:
        faults.append(f"{cell}: {path.name} has more than {HEADER_LINES} lines")
    if not text.startswith("// "):
        faults.append(f"{cell}: {path.name} does not begin with its equations")
    derived = DERIVED.get(cell, "cell")
    if (included := re.findall(r"#include (\S+)", text)) != [f'"cells/{derived}.h"']:
        faults.append(f"{cell}: {path.name} includes {included}, not cells/{derived}.h alone")
    if not any(found.header == path and found.name == cell for found in listed_cells(root)):
        faults.append(f"{cell}: no line of csrc/cells/list.h names what is in {path.name}")
    return faults


def faults_of_reference(cell: str, root: Path) -> list[str]:
    if cell not in CELLS:
        return [f"{cell}: no formula in rnnkern/reference/recurrence.py"]
    known, faults = CELLS[cell], []
    for found in listed_cells(root):
        if found.name == cell:
            ours = (known.gates, known.states, len(known.params), known.joint)
            theirs = (found.facts.gates, found.facts.states, found.facts.params, found.facts.joint)
            if ours != theirs:
                faults.append(
                    f"{cell}: (gates, states, params, joint) are {ours} in the reference, {theirs} in its header"
                )
    return faults


def faults_of_sample(cell: str, root: Path) -> list[str]:
    names = {sample.name for sample in recurrence_samples()}
    options = [name for name, options in RECURRENCE_OPTIONS.items() if takes(cell, options)]
    missing = [f"{cell}-{option}" for option in options if f"{cell}-{option}" not in names]
    return [f"{cell}: rnnkern/testing yields no sample {name!r}" for name in missing]


def faults_of_benchmark(cell: str, root: Path) -> list[str]:
    benchmark = importlib.import_module("perf.recurrence")
    cases = benchmark.cases(benchmark.CELLS, benchmark.SHAPES, "float32", packed=False, with_loop=False)
    measured = {case.labels["cell"] for case in cases}
    return [] if cell in measured else [f"{cell}: perf/recurrence.py has no case of it"]


def faults_of_documentation(cell: str, root: Path) -> list[str]:
    text = (root / "docs/recurrence.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \|", text, re.M)
    if rows.count(cell) == 2:
        return []
    return [f"{cell}: the two tables in docs/recurrence.md have {rows.count(cell)} rows of it"]


NEEDED = [faults_of_header, faults_of_reference, faults_of_sample, faults_of_benchmark, faults_of_documentation]
LISTED = [cell.name or cell.struct for cell in listed_cells(ROOT)]


def needs(rule):
    if rule is faults_of_benchmark:
        for module in ("matplotlib", "tqdm"):
            pytest.importorskip(module)


@pytest.mark.parametrize("rule", NEEDED)
@pytest.mark.parametrize("cell", LISTED)
def test_a_cell_has_what_it_needs(cell, rule):
    needs(rule)
    assert rule(cell, ROOT) == []


@pytest.mark.parametrize("rule", NEEDED)
def test_a_cell_that_lacks_it_is_found(rule):
    needs(rule)
    assert rule("made_up", ROOT) != []


def test_the_list_is_what_headers_and_the_compiled_part_have():
    cells = listed_cells(ROOT)
    assert {cell.header for cell in cells} == set((ROOT / "csrc/cells").glob("*.h")) - {
        ROOT / f"csrc/cells/{helper}.h" for helper in ("cell", "list", "math")
    }
    if _extension.available:
        assert {cell.name: cell.facts._asdict() for cell in cells} == KERNEL_CELLS


def test_every_cell_has_a_kernel_and_those_that_a_gpu_has_not_or_takes_step_by_step_are_known():
    assert set(CELLS) == set(LISTED)
    listed = listed_cells(ROOT)
    of_a_cpu = ["lstm_projected", "lstm_layer_norm", "gru_layer_norm"]
    assert [cell.name for cell in listed if not cell.facts.cuda] == of_a_cpu
    assert [cell.name for cell in listed if not cell.facts.resident] == ["goru", "complex_modrelu", *of_a_cpu]


def rewrite(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


@pytest.fixture
def copy(tmp_path):
    """A copy of the sources, to spoil."""
    for folder in ("csrc", "rnnkern", "perf", "docs"):
        shutil.copytree(
            ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("*.so", "__pycache__", "results")
        )
    return tmp_path


def test_a_header_that_breaks_the_contract_is_found(copy):
    header = copy / "csrc/cells/gru.h"
    assert faults_of_header("gru", copy) == []
    rewrite(header, '#include "cells/cell.h"', '#include "cells/cell.h"\n#include <torch/all.h>')
    assert "includes" in faults_of_header("gru", copy)[0]
    header.write_text(header.read_text().replace("#include <torch/all.h>", "") + "\n" * HEADER_LINES)
    assert "more than 60 lines" in faults_of_header("gru", copy)[0]
    rewrite(copy / "csrc/cells/list.h", "X(Gru) ", "")
    assert "no line of csrc/cells/list.h" in faults_of_header("gru", copy)[1]
    rewrite(copy / "csrc/cells/lstm.h", "CellFacts<4, 4, 2, 0, 4, true>", "CellFacts<4, 4, 1, 0, 4, true>")
    assert "(4, 2, 0, True) in the reference, (4, 1, 0, True) in its header" in faults_of_reference("lstm", copy)[0]
    rewrite(copy / "docs/recurrence.md", "| `lstm` |", "| lstm |")
    assert "have 0 rows" in faults_of_documentation("lstm", copy)[0]
    rewrite(copy / "csrc/cells/list.h", "X(Lstm)", "X(Nowhere)")
    assert ("Nowhere", None, None, None) in listed_cells(copy)


# ---- Python's floors

# Each with those below it that it may call; all may call torch and the standard library, and themselves.
FLOORS = {
    "rnnkern._extension": set(),
    "rnnkern.reference": set(),
    "rnnkern.triton": set(),
    "rnnkern.testing": {"rnnkern.reference"},
    "rnnkern.ops": {"rnnkern._extension", "rnnkern.reference", "rnnkern.triton"},
    "rnnkern.parametrizations": {"rnnkern.ops", "rnnkern.reference"},
    "rnnkern.analysis": set(),
    "rnnkern.optim": {"rnnkern.ops", "rnnkern.parametrizations"},
    "rnnkern.nn": {"rnnkern.ops", "rnnkern.parametrizations", "rnnkern.reference"},
    "rnnkern.swap": {"rnnkern.nn", "rnnkern.ops"},
}
FLOORS["rnnkern"] = set(FLOORS)
OPERATOR_CALLERS = {"rnnkern._extension", "rnnkern.ops"}


def floor_of(module: str) -> str:
    return ".".join(module.split(".")[:2])


def modules(root: Path) -> Iterator[tuple[str, ast.Module]]:
    for path in sorted((root / "rnnkern").rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), ast.parse(path.read_text(), str(path))


def imports(module: str, tree: ast.Module, root: Path) -> Iterator[str]:
    """Modules that are imported anywhere in a file, functions included."""

    def is_module(name):
        path = root.joinpath(*name.split("."))
        return path.with_suffix(".py").exists() or path.is_dir()

    package = module if root.joinpath(*module.split(".")).is_dir() else module.rpartition(".")[0]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = package.split(".")
                base = ".".join([*parts[: len(parts) - node.level + 1], *filter(None, [base])])
            for alias in node.names:
                name = f"{base}.{alias.name}"
                yield name if base.startswith("rnnkern") and is_module(name) else base


def faults_of_imports(root: Path) -> list[str]:
    faults = []
    for module, tree in modules(root):
        floor = floor_of(module)
        if floor not in FLOORS:
            faults.append(f"{module} stands on no floor: give {floor} a place in FLOORS")
            continue
        for name in imports(module, tree, root):
            top = name.split(".")[0]
            if top == "rnnkern":
                if floor_of(name) not in {floor, *FLOORS[floor]}:
                    faults.append(f"{module} imports {name}, which is not below it")
            elif top not in {"torch", *sys.stdlib_module_names} and (floor, top) != ("rnnkern.triton", "triton"):
                faults.append(f"{module} imports {name}, which is neither torch nor the standard library")
    return faults


def faults_of_operator_calls(root: Path) -> list[str]:
    """torch.ops belongs to the floor of the operators."""
    faults = []
    for module, tree in modules(root):
        if floor_of(module) not in OPERATOR_CALLERS:
            for node in ast.walk(tree):
                if isinstance(node, (ast.Attribute, ast.Import, ast.ImportFrom)):
                    text = ast.unparse(node)
                    if text in ("torch.ops", "import torch.ops") or re.match(r"from torch import.*\bops\b", text):
                        faults.append(f"{module}:{node.lineno} calls torch.ops: {text}")
    return faults


TIME = r"\b(T|steps|count|length|lengths|seq_len)\b|\b(u|x|h|input|output)\b.*\.(shape|size)\b|len\((u|x|h|input)\)"


def faults_of_loops(root: Path) -> list[str]:
    """Loops over time in what may hold none: `while`, ranges over a length, sequences taken apart."""
    faults = []
    for module, tree in modules(root):
        if floor_of(module) not in ("rnnkern.ops", "rnnkern.nn"):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.While):
                faults.append(f"{module}:{node.lineno} has a while loop")
            elif isinstance(node, (ast.For, ast.AsyncFor, ast.comprehension)):
                over = node.iter
                text = ast.unparse(over)
                calls = [ast.unparse(c.func).split(".")[-1] for c in ast.walk(over) if isinstance(c, ast.Call)]
                if ("range" in calls and re.search(TIME, text)) or re.fullmatch(r"u|x|h|input", text) or (
                    {"split", "unbind", "split_with_sizes", "tensor_split"} & set(calls)
                ):  # fmt: skip
                    faults.append(f"{module}:{over.lineno} loops over time: for ... in {text}")
    return faults


def test_floors_call_downwards():
    assert faults_of_imports(ROOT) == []
    assert faults_of_operator_calls(ROOT) == []


def test_operators_and_modules_have_no_loop_over_time():
    assert faults_of_loops(ROOT) == []


SPOILT = [
    (faults_of_imports, "reference/recurrence.py", "from rnnkern.ops import recurrence", "imports rnnkern.ops"),
    (faults_of_imports, "reference/recurrence.py", "import numpy", "imports numpy, which is neither"),
    (faults_of_imports, "reference/recurrence.py", "from .. import ops", "imports rnnkern.ops"),
    (faults_of_imports, "reference/__init__.py", "from ..testing import Sample", "imports rnnkern.testing"),
    (faults_of_imports, "ops/dispatch.py", "def f():\n    import rnnkern.nn", "imports rnnkern.nn"),
    (faults_of_imports, "ops/recurrence.py", "from rnnkern import build_info", "imports rnnkern, which is not below"),
    (faults_of_imports, "nn/rnn.py", "from rnnkern import _extension", "imports rnnkern._extension"),
    (faults_of_imports, "nn/rnn.py", "from perf import harness", "imports perf, which is neither"),
    (
        faults_of_imports,
        "testing/closeness.py",
        "import python_tests.ops",
        "imports python_tests.ops, which is neither",
    ),
    (faults_of_imports, "attic/old.py", "import torch", "give rnnkern.attic a place"),
    (faults_of_imports, "triton/scan.py", "import triton\nimport rnnkern.ops", "imports rnnkern.ops"),
    (faults_of_operator_calls, "nn/lstm.py", "f = torch.ops.rnnkern.recurrence", "calls torch.ops"),
    (faults_of_operator_calls, "nn/lstm.py", "from torch import ops", "calls torch.ops"),
    (faults_of_operator_calls, "reference/recurrence.py", "import torch.ops", "calls torch.ops"),
    (faults_of_loops, "nn/rnn.py", "for t in range(x.shape[0]):\n    pass", "loops over time"),
    (faults_of_loops, "nn/rnn.py", "for u_t in u.unbind(0):\n    pass", "loops over time"),
    (faults_of_loops, "nn/rnn.py", "for x_t in x:\n    pass", "loops over time"),
    (faults_of_loops, "ops/recurrence.py", "hs = [f(t) for t in reversed(range(steps))]", "loops over time"),
    (faults_of_loops, "ops/recurrence.py", "for t, a in enumerate(u.split(sizes)):\n    pass", "loops over time"),
    (faults_of_loops, "ops/recurrence.py", "while t < T:\n    t += 1", "has a while loop"),
]


@pytest.mark.parametrize(("rule", "file", "line", "said"), SPOILT, ids=lambda x: x if isinstance(x, str) else "")
def test_a_breach_of_the_floors_is_found(rule, file, line, said, copy):
    assert rule(copy) == []
    path = copy / "rnnkern" / file
    path.parent.mkdir(exist_ok=True)
    path.write_text((path.read_text() if path.exists() else "") + f"\n{line}\n")
    (fault,) = rule(copy)
    assert said in fault


class Operators(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        self.count += 1
        return operator(*args, **(kwargs or {}))


def asked_of_pytorch(call):
    with Operators() as operators:
        call()
    return operators.count


@pytest.mark.skipif(not _extension.available, reason=f"no compiled part: {_extension.reason}")
@pytest.mark.parametrize("options", [{}, {"packed": True, "reset": True}, {"heads": 2, "grad_scale": 2}], ids=str)
@pytest.mark.parametrize("cell", LISTED)
def test_no_call_asks_more_of_pytorch_for_more_steps(cell, options):
    options = options if takes(cell, options) else {"grad_scale": 2}

    def count(steps):
        sample = recurrence_sample(cell, steps, requires_grad=True, **options)
        return asked_of_pytorch(lambda: outputs_and_gradients(recurrence, sample))

    assert count(3) == count(50)


@pytest.mark.skipif(not _extension.available, reason=f"no compiled part: {_extension.reason}")
@pytest.mark.parametrize("cls", [rnnkern.nn.RNN, rnnkern.nn.LSTM, rnnkern.nn.GRU])
def test_no_module_asks_more_of_pytorch_for_more_steps(cls):
    module = cls(3, 4, num_layers=2, bidirectional=True)

    def count(steps):
        x = torch.randn(steps, 2, 3)
        return asked_of_pytorch(lambda: torch.autograd.grad(module(x)[0].sum(), list(module.parameters())))

    assert count(3) == count(50)
