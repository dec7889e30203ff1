"""Documentation: the examples of docstrings, pages and notebooks run, tables of cells have the facts of the code, and
the site builds strictly."""

import doctest
import importlib
import importlib.util
import json
import os
import pkgutil
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import rnnkern
from rnnkern import _extension, reference
from rnnkern.ops._recurrence.recurrence import KERNEL_CELLS

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
NOTEBOOKS = sorted((ROOT / "docs").rglob("*.ipynb"))
MODULES = ["rnnkern", *(found.name for found in pkgutil.walk_packages(rnnkern.__path__, "rnnkern."))]
FENCE = re.compile(r"(?P<mark><!--[^>]*-->\n *)?```(?P<language>\w+)\n(?P<code>.*?)^ *```$", re.M | re.S)
CONTRIBUTING = ROOT / "docs" / "CONTRIBUTING.md"

compiled_part = pytest.mark.skipif(not _extension.available, reason=f"no compiled part: {_extension.reason}")


def run_examples(test: doctest.DocTest) -> None:
    said = []
    failed, _ = doctest.DocTestRunner(optionflags=doctest.FAIL_FAST).run(test, out=said.append, clear_globs=False)
    assert not failed, "".join(said)


def docstrings() -> list[doctest.DocTest]:
    """Docstrings with examples; `import torch, rnnkern` is added to the names of their module."""
    finder, tests = doctest.DocTestFinder(exclude_empty=True), []
    for name in MODULES:
        if name == "rnnkern._C":
            continue
        module = importlib.import_module(name)
        found = finder.find(module, name, extraglobs={"torch": torch, "rnnkern": rnnkern})
        tests += [test for test in found if test.examples]
    return tests


@pytest.mark.parametrize("test", docstrings(), ids=lambda test: test.name)
def test_examples_of_docstrings(test):
    run_examples(test)


def test_every_public_name_has_a_docstring_and_modules_and_operators_an_example():
    with_example = {test.name for test in docstrings()}
    for module in (rnnkern, rnnkern.nn, rnnkern.ops, reference):
        for name in module.__all__:
            value = getattr(module, name)
            if callable(value):
                assert value.__doc__, f"{module.__name__}.{name}"
    modules = [getattr(rnnkern.nn, name) for name in rnnkern.nn.__all__]
    for public in (*modules, rnnkern.ops.recurrence, rnnkern.ops.explain, rnnkern.replace, rnnkern.restore):
        assert f"{public.__module__}.{public.__qualname__}" in with_example


@compiled_part
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_examples_of_pages(page):
    """The examples of a page run in order and in one namespace."""
    text, names = page.read_text(), {}
    for block in FENCE.finditer(text):
        line = text.count("\n", 0, block.start("code"))
        if block["mark"] or block["language"] not in ("python", "pycon"):
            continue
        if block["language"] == "python":
            exec(compile("\n" * line + block["code"], str(page), "exec"), names)
        else:
            test = doctest.DocTestParser().get_doctest(block["code"], names, page.name, str(page), line)
            test.globs = names
            run_examples(test)


@compiled_part
@pytest.mark.proof
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda notebook: notebook.name)
def test_notebooks(notebook, monkeypatch):
    """The cells of a notebook run in order; those with figures keep their output."""
    plt = pytest.importorskip("matplotlib.pyplot")
    monkeypatch.setattr(plt, "show", lambda: plt.close("all"))
    cells = [cell for cell in json.loads(notebook.read_text())["cells"] if cell["cell_type"] == "code"]
    names = {"__name__": "__main__"}
    for number, cell in enumerate(cells):
        code = "".join(cell["source"])
        exec(compile(code, f"{notebook.name}, cell {number}", "exec"), names)
        assert bool(cell["outputs"]) == ("print(" in code or "plt.show()" in code)


