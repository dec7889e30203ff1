import pytest
import torch

pytest.importorskip("sklearn")

from perf import demo, demo_recall, record
from perf.datasets import Images


@pytest.fixture(scope="module")
def data() -> Images:
    return demo.digits()


@pytest.fixture
def few(data) -> Images:
    """Three updates per epoch."""
    return data._replace(train_x=data.train_x[:, : 3 * demo.BATCH], train_y=data.train_y[: 3 * demo.BATCH])


def test_batches_hold_everything_once():
    seen = torch.cat(demo.batches(123, 4))
    assert torch.equal(seen.sort().values, torch.arange(123))
    assert not torch.equal(seen, torch.cat(demo.batches(123, 5)))


@pytest.mark.parametrize("network", demo.NETWORKS, ids=lambda network: network.name)
def test_both_train_alike(network, few):
    (pair,) = demo.train(network, few, epochs=1)
    peer, ours = pair[network.peer_name], pair["rnnkern"]
    assert len(ours.losses) == 3
    assert demo.disagreement(peer.losses, ours.losses) <= demo.AGREEMENT
    rows = demo.figures(network, pair, few)
    assert [row["provider"] for row in rows] == [network.peer_name, "rnnkern"]
    assert all(row["peak_bytes"] > 64 * demo.BATCH * demo.HIDDEN for row in rows)


@pytest.mark.parametrize("losses", [[1.0, 2.001], [1.0, float("nan")], []])
def test_disagreement_is_loud(losses):
    with pytest.raises(RuntimeError, match=r"must agree to 0\.0001"):
        demo.disagreement([1.0, 2.0][: len(losses)], losses)


def test_the_whole_demo(few, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(demo, "digits", lambda: few)
    monkeypatch.setattr(demo_recall, "LENGTHS", (20, 30))
    monkeypatch.setattr(demo_recall, "MEMORY_LENGTHS", (100, 200))
    argv, pictures = ["--epochs", "2", "--threads", "1", "--updates", "2"], tmp_path / "images"
    demo.main(argv, results=tmp_path, picture=pictures / "demo.png", recall=pictures / "recall.png")
    (path,) = tmp_path.glob("*/demo.csv")
    assert len(record.read(path)) == 4
    assert (tmp_path / "images" / "demo.png").stat().st_size > 10_000
    assert (tmp_path / "images" / "recall.png").stat().st_size > 10_000
    out = capsys.readouterr().out
    assert all(words in out for words in ("speedup_50", "rnnkern.RelRNN", "floats kept"))
