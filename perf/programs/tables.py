"""The tables of programs, from the rows of their CSVs. Needs none of the programs' packages."""

import statistics
from collections.abc import Sequence

from perf.record import Row

Record = dict[str, str]

PROGRAMS, MINIGRID = "programs.csv", "minigrid.csv"
AGENTS = ("RecurrentPPO (sb3-contrib)", "PPO-LSTM")
"""Programs of reinforcement learning."""
PUBLISHED = {
    "RedBlueDoors-6x6": (0.97, 0.97, 0.95, 0.95), "GoToObject-6x6-N2": (0.85, 0.84, 0.66, 0.74),
    "MemoryS7": (0.4, 0.94, 0.24, 0.3), "GoToDoor-5x5": (0.17, 0.25, 0.11, 0.15),
    "Fetch-5x5-N2": (0.42, 0.5, 0.44, 0.45), "DoorKey-5x5": (0.94, 0.93, 0.31, 0.44),
}  # fmt: skip
"""Returns in the thesis after 5 million frames (Kerg 2022, app. B.2, table 1): of MemLSTM and RelLSTM, then of both in
the larger room."""


def newest(rows: Sequence[Record], *names: str) -> list[Record]:
    """The newest row for each combination of these columns."""
    return list({tuple(row[name] for name in names): row for row in rows}.values())


def newest_of_programs(rows: Sequence[Record]) -> list[Record]:
    """The newest row of each case and way."""
    return newest(rows, "program", "case", "way")


def pairs(rows: Sequence[Record]) -> list[tuple[Record, Record]]:
    """For each case, the row of the published way, which is measured first, and that of rnnkern, the last."""
    cases: dict[tuple[str, str], list[Record]] = {}
    for row in newest_of_programs(rows):
        cases.setdefault((row["program"], row["case"]), []).append(row)
    return [(found[0], found[-1]) for found in cases.values()]


def per_unit(row: Record) -> str:
    """The time of one unit of work."""
    seconds = float(row["seconds"]) / int(row["count"])
    factor, unit = next((x for x in ((1, "s"), (1e3, "ms")) if seconds * x[0] >= 1), (1e6, "us"))
    return f"{seconds * factor:.3g} {unit}"


def share(row: Record, part: str) -> str:
    """A part of the time in percent; nothing if the part was not measured."""
    return f"{float(row[f'of_{part}']):.0%}" if float(row[f"of_{part}"]) else ""


def of_programs(rows: Sequence[Record]) -> list[Row]:
    """A line for each case: the program as published and with rnnkern."""
    return [
        {
            "program": own["program"], "case": own["case"], "time of one": own["unit"],
            "as published": per_unit(published), "with rnnkern": per_unit(own),
            "times as fast": f"{float(own['ratio_50']):.2f}",
            "recurrent, published": share(published, "recurrent"), "recurrent, rnnkern": share(own, "recurrent"),
            "difference": f"{float(own['difference']):.0e}".replace("0e+00", "0"),
        }
        for published, own in pairs(rows)
    ]  # fmt: skip


QUOTED = {"TiRex": "64 series of 2,048 points", "medaka": "100 x 10,000 positions", AGENTS[0]: "CartPole-v1, 256 units"}
"""Cases that the README shows."""


def of_quoted(rows: Sequence[Record]) -> list[Row]:
    """The first columns of :func:`of_programs`, for three programs."""
    lines = [line for line in of_programs(rows) if QUOTED.get(line["program"]) == line["case"]]
    return [dict([*line.items()][:6]) for line in lines]


def of_ppo(rows: Sequence[Record]) -> list[Row]:
    """A line for each program of reinforcement learning, environment, number of units and way to run the LSTM."""
    return [
        {
            "program": row["program"], "environment": row["case"], "LSTM": row["way"],
            "frames per second": round(int(row["count"]) / float(row["seconds"])),
            "times as fast": f"{float(row['ratio_50']):.2f}",
            "recurrent layers": share(row, "recurrent"), "environments": share(row, "environment"),
        }
        for row in newest_of_programs(rows)
        if row["program"] in AGENTS
    ]  # fmt: skip


def of_minigrid(rows: Sequence[Record]) -> list[Row]:
    """A line for each task and layer: the return at the end and in the larger room, mean and each seed."""
    ends = newest([row for row in rows if row["larger_return"]], "task", "layer", "seed")
    lines = []
    for task, published in PUBLISHED.items():
        for layer in dict.fromkeys(row["layer"] for row in ends):
            own = sorted((r for r in ends if (r["task"], r["layer"]) == (task, layer)), key=lambda row: row["seed"])
            line = {"task": f"{task}, then {own[0]['larger']}", "layer": layer}
            for column, title in {"mean_return": "trained", "larger_return": "larger room"}.items():
                values = [float(row[column]) for row in own]
                line[title] = f"{statistics.mean(values):.2f} ({', '.join(f'{x:.2f}' for x in values)})"
            of_layer = {"MemLSTM": published[::2], "RelLSTM": published[1::2]}.get(layer)
            line["published"] = "{:.2f}, {:.2f}".format(*of_layer) if of_layer else ""
            lines.append(line)
    return lines
