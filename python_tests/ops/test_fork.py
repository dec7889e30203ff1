"""Forks while other threads run operators; in subprocesses, which may hang."""

import os
import subprocess
import sys

import pytest

SCRIPT = """
import os, signal, sys, threading, time
import torch, rnnkern
from rnnkern.ops import recurrence
from python_tests.samples import outputs_and_gradients, recurrence_sample

forks, threads = map(int, sys.argv[1:])
torch.set_num_threads(threads)
sample = recurrence_sample("lstm", 40, 32, 64, dtype=torch.float32, requires_grad=True)
wanted = [x.detach() for x in outputs_and_gradients(recurrence, sample).values()]
done = False

def call():
    torch.set_num_threads(threads)
    while not done:
        outputs_and_gradients(recurrence, sample)

def ask():
    while not done:
        torch.ops.rnnkern.kernel_counts()
        rnnkern.release_memory()

others = [threading.Thread(target=target) for target in (call, ask)]
for other in others:
    other.start()
for number in range(forks):
    pid = os.fork()
    if pid == 0:
        signal.alarm(20)
        torch.set_num_threads(threads)
        found = outputs_and_gradients(recurrence, sample).values()
        torch.ops.rnnkern.kernel_counts()
        os._exit(not all(map(torch.equal, found, wanted)))
    status = os.waitpid(pid, 0)[1]
    if status:
        print(f"fork {number}: the child hung" if status == signal.SIGALRM else f"fork {number}: {status}", flush=True)
        os._exit(1)
done = True
for other in others:
    other.join()
print("as before")
"""


def forked(forks: int, threads: int) -> str:
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
    command = [sys.executable, "-c", SCRIPT, str(forks), str(threads)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)
    return done.stdout + done.stderr[-2000:]


def test_a_child_forked_while_other_threads_are_inside_operators():
    assert forked(12, 1) == "as before\n"


@pytest.mark.proof
@pytest.mark.parametrize("threads", [1, 2])
def test_many_children(threads):
    assert forked(150, threads) == "as before\n"
