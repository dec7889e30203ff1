"""Measures how memory and time of a forward and backward pass grow with the sequence length, for layers with and
without attention, as fused kernels and as loops in PyTorch.

The lengths of each layer end where a call would take too much time or memory. Rows are appended to a CSV. The memory
saved for the backward pass must not exceed 2 n + K + 1 floats per sequence and step for RelRNN and 7 n + K + 1 for
RelLSTM.
"""

import argparse
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import Module

import rnnkern.nn
from perf import record
from perf.progress import Progress
from perf.record import Row, significant
from perf.relevancy_peers import cached_keys, recomputed_keys
from rnnkern import profile
from rnnkern.nn.relevancy import Relevancy

INPUTS, BUFFER, RELEVANT = 16, 10, 10
LENGTHS = (100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000)
SLACK = 1.1


class Subject(NamedTuple):
    name: str
    form: str  # "fused" or a loop
    build: Callable[[int], Module]  # function of n
    floats: int = 0  # multiple of n that may be saved per sequence and step, besides K + 1; 0: no limit


class Loop(Module):
    """A layer as a loop in plain PyTorch."""

    def __init__(self, layer: Relevancy, peer: Callable = cached_keys) -> None:
        super().__init__()
        self.layer, self.peer = layer, peer

    def forward(self, x: Tensor) -> tuple[Tensor]:
        (cell, *tensors), options = self.layer._call(x, None, None)
        rest = {name: options[name] for name in ("buffer_size", "relevant_size", "params")}
        return (self.peer(cell, *tensors, **rest),)


def loop(build: Callable[[int], Module], peer: Callable = cached_keys) -> Callable[[int], Module]:
    return lambda hidden: Loop(build(hidden), peer)


def rel_rnn(hidden: int) -> Module:
    return rnnkern.nn.RelRNN(INPUTS, hidden, buffer_size=BUFFER, relevant_size=RELEVANT)


def rel_lstm(hidden: int) -> Module:
    return rnnkern.nn.RelLSTM(INPUTS, hidden, buffer_size=BUFFER, relevant_size=RELEVANT)


def mem_rnn(hidden: int) -> Module:
    return rnnkern.nn.MemRNN(INPUTS, hidden)


SUBJECTS = (
    Subject("LSTM", "fused", lambda hidden: rnnkern.nn.LSTM(INPUTS, hidden)),
    Subject("RelRNN", "fused", rel_rnn, 2),
    Subject("RelRNN", "loop", loop(rel_rnn)),
    Subject("RelRNN", "loop, keys anew", loop(rel_rnn, recomputed_keys)),
    Subject("RelLSTM", "fused", rel_lstm, 7),
    Subject("RelLSTM", "loop", loop(rel_lstm)),
    Subject("MemRNN", "fused", mem_rnn),
    Subject("MemRNN", "loop", loop(mem_rnn)),
    Subject("SABLSTM", "fused", lambda hidden: rnnkern.nn.SABLSTM(INPUTS, hidden, attend_every=10)),
)


def measured(subject: Subject, hidden: int, batch: int, length: int, device: torch.device) -> Row:
    torch.manual_seed(0)
    layer = subject.build(hidden).to(device)
    found = profile.measure(layer, torch.randn(length, batch, INPUTS, device=device))
    allowed = subject.floats * hidden + BUFFER + RELEVANT + 1
    return {
        "layer": subject.name,
        "form": subject.form,
        "hidden": hidden,
        "batch": batch,
        "kappa": BUFFER + RELEVANT if subject.name.startswith("Rel") else "",
        "T": length,
        **found,
        "contract_bytes": 4 * batch * length * allowed if subject.floats else "",
    }


def lines(
    subjects: Sequence[Subject], hidden: int, batch: int, lengths: Sequence[int], device: torch.device, seconds: float,
    memory: float, told: Callable[[str], None] = lambda words: None,
) -> Iterator[Row]:  # fmt: skip
    """A row for each subject and length, until the next length is expected to take more than ``seconds`` or ``memory``
    bytes.

    Raises:
        AssertionError: more memory is saved for the backward pass than allowed.
    """
    for subject in subjects:
        row = None
        for length in lengths:
            told(f"{subject.name}, {subject.form}, T = {length}")
            if row is None or expected(row, length, seconds, memory):
                row = measured(subject, hidden, batch, length, device)
                assert_contract(row)
                yield row


