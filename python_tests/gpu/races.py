"""Runs kernels on the interpreter under the thread sanitizer, which reports accesses that nothing orders.

docs/kernels.md says what it sees."""

import re
import subprocess
from typing import NamedTuple

import pytest

from python_tests.gpu import builder

FLAGS = ("-fsanitize=thread", "-O1")
OUR_FLAGS = (*FLAGS, "-include", "python_tests/gpu/few_kernels.h")
"""Of libraries of our kernels."""
OPTIONS = (
    "exitcode=0 report_thread_leaks=0 history_size=1 suppress_equal_addresses=0 symbolize=0 "
    "stack_trace_format='    #%n %m+%o'"
)
"""Without symbols, because the sanitizer does not find all of them; addr2line does."""


class Race(NamedTuple):
    """Two accesses of which at least one writes: `file:line` in the kernel, innermost first, with its callers."""

    kind: str
    accesses: tuple[tuple[str, ...], ...]

    def __str__(self) -> str:
        return "\n".join([self.kind, *("  " + " < ".join(stack) for stack in self.accesses)])


def races_of(report: str) -> list[Race]:
    """The races in the sanitizer's text."""
    races = []
    for text in re.findall(r"WARNING: ThreadSanitizer: (.*?)\n={18}", report, re.S):
        kind = text.split(" (pid")[0]
        stacks = re.findall(r"^  [A-Z][a-z ]*(?:ead|rite) of size.*\n((?:    #.*\n)+)", text, re.M)
        races.append(Race(kind, tuple(map(places, stacks))))
    return races


def places(stack: str) -> tuple[str, ...]:
    """The lines of kernels in a stack, without those of the interpreter and of launches."""
    frames = re.findall(r"#\d+ (\S*build/interpreter/\S+)\+(0x\w+)", stack)
    if not frames:
        return ()
    command = ["addr2line", "-i", "-e", frames[0][0], *(offset for _, offset in frames)]
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    own = re.findall(r"^.*?\b((?:csrc|python_tests)/\S+:\d+)", found, re.M)
    inside = re.compile(r"interpreter/(?:races|fibers|primitives)\.|csrc/cuda/")
    return tuple(place for place in own if not inside.search(place))


def run(*arguments: str) -> tuple[str, str]:
    """Runs Python with these arguments under the sanitizer, and returns its output and the sanitizer's reports."""
    preload = builder.libraries("libtsan", "libstdc++")
    if not preload:
        pytest.skip("no libtsan")
    done = builder.run_python(*arguments, LD_PRELOAD=preload, TSAN_OPTIONS=OPTIONS, OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    return done.stdout, done.stderr
