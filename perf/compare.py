"""Compares the speed of two builds of rnnkern in one run: two processes take turns at every case of ``perf.bench``.

``python -m perf.compare OLD`` in a built tree, where OLD is the root of another built tree. A turn is a block of
consecutive calls of rnnkern. A pair is one turn of each build; its ratio is the old time over the new one. Each line
names the results whose norms differ by more than 0.2 %.
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch

from perf import bench
from perf.harness import OURS, Case
from perf.progress import Progress

ROOT = Path(__file__).resolve().parents[1]
CPU = torch.device("cpu")
BLOCK = 1e-2  # seconds per turn
REST = 5e-3  # seconds before a turn, in which the threads of the other process stop spinning


def cases(words: list[str]) -> list[Case]:
    """The cases with one of the words in their names, without torch.compile, which does not depend on the build."""
    names = ((case, " ".join(case.labels.values())) for case in bench.cases() if case.labels["case"] != "compiled")
    return [case for case, name in names if not words or any(word in name for word in words)]


def work(words: list[str]) -> None:
    """The loop of a worker process. It reads lines of JSON: the index of a case, a direction and a number of calls."""
    torch.set_num_threads(2)
    todo, ready, problem = cases(words), None, None
    for line in sys.stdin:
        index, direction, repeats = json.loads(line)
        if ready != index:
            problem, ready = todo[index].build(0), index
        if direction is None:
            answer = list(problem.calls)
        else:
            call = problem.calls[direction][OURS]
            time.sleep(REST)
            values = call()
            begun = time.perf_counter()
            for _ in range(repeats):
                call()
            seconds = (time.perf_counter() - begun) / repeats
            answer = [seconds, {name: x.double().norm().item() for name, x in values.items()}]
        print(json.dumps(answer), flush=True)


class Worker:
    def __init__(self, tree: Path, words: list[str]):
        command = [sys.executable, str(Path(__file__).resolve()), "--worker", *words]
        self.process = subprocess.Popen(
            command, cwd=tree, env=os.environ | {"PYTHONPATH": str(tree)}, text=True, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )  # fmt: skip

    def ask(self, *question):
        self.process.stdin.write(json.dumps(question) + "\n")
        self.process.stdin.flush()
        if not (answer := self.process.stdout.readline()):
            raise SystemExit(f"{self.process.args}: no answer")
        return json.loads(answer)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m perf.compare", description=__doc__.partition("\n")[0])
    parser.add_argument("old", type=Path, help="the root of a tree that is built")
    parser.add_argument("words", nargs="*", help="of the names of cases, one of which is enough")
    parser.add_argument("--pairs", type=int, default=50)
    chosen = parser.parse_args()
    todo = cases(chosen.words)
    workers = [Worker(tree, chosen.words) for tree in (chosen.old.resolve(), ROOT)]
    medians = []
    with Progress("", len(todo), "case") as progress:
        for index, case in enumerate(todo):
            name = progress.what = " ".join(case.labels.values())
            directions = [worker.ask(index, None, 0) for worker in workers][1]
            for direction in directions:
                (once, old), (_, new) = (worker.ask(index, direction, 1) for worker in workers)
                wrong = [key for key, norm in new.items() if not math.isclose(norm, old[key], rel_tol=2e-3)]
                repeats = min(max(math.ceil(BLOCK / once), 1), 1000)
                ratios = []
                for pair in range(chosen.pairs):
                    order = (0, 1) if pair % 2 else (1, 0)
                    times = {which: workers[which].ask(index, direction, repeats)[0] for which in order}
                    ratios.append(times[0] / times[1])
                low, middle, high = statistics.quantiles(ratios, n=4)
                medians.append(middle)
                differs = f"  differs: {', '.join(wrong)}" if wrong else ""
                print(
                    f"{low:6.3f} {middle:6.3f} {high:6.3f}  {1e3 * once:9.3f} ms  {name} {direction}{differs}",
                    flush=True,
                )
            progress.advance()
    print(f"old over new, quartiles of {chosen.pairs} pairs; geometric mean {statistics.geometric_mean(medians):.3f}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        work(sys.argv[2:])
    else:
        main()
