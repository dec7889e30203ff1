"""Every command in perf/ starts and prints its help."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COMMANDS = [p.stem for p in sorted((ROOT / "perf").glob("*.py")) if "ArgumentParser(" in p.read_text()]


@pytest.mark.parametrize("command", COMMANDS)
def test_it_says_what_it_takes(command):
    if '__name__ == "__main__"' not in (ROOT / f"perf/{command}.py").read_text():
        pytest.skip("a module, not a command")
    done = subprocess.run(
        [sys.executable, "-m", f"perf.{command}", "--help"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("usage: ")