def table_of_cells() -> dict[str, list[str]]:
    """The columns of each cell's row in docs/builtin_cells.md."""
    _, section = (ROOT / "docs" / "builtin_cells.md").read_text().split("## Cells\n")
    rows = re.findall(r"^\| `(\w+)` \|(.*)\|$", re.split(r"^#+ ", section, flags=re.M)[0], re.M)
    assert sorted(name for name, _ in rows) == sorted(reference.CELLS)
    return {name: [entry.strip() for entry in entries.split("|")] for name, entries in rows}


@compiled_part
def test_the_table_of_cells_has_the_facts_of_the_code():
    for name, (gates, state, params, products, header, *memory, _) in table_of_cells().items():
        cell, facts = reference.CELLS[name], KERNEL_CELLS[name]
        projected = "weight_hr" in cell.params
        assert (gates, state, params) == (str(cell.gates), ", ".join(("h", "c")[: cell.states]), ", ".join(cell.params))
        assert products == f"{1 + (facts['first_gates'] < facts['gates'])}" + ", and a projection" * projected
        assert (ROOT / "csrc" / "cells" / header.strip("`")).exists()
        of_h_units = [facts["states"] - projected + saved for saved in (facts["saved"], 0)]
        kept = [f"{count} H".removeprefix("1 ") + " + P" * projected for count in of_h_units]
        assert memory == kept, name


def worked_example(mark: str) -> str:
    (block,) = [b for b in FENCE.finditer(CONTRIBUTING.read_text()) if (b["mark"] or "").startswith(f"<!-- {mark} ")]
    return block["code"]


ONE_UNIT = """
#include <cstdio>
#include "leaky.h"
int main() {
  double u = 0.3, r = -0.7, h = 0.4, a = 0.8, next, save, grad = 1, du, dr, da = 0;
  rnnkern::Leaky::forward(&u, &r, &h, &a, &next, &save);
  rnnkern::Leaky::backward(&save, &h, &next, &a, &grad, &du, &dr, &da);
  std::printf("%.17g %.17g %.17g %.17g %.17g", next, du, dr, grad, da);
}"""


def test_the_worked_example_of_a_new_cell_computes_what_it_says(tmp_path):
    """Compares the header with the reference: the new state and all gradients of one unit."""
    names = {"torch": torch, "_cell": lambda **facts: lambda step: step}
    exec(worked_example("worked example: reference"), names)
    u, r, h, a = values = torch.tensor([0.3, -0.7, 0.4, 0.8], dtype=torch.float64, requires_grad=True).unbind()
    (wanted,) = names["leaky"](u, lambda h: r, (h,), a)
    wanted = [wanted.item(), *(g.item() for g in torch.autograd.grad(wanted, values))]
    (tmp_path / "leaky.h").write_text(worked_example("worked example: header"))
    (tmp_path / "main.cpp").write_text(ONE_UNIT)
    build = [*shlex.split(os.environ.get("CXX", "c++")), "-std=c++20", f"-I{ROOT}/csrc", "main.cpp", "-o", "main"]
    subprocess.run(build, cwd=tmp_path, check=True, capture_output=True, text=True)
    actual = subprocess.run([tmp_path / "main"], check=True, capture_output=True, text=True).stdout.split()
    assert [float(x) for x in actual] == pytest.approx(wanted, rel=1e-12)


def test_links_of_the_readme_lead_somewhere():
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)", (ROOT / "README.md").read_text())
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_the_site_builds_strictly(tmp_path):
    for needed in ("material", "mkdocstrings"):
        if importlib.util.find_spec(needed) is None:
            pytest.skip(f"{needed} is not installed: `make docs` installs it")
    config = ROOT / ".mkdocs.yml"
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", config, "-d", tmp_path / "site"]
    done = subprocess.run(command, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    pages = "".join(page.read_text() for page in (tmp_path / "site").rglob("*.html"))
    assert re.findall(r":(?:math|class|func|meth|mod):|\.\. math::", pages) == []
