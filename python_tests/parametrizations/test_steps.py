"""Optimizer steps in one thread while another creates modules."""

import sys
import threading

import pytest
import torch

from rnnkern.parametrizations import _steps as steps


class Listener:
    def __init__(self):
        self.heard = 0
        steps.listen(self)

    def stepped(self, optimised):
        self.heard += 1


@pytest.fixture
def switching():
    """Threads switch as often as possible."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def test_listeners_come_and_go_in_another_thread(switching):
    listeners, done = [Listener() for _ in range(300)], threading.Event()

    def come_and_go():
        while not done.is_set():
            _ = [Listener() for _ in range(20)]

    thread = threading.Thread(target=come_and_go)
    thread.start()
    try:
        p = torch.nn.Parameter(torch.zeros(1))
        p.grad = torch.zeros(1)
        optimizer, numbers = torch.optim.SGD([p], 0.1), set()
        for _ in range(1000):
            optimizer.step()
            numbers.add(steps.count())
    finally:
        done.set()
        thread.join()
    assert len(numbers) == 1000
    assert {listener.heard for listener in listeners} == {1000}
