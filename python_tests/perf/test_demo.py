"""`make demo`: both networks train alike, and it leaves a checkout as it was."""

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch

pytest.importorskip("matplotlib")
pytest.importorskip("sklearn")

from perf import demo, demo_digits, demo_recall, record
from perf.datasets import Images
from rnnkern import _extension


@pytest.fixture
def few() -> Images:
    """Data for three updates per epoch."""
    data, count = demo_digits.digits(), 3 * demo_digits.BATCH
    return data._replace(train_x=data.train_x[:, :count], train_y=data.train_y[:count])


@pytest.mark.parametrize("network", demo_digits.NETWORKS, ids=lambda network: network.name)
def test_both_train_alike(network, few):
    (pair,) = demo_digits.train(network, few, epochs=1)
    peer, ours = pair[network.peer_name], pair["rnnkern"]
    assert len(ours.losses) == 3
    assert demo_digits.disagreement(peer.losses, ours.losses) <= demo_digits.AGREEMENT
    rows = demo_digits.figures(network, pair, few)
    assert [row["provider"] for row in rows] == [network.peer_name, "rnnkern"]
    assert all(row["peak_bytes"] > 64 * demo_digits.BATCH * demo_digits.HIDDEN for row in rows)


def test_the_whole_demo_leaves_a_checkout_as_it_was(few, monkeypatch, capsys):
    def state() -> str:
        done = subprocess.run(["git", "status", "--porcelain"], cwd=record.ROOT, capture_output=True, text=True)
        if done.returncode:
            pytest.skip("not a checkout of git")
        return done.stdout

    before = state()
    monkeypatch.setattr(demo_digits, "digits", lambda: few)
    monkeypatch.setattr(demo_recall, "LENGTHS", (10, 30))
    monkeypatch.setattr(demo_recall, "MEMORY_LENGTHS", (100, 200))
    (record.ROOT / "build").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=record.ROOT / "build") as built:
        monkeypatch.setattr(record, "BUILT", Path(built))
        demo.main(["--epochs", "2", "--threads", "1", "--updates", "2"])
        assert state() == before
        folder = record.folder(torch.device("cpu"), Path(built))
        assert len(record.read(folder / "demo.csv")) == 4
        out = capsys.readouterr().out
        for name in ("demo.csv", "demo.png", "demo-recall.png"):
            assert str(folder / name) in out
            assert (folder / name).exists()


def test_without_the_compiled_part_recall_is_left_out(few, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(demo_digits, "digits", lambda: few)
    monkeypatch.setattr(_extension, "available", False)
    monkeypatch.setattr(_extension, "reason", "no compiler was found")
    demo.main(["--epochs", "1", "--threads", "1", "--out", str(tmp_path)])
    out = capsys.readouterr().out
    assert "no compiler was found. Everything runs in plain PyTorch" in out
    assert "Recall is left out" in out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["demo.csv", "demo.png", "demo.svg"]


def test_it_speaks_before_it_imports_pytorch():
    """Which takes seconds; here it fails."""
    program = "import runpy, sys; sys.modules['torch'] = None; runpy.run_module('perf.demo', run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", program], cwd=record.ROOT, capture_output=True, text=True)
    assert done.stdout.startswith("Trains networks")
    assert "import of torch halted" in done.stderr
