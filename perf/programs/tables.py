"""The tables of programs, from the rows of their CSVs. Needs none of the programs' packages."""

import statistics
from collections.abc import Sequence

from perf.record import Row

Record = dict[str, str]

PPO, MINIGRID = "recurrent_ppo.csv", "minigrid.csv"
PROGRAMS = {"sb3-contrib": "RecurrentPPO (sb3-contrib)", "ppo_lstm": "PPO-LSTM"}
WAYS = {"torch.nn": "torch.nn, a call per step", "replace": "`rnnkern.replace`", "patch": "`sb3.patch`",
        "one call": "one call of rnnkern"}  # fmt: skip
SHARES = {"of_environment": "environments", "of_lstm": "LSTM, forward", "of_backward": "all, backward"}
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


def of_ppo(rows: Sequence[Record]) -> list[Row]:
    """A line for each program, environment, number of units and way to run the LSTM."""
    return [
        {
            "program": PROGRAMS[row["program"]], "environment": row["environment"], "units": row["units"],
            "LSTM": WAYS[row["way"]], "frames per second": round(float(row["frames_per_second"])),
            "times as fast": f"{float(row['ratio_50']):.2f}",
        } | {title: f"{float(row[name]):.0%}" for name, title in SHARES.items()}
        for row in newest(rows, "program", "environment", "units", "way")
    ]  # fmt: skip


def of_programs(rows: Sequence[Record]) -> list[Row]:
    """A line for each environment and number of units of the published program, as it is and with rnnkern."""
    ways = {
        (row["environment"], row["units"], row["way"]): row
        for row in newest(rows, "program", "environment", "units", "way")
        if row["program"] == "sb3-contrib"
    }
    return [
        {
            "frames per second": f"{PROGRAMS['sb3-contrib']}, {environment}, {units} units",
            "as published": round(float(ways[environment, units, "torch.nn"]["frames_per_second"])),
            "with rnnkern": round(float(row["frames_per_second"])),
            "times as fast": f"{float(row['ratio_50']):.1f}",
        }
        for (environment, units, way), row in ways.items()
        if way == "patch"
    ]


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
