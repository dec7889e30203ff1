"""Times the wait of the cluster kernels with an acquire that reaches the cluster against one that reaches the block.

``python -m perf.wait_scope --help``. The same kernel is compiled with either; both must give the same bits.
"""

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch

from perf import record
from perf.gpu_stages import find

SCOPES = ("cluster", "cta")
ROUNDS = 5


def build(scope: str, arch: str, folder: Path) -> Path:
    """The path of a program that prints microseconds per step and a hash of what it computed."""
    program = folder / f"wait_{scope}"
    flags = ["-std=c++20", "-O3", "-Icsrc", f"-arch={arch}", f'-DRNNKERN_WAIT_SCOPE="{scope}"']
    command = [find("nvcc") or "nvcc", *flags, "perf/wait_scope.cu", "-o", program]
    subprocess.run(command, cwd=record.ROOT, check=True)
    return program


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of wait_scope.csv")
    out = parser.parse_args(argv).out
    device = torch.device("cuda", 0)
    arch = "sm_{}{}".format(*torch.cuda.get_device_capability(device))
    facts, rows, hashes = record.facts(device, "python -m perf.wait_scope"), [], set()
    with tempfile.TemporaryDirectory() as folder:
        programs = {scope: build(scope, arch, Path(folder)) for scope in SCOPES}
        for turn in range(ROUNDS):
            for scope in SCOPES[:: 1 if turn % 2 == 0 else -1]:
                done = subprocess.run([programs[scope]], check=True, stdout=subprocess.PIPE, text=True)
                step, hashed = done.stdout.split()
                rows.append({"scope": scope, "round": turn, "us_per_step": float(step)})
                hashes.add(hashed)
    print(record.table(rows))
    if len(hashes) > 1:
        sys.exit(f"perf.wait_scope: results differ: {sorted(hashes)}")
    record.append(out / "wait_scope.csv", [facts | row for row in rows])


if __name__ == "__main__":
    main(sys.argv[1:])
