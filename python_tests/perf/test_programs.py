"""Agents and environments of perf.programs, at tiny sizes. Need gymnasium and minigrid."""

import pytest
import torch

pytestmark = [
    pytest.mark.proof,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning"),
]
pytest.importorskip("gymnasium")
pytest.importorskip("minigrid")


def test_one_call_learns_as_the_loop():
    from perf.programs import environments, ppo_lstm

    curves, weights = [], []
    for layer in ("Loop", "LSTM"):
        torch.manual_seed(1)
        envs = environments.several("CartPole-v1", 4, 1)
        agent = ppo_lstm.Agent(2, 2, layer, units=16, longest=1)
        curves.append(list(ppo_lstm.train(agent, envs, 3 * 4 * ppo_lstm.STEPS)))
        weights.append(list(agent.parameters()))
    assert curves[0] == curves[1]
    assert [count for count, _ in curves[0]] == [512, 1024, 1536]
    assert curves[0][-1][1] > 5
    torch.testing.assert_close(*weights, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("layer", ["LSTM", "RelLSTM", "MemLSTM"])
def test_minigrid(layer, monkeypatch):
    from perf.programs import minigrid

    monkeypatch.setattr(minigrid, "EPISODES", 1)
    *_, last = minigrid.trained(("GoToDoor-5x5", layer, 1, 4096))
    assert last["frames"] == 4096
    assert 0 <= last["mean_return"] <= 1
    assert 0 <= last["larger_return"] <= 1


def test_a_view_of_minigrid_is_one_hot():
    from perf.programs import environments

    env = environments.make("MiniGrid-DoorKey-5x5-v0")
    observed, _ = env.reset(seed=0)
    image = env.unwrapped.gen_obs()["image"]
    fields = observed[: env.size].reshape(7, 7, 20)
    for k, part in enumerate((fields[..., :11], fields[..., 11:17], fields[..., 17:])):
        assert (part.sum(-1) == 1).all()
        assert (part.argmax(-1) == image[..., k]).all()
    assert observed[env.size :].tolist() == [0, 0, 0, 0, 0, 0, 1, 0, 0, 1]  # a key and a door
