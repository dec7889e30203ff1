"""Progress of a command in perf, in a log."""

import io
import sys
import time
from types import SimpleNamespace

from perf import progress
from perf.progress import Progress


def wait_for(condition) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_log_gets_a_line_for_each_step_and_more_of_a_long_one(monkeypatch):
    monkeypatch.setattr(progress, "LOG_SECONDS", 0.01)
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: 0.0))
    monkeypatch.setattr(sys, "stderr", log := io.StringIO())
    with Progress("LSTM", 3, "epoch") as shown:
        wait_for(lambda: log.getvalue().count("LSTM: 0 of 3 epochs, 0 s\n") >= 2)
        shown.advance()
        wait_for(lambda: "LSTM: 1 of 3 epochs, 0 s\n" in log.getvalue())
    ended = log.getvalue()
    time.sleep(0.05)
    assert log.getvalue() == ended
