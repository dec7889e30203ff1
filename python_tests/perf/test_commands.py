"""Every command in perf/ starts and prints its help."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXTS = {path.stem: path.read_text() for path in sorted((ROOT / "perf").glob("*.py"))}
COMMANDS = [name for name, text in TEXTS.items() if "ArgumentParser(" in text and "__main__" in text]


@pytest.mark.parametrize("command", [*COMMANDS, "dynamics", "gpu"])
@pytest.mark.drawn
def test_it_says_what_it_takes(command):
    done = subprocess.run([sys.executable, "-m", f"perf.{command}", "--help"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("usage: ")
