"""Trains recurrent networks on handwritten digits, with rnnkern and with the usual alternative, from the same weights
and on the same batches; then trains RelRNN and an LSTM on a recall task. ``make demo`` runs this.

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
    if not {"-h", "--help"} & set(argv):
        print("Trains networks with rnnkern and without it, a minute and a half on two cores.", flush=True)
    with Progress("importing PyTorch and matplotlib"):
        import torch

        from perf import demo_digits, demo_picture, demo_recall, record
        from rnnkern import _extension
    parser = argparse.ArgumentParser(prog="python -m perf.demo", description=__doc__)
    parser.add_argument("--threads", type=int, default=2, help="of PyTorch and rnnkern; 2 if not given")
    parser.add_argument("--epochs", type=int, help="on digits, only so many of each network's own")
    parser.add_argument("--updates", type=int, help="the most of a layer that learns to recall; 0 leaves that part out")
    record.add_output_arguments(parser)
    chosen = parser.parse_args(argv)
    torch.set_num_threads(chosen.threads)
    updates = demo_recall.UPDATES if chosen.updates is None else chosen.updates
    if not _extension.available:
        print(f"{_extension.reason}. Everything runs in plain PyTorch, which takes minutes.", flush=True)
        if chosen.updates is None:
            print("Recall is left out: an update takes seconds. --updates 1000 runs it in hours.", flush=True)
            updates = 0
    device = torch.device("cpu")
    out, facts = record.output(chosen, device), record.facts(device, shlex.join(["python", "-m", "perf.demo", *argv]))
    about = f"{facts['device']}, {facts['threads']} threads, PyTorch {facts['torch']}"

    pairs, rows = demo_digits.run(chosen.epochs)
    spread, files = demo_digits.spread(), [out.rows / "demo.csv", out.pictures / "demo.png"]
    record.append(files[0], [facts | row for row in rows])
    demo_picture.digits(files[1], pairs, spread, about)
    print("\nHandwritten digits:", record.table(demo_digits.table(rows)), sep="\n\n", flush=True)
    said = demo_digits.summary(rows, spread)

    if updates:
        curves = demo_recall.run(updates)
        memories = demo_recall.memories() if _extension.available else []
        files.append(out.pictures / "demo-recall.png")
        demo_picture.recall(files[-1], curves, memories, about)
        title = f"\nRecall of {demo_recall.SCALE.copied} symbols after T blank steps:"
        print(title, record.table(demo_recall.table(curves)), sep="\n\n")
        if memories:
            print("\nMemory of layers:", record.table(demo_recall.memory_table(memories)), sep="\n\n")
        said += demo_recall.summary(curves, memories)
    print("", *said, "", *files, f"{time.monotonic() - begun:.0f} s in all", sep="\n")


if __name__ == "__main__":
    main(sys.argv[1:])
