"""Copy memory, models with settings of their own, and the picture of a Schur form that was learnt."""

import math

import pytest
import torch

pytest.importorskip("matplotlib")

from perf import record, schur_picture, tasks, train
from perf.models import MODELS, Network, size
from perf.tasks import TASKS, Own
from perf.train import Training
from python_tests.perf.test_train import CPU, TINY, generator


def test_what_is_to_be_copied():
    x, y, _ = tasks.copies(7, 50, generator())
    assert (x.shape, y.shape) == ((27, 50, 10), (27, 50))
    said = x.argmax(-1)
    assert torch.equal(x.sum(-1), torch.ones(27, 50))
    assert set(said[:10].unique().tolist()) == set(range(1, 9))
    assert torch.equal(y[-10:], said[:10])
    assert (said[16] == 9).all()  # T - 1 blanks come before the mark
    assert not torch.cat([said[10:16], said[17:], y[:17]]).any()


def test_copying_without_a_memory_gets_the_constant():
    """Blank is certain but for the last ten steps, when all symbols are as likely."""
    task = tasks.copying(TINY._replace(length=30), "test", None)
    logits = torch.full((50, 200, 9), -1e9)
    logits[:40, :, 0] = 0
    logits[40:, :, 1:] = 0
    (_, y, _), _ = task.held_out()
    assert task.loss(logits[:, :100], y).item() == pytest.approx(task.constant, rel=1e-6)
    assert task.score(logits[:, :100], y).mean().item() == pytest.approx(10 * math.log(8) / 50, rel=1e-6)


@pytest.mark.parametrize(
    ("model", "own", "share"),
    [
        ("rnnkern.ExpRNN", Own(5e-3, 5e-4), 0.5),
        ("rnnkern.UnitaryRNN", Own(5e-3, 5e-3), 0.5),
        ("rnnkern.UnitaryRNN-givens", Own(5e-3, 5e-3), 0.5),
        ("rnnkern.UnitaryRNN-free", Own(5e-3, 5e-4), 0.5),
        ("rnnkern.GORU", Own(2e-2, 2e-3), 0.95),  # slower to begin; without a memory it is 1
    ],
)
def test_copy_memory_is_learnt(model, own, share):
    settings = TINY._replace(length=5, optimiser="RMSprop", hidden=32, updates=150, batch=20)
    task = tasks.copying(settings, "test", None)
    training = Training(task, model, 0, settings, CPU, own)
    *_, last = train.train(training, 50)
    assert last["measured"] < task.constant * share


# ---- settings of a model


def test_only_what_is_read_counts_as_learnt():
    free = size(Network(MODELS["rnnkern.OrthogonalInitRNN"](3, 8), 8, 2, True))
    assert free == 3 * 8 + 8 * 8 + 8 + 8 * 2 + 2
    assert size(Network(MODELS["rnnkern.ExpRNN"](3, 8), 8, 2, True)) == free - 64 + 28
    assert size(Network(MODELS["rnnkern.NonNormalRNN"](3, 8), 8, 2, True)) == free - 64 + 28 + 4 + 4 + 28


def test_settings_of_a_model_reach_its_training():
    settings = TINY._replace(optimiser="RMSprop")
    own = Own(1e-3, 1e-5, delta=1e4, t_decay=1e-4, init="identity")
    training = Training(tasks.copying(settings, "test", None), "rnnkern.NonNormalRNN", 0, settings, CPU, own)
    assert [(g["lr"], g["weight_decay"]) for g in training.optimiser.param_groups] == [
        (1e-3, 0),
        (1e-5, 0),
        (1e-3, 1e-4),
    ]
    parametrized = training.network.rnn.parametrizations.weight_hh_l0
    assert torch.equal(parametrized[0].base, torch.eye(12))
    gamma = parametrized.original2
    with torch.no_grad():
        gamma.fill_(0.5)
    training.settings = settings._replace(clip=math.inf)
    training.update()
    assert gamma.grad.mean().item() == pytest.approx(1e4 * 2 * (0.5 - 1), rel=0.01)  # mostly the penalty's


def test_a_soft_constraint_is_in_the_loss():
    settings = TINY._replace(clip=math.inf)
    task = tasks.copying(settings, "test", None)
    training = Training(task, "rnnkern.OrthogonalInitRNN", 0, settings, CPU, Own(1e-2, soft=1e4))
    V = training.network.rnn.weight_hh_l0
    with torch.no_grad():
        V.mul_(0.5)
    before = V.detach().clone()
    training.update()
    torch.testing.assert_close(V.grad, 1e4 * 4 * before @ (before.T @ before - torch.eye(12)), rtol=0.01, atol=10)


def test_settings_are_written_out():
    assert str(Own(1e-3)) == "0.001"
    assert str(Own(5e-4, 1e-6, 1e-4, 1e-6, "henaff")) == (
        "0.0005, orthogonal 1e-06, delta 0.0001, T decay 1e-06, init henaff"
    )
    assert str(Own(1e-3, soft=0.01)) == "0.001, soft 0.01"


def test_models_have_settings_of_their_own_and_what_they_learn_is_kept(tmp_path, capsys):
    run = [
        "--task",
        "copy",
        "--models",
        "rnnkern.NonNormalRNN",
        "rnnkern.GRU",
        "--length",
        "5",
        "--batch",
        "4",
        "--hidden",
    ]
    run += ["6", "--updates", "2", "--held-out", "9", "--seeds", "3", "--threads", "1", "--out", str(tmp_path)]
    train.main([*run, "--keep", str(tmp_path / "learnt")])
    train.main([*run, "--rate", "0.02"])
    rates = {row["rate"] for row in record.read(tmp_path / "train-copy.csv") if row["model"] == "rnnkern.NonNormalRNN"}
    assert rates == {str(TASKS["copy"].own["rnnkern.NonNormalRNN"]), "0.02, delta 0.0001, T decay 1e-06, init henaff"}
    kept = tmp_path / "learnt"
    assert sorted(path.name for path in kept.iterdir()) == ["rnnkern.GRU-3.pt", "rnnkern.NonNormalRNN-3.pt"]
    capsys.readouterr()
    schur_picture.main([str(kept / "rnnkern.NonNormalRNN-3.pt"), str(tmp_path / "form.png")])
    assert (tmp_path / "form.png").stat().st_size > 10_000
    assert capsys.readouterr().out.startswith("mean gamma ")
    with pytest.raises(ValueError, match="must have a weight in Schur form"):
        schur_picture.main([str(kept / "rnnkern.GRU-3.pt"), str(tmp_path / "form.png")])


# ---- what has been learnt


def test_the_schur_form_of_a_state_dict():
    network = Network(MODELS["rnnkern.NonNormalRNN"](3, 5), 5, 2, True)
    parametrized = network.rnn.parametrizations.weight_hh_l0
    with torch.no_grad():
        parametrized.original3.copy_(torch.arange(25).view(5, 5))
        parametrized.original1.zero_()
    Theta, theta, gamma = schur_picture.schur_form(network.state_dict())
    wanted = torch.arange(25.0).view(5, 5).tril(-1) + torch.eye(5)
    torch.testing.assert_close(Theta, wanted.double())
    assert (len(theta), len(gamma)) == (2, 3)
    assert schur_picture.below(Theta).tolist() == pytest.approx([1, (5 + 11 + 17 + 23) / 4, 16, (15 + 21) / 2, 20])
