"""The compiled part stands as it was drawn: rooms see what is below them, torch has its place, schemas are complete.

Every rule is a function that returns its faults, so that it can be shown to find some.
"""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from rnnkern import _extension, ops

ROOT = Path(__file__).parents[1]
LINES = 450


@pytest.fixture
def copy(tmp_path):
    """A copy of the sources, to spoil."""
    for folder in ("csrc", "rnnkern"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    return tmp_path


def rewrite(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


# ---- rooms

WRITTEN = ("build_facts.h", "build_levels.h")
"""By setup.py, in the folder of the build."""

CODE = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', re.S)
"""Comments and strings."""


def rooms(root: Path) -> Iterator[tuple[str, str, str]]:
    """Every file of csrc: its room, its place, its text."""
    for path in sorted((root / "csrc").rglob("*.*")):
        place = path.relative_to(root / "csrc")
        yield place.parts[0], str(place), path.read_text()


def faults_of_rooms(root: Path) -> list[str]:
    """Cells see cells, common itself, a family its own room, cells, common and device; nothing sees upwards.

    The interpreter sees everything; of it device sees what stands for PTX on the host.
    """
    faults = []
    below = {"cells": {"cells"}, "common": {"common", *WRITTEN}, "device": {"device"}}
    names = {room for room, *_ in rooms(root)}
    below["interpreter"] = below["registration.cpp"] = names
    for room, place, text in rooms(root):
        for included in re.findall(r'#include "([^"]+)"', text):
            if "/" not in included and included not in WRITTEN:
                faults.append(f"csrc/{place} includes {included!r}: say it from csrc on")
            elif (room, included) == ("device", "interpreter/primitives.h"):
                continue
            elif included.split("/")[0] not in below.get(room, {room, "cells", "common", "device"}):
                faults.append(f"csrc/{place} includes {included!r}, which is not below it")
    return faults


def faults_of_foreign_headers(root: Path) -> list[str]:
    """torch's headers are for common and the registration, CUDA's for CUDA files and what launches kernels; cells take
    <cmath> alone.
    """
    faults = []
    for room, place, text in rooms(root):
        for included in re.findall(r"#include <([^>]+)>", text):
            if room == "cells" and included != "cmath":
                faults.append(f"csrc/{place} includes <{included}>: cells take <cmath> alone")
            elif re.match(r"(torch|ATen|c10)/", included) and room not in ("common", "registration.cpp"):
                faults.append(f"csrc/{place} includes <{included}>: torch's headers are for common")
            elif re.match("cuda|cublas|cooperative", included) and not place.endswith(
                (".cu", ".cuh", "device/launch.h")
            ):
                faults.append(f"csrc/{place} includes <{included}>: CUDA's headers are for CUDA files")
    return faults


def faults_of_foreign_names(root: Path) -> list[str]:
    faults = []
    for room, place, text in rooms(root):
        if room not in ("common", "registration.cpp"):
            named = sorted(set(re.findall(r"\b(?:torch|at|c10)::[\w:]+", CODE.sub("", text))))
            faults += [f"csrc/{place} names {name}: torch's names are for common" for name in named]
    return faults


def faults_of_mutexes(root: Path) -> list[str]:
    """A fork would leave another mutex locked in the child for ever."""
    faults = []
    for room, place, text in rooms(root):
        if room != "interpreter" and not place.startswith("common/fork."):
            named = sorted(set(re.findall(r"std::\w*mutex|std::call_once|pthread_\w+", CODE.sub("", text))))
            faults += [f"csrc/{place} names {name}: mutexes are those of common/fork.h" for name in named]
    return faults


def faults_of_length(root: Path) -> list[str]:
    files = [path for ending in ("py", "h", "cpp", "cu", "cuh") for path in root.rglob(f"*.{ending}")]
    hidden = [path for path in files if re.search(r"/(build|dist|site|\.\w+)/", f"/{path.relative_to(root)}")]
    counted = {path.relative_to(root): path.read_text().count("\n") for path in sorted(set(files) - set(hidden))}
    return [f"{path} has {lines} lines; the most is {LINES}" for path, lines in counted.items() if lines > LINES]


def test_rooms_of_the_compiled_part_see_what_is_below_them():
    assert faults_of_rooms(ROOT) == []
    assert faults_of_foreign_headers(ROOT) == []


def test_only_common_and_the_registration_name_torch():
    assert faults_of_foreign_names(ROOT) == []


def test_mutexes_are_safe_to_fork():
    assert faults_of_mutexes(ROOT) == []


def test_files_stay_short():
    assert faults_of_length(ROOT) == []


@pytest.mark.parametrize(
    ("rule", "file", "line", "said"),
    [
        (faults_of_rooms, "cells/gru.h", '#include "common/simd.h"', "'common/simd.h', which is not below it"),
        (faults_of_rooms, "common/team.h", '#include "recurrence/problem.h"', "not below it"),
        (faults_of_rooms, "recurrence/cpu.cpp", '#include "scan/scan.h"', "not below it"),
        (faults_of_rooms, "recurrence/cpu.cpp", '#include "problem.h"', "say it from csrc on"),
        (faults_of_rooms, "device/device.h", '#include "interpreter/fibers.h"', "not below it"),
        (faults_of_rooms, "device/device.h", '#include "common/simd.h"', "not below it"),
        (faults_of_rooms, "recurrence/problem.h", '#include "interpreter/primitives.h"', "not below it"),
        (faults_of_foreign_headers, "device/device.h", "#include <cuda_fp16.h>", "CUDA's headers"),
        (faults_of_foreign_headers, "cells/gru.h", "#include <vector>", "cells take <cmath> alone"),
        (faults_of_foreign_headers, "recurrence/cpu.cpp", "#include <torch/csrc/stable/ops.h>", "are for common"),
        (faults_of_foreign_headers, "recurrence/problem.h", "#include <cuda_runtime.h>", "CUDA's headers"),
        (faults_of_foreign_names, "recurrence/problem.h", "using X = at::Tensor;", "names at::Tensor"),
        (faults_of_mutexes, "recurrence/cpu.cpp", "std::mutex mutex;", "names std::mutex"),
        (faults_of_length, "recurrence/long.h", "\n" * LINES, "the most is 450"),
    ],
    ids=lambda x: x if isinstance(x, str) and len(x) < 99 else "",
)
def test_a_breach_in_the_compiled_part_is_found(rule, file, line, said, copy):
    path = copy / "csrc" / file
    before = rule(copy)
    path.write_text((path.read_text() if path.exists() else "") + f"\n{line}\n")
    (fault,) = set(rule(copy)) - set(before)
    assert said in fault


# ---- the table of contents


LITERAL = r'"(?:[^"\\]|\\.)*"'


def schemas(root: Path) -> tuple[dict[str, str], dict[str, set[str]]]:
    """Of csrc/registration.cpp: operators with their schemas, and dispatch keys with the operators they implement."""
    text = (root / "csrc/registration.cpp").read_text()
    defined = {}
    for literals in re.findall(rf"m\.def\(\s*((?:{LITERAL}\s*)+)\)", text):
        schema = "".join(literal[1:-1].replace(r"\"", '"') for literal in re.findall(LITERAL, literals))
        defined[schema.partition("(")[0]] = schema
    implemented = {}
    for key, body in re.findall(r"STABLE_TORCH_LIBRARY_IMPL\(rnnkern, (\w+), m\) \{(.*?)\}\n", text, re.S):
        implemented.setdefault(key, set()).update(re.findall(r'm\.impl\("(\w+)"', body))
    return defined, implemented


def faults_of_schemas(root: Path) -> list[str]:
    """Operators on tensors have a CPU kernel, a fake rule, and a function of rnnkern.ops to belong to; a kernel that is
    all ATen's may be Python's, in rnnkern/ops, and what takes no tensor in rnnkern/_extension.py."""
    defined, implemented = schemas(root)
    sources = "".join(path.read_text() for path in sorted((root / "rnnkern/ops").glob("*.py")))
    composed = re.findall(r'\.impl\("rnnkern::(\w+)", "CPU"\)', sources)
    faked = set(re.findall(r'register_fake\(\s*"rnnkern::(\w+)"', sources))
    in_python = re.findall(r'\.impl\("(\w+)"', (root / "rnnkern/_extension.py").read_text())
    faults = []
    for key, names in implemented.items():
        faults += [f"{name} is implemented for {key} and has no schema" for name in sorted(names - set(defined))]
    for name, schema in defined.items():
        if "Tensor" not in schema:
            if name not in (*implemented.get("CompositeExplicitAutograd", ()), *in_python):
                faults.append(f"{name} has no implementation")
            continue
        if name not in (*implemented.get("CPU", ()), *composed):
            faults.append(f"{name} has no CPU kernel")
        if name not in faked:
            faults.append(f"{name} has no fake rule in rnnkern/ops")
        families = [public for public in ops.__all__ if f"{name}_".startswith(f"{public}_")]
        if not any((getattr(ops, public).__doc__ or "").strip() for public in families):
            faults.append(f"{name} belongs to no documented function of rnnkern.ops")
    return faults


def test_the_table_of_contents_is_complete():
    defined, implemented = schemas(ROOT)
    text = (ROOT / "csrc/registration.cpp").read_text()
    assert len(defined) == text.count("m.def(")
    assert sum(map(len, implemented.values())) == text.count("m.impl(")
    assert faults_of_schemas(ROOT) == []


@pytest.mark.skipif(not _extension.available, reason=f"no compiled part: {_extension.reason}")
def test_the_table_of_contents_is_what_is_registered():
    for name, schema in schemas(ROOT)[0].items():
        assert str(getattr(torch.ops.rnnkern, name).default._schema) == f"rnnkern::{schema}"


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('m.impl("recurrence",', 'm.impl("recurence",', "recurence is implemented for CPU and has no schema"),
        ('m.impl("recurrence_backward",', 'm.impl("recurrence",', "recurrence_backward has no CPU kernel"),
        ('m.impl("kernel_counts",', 'm.impl("build_info",', "kernel_counts has no implementation"),
        ('m.def("build', 'm.def("scan(Tensor x) -> Tensor");\n  m.def("build', "scan has no fake rule in rnnkern/ops"),
        (
            'm.def("build',
            'm.def("scan(Tensor x) -> Tensor");\n  m.def("build',
            "scan belongs to no documented function",
        ),
    ],
)
def test_an_incomplete_table_of_contents_is_found(old, new, said, copy):
    rewrite(copy / "csrc/registration.cpp", old, new)
    assert any(said in fault for fault in faults_of_schemas(copy))


def test_a_missing_fake_rule_is_found(copy):
    rewrite(copy / "rnnkern/ops/recurrence_autograd.py", 'register_fake("rnnkern::recurrence_backward"', "no(")
    assert faults_of_schemas(copy) == ["recurrence_backward has no fake rule in rnnkern/ops"]
