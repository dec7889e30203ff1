"""The commands of docs/developers/kernels.md and races.md run their kernels, and print what the pages print."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from python_tests.gpu import builder

PAGE = (builder.ROOT / "docs" / "developers" / "kernels.md").read_text()
RACES = (builder.ROOT / "docs" / "developers" / "races.md").read_text()
pytestmark = [
    pytest.mark.skipif(shutil.which(builder.compiler()[0]) is None, reason="no C++ compiler"),
    pytest.mark.skipif(shutil.which("bash") is None, reason="no bash"),
]


def block(mark: str, page: str = PAGE) -> str:
    return re.search(rf"<!-- worked example: {mark} -->\n```\w+\n(.*?)```", page, re.S)[1]


@pytest.fixture
def folder(tmp_path) -> Path:
    (tmp_path / "csrc").symlink_to(builder.ROOT / "csrc")
    return tmp_path


def compile_and_run(folder: Path, kernel: str, command: str) -> subprocess.CompletedProcess:
    (folder / re.match(r"// (\w+\.cpp)", kernel)[1]).write_text(kernel)
    command = command.replace("c++ ", " ".join(builder.compiler()) + " ")
    environment = os.environ | {"ASAN_OPTIONS": "detect_leaks=0"}
    return subprocess.run(
        ["bash", "-c", command], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("number", [0, 1], ids=["plain", "sanitized"])
def test_interpret_the_kernel_of_the_page(folder, number):
    done = compile_and_run(folder, block("kernel"), block("commands").splitlines()[number])
    if "cannot find" in done.stderr:
        pytest.skip("no libasan")
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


def test_interpret_the_report_of_the_page(folder):
    wrong = block("kernel").replace("    block_barrier();", "    if (lane() == 0) block_barrier();")
    assert wrong != block("kernel")
    done = compile_and_run(folder, wrong, block("commands").splitlines()[0])
    assert block("report") in done.stderr + "\n"


def test_interpret_the_race_of_the_page(folder):
    """Of the report, everything between dots and addresses; a barrier in place of the shuffle removes it."""
    kernel, command = block("kernel", RACES), block("commands", RACES)
    done = compile_and_run(folder, kernel, command)
    if "cannot find" in done.stderr:
        pytest.skip("no libtsan")
    assert done.returncode == 66, done.stderr
    at = 0
    for piece in re.split(r"\.\.\.|pid=\d+|0x\w+|\n", block("report", RACES)):
        assert piece.strip() in done.stderr[at:]
        at = done.stderr.index(piece.strip(), at)
    done = compile_and_run(folder, kernel.replace("shuffle(0, 0)", "warp_barrier()"), command)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_page_lists_every_primitive():
    """The primitives are those in the table of contents of device.h."""
    contents = (builder.ROOT / "csrc/device/device.h").read_text().partition("#pragma once")[0]
    rows = re.findall(r"^//   (.+?)  ", contents, re.M)
    names = {name for row in rows for name in re.findall(r"\b([a-z]\w+)(?=[(<\s]|$)", re.sub(r"\(.*?\)", "(", row))}
    assert len(names) >= 30
    said = PAGE.partition("## The list")[2].partition("\n## ")[0]
    assert {name for name in names if not re.search(rf"`[^`\n]*\b{name}\b", said)} == set()
