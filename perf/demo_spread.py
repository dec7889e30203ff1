"""Measures how much the demo's training curves vary without rnnkern: trains torch.nn's LSTM and the Python loop with
other seeds.

``python -m perf.demo_spread --publish`` writes the data for the band in the demo's picture; it takes a few minutes.
"""

import argparse
import shlex
import sys
from collections.abc import Sequence

import torch

from perf import demo_digits, record
from perf.progress import Progress


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m perf.demo_spread", description=__doc__)
    parser.add_argument("--threads", type=int, default=2, help="of PyTorch; 2 if not given")
    parser.add_argument("--seeds", type=int, default=8, help="how many, from 1 on; 8 if not given")
    record.add_output_arguments(parser)
    chosen = parser.parse_args(argv)
    torch.set_num_threads(chosen.threads)
    device = torch.device("cpu")
    facts = record.facts(device, shlex.join(["python", "-m", "perf.demo_spread", *argv]))
    path = record.output(chosen, device).rows / demo_digits.SPREAD
    for network in demo_digits.NETWORKS:
        with Progress(f"{network.name}, {network.peer_name}", chosen.seeds, "seed") as progress:
            for rows in demo_digits.peer_curves(network, range(1, chosen.seeds + 1)):
                record.append(path, [facts | row for row in rows])
                progress.advance()
    for name, accuracies in demo_digits.spread(path.parent.parent).items():
        ends = accuracies[:, -1]
        print(
            f"{name}: test accuracy {100 * ends.min():.1f} to {100 * ends.max():.1f} %, mean {100 * ends.mean():.1f} %"
        )


if __name__ == "__main__":
    main(sys.argv[1:])
