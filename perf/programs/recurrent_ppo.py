"""PPO with the LSTM called once per step, and once per sequence by rnnkern: RecurrentPPO of sb3-contrib and
:mod:`perf.programs.ppo_lstm`. All ways to train must give the same returns."""

import functools
import itertools
from collections.abc import Callable

import torch
from sb3_contrib import RecurrentPPO
from stable_baselines3.common.env_util import make_vec_env

import rnnkern
from perf.programs import environments, ppo_lstm
from perf.programs.measure import ENVIRONMENT, Case, Clock
from rnnkern.integrations import sb3

ENVIRONMENTS = ("CartPole-v1", "MiniGrid-MemoryS7-v0")
UNITS = (64, 256)
ONE_THREAD = {("CartPole-v1", 64)}
"""Environments and numbers of units with which torch.nn is faster with one thread than with two."""
COUNT, FRAMES, SEED = 8, 2048, 1


def by_sb3(change: Callable, clock: Clock, environment: str, units: int, frames: int) -> list[float]:
    envs = make_vec_env(lambda: environments.make(environment), COUNT, seed=SEED)
    model = RecurrentPPO("MlpLstmPolicy", envs, seed=SEED, device="cpu", policy_kwargs={"lstm_hidden_size": units})
    change(model)
    lstms = (model.policy.lstm_actor, model.policy.lstm_critic)
    clock.watch(envs, "step", part=ENVIRONMENT)
    clock.watch(model.policy, "_process_sequence", itertools.chain(*(lstm.parameters() for lstm in lstms)))
    clock.run(lambda: model.learn(frames))
    return [episode["r"] for episode in model.ep_info_buffer]


def by_ppo_lstm(layer: str, clock: Clock, environment: str, units: int, frames: int) -> list[float]:
    torch.manual_seed(SEED)
    envs = environments.several(environment, COUNT, SEED)
    sizes = envs.single_observation_space.shape[0], int(envs.single_action_space.n)
    agent = ppo_lstm.Agent(*sizes, layer, units, longest=1)
    clock.watch(envs, "step", part=ENVIRONMENT)
    clock.watch(agent.core, "forward", agent.core.parameters())
    return clock.run(lambda: [mean for _, mean in ppo_lstm.train(agent, envs, frames)])


WAYS = {
    "RecurrentPPO (sb3-contrib)": {
        "torch.nn, a call per step": functools.partial(by_sb3, lambda model: None),
        "`rnnkern.replace`": functools.partial(by_sb3, lambda model: rnnkern.replace(model.policy)),
        "`sb3.patch`": functools.partial(by_sb3, sb3.patch),
    },
    "PPO-LSTM": {
        "torch.nn, a call per step": functools.partial(by_ppo_lstm, "Loop"),
        "one call of rnnkern": functools.partial(by_ppo_lstm, "LSTM"),
    },
}  # fmt: skip
"""Ways to run the LSTM of each program, that of its authors first."""


def cases(tiny: bool = False) -> list[Case]:
    shapes = [("CartPole-v1", 8)] if tiny else itertools.product(ENVIRONMENTS, UNITS)
    frames = COUNT * ppo_lstm.STEPS if tiny else FRAMES
    return [
        Case(program, f"{environment}, {units} units",
             {way: functools.partial(run, environment=environment, units=units, frames=frames)
              for way, run in ways.items()},
             frames, "frame", tolerance=0.0, threads=1 if (environment, units) in ONE_THREAD else 2)
        for (environment, units), (program, ways) in itertools.product(shapes, WAYS.items())
    ]  # fmt: skip
