"""PPO with a recurrent layer that an update calls once for all steps of a rollout, however many episodes start there.

``python -m perf.programs.ppo_lstm`` trains on CartPole without velocities. ``--layer Loop`` calls torch.nn.LSTM once
per step, as is usual. With MiniGrid: ``--environment MiniGrid-MemoryS7-v0 --layer RelLSTM``. Schulman et al. 2017.
"""

import argparse
import time
from collections import deque
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Categorical

import rnnkern
from perf.programs import environments

STEPS, EPOCHS = 128, 4
RATE, CLIP, DISCOUNT, SMOOTHING, ENTROPY, NORM = 1e-3, 0.2, 0.99, 0.95, 0.01, 0.5


class Loop(nn.LSTM):
    """An LSTM that resets its state between two calls, one call per step."""

    def forward(self, x: Tensor, state: Any = None, reset: Tensor | None = None) -> tuple[Tensor, Any]:
        if reset is None:
            return super().forward(x, state)
        outputs = []
        for now, starts in zip(x, reset, strict=True):
            output, state = super().forward(now.unsqueeze(0), tuple(~starts.view(-1, 1) * part for part in state))
            outputs.append(output)
        return torch.cat(outputs), state


LAYERS = {
    "Loop": lambda size, units, longest: Loop(size, units),
    "LSTM": lambda size, units, longest: rnnkern.nn.LSTM(size, units),
    "RelLSTM": lambda size, units, longest: rnnkern.nn.RelLSTM(size, units, buffer_size=5, relevant_size=5),
    # A MemLSTM that forgets what no episode reaches: nn.MemLSTM keeps a slot for every step since the first call.
    "MemLSTM": lambda size, units, longest: rnnkern.nn.RelLSTM(size, units, buffer_size=longest, relevant_size=0),
}


class Agent(nn.Module):
    def __init__(self, inputs: int, actions: int, layer: str, units: int, longest: int) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(inputs, units), nn.Tanh())
        self.core = LAYERS[layer](units, units, longest)
        self.heads = nn.Linear(units, actions + 1)
        self.start = lambda count: self.core(torch.zeros(1, count, units))[1]

    def forward(self, x: Tensor, state: Any, reset: Tensor) -> tuple[Categorical, Tensor, Any]:
        """The actions' distributions, values and last state; ``reset`` (T, B) marks the first steps of episodes."""
        h, state = self.core(self.encoder(x), state, reset=reset)
        *logits, values = self.heads(h).split([self.heads.out_features - 1, 1], dim=-1)
        return Categorical(logits=logits[0]), values.squeeze(-1), state


def train(agent: Agent, envs: Any, frames: int, parts: int = 4, normalized: bool = True) -> Iterator[tuple[int, float]]:
    """Trains the agent, with each rollout in ``parts`` minibatches and advantages that are normalized in each; yields
    the number of frames and the mean return of the last 100 episodes after each update."""
    count, ended, returns = envs.num_envs, deque(maxlen=100), torch.zeros(envs.num_envs)
    optimizer = torch.optim.Adam(agent.parameters(), lr=RATE, eps=1e-5)
    observed, starts = torch.as_tensor(envs.reset()[0]), torch.ones(count, dtype=torch.bool)
    with torch.no_grad():
        state = agent.start(count)
    for update in range(-(-frames // (STEPS * count))):
        first, rows = state, []
        with torch.no_grad():
            for _ in range(STEPS):
                policy, value, state = agent(observed[None], state, starts[None])
                action = policy.sample()[0]
                following, reward, terminated, truncated, _ = envs.step(action.numpy())
                reward, over = torch.as_tensor(reward).float(), torch.as_tensor(terminated | truncated)
                rows.append((observed, starts, action, policy.log_prob(action)[0], value[0], reward, over))
                returns += reward
                ended += returns[over].tolist()
                returns[over] = 0
                observed, starts = torch.as_tensor(following), over
            x, reset, actions, before, values, rewards, overs = map(torch.stack, zip(*rows, strict=True))
            after, advantage, advantages = agent(observed[None], state, starts[None])[1][0], 0, []
            for value, reward, over in zip(values.flip(0), rewards.flip(0), overs.flip(0), strict=True):
                error = reward + DISCOUNT * after * ~over - value
                advantage, after = error + DISCOUNT * SMOOTHING * advantage * ~over, value
                advantages.append(advantage)
            advantages = torch.stack(advantages).flip(0)
            targets = advantages + values
        for _ in range(EPOCHS):
            for some in torch.randperm(count).chunk(parts):
                part = first.select_batch(some) if hasattr(first, "select_batch") else tuple(s[:, some] for s in first)
                policy, value, _ = agent(x[:, some], part, reset[:, some])
                ratio = (policy.log_prob(actions[:, some]) - before[:, some]).exp()
                gain = advantages[:, some]
                gain = (gain - gain.mean()) / (gain.std() + 1e-8) if normalized else gain
                gained = torch.min(gain * ratio, gain * ratio.clamp(1 - CLIP, 1 + CLIP)).mean()
                loss = 0.5 * (value - targets[:, some]).square().mean() - gained - ENTROPY * policy.entropy().mean()
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(agent.parameters(), NORM)
                optimizer.step()
        yield (update + 1) * STEPS * count, sum(ended) / max(len(ended), 1)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--environment", default="CartPole-v1", help="the registered name")
    parser.add_argument("--layer", default="LSTM", choices=LAYERS)
    for name, default in {"units": 64, "frames": 100_000, "environments": 8, "seed": 1}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    chosen = parser.parse_args()
    torch.manual_seed(chosen.seed)
    envs = environments.several(chosen.environment, chosen.environments, chosen.seed)
    inputs, actions = envs.single_observation_space.shape[0], int(envs.single_action_space.n)
    longest = getattr(envs.envs[0].unwrapped, "max_steps", 500)
    agent = Agent(inputs, actions, chosen.layer, chosen.units, longest)
    began = time.perf_counter()
    for frames, mean in train(agent, envs, chosen.frames):
        print(f"{frames} frames, {frames / (time.perf_counter() - began):.0f} per second: mean return {mean:.3f}")
