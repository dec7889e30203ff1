"""Environments for reinforcement learning in which an agent needs memory; every observation is a vector of floats."""

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv

POSITIONS = [0, 2]
"""Elements of CartPole's observation that are not velocities."""
KINDS = (11, 6, 3)
"""Numbers of objects, colors and states in a field of MiniGrid's view."""
WORDS = ("red", "green", "blue", "purple", "yellow", "grey", "key", "ball", "box", "door")
"""Words by which missions differ."""


class WithoutVelocities(gymnasium.ObservationWrapper):
    """CartPole, of which the agent sees the positions alone."""

    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        space = env.observation_space
        self.observation_space = gymnasium.spaces.Box(space.low[POSITIONS], space.high[POSITIONS])

    def observation(self, observation: np.ndarray) -> np.ndarray:
        return observation[POSITIONS]


class Encoded(gymnasium.ObservationWrapper):
    """MiniGrid, of which the agent sees the 7 x 7 fields before it, one-hot, and which words its mission has."""

    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        fields = env.observation_space["image"].shape[:2]
        starts = np.cumsum([0, *KINDS])
        self.places = starts[-1] * np.arange(np.prod(fields)).reshape(*fields, 1) + starts[:-1]
        self.size = self.places.size // len(KINDS) * starts[-1]
        self.observation_space = gymnasium.spaces.Box(0.0, 1.0, (self.size + len(WORDS),))

    def observation(self, observation: dict) -> np.ndarray:
        vector = np.zeros(self.observation_space.shape, np.float32)
        vector[self.places + observation["image"]] = 1
        words = observation["mission"].split()
        vector[self.size :] = [word in words for word in WORDS]
        return vector


def make(name: str) -> gymnasium.Env:
    """An environment by its registered name, such as ``"CartPole-v1"`` or ``"MiniGrid-MemoryS7-v0"``."""
    if not name.startswith("MiniGrid"):
        return WithoutVelocities(gymnasium.make(name))
    import minigrid  # noqa: F401, registers its environments

    return Encoded(gymnasium.make(name))


def several(name: str, count: int, seed: int) -> SyncVectorEnv:
    """Environments that run side by side and start a new episode in the step that ends one."""
    envs = SyncVectorEnv([lambda: make(name)] * count, autoreset_mode=AutoresetMode.SAME_STEP)
    envs.reset(seed=seed)
    return envs
