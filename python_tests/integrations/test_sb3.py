"""rnnkern.integrations.sb3: a patched RecurrentPPO acts and learns as a stock one. Needs sb3-contrib."""

import importlib
import sys

import pytest
import torch

import rnnkern
from rnnkern.integrations import sb3

COUNT, STEPS = 4, 64
LAYERS = {
    "one LSTM each": {},
    "two layers": {"n_lstm_layers": 2},
    "shared": {"shared_lstm": True, "enable_critic_lstm": False},
    "of the actor": {"enable_critic_lstm": False},
}


def test_without_the_package_the_error_names_it(monkeypatch):
    for name in ("sb3_contrib", "stable_baselines3", "gymnasium"):
        monkeypatch.setitem(sys.modules, name, None)  # makes an import fail
    with pytest.raises(ImportError, match="sb3-contrib"):
        importlib.reload(sb3).patch(torch.nn.LSTM(2, 3))


@pytest.fixture
def packages(monkeypatch):
    pytest.importorskip("sb3_contrib")
    monkeypatch.setattr(torch.distributions.Distribution, "_validate_args", False)


def model_of(seed=1, **options):
    from sb3_contrib import RecurrentPPO
    from stable_baselines3.common.env_util import make_vec_env

    from perf.programs import environments

    envs = make_vec_env(lambda: environments.make("CartPole-v1"), COUNT, seed=seed)
    return RecurrentPPO("MlpLstmPolicy", envs, n_steps=STEPS, n_epochs=2, seed=seed, device="cpu",
                        policy_kwargs={"lstm_hidden_size": 16} | options)  # fmt: skip


def learned(model):
    """The actions, the length of each episode, and the losses of several updates."""
    found = []
    for _ in range(3):
        model.learn(COUNT * STEPS, reset_num_timesteps=False)
        losses = {name: x for name, x in model.logger.name_to_value.items() if name.startswith("train/")}
        found.append((model.rollout_buffer.actions.copy(), [x["l"] for x in model.ep_info_buffer], losses))
    return found


pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")


@pytest.mark.proof
@pytest.mark.usefixtures("packages")
@pytest.mark.parametrize("options", LAYERS.values(), ids=LAYERS)
def test_a_patched_model_learns_the_same(options):
    stock = model_of(**options)
    expected = learned(stock)
    patched = model_of(**options)  # seeds the random numbers anew
    assert len(sb3.patch(patched).replaced) == 1 + patched.policy.enable_critic_lstm
    assert sb3.patch(patched).replaced == ()
    for (actions, lengths, losses), (same_actions, same_lengths, same_losses) in zip(
        expected, learned(patched), strict=True
    ):
        assert (actions == same_actions).all()
        assert lengths == same_lengths
        assert len(lengths) > COUNT
        assert same_losses == pytest.approx(losses, rel=1e-3, abs=1e-5)
    torch.testing.assert_close(patched.policy.state_dict(), stock.policy.state_dict(), rtol=1e-3, atol=1e-4)


@pytest.mark.proof
@pytest.mark.usefixtures("packages")
def test_derivatives_where_episodes_start_within_sequences():
    stock, patched = model_of().policy, model_of().policy
    sb3.patch(patched)
    N, T, H = 3, 20, 16
    from sb3_contrib.common.recurrent.type_aliases import RNNStates

    states = torch.randn(4, 1, N, H).unbind(0)
    arguments = (
        torch.randn(N * T, 2), torch.randint(2, (N * T,)), RNNStates(states[:2], states[2:]),
        (torch.rand(N * T) < 0.2).float(),
    )  # fmt: skip
    outcomes = []
    for policy in (stock, patched):
        values, log_prob, entropy = policy.evaluate_actions(*arguments)
        (values.square().sum() + log_prob.sum() + entropy.square().sum()).backward()
        outcomes.append([values, log_prob, entropy, *(p.grad for p in policy.parameters() if p.grad is not None)])
    assert len(outcomes[0]) == 3 + len(list(stock.parameters()))
    torch.testing.assert_close(*outcomes, rtol=1e-4, atol=1e-5)


@pytest.mark.proof
@pytest.mark.usefixtures("packages")
def test_saved_models_are_interchangeable(tmp_path):
    from sb3_contrib import RecurrentPPO

    patched = model_of()
    sb3.patch(patched)
    patched.learn(COUNT * STEPS)
    patched.save(tmp_path / "model")
    stock, again = (RecurrentPPO.load(tmp_path / "model", device="cpu") for _ in range(2))
    sb3.patch(again)
    assert type(stock.policy.lstm_actor) is torch.nn.LSTM
    assert type(again.policy.lstm_actor) is rnnkern.nn.LSTM
    states, ends = [None] * 3, torch.zeros(COUNT, dtype=torch.bool).numpy()
    observed = patched.env.reset()
    for step in range(30):
        actions = [None] * 3
        for k, model in enumerate((patched, stock, again)):
            actions[k], states[k] = model.predict(observed, states[k], ends | (step == 0), deterministic=True)
        for action, state in zip(actions[1:], states[1:], strict=True):
            assert (action == actions[0]).all()
            torch.testing.assert_close(state, states[0], rtol=1e-4, atol=1e-6)
        observed, _, ends, _ = patched.env.step(actions[0])
    again.set_env(patched.env)
    again.learn(COUNT * STEPS)


@pytest.mark.proof
@pytest.mark.usefixtures("packages")
def test_wrong_models():
    from sb3_contrib.common.recurrent.policies import RecurrentActorCriticPolicy

    with pytest.raises(TypeError, match="must be a RecurrentPPO or its policy, got LSTM"):
        sb3.patch(torch.nn.LSTM(2, 3))

    class Own(RecurrentActorCriticPolicy):
        @staticmethod
        def _process_sequence(features, states, starts, lstm):
            raise NotImplementedError

    class Other(torch.nn.LSTM):
        pass

    own, other = model_of().policy, model_of().policy
    own.__class__ = Own
    other.lstm_critic = Other(2, 16)
    for policy, message in ((own, "Own has its own `_process_sequence`"), (other, "class torch.nn.LSTM, got Other")):
        with pytest.raises(ValueError, match=message):
            sb3.patch(policy)
        assert type(policy.lstm_actor) is torch.nn.LSTM
        assert "_process_sequence" not in vars(policy)
