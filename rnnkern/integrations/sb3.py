"""Makes RecurrentPPO of sb3-contrib (Stable-Baselines3) faster: one fused call instead of a loop over time."""

from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.parametrize import type_before_parametrizations

from rnnkern.nn import LSTM
from rnnkern.swap import Report, replace


def patch(model: Any) -> Report:
    """Makes a recurrent policy run its LSTMs by rnnkern, with one call per sequence; results are equal to rounding.

    Where an episode starts within a sequence, sb3-contrib calls an LSTM once per time step. Here ``reset`` marks these
    steps. Parameters, optimizer and files of models do not change; patch a model again after ``RecurrentPPO.load``.

    Args:
        model: an ``sb3_contrib.RecurrentPPO``, or the policy of one; it is changed in place.

    Returns:
        The report of :func:`rnnkern.replace`, with the layers that were replaced.

    Raises:
        ImportError: sb3-contrib cannot be imported.
        TypeError: the policy is not a ``RecurrentActorCriticPolicy``.
        ValueError: the policy's class has a loop of its own, or an LSTM of another class than ``torch.nn.LSTM``.
    """
    try:
        from sb3_contrib.common.recurrent.policies import RecurrentActorCriticPolicy as Recurrent
    except ImportError as error:
        raise ImportError(f"patch: needs the package sb3-contrib (pip install sb3-contrib): {error}") from error
    policy = getattr(model, "policy", model)
    if not isinstance(policy, Recurrent):
        raise TypeError(f"patch: `model` must be a RecurrentPPO or its policy, got {type(model).__name__}")
    if type(policy)._process_sequence is not Recurrent._process_sequence:
        raise ValueError(f"patch: {type(policy).__name__} has its own `_process_sequence`, which patch would replace")
    for kind in map(type_before_parametrizations, filter(None, (policy.lstm_actor, policy.lstm_critic))):
        if kind not in (torch.nn.LSTM, LSTM):
            raise ValueError(f"patch: the policy's LSTMs must be of class torch.nn.LSTM, got {kind.__name__}")
    report = replace(policy, force=True)
    policy._process_sequence = _process_sequence
    return report


def _process_sequence(
    features: Tensor, states: tuple[Tensor, Tensor], starts: Tensor, lstm: LSTM
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """As the policy's method: ``features`` (N*T, I) are N sequences one after another, and ``starts`` (N*T,) is 1 at
    the first step of an episode. Returns the output (N*T, H) and the last h and c."""
    count = states[0].shape[1]
    x, reset = (part.unflatten(0, (count, -1)).transpose(0, 1) for part in (features, starts != 0))
    output, states = lstm(x, states, reset=reset)
    return output.transpose(0, 1).flatten(0, 1), states
