"""Runs files interpreted_*.py: importing Triton decides whether its functions are compiled or interpreted."""

import os
import subprocess
import sys
from pathlib import Path


def check(name: str, only: str = "") -> None:
    """Runs the tests of interpreted_<name>.py that match ``only`` in a process with TRITON_INTERPRET=1."""
    file = Path(__file__).with_name(f"interpreted_{name}.py")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(file), "-k", only],
        cwd=file.parents[2], env={**os.environ, "TRITON_INTERPRET": "1"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:]