def expected(row: Row, length: int, seconds: float, memory: float) -> bool:
    """Whether a longer sequence is expected to stay within the limits. The cost grows with the square of the length for
    MemRNN and linearly for the others."""
    factor = (length / row["T"]) ** (2 if row["layer"].startswith("Mem") else 1)
    return factor * row["seconds"] <= seconds and factor * max(row["peak_bytes"], row["saved_bytes"]) <= memory


def assert_contract(row: Row) -> None:
    kept, allowed = row["saved_bytes"], row["contract_bytes"]
    assert allowed == "" or kept <= SLACK * allowed, (
        f"{row['layer']} at T = {row['T']} keeps {kept} bytes for its backward, allowed {SLACK} * {allowed}"
    )


def fits(rows: Sequence[Row]) -> list[Row]:
    """A row per layer and form: the exponents p of bytes and of seconds, ~ T^p, over the longer half of the lengths,
    and the floats saved per sequence and step at the last length."""
    found = []
    for subject in dict.fromkeys((row["layer"], row["form"]) for row in rows):
        own = sorted((row for row in rows if (row["layer"], row["form"]) == subject), key=lambda row: int(row["T"]))
        last, long = own[-1], own[max(0, len(own) // 2 - 1) :]
        steps, allowed = int(last["T"]) * int(last["batch"]), last["contract_bytes"]
        line = {"layer": subject[0], "form": subject[1], "to T": int(last["T"])}
        line["floats kept"] = significant(float(last["saved_bytes"]) / (4 * steps))
        line["allowed"] = significant(float(allowed) / (4 * steps)) if allowed != "" else ""
        for column, words in (("saved_bytes", "kept"), ("peak_bytes", "peak"), ("seconds", "time")):
            line[f"{words} ~"] = f"T^{record.exponent((row['T'], row[column]) for row in long):.2f}"
        line["ms per step"] = significant(1e3 * float(last["seconds"]) / int(last["T"]))
        line["peak MB"] = significant(float(last["peak_bytes"]) / 1e6)
        found.append(line)
    return found


def newest(rows: Sequence[Row]) -> list[Row]:
    """The newest measurements of each layer and form."""
    dates = {(row["layer"], row["form"]): row["date"] for row in rows}
    return [row for row in rows if row["date"] == dates[row["layer"], row["form"]]]


# ---- the command


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m perf.memory", description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    names = list(dict.fromkeys(subject.name for subject in SUBJECTS))
    parser.add_argument("--layers", nargs="+", default=names, choices=names, metavar="LAYER")
    parser.add_argument("--forms", nargs="+", choices=sorted({s.form for s in SUBJECTS}), metavar="FORM", help="or all")
    parser.add_argument("--lengths", nargs="+", type=int, default=LENGTHS, metavar="T")
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--device", type=torch.device, default=torch.device("cpu"))
    parser.add_argument("--threads", type=int, default=2, help="of PyTorch and rnnkern")
    parser.add_argument("--seconds", type=float, default=10.0, help="that one forward and backward may take")
    parser.add_argument("--gigabytes", type=float, default=4.0, help="that one may take")
    record.add_output_arguments(parser)
    chosen = parser.parse_args(argv)
    torch.set_num_threads(chosen.threads)
    subjects = [s for s in SUBJECTS if s.name in chosen.layers and (not chosen.forms or s.form in chosen.forms)]
    facts = record.facts(chosen.device, shlex.join(["python", "-m", "perf.memory", *argv]))
    path = record.output(chosen, chosen.device).rows / "memory.csv"
    rows = []
    with Progress("", len(subjects) * len(chosen.lengths), "length") as progress:

        def told(words: str) -> None:
            progress.advance(bool(progress.what))  # for the previous length
            progress.what = words

        for row in lines(subjects, chosen.hidden, chosen.batch, sorted(chosen.lengths), chosen.device, chosen.seconds,
                         1e9 * chosen.gigabytes, told):  # fmt: skip
            record.append(path, [facts | row])
            rows.append(row)
    print(record.table(fits(rows)))


if __name__ == "__main__":
    main(sys.argv[1:])
