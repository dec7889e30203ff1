"""The house stands as it was drawn: a cell has all that its journey names.

Every rule is a function that returns its faults, so that it can be shown to find some.
"""

import importlib
import re
import shutil
from pathlib import Path
from typing import NamedTuple

import pytest

from rnnkern import _extension
from rnnkern.ops.recurrence import KERNEL_CELLS
from rnnkern.reference import CELLS
from rnnkern.testing import RECURRENCE_OPTIONS, recurrence_samples, takes

ROOT = Path(__file__).parents[1]
HEADER_LINES = 60


class Facts(NamedTuple):
    """As csrc/cells/cell.h orders them, and whether a GPU has kernels of the cell, and keeps its R."""

    first_gates: int
    gates: int
    states: int
    params: int
    saved: int
    joint: bool
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
    lists = re.split("#define RNNKERN_ALL_CELLS", texts[folder / "list.h"])
    resident, stepwise = (re.findall(r"\bX\((\w+)\)", part) for part in lists)
    for struct in resident + stepwise:
        found = Listed(struct, None, None, None)
        for path, text in texts.items():
            if base := re.search(rf"struct {struct} : (?:CellFacts<{number}>|(\w+))", text):
                *own, alias = base.groups()
                facts = dict(zip(Facts._fields, aliases.get(alias, own), strict=False))
                facts |= re.findall(r"\b(params|saved|joint) = (\w+)", text)  # where it differs from its base
                facts |= {fact: int(number) for fact, number in facts.items() if fact != "joint"}
                facts["params"] += "projected = true" in text
                facts |= {"joint": facts["joint"] == "true"}
                facts |= {"resident": struct in resident}
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
        pytest.importorskip("matplotlib")


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


def test_every_cell_has_a_kernel_and_those_that_a_gpu_takes_step_by_step_are_known():
    assert set(CELLS) == set(LISTED)
    listed = listed_cells(ROOT)
    stepwise = ["lstm_projected", "lstm_layer_norm", "gru_layer_norm"]
    assert [cell.name for cell in listed if not cell.facts.resident] == stepwise


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
