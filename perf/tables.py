"""Writes the tables of README and docs, between marks in the pages, from the CSVs in perf/results.

``python -m perf.tables``. Tables of training and memory show the newest run of each subject; :mod:`perf.speed_tables`
has those of speed.
"""

import functools
import re
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

from perf import lyapunov, memory, record, relational, relational_tables, stream, train, transfer
from perf.family import SPEED
from perf.gpu import tables as gpu
from perf.programs import tables as programs
from perf.record import OURS
from perf.recurrence import COMPILED
from perf.speed_tables import (
    DIRECTIONS,
    LOSSES,
    NOTHING,
    TABLES,
    Record,
    facts,
    number,
    of_lines,
    over_baseline,
    publishable,
    ratio,
    sizes,
    three,
    where,
)

MARKED = re.compile(r"(<!-- (\w+):begin -->\n).*?(<!-- \2:end -->)", re.DOTALL)


def environment(rows: Sequence[Record]) -> str:
    names = ("device", "threads", "simd", "torch", "commit")
    device, threads, simd, torch, commit = (", ".join(dict.fromkeys(row[name] for row in rows)) for name in names)
    return f"{device}, threads {threads}, {simd}, PyTorch {torch}, commit {commit}"


def quoted(lines: Sequence[record.Row], name: str) -> list[record.Row]:
    return [{name: f"`{line['model']}`"} | {k: x for k, x in line.items() if k != "model"} for line in lines]


def of_training(rows: Sequence[Record]) -> str:
    rows = train.newest(rows)
    row, lines = rows[-1], quoted(train.summary(rows), "model")
    settings = f"T = {row['length']}, B = {row['batch']}, gradient norm clipped at {row['clip']}"
    return (
        f"{of_lines(lines, 2)}\n\n*Constant prediction: {row['metric']} {row['constant']}. Data: {row['data']}; "
        f"{settings}. {environment(rows)}.*"
    )


def of_transfer(rows: Sequence[Record], task: str) -> str:
    rows = transfer.newest(rows, task, "small")
    row = rows[-1]
    lines = quoted(transfer.ends(rows), "layer")
    settings = f"K = {row['copied']}, B = {row['batch']}, H = {row['hidden']}, gradient norm clipped at {row['clip']}"
    return (
        f"{of_lines(lines, 2)}\n\n*Learned: number of seeds that reached an accuracy of {row['enough']} at T = "
        f"{row['trained_length']}. Updates: of each seed. Columns T: test accuracy of each seed. {settings}, "
        f"{row['held_out']} test sequences. {environment(rows)}.*"
    )


def of_memory(rows: Sequence[Record]) -> str:
    rows = memory.newest(rows)
    row = rows[-1]
    return (
        f"{of_lines(memory.fits(rows), 2)}\n\n*Floats kept: per sequence and step, for the backward pass, at the "
        f"longest T; allowed: the most that the tests accept. ~: growth with T, fitted over the longer half. Forward "
        f"and backward; H = {row['hidden']}, B = {row['batch']}, 10 states each in S and R. Peak memory is that of "
        f"the process. {environment(rows)}.*"
    )


def newest_of_cells(rows: Sequence[Record]) -> list[Record]:
    """The newest row of each cell, shape, direction and provider."""
    return list({tuple(row[name] for name in ("cell", "shape", "direction", "provider")): row for row in rows}.values())


def of_cells(rows: Sequence[Record]) -> str:
    """A line per cell: the geometric mean over shapes of its newest ratios, and the lowest ratio. Unsteady ratios are
    included, because means over different shapes are not comparable; the caption counts them."""
    rows = newest_of_cells(rows)
    ratios = [row for row in rows if row["provider"] != OURS]
    steady = sum(row["steady"] == "True" for row in ratios)
    lines = []
    for peer in ("built-in", "loop", COMPILED):
        own = [row for row in where(rows, provider=peer) if peer != "loop" or row["case"] == "collection"]
        for cell in dict.fromkeys(row["cell"] for row in own):
            found = where(own, cell=cell)
            counts = {name: found[0][name] for name in ("gates", "states", "saved")}
            line = {"cell": f"`{cell}`"} | counts | {"times the speed of": peer}
            for direction, title in DIRECTIONS.items():
                speeds = [float(row["ratio_50"]) for row in where(found, direction=direction)]
                line[title.lower()] = f"{statistics.geometric_mean(speeds):.2f} ({min(speeds):.2f})"
            lines.append(line)
    cells = dict.fromkeys(row["cell"] for row in rows)
    measured = {cell: len({row["shape"] for row in where(rows, cell=cell)}) for cell in cells}
    fewer = ", ".join(f"`{cell}` {count}" for cell, count in measured.items() if count < max(measured.values()))
    fewer = f"; fewer shapes: {fewer}" if fewer else ""
    shapes = "; ".join(dict.fromkeys(sizes(row["shape"]) for row in rows))
    return (
        f"{of_lines(lines, 1)}\n\n*Saved: floats per unit and step that the backward pass needs in addition to the "
        f"states. Speed: geometric mean over T, B, N = {shapes}; lowest in parentheses{fewer}. Steady: {steady} of "
        f"{len(ratios)} ratios. {environment(rows)}.*"
    )


