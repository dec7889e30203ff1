"""Progress of a command in perf, in a log and on a terminal."""

import io
import sys
import time
from types import SimpleNamespace

import pytest

from perf import progress
from perf.progress import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def fast(monkeypatch):
    monkeypatch.setattr(progress, "LOG_SECONDS", 0.01)
    monkeypatch.setattr(progress, "TERMINAL_SECONDS", 0.01)
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: 0.0))


def wait_for(condition) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_log_gets_a_line_for_each_step_and_more_of_a_long_one(fast, monkeypatch):
    monkeypatch.setattr(sys, "stderr", log := io.StringIO())
    with Progress("LSTM", 3, "epoch") as shown:
        wait_for(lambda: log.getvalue().count("LSTM: 0 of 3 epochs, 0 s\n") >= 2)
        shown.advance()
        wait_for(lambda: "LSTM: 1 of 3 epochs, 0 s\n" in log.getvalue())
    ended = log.getvalue()
    time.sleep(0.05)
    assert log.getvalue() == ended


def test_a_terminal_gets_one_line_that_is_removed(fast, monkeypatch):
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    monkeypatch.setenv("COLUMNS", "9")
    with Progress("a name that is too wide"):
        wait_for(lambda: "a name" in terminal.getvalue())
    assert "\n" not in terminal.getvalue()
    lines = terminal.getvalue().split("\r\033[K")
    assert set(lines) == {"", "a name t"}
    assert lines[-1] == ""
