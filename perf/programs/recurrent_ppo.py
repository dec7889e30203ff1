"""Frames per second of recurrent PPO with the LSTM called once per step, and once per sequence by rnnkern.

``python -m perf.programs.recurrent_ppo`` measures RecurrentPPO of sb3-contrib and :mod:`perf.programs.ppo_lstm`. All
ways to train must give the same returns. Needs sb3-contrib, gymnasium and minigrid.
"""

import argparse
import functools
import itertools
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from sb3_contrib import RecurrentPPO
from stable_baselines3.common.env_util import make_vec_env

import rnnkern
from perf import record
from perf.programs import environments, ppo_lstm
from perf.programs.tables import PPO
from perf.progress import Progress
from perf.record import Row
from rnnkern.integrations import sb3

ENVIRONMENTS = ("CartPole-v1", "MiniGrid-MemoryS7-v0")
UNITS = (64, 256)
ONE_THREAD = {("CartPole-v1", 64)}
"""Environments and numbers of units with which torch.nn is faster with one thread than with two."""
COUNT, FRAMES, SEED = 8, 2048, 1
WAYS = {
    "sb3-contrib": {"torch.nn": lambda model: None, "replace": lambda m: rnnkern.replace(m.policy), "patch": sb3.patch},
    "ppo_lstm": {"torch.nn": "Loop", "one call": "LSTM"},
}
"""Ways to run the LSTM of each program, that of its authors first."""
PARTS = ("environment", "lstm", "backward")
"""Parts of the time: steps of the environments, forward passes of the LSTM, and backward passes of the whole model."""


class Run(NamedTuple):
    seconds: dict[str, float]  # of the whole and of its parts
    returns: list[float]


class Clock:
    """Sums the seconds that functions take, by name of the part."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def watch(self, part: str, owner: Any, name: str) -> None:
        """Makes a method or function of ``owner`` count as this part."""
        function = getattr(owner, name)

        @functools.wraps(function)
        def watched(*args, **kwargs):
            began = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                self.seconds[part] = self.seconds.get(part, 0) + time.perf_counter() - began

        setattr(owner, name, watched)

    def run(self, function: Callable) -> Any:
        """Calls a function, whose time is the whole and of which backward passes are a part."""
        backward = torch.Tensor.backward
        self.watch("backward", torch.Tensor, "backward")
        began = time.perf_counter()
        try:
            return function()
        finally:
            self.seconds["whole"] = time.perf_counter() - began
            torch.Tensor.backward = backward


def by_sb3(change: Callable, environment: str, units: int, frames: int) -> Run:
    clock, envs = Clock(), make_vec_env(lambda: environments.make(environment), COUNT, seed=SEED)
    model = RecurrentPPO("MlpLstmPolicy", envs, seed=SEED, device="cpu", policy_kwargs={"lstm_hidden_size": units})
    change(model)
    clock.watch("environment", envs, "step")
    clock.watch("lstm", model.policy, "_process_sequence")
    clock.run(lambda: model.learn(frames))
    return Run(clock.seconds, [episode["r"] for episode in model.ep_info_buffer])


def by_ppo_lstm(layer: str, environment: str, units: int, frames: int) -> Run:
    torch.manual_seed(SEED)
    clock, envs = Clock(), environments.several(environment, COUNT, SEED)
    sizes = envs.single_observation_space.shape[0], int(envs.single_action_space.n)
    agent = ppo_lstm.Agent(*sizes, layer, units, longest=1)
    clock.watch("environment", envs, "step")
    clock.watch("lstm", agent.core, "forward")
    return Run(clock.seconds, clock.run(lambda: [mean for _, mean in ppo_lstm.train(agent, envs, frames)]))


PROGRAMS = {"sb3-contrib": by_sb3, "ppo_lstm": by_ppo_lstm}


def measured(program: str, environment: str, units: int, frames: int, repeats: int, progress: Progress) -> list[Row]:
    """A row for each way to run the LSTM: medians over rounds in which the ways take turns."""
    torch.set_num_threads(1 if (environment, units) in ONE_THREAD else 2)
    runs: dict[str, list[Run]] = {way: [] for way in WAYS[program]}
    for way in [*runs] * repeats:
        runs[way].append(PROGRAMS[program](WAYS[program][way], environment, units, frames))
        progress.advance()
    stock = runs["torch.nn"]
    facts = record.facts(torch.device("cpu"), "python -m perf.programs.recurrent_ppo")
    rows = []
    for way, own in runs.items():
        if any(run.returns != stock[0].returns for run in own):
            raise RuntimeError(f"{program}, {environment}, {units} units: {way} gave other returns than torch.nn")
        seconds = [run.seconds["whole"] for run in own]
        figures = {
            "frames_per_second": frames / statistics.median(seconds),
            "ratio_50": statistics.median(a.seconds["whole"] / b for a, b in zip(stock, seconds, strict=True)),
        }
        figures |= {f"of_{part}": statistics.median(run.seconds[part] / run.seconds["whole"] for run in own)
                    for part in PARTS}  # fmt: skip
        labels = {"program": program, "environment": environment, "units": units, "way": way, "frames": frames}
        rows.append(facts | labels | {name: record.significant(x) for name, x in figures.items()})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--frames", type=int, default=FRAMES)
    parser.add_argument("--repeats", type=int, default=3)
    record.add_output_arguments(parser)
    chosen = parser.parse_args()
    torch.set_num_threads(2)
    path = record.output(chosen, torch.device("cpu")).rows / PPO
    for program, run in PROGRAMS.items():  # what is loaded or compiled at first use
        for how in WAYS[program].values():
            run(how, ENVIRONMENTS[0], 8, COUNT * ppo_lstm.STEPS)
    cases = list(itertools.product(PROGRAMS, ENVIRONMENTS, UNITS))
    with Progress("recurrent PPO", chosen.repeats * sum(len(WAYS[case[0]]) for case in cases), "run") as progress:
        for case in cases:
            rows = measured(*case, chosen.frames, chosen.repeats, progress)
            record.append(path, rows)
            print(record.table([{name: row[name] for name in [*row][-10:]} for row in rows]), flush=True)


if __name__ == "__main__":
    main()
