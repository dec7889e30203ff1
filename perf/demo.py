"""What ``make demo`` runs: trains recurrent networks on handwritten digits twice, from the same weights on the same
batches, with rnnkern and with what one would use without it; then RelRNN and an LSTM learn to recall.

Prints tables and a summary; rows and pictures go to build/perf/<device>.
"""

import argparse
import shlex
import sys
import time
from collections.abc import Sequence

from perf.progress import Progress


def main(argv: Sequence[str]) -> None:
    begun = time.monotonic()
    print("Trains networks with rnnkern and without it, a minute and a half on two cores.", flush=True)
    with Progress("importing PyTorch and matplotlib"):
        import torch

        from perf import demo_digits, demo_picture, demo_recall, record
        from rnnkern import _extension
    parser = argparse.ArgumentParser(prog="python -m perf.demo", description=__doc__)
    parser.add_argument("--threads", type=int, default=2, help="of PyTorch and rnnkern; 2 if not given")
    parser.add_argument("--epochs", type=int, help="on digits, only so many of each network's own")
    parser.add_argument(
        "--updates", type=int, default=demo_recall.UPDATES, help="the most of a layer that learns to recall"
    )
    record.add_output_arguments(parser)
    chosen = parser.parse_args(argv)
    torch.set_num_threads(chosen.threads)
    if not _extension.available:
        print(f"{_extension.reason}: everything runs in plain PyTorch, and this takes half an hour.", flush=True)
    device = torch.device("cpu")
    out, facts = record.output(chosen, device), record.facts(device, shlex.join(["python", "-m", "perf.demo", *argv]))

    pairs, rows = demo_digits.run(chosen.epochs)
    record.append(out.rows / "demo.csv", [facts | row for row in rows])
    picture = out.pictures / "demo.png"
    about = f"{facts['device']}, {facts['threads']} threads, PyTorch {facts['torch']}"
    spread = demo_digits.spread()
    demo_picture.digits(picture, pairs, spread, about)
    print("\nHandwritten digits, one training each:", record.table(demo_digits.table(rows)), sep="\n\n", flush=True)

    curves = demo_recall.run(chosen.updates)
    memories = demo_recall.memories() if _extension.available else []
    recall = out.pictures / "demo-recall.png"
    demo_picture.recall(recall, curves, memories, about)
    print(
        f"\nRecall of {demo_recall.SCALE.copied} symbols after T blank steps:",
        record.table(demo_recall.table(curves)),
        sep="\n\n",
    )
    if memories:
        print("\nMemory of layers:", record.table(demo_recall.memory_table(memories)), sep="\n\n")
    print("", *demo_digits.summary(rows, spread), *demo_recall.summary(curves, memories), sep="\n")
    print(f"\nPictures: {picture}, {recall}\nRows: {out.rows / 'demo.csv'}\n{time.monotonic() - begun:.0f} s in all")


if __name__ == "__main__":
    main(sys.argv[1:])
