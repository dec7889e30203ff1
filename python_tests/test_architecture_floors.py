"""The house stands as it was drawn: Python's floors call downwards only, and none that is thin has a loop over time.

Every rule is a function that returns its faults, so that it can be shown to find some.
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

import rnnkern.nn
from rnnkern import _extension
from rnnkern.ops import recurrence
from rnnkern.ops.recurrence import KERNEL_CELLS
from rnnkern.testing import outputs_and_gradients, recurrence_sample, takes

ROOT = Path(__file__).parents[1]


@pytest.fixture
def copy(tmp_path):
    """A copy of the package, to spoil."""
    shutil.copytree(ROOT / "rnnkern", tmp_path / "rnnkern", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    return tmp_path


# Each with those below it that it may call; all may call torch and the standard library, and themselves.
FLOORS = {
    "rnnkern._torch_private": set(),
    "rnnkern._extension": {"rnnkern._torch_private"},
    "rnnkern.reference": set(),
    "rnnkern.triton": set(),
    "rnnkern.testing": {"rnnkern.reference"},
    "rnnkern.ops": {"rnnkern._extension", "rnnkern._torch_private", "rnnkern.reference", "rnnkern.triton"},
    "rnnkern.parametrizations": {"rnnkern._torch_private", "rnnkern.ops", "rnnkern.reference"},
    "rnnkern.analysis": set(),
    "rnnkern.optim": {"rnnkern.ops", "rnnkern.parametrizations"},
    "rnnkern.nn": {"rnnkern.ops", "rnnkern.parametrizations", "rnnkern.reference"},
    "rnnkern.swap": {"rnnkern.nn", "rnnkern.ops"},
}
FLOORS["rnnkern"] = set(FLOORS)
OPERATOR_CALLERS = {"rnnkern._extension", "rnnkern.ops"}


def floor_of(module: str) -> str:
    return ".".join(module.split(".")[:2])


parsed = functools.cache(ast.parse)
"""A file once, in however many copies it stands."""


def modules(root: Path) -> Iterator[tuple[str, ast.Module]]:
    for path in sorted((root / "rnnkern").rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), parsed(path.read_text())


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


def faults_of_private_torch(root: Path) -> list[str]:
    """What PyTorch may change without a word stands in one file. (The names that subclasses share with torch.nn's base
    classes are `self`'s, and are listed there.)"""
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
    assert faults_of_private_torch(ROOT) == []


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
    (faults_of_private_torch, "nn/rnn.py", "if torch._C.is_tracing:\n    pass", "uses torch._C"),
    (faults_of_private_torch, "ops/checks.py", "from torch._dynamo import config", "imports from torch._dynamo"),
    (faults_of_private_torch, "ops/checks.py", "reset._dynamo_marked_constant = True", "which is private"),
    (faults_of_loops, "nn/rnn.py", "for t in range(x.shape[0]):\n    pass", "loops over time"),
    (faults_of_loops, "nn/rnn.py", "for u_t in u.unbind(0):\n    pass", "loops over time"),
    (faults_of_loops, "nn/rnn.py", "for x_t in x:\n    pass", "loops over time"),
    (faults_of_loops, "ops/recurrence.py", "hs = [f(t) for t in reversed(range(steps))]", "loops over time"),
    (faults_of_loops, "ops/recurrence.py", "for t, a in enumerate(u.split(sizes)):\n    pass", "loops over time"),
    (faults_of_loops, "ops/recurrence.py", "while t < T:\n    t += 1", "has a while loop"),
]


@pytest.mark.parametrize(("rule", "file", "line", "said"), SPOILT, ids=lambda x: x if isinstance(x, str) else "")
def test_a_breach_of_the_floors_is_found(rule, file, line, said, copy):
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
@pytest.mark.parametrize("cell", KERNEL_CELLS)
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
