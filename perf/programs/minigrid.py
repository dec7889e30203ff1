"""The thesis' MiniGrid tasks (Kerg 2022, app. B.2): trains agents in small rooms by PPO, tests them in larger ones.

``python -m perf.programs.minigrid`` trains each layer with each seed in every task, a process per core with one thread
each, and draws the curves. Runs whose rows are there already are skipped.
"""

import argparse
import itertools
import multiprocessing
import statistics
from collections.abc import Sequence
from pathlib import Path

import torch

from perf import record
from perf.programs import environments, ppo_lstm
from perf.programs.tables import MINIGRID
from perf.progress import Progress
from perf.record import Row

TASKS = {
    "RedBlueDoors-6x6": "RedBlueDoors-8x8", "GoToObject-6x6-N2": "GoToObject-8x8-N2", "MemoryS7": "MemoryS13",
    "GoToDoor-5x5": "GoToDoor-8x8", "Fetch-5x5-N2": "Fetch-8x8-N3", "DoorKey-5x5": "DoorKey-16x16",
}  # fmt: skip
"""The room for the training, and that for the test."""
LAYERS, SEEDS = ("LSTM", "RelLSTM", "MemLSTM"), (1, 2, 3)
UNITS, COUNT, FRAMES = 64, 16, 300_000
PARTS = 8
"""Minibatches of a rollout. Advantages are not normalized: rewards are so rare that many minibatches have none."""
EACH = 8
"""Updates between two points of a curve."""
EPISODES = 2
"""Episodes of a test in each of the environments."""


def tested(agent: ppo_lstm.Agent, name: str, seed: int) -> float:
    """The mean return in a larger room. Actions are drawn, as in training."""
    envs = environments.several(name, COUNT, seed + 1000)
    if getattr(agent.core, "relevant_size", None) == 0:
        agent.core.buffer_size = envs.envs[0].unwrapped.max_steps
    observed, starts = torch.as_tensor(envs.reset()[0]), torch.ones(COUNT, dtype=torch.bool)
    returns, ended = torch.zeros(EPISODES + 1, COUNT), torch.zeros(COUNT, dtype=torch.long)
    with torch.no_grad():
        state = agent.start(COUNT)
        while ended.min() < EPISODES:
            policy, _, state = agent(observed[None], state, starts[None])
            observed, reward, terminated, truncated, _ = envs.step(policy.sample()[0].numpy())
            observed, starts = torch.as_tensor(observed), torch.as_tensor(terminated | truncated)
            returns[ended, torch.arange(COUNT)] += torch.as_tensor(reward).float()
            ended = (ended + starts).clamp(max=EPISODES)
    return float(returns[:EPISODES].mean())


def trained(run: tuple[str, str, int, int]) -> list[Row]:
    """The rows of one run: a point of the curve each, and the return in the larger room in the last."""
    task, layer, seed, frames = run
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    envs = environments.several(f"MiniGrid-{task}-v0", COUNT, seed)
    sizes = envs.single_observation_space.shape[0], int(envs.single_action_space.n)
    agent = ppo_lstm.Agent(*sizes, layer, UNITS, envs.envs[0].unwrapped.max_steps)
    points = list(ppo_lstm.train(agent, envs, frames, PARTS, normalized=False))
    larger = tested(agent, f"MiniGrid-{TASKS[task]}-v0", seed)
    labels = {"task": task, "larger": TASKS[task], "layer": layer, "seed": seed, "units": UNITS, "environments": COUNT}
    facts = record.facts(torch.device("cpu"), "python -m perf.programs.minigrid")
    curve = [facts | labels | {"frames": count, "mean_return": round(mean, 4), "larger_return": ""}
             for count, mean in [*points[EACH - 1 : -1 : EACH], points[-1]]]  # fmt: skip
    curve[-1]["larger_return"] = round(larger, 4)
    return curve


def draw(path: Path, rows: Sequence[dict[str, str]]) -> None:
    """A panel for each task with the median over seeds of each layer, and a band from the lowest to the highest."""
    from perf.figure import COLOURS, STYLE, plt, save

    with plt.rc_context(STYLE):
        figure, panels = plt.subplots(2, 3, figsize=(11, 5.4), layout="constrained", sharex=True, sharey=True)
        for task, axes in zip(TASKS, panels.flat, strict=True):
            for layer, colour in zip(LAYERS, COLOURS, strict=False):
                curve: dict[int, list[float]] = {}
                for row in rows:
                    if (row["task"], row["layer"]) == (task, layer):
                        curve.setdefault(int(row["frames"]), []).append(float(row["mean_return"]))
                frames = [count / 1000 for count in curve]
                axes.plot(frames, [statistics.median(x) for x in curve.values()], color=colour, label=layer)
                axes.fill_between(frames, [*map(min, curve.values())], [*map(max, curve.values())], color=colour,
                                  alpha=0.15, linewidth=0)  # fmt: skip
            axes.set_title(task, fontsize=10)
            axes.set(xlim=(0, None), ylim=(0, 1))
        panels[0, 0].legend(frameon=False, loc="upper left")
        figure.supxlabel("thousands of frames")
        figure.supylabel("mean return of the last 100 episodes")
        save(figure, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--frames", type=int, default=FRAMES)
    record.add_output_arguments(parser)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    folders = record.output(chosen, torch.device("cpu"))
    path = folders.rows / MINIGRID
    there = {(row["task"], row["layer"], int(row["seed"])) for row in (record.read(path) if path.exists() else [])}
    runs = [(*run, seed) for seed, *run in itertools.product(SEEDS, chosen.tasks, LAYERS)]
    runs = [run for run in runs if run not in there]
    with multiprocessing.get_context("spawn").Pool() as pool, Progress("MiniGrid", len(runs), "run") as progress:
        for rows in pool.imap_unordered(trained, [(*run, chosen.frames) for run in runs]):
            record.append(path, rows)
            progress.advance()
    draw(folders.pictures / "minigrid.png", record.read(path))


if __name__ == "__main__":
    main()
