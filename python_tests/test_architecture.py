"""The layers of the package depend on each other in one direction, in Python and in C++, and every operator and cell is
complete.

Each rule is a function that returns its violations, so that a test can check that it finds one in a modified copy.
"""

import ast
import functools
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from python_tests.samples import outputs_and_gradients, recurrence_sample, takes
from rnnkern import _extension, ops
from rnnkern.ops import recurrence
from rnnkern.ops._recurrence.recurrence import KERNEL_CELLS
from rnnkern.ops.flops import FORMULAS
from rnnkern.reference import CELLS

ROOT = Path(__file__).parents[1]
compiled_part = pytest.mark.skipif(not _extension.available, reason=f"no compiled part: {_extension.reason}")


@pytest.fixture
def copy(tmp_path):
    """A copy of the sources that a test can modify."""
    for folder in ("csrc", "rnnkern"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    return tmp_path


# ---- Python: what each layer may import besides torch and the standard library

OWN = {"rnnkern._compiler", "rnnkern._extension"}
MATH = {"rnnkern.ops", "rnnkern.reference"}
FLOORS = {
    "rnnkern._torch_private": set(),
    "rnnkern._compiler": set(),
    "rnnkern._extension": {"rnnkern._compiler", "rnnkern._torch_private"},
    "rnnkern._cells": OWN | {"rnnkern._torch_private"},
    "rnnkern.reference": set(),
    "rnnkern.triton": set(),
    "rnnkern.testing": {"rnnkern._extension", "rnnkern._torch_private"},
    "rnnkern._report": set(),
    "rnnkern._gemm": {"rnnkern._torch_private"},
    "rnnkern.profile": {"rnnkern._report", "rnnkern.testing"},
    "rnnkern.ops": OWN | {"rnnkern._cells", "rnnkern._torch_private", "rnnkern.reference", "rnnkern.triton"},
    "rnnkern._cell": {"rnnkern._cells", "rnnkern.ops", "rnnkern.reference", "rnnkern.testing"},
    "rnnkern.cells": {"rnnkern._cell", "rnnkern._cells"},
    "rnnkern._precompile": OWN | {"rnnkern.ops"},
    "rnnkern.parametrizations": MATH | {"rnnkern._torch_private"},
    "rnnkern.analysis": MATH,
    "rnnkern.optim": {"rnnkern.ops", "rnnkern.parametrizations"},
    "rnnkern.nn": MATH | {"rnnkern._cell", "rnnkern.analysis", "rnnkern.cells", "rnnkern.parametrizations"},
    "rnnkern.swap": {"rnnkern.nn", "rnnkern.ops"},
    "rnnkern.integrations": {"rnnkern.cells", "rnnkern.nn", "rnnkern.ops", "rnnkern.swap"},
    "rnnkern.bench": {"rnnkern._gemm", "rnnkern._report", "rnnkern.ops", "rnnkern.profile", "rnnkern.testing"},
}
FLOORS["rnnkern"] = set(FLOORS)
OTHERS = {("rnnkern.triton", "triton"), ("rnnkern.integrations", "sb3_contrib")}
"""Packages other than torch, and who may import them."""
OPERATOR_CALLERS = {f"rnnkern.{name}" for name in ("_cells", "_extension", "_precompile", "_torch_private", "ops")}
"""Modules that may use torch.ops."""


parsed = functools.cache(ast.parse)
"""Parses each source text once, although several copies contain it."""


def floor_of(module: str) -> str:
    return ".".join(module.split(".")[:2])


def modules(root: Path) -> Iterator[tuple[str, ast.Module]]:
    for path in sorted((root / "rnnkern").rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), parsed(path.read_text())


def imports(module: str, tree: ast.Module, root: Path) -> Iterator[str]:
    """All modules that a file imports, also inside functions."""

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
            elif top not in {"torch", *sys.stdlib_module_names} and (floor, top) not in OTHERS:
                faults.append(f"{module} imports {name}, which is neither torch nor the standard library")
        if floor not in OPERATOR_CALLERS and "torch.ops" in map(ast.unparse, ast.walk(tree)):
            faults.append(f"{module} uses torch.ops")
    return faults


def faults_of_private_torch(root: Path) -> list[str]:
    """Private functions of PyTorch, which may change without notice, are used in one file only. (Attributes of ``self``
    that subclasses share with torch.nn's classes are excepted; that file lists them.)"""
    faults = []
    for module, tree in modules(root):
        if module == "rnnkern._torch_private":
            continue
        of_torch = {"torch"}
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "torch":
                of_torch |= {alias.asname or alias.name for alias in node.names}
                names = [*node.module.split("."), *(alias.name for alias in node.names)]
                faults += [f"{module}:{node.lineno} imports {ast.unparse(node)}" for x in names if x[0] == "_"]
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and re.match(r"_(?!_)", node.attr):
                text = ast.unparse(node)
                if text.split(".")[0] in of_torch or node.attr.startswith("_dynamo"):
                    faults.append(f"{module}:{node.lineno} uses {text}, which is private")
    return faults


# ---- C++: what each folder of csrc may include


def folder_of(path: str) -> str:
    """The part of csrc to which a file belongs: a folder, or the cpu or cuda subfolder of an operator family."""
    first, *rest = path.split("/")
    return f"{first}/{rest[0]}" if rest[:-1] in (["cpu"], ["cuda"]) else first


def faults_of_includes(root: Path) -> list[str]:
    """Rules for includes within csrc:

    - cells include only cells, common only common, and device only device.
    - cpu also includes cells, common and device; cuda also includes common and device.
    - An operator family includes its own folder, cells, common and device; its subfolder cpu (or cuda) also includes
      the folder cpu (or cuda).
    - The interpreter also includes common, cuda and device; the registration of the schemas common and cuda.

    Only common, the registration and one header of cuda include PyTorch's headers. Nothing includes CUDA's headers,
    because the library is built without a toolkit. Of the standard library, code for NVRTC includes only the headers in
    device/standard. Vector code comes after a level's `#pragma GCC target`, and uses only standard headers that were
    included before it: a function that is first compiled after the pragma could be called at all levels.
    """
    faults = []
    files = {path.relative_to(root / "csrc"): path.read_text() for path in sorted((root / "csrc").rglob("*.*"))}
    standard = {path.name for path in (root / "csrc/device/standard").iterdir()}
    shared = {"cells", "common", "device"}
    below = {"cells": {"cells"}, "common": {"common"}, "cpu": {"cpu", *shared}, "device": {"device"}}
    below["cuda"] = {"common", "cuda", "device"}
    before_target = set(re.findall("#include <.*>", files[Path("cpu/level_includes.h")]))
    below["interpreter"] = {"interpreter", *below["cuda"]}
    below["registration.cpp"] = {"common", "cuda"}
    for place, text in files.items():
        folder = folder_of(place.as_posix())
        family, _, half = folder.partition("/")
        seen = below.get(folder, {family, folder, half, *shared})
        for included in re.findall(r'#include "([^"/]+/[^"]+)"', text):
            on_host = (folder, included) == ("device", "interpreter/primitives.h")  # replaces the PTX instructions
            if not on_host and folder_of(included) not in seen:
                faults.append(f"csrc/{place} includes {included!r}, which is not below it")
        if place.suffix == ".h" and '#include "common/simd.h"' in text:
            late = set(re.findall("#include <.*>", text)) - before_target
            faults += [f"csrc/{place} has {line}, which cpu/level_includes.h has not" for line in late]
        for included in re.findall(r"#include <([^>]+)>", text):
            if folder == "cells" and included not in ("cmath", "cstdint"):
                faults.append(f"csrc/{place} includes <{included}>: cells take <cmath> and <cstdint> alone")
            elif re.match(r"(torch|ATen|c10)/", included):
                if folder not in ("common", "registration.cpp") and place != Path("cuda/current.h"):
                    faults.append(f"csrc/{place} includes <{included}>: PyTorch's headers are for common")
            elif included.startswith("cu"):
                faults.append(f"csrc/{place} includes <{included}>: CUDA's headers are not there where this is built")
            elif place.suffix == ".cuh" and included not in standard:
                faults.append(f"csrc/{place} includes <{included}>, which device/standard has not")
    return faults


def faults_of_mutexes(root: Path) -> list[str]:
    """No mutexes other than those that fork handling covers: a fork would leave any other mutex locked in the child
    forever. Code for CUDA is exempt, because CUDA does not work in the child at all; old_glibc.cpp holds none."""
    faults = []
    for path in sorted(path for ending in ("h", "cpp", "cuh") for path in (root / "csrc").rglob(f"*.{ending}")):
        place = path.relative_to(root / "csrc").as_posix()
        if not place.startswith(("interpreter/", "common/fork.", "common/old_glibc.", "cuda/")):
            named = sorted(set(re.findall(r"std::\w*mutex|std::call_once|pthread_\w+", path.read_text())))
            faults += [f"csrc/{place} names {name}: mutexes are those of common/fork.h" for name in named]
    return faults


LONGEST = 450


def faults_of_lengths(root: Path) -> list[str]:
    """A file that is too long to be read at once has two subjects."""
    faults = []
    for path in sorted(path for folder in ("csrc", "rnnkern") for path in (root / folder).rglob("*.*")):
        if path.suffix in (".cpp", ".cuh", ".h", ".py") and path.read_text().count("\n") > LONGEST:
            faults.append(f"{path} has more than {LONGEST} lines")
    return faults


# ---- the rules hold, and each finds a violation

BREACHES = [
    (faults_of_imports, "rnnkern/reference/_recurrence.py", "from .. import ops"),
    (faults_of_imports, "rnnkern/ops/dispatch.py", "def f():\n    import numpy"),
    (faults_of_imports, "rnnkern/nn/lstm.py", "f = torch.ops.rnnkern.recurrence"),
    (faults_of_includes, "csrc/cpu/gemm.h", '#include "relevancy/cpu/problem.h"'),
    (faults_of_includes, "csrc/cpu/gemm.h", "#include <vector>"),
    (faults_of_includes, "csrc/scan/cpu/operators.cpp", "#include <torch/csrc/stable/ops.h>"),
    (faults_of_includes, "csrc/recurrence/cuda/step.cuh", "#include <vector>"),
    (faults_of_lengths, "csrc/cells/gru.h", "\n" * LONGEST),
    (faults_of_mutexes, "csrc/recurrence/cpu/operators.cpp", "std::mutex mutex;"),
    (faults_of_private_torch, "rnnkern/ops/checks.py", "from torch._dynamo import config"),
]


@pytest.mark.parametrize("rule", dict.fromkeys(rule for rule, *_ in BREACHES), ids=lambda rule: rule.__name__)
def test_the_house_stands_as_it_was_drawn(rule):
    assert rule(ROOT) == []


@pytest.mark.parametrize(("rule", "file", "line"), BREACHES, ids=lambda x: x[:60] if isinstance(x, str) else x.__name__)
@pytest.mark.sampled
def test_a_breach_is_found(rule, file, line, copy):
    with (copy / file).open("a") as opened:
        opened.write(f"\n{line}\n")
    assert rule(copy)


# ---- operators and cells

SCHEMAS = [schema for schema in torch._C._jit_get_all_schemas() if schema.name.startswith("rnnkern::")]
OPERATORS = [s.name for s in SCHEMAS if any("Tensor" in str(argument.type) for argument in s.arguments)]
OF_LAYERS = {"linear"}
"""Operators that layers alone call, without a public function."""
OF_STREAMS = {"recurrence_pack", "recurrence_stream", "recurrence_stream_step"}
"""Operators on tensors that hold addresses: only a CPU kernel reads them."""


@compiled_part
@pytest.mark.parametrize("name", sorted(OPERATORS))
def test_every_operator_on_tensors_is_complete(name):
    """It has a CPU kernel, a fake implementation, a formula of its FLOPs and, unless only layers call it, a documented
    function."""
    short = name.removeprefix("rnnkern::")
    assert torch._C._dispatch_has_kernel_for_dispatch_key(name, "CPU")
    if short in OF_STREAMS:
        return
    assert torch._library.utils.has_fake_kernel(getattr(torch.ops.rnnkern, short).default)
    assert short in FORMULAS
    documented = any(getattr(ops, public).__doc__ for public in ops.__all__ if f"{short}_".startswith(f"{public}_"))
    assert documented != (short in OF_LAYERS)


@compiled_part
def test_every_cell_of_the_reference_has_a_kernel_with_the_same_facts_and_a_header():
    assert set(CELLS) == set(KERNEL_CELLS)
    for name, cell in CELLS.items():
        facts = KERNEL_CELLS[name]
        expected = cell.gates, cell.states, len(cell.params), cell.joint
        assert (facts["gates"], facts["states"], facts["params"], facts["joint"]) == expected, name
    headers = {path.stem for path in (ROOT / "csrc/cells").glob("*.h")}
    assert headers - {"cell", "list", "math", "strip", "visit"} == set(CELLS)


# ---- no loop over time in Python


class Operators(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        self.count += 1
        return operator(*args, **(kwargs or {}))


@compiled_part
@pytest.mark.parametrize("options", [{}, {"packed": True, "reset": True}, {"heads": 2, "grad_scale": 2}], ids=str)
@pytest.mark.parametrize("cell", KERNEL_CELLS)
def test_no_call_asks_more_of_pytorch_for_more_steps(cell, options):
    options = options if takes(cell, options) else {"grad_scale": 2}

    def count(steps):
        sample = recurrence_sample(cell, steps, requires_grad=True, **options)
        with Operators() as operators:
            outputs_and_gradients(recurrence, sample)
        return operators.count

    assert count(3) == count(50)