def captioned(rows: Sequence[Record], made: Callable[[Sequence[Record]], relational_tables.Table]) -> str:
    lines, words, caption = made(rows)
    return f"{of_lines(lines, words)}\n\n*{caption} {environment(rows)}.*" if lines else NOTHING


RELATIONAL = {"base": ("equality", "clean", "held"), "controls": ("controls",), "spurious": ("spurious",),
              "games": ("games",), "others": ("unseen", "models")}  # fmt: skip
"""Groups of trainings, by the mark of their table."""


def of_tangents(rows: Sequence[Record]) -> str:
    """A table per number of threads, with a line per size: the time of rnnkern over that of the products, and the
    speed-up over each peer."""
    texts = []
    for threads in sorted({row["threads"] for row in rows}):
        own, lines = publishable(where(rows, dtype="float32", threads=threads)), []
        for case, shape in dict.fromkeys((row["case"], row["shape"]) for row in own):
            found = where(own, case=case, shape=shape)
            line = {"case": case, "T, B, H, S": sizes(shape)}
            line["rnnkern, ms"] = number(found, lambda row: three(float(row["ms_50"])), provider=OURS)
            line["rnnkern / products"] = number(found, over_baseline, provider=OURS)
            lines.append(line | {name: number(found, ratio, provider=name) for name in lyapunov.PEERS})
        texts += [f"{of_lines(lines, 2)}\n\n*Speed-up over each peer. {LOSSES} {facts(own)}.*"] if own else []
    return "\n\n".join(texts) or NOTHING


def of_small(rows: Sequence[Record], op: str) -> str:
    """The newest rows of perf.orthogonal_small, a line for each matrix size, dtype and direction."""
    newest = {(row["shape"], row["dtype"], row["direction"]): row for row in where(rows, op=op)}
    lines = []
    for (shape, dtype, direction), row in newest.items():
        line = {"matrices": sizes(shape), "dtype": dtype} | ({} if op == "step" else {"direction": direction})
        line |= {"rnnkern, ms": three(float(row["rnnkern_ms"])), f"{row['peer']}, ms": three(float(row["peer_ms"]))}
        lines.append(line | {"times as fast": ratio({"ratio_50": row["ratio"]})})
    return f"{of_lines(lines, 2 + (op != 'step'))}\n\n*{LOSSES} {environment(list(newest.values()))}.*"


def of_latency(rows: Sequence[Record]) -> str:
    """The steps of the newest run of perf.stream, a line per cell and size."""
    rows, lines = where(rows, case="step", date=rows[-1]["date"]), []
    for cell, size in dict.fromkeys((row["cell"], row["size"]) for row in rows):
        own = {row["provider"]: row for row in where(rows, cell=cell, size=size)}
        us = {name: three(float(own[name]["us_50"])) if name in own else "" for name in (*stream.PEERS, stream.FLOOR)}
        mine, theirs = (float(own[name]["us_50"]) for name in (stream.STREAM, stream.CELL))
        line = {"cell": f"`{stream.CELLS[cell]}`", "H": size, "floor": us.pop(stream.FLOOR), "`stream`": three(mine)}
        line |= {"`stream`, 99 %": three(float(own[stream.STREAM]["us_99"]))} | us
        lines.append(line | {"times as fast as the torch cell": ratio({"ratio_50": str(theirs / mine)})})
    return (
        f"{of_lines(lines, 1)}\n\n*Microseconds per step, float32, B = 1, I = H, in `torch.no_grad`: medians, and for "
        f"`stream` also the 99th percentile. {LOSSES} {environment(rows)}.*"
    )


def of_server(rows: Sequence[Record]) -> str:
    """The server of the newest run of perf.stream, a line per size."""
    rows, lines = where(rows, case="server", date=rows[-1]["date"]), []
    for size in dict.fromkeys(row["size"] for row in rows):
        line = {"H": size}
        for provider, cores in dict.fromkeys((row["provider"], row["cores"]) for row in rows):
            one, many = where(rows, size=size, provider=provider, cores=cores)
            name = f"`{provider}`, {cores} core{'s' * (cores > '1')}"
            if provider == stream.STREAM and cores == "1":
                line["one `stream` alone, steps per second"] = f"{float(one['per_second']):,.0f}"
            line[f"{many['clients']} x {name}"] = f"{float(many['over_one']):.2f}"
        lines.append(line)
    return (
        f"{of_lines(lines, 0)}\n\n*Steps per second of all threads together, over those of one thread alone on the "
        f"same cores. `LSTM`, float32, B = 1, I = H; `torch.mv`: the product of its weights with a vector. "
        f"{environment(rows)}.*"
    )


