"""Compares two acquire scopes in the wait of the cluster kernels: cluster scope and block (CTA) scope.

``python -m perf.wait_scope --help``. The same kernel is compiled and timed with each scope in a separate process; both
must return the same bits.
"""

import argparse
import hashlib
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from perf import record

SCOPES = ("cluster", "cta")
ROUNDS = 5
STEPS, BATCH, HIDDEN = 1024, 8, 512
WARM_UPS, CALLS = 3, 20
KERNEL = "recurrence/cuda/forward/lstm/cluster"


def flags(scope: str) -> str:
    """The value of RNNKERN_CUDA_FLAGS for a scope; the macro is a C++ string literal, with its quotes."""
    return f'{os.environ.get("RNNKERN_CUDA_FLAGS", "")} -DRNNKERN_WAIT_SCOPE="{scope}"'.strip()


def run_here() -> None:
    """Prints the microseconds per step in this process, and a hash of the output."""
    import rnnkern

    device = torch.device("cuda", 0)
    draws = torch.Generator().manual_seed(0)

    def drawn(*size: int, scale: float = 1.0) -> torch.Tensor:
        return (scale * torch.randn(*size, generator=draws)).to(device, torch.bfloat16)

    u, R = drawn(STEPS, BATCH, 4 * HIDDEN), drawn(4 * HIDDEN, HIDDEN, scale=HIDDEN**-0.5)
    state = drawn(BATCH, HIDDEN), drawn(BATCH, HIDDEN)
    times = []
    with torch.no_grad():
        for _ in range(WARM_UPS + CALLS):
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            output, _ = rnnkern.ops.recurrence("lstm", u, R, state)
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end))
    if KERNEL not in json.loads(torch.ops.rnnkern.kernel_counts()):
        choice = rnnkern.ops.explain(rnnkern.ops.recurrence, "lstm", u, R, state)
        sys.exit(f"perf.wait_scope: the cluster kernel does not serve the call: {choice}")
    hashed = hashlib.sha256(output.cpu().view(torch.int16).numpy().tobytes()).hexdigest()[:16]
    print(1e3 * statistics.median(times[WARM_UPS:]) / STEPS, hashed)


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--out", type=Path, help="folder of wait_scope.csv")
    what.add_argument("--here", action="store_true", help="the kernel as this process compiles it")
    chosen = parser.parse_args(argv)
    if chosen.here:
        run_here()
        return
    facts, rows, hashes = record.facts(torch.device("cuda", 0), "python -m perf.wait_scope"), [], set()
    for turn in range(ROUNDS):
        for scope in SCOPES[:: 1 if turn % 2 == 0 else -1]:
            command = [sys.executable, "-m", "perf.wait_scope", "--here"]
            environment = os.environ | {"RNNKERN_CUDA_FLAGS": flags(scope)}
            done = subprocess.run(
                command, cwd=record.ROOT, env=environment, check=True, stdout=subprocess.PIPE, text=True
            )
            step, hashed = done.stdout.split()
            rows.append({"scope": scope, "round": turn, "us_per_step": float(step)})
            hashes.add(hashed)
    print(record.table(rows))
    if len(hashes) > 1:
        sys.exit(f"perf.wait_scope: results differ: {sorted(hashes)}")
    record.append(chosen.out / "wait_scope.csv", [facts | row for row in rows])


if __name__ == "__main__":
    main(sys.argv[1:])
