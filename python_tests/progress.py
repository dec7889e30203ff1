"""Prints a line every few seconds with the number of finished tests and the running ones, on a terminal and in a
log."""

import threading
import time

import pytest

SECONDS = 8


class Progress:
    """Plugin of the process that reports results; with pytest-xdist this is not a process that runs tests. Its lines
    replace pytest's dots, which a slow test delays."""

    def __init__(self, reporter):
        self.reporter, self.begun, self.ended = reporter, time.monotonic(), threading.Event()
        self.total, self.done, self.running = 0, 0, {}
        self.thread = threading.Thread(target=self.tell, daemon=True)

    def tell(self):
        while not self.ended.wait(SECONDS):
            said = f"{self.done} of {self.total} tests" if self.total else "collecting tests"
            for name in list(self.running)[:2]:
                said += f", {name.removeprefix('python_tests/'):.60}"
            self.reporter.write_line(f"{time.monotonic() - self.begun:4.0f} s: {said}")
            self.reporter.flush()

    def pytest_sessionstart(self):
        self.thread.start()

    def pytest_collection_finish(self, session):
        self.total = self.total or len(session.items)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids):
        self.total = len(ids)

    def pytest_runtest_logstart(self, nodeid):
        self.running[nodeid] = True

    def pytest_runtest_logfinish(self, nodeid):
        self.running.pop(nodeid, None)
        self.done += 1

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(self, report):
        if report.when == "call" and report.passed:
            return report.outcome, "", "PASSED"
        return None

    def pytest_sessionfinish(self):
        self.ended.set()