of_speeds = functools.partial(captioned, made=relational_tables.of_speeds)


def of_programs(rows: Sequence[Record], lines: Callable[[Sequence[Record]], list[record.Row]], words: int) -> str:
    return f"{of_lines(lines(rows), words)}\n\n*{environment(rows)}.*"


def of_gpu(rows: Sequence[Record], mark: str) -> str:
    """The table of the device that was measured last."""
    _, lines, words = gpu.TABLES[mark]
    device = rows[-1]["device"]
    own = where(rows, device=device)
    commits = ", ".join(dict.fromkeys(row["commit"] for row in own))
    return f"{of_lines(lines(own), 2)}\n\n*{device}. {words}. PyTorch {own[-1]['torch']}, commit {commits}.*"


RUNS: dict[str, dict[str, tuple[str, Callable[[Sequence[Record]], str]]]] = {
    "README.md": {"programs": (programs.PROGRAMS, functools.partial(of_programs, lines=programs.of_quoted, words=3))},
    "docs/programs.md": {
        "real": (programs.PROGRAMS, functools.partial(of_programs, lines=programs.of_programs, words=3)),
    },
    "docs/reinforcement-learning.md": {
        "ppo": (programs.PROGRAMS, functools.partial(of_programs, lines=programs.of_ppo, words=3)),
        "minigrid": (programs.MINIGRID, functools.partial(of_programs, lines=programs.of_minigrid, words=2)),
    },
    "docs/compatibility.md": {"ensemble": ("ensemble.csv", of_speeds)},
    "docs/continuous.md": {"speed": ("neural_ode.csv", of_speeds)},
    "docs/dynamics.md": {"tangents": ("lyapunov.csv", of_tangents)},
    "docs/cells.md": {"collection": ("cells.csv", of_cells)},
    "docs/orthogonal.md": {
        mark: ("orthogonal_small.csv", functools.partial(of_small, op=op))
        for mark, op in (("small", "skew_exp"), ("moves", "step"))
    },
    "docs/streaming.md": {"latency": ("stream.csv", of_latency), "server": ("stream.csv", of_server)},
    "docs/gpu.md": {mark: (csv, functools.partial(of_gpu, mark=mark)) for mark, (csv, *_) in gpu.TABLES.items()},
    "docs/training.md": {
        task: (f"train-{task}.csv", of_training) for task in ("adding", "copy", "polynomial", "digits", "stdlib")
    },
    "docs/relevancy.md": {
        task: (f"transfer-{task}.csv", functools.partial(of_transfer, task=task)) for task in ("copy", "denoise")
    }
    | {"memory": ("memory.csv", of_memory)},
    "docs/relational.md": {
        mark: (
            relational.CSV,
            functools.partial(captioned, made=functools.partial(relational_tables.of_groups, groups=groups)),
        )
        for mark, groups in RELATIONAL.items()
    }
    | {"similarity": ("similarity.csv", of_speeds)},
}
"""Other tables, by page and by name of the mark: the CSV, and the function that makes the text from its rows."""


# ---- pages


def newest_device(results: Path) -> list[Record]:
    """The publishable rows of the device that has the newest one."""
    devices = [publishable(record.read(path)) for path in results.glob(f"*/{SPEED}.csv")]
    return max(devices, key=lambda rows: max((row["date"] for row in rows), default=""), default=[])


def of_all_devices(results: Path, name: str) -> list[Record]:
    rows = [row for path in sorted(results.glob(f"*/{name}")) for row in record.read(path)]
    return sorted(rows, key=lambda row: row["date"])


def main(root: Path = record.ROOT, results: Path = record.RESULTS) -> None:
    """Fills all pages below ``root``. Tables without publishable rows say so."""
    speeds = newest_device(results)
    for page in sorted({*TABLES, *RUNS}):

        def filled(match: re.Match, page: str = page) -> str:
            if speed := TABLES.get(page, {}).get(match[2]):
                return f"{match[1]}{speed.text(speeds)}\n{match[3]}"
            name, text = RUNS[page][match[2]]
            rows = of_all_devices(results, name)
            return f"{match[1]}{text(rows) if rows else NOTHING}\n{match[3]}"

        path = root / page
        path.write_text(MARKED.sub(filled, path.read_text()))


if __name__ == "__main__":
    main()
