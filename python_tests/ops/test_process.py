"""Failed allocations, and forks, also while other threads run operators; in subprocesses, which may crash or hang."""

import os
import subprocess
import sys

import pytest
import torch

import rnnkern

COMMON = """
import os, re, resource, signal, sys, threading
import torch, rnnkern
from rnnkern.ops import recurrence
from python_tests.samples import outputs_and_gradients, recurrence_sample

def results(sample, save_gates=True):
    results = outputs_and_gradients(lambda *a, **k: recurrence(*a, **k, save_gates=save_gates), sample)
    return [x.detach() for x in results.values()]

def same(sample, wanted):
    return all(map(torch.equal, results(sample), wanted))

torch.manual_seed(0)
threads = int(sys.argv[1])
torch.set_num_threads(threads)
"""


def says(script: str, threads: int = 2) -> str:
    command = [sys.executable, "-c", COMMON + script, str(threads)]
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


# The memory limit grows until the call succeeds, so that every allocation fails once.
LIMITED = """
sample = recurrence_sample("lstm", 64, 128, 256, inputs=8, dtype=torch.float32, requires_grad=True)
_, u, *rest = sample.args
sample = sample._replace(args=("lstm", u[:1].expand_as(u), *rest))
wanted = results(sample)
failed = 0
for extra in range(8, 1000, 8):
    rnnkern.release_memory()
    now = int(re.search(r"VmSize:\\s+(\\d+)", open("/proc/self/status").read())[1]) << 10
    resource.setrlimit(resource.RLIMIT_AS, (now + (extra << 20), resource.RLIM_INFINITY))
    try:
        results(sample)
        break
    except RuntimeError as error:
        failed += 1
        print(str(error).replace("\\n", " "))
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY,) * 2)
assert failed > 3
assert same(sample, wanted)
"""


def test_a_failed_allocation_says_so_and_the_next_call_works():
    lines = says(LIMITED).splitlines()
    assert all("can't allocate memory" in line for line in lines), lines
    ours = [line for line in lines if line.startswith("rnnkern: can't allocate memory for a tensor of sizes (")]
    assert len(set(ours)) > 1
    if tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 13):
        assert all("you tried to allocate" in line for line in ours)


def test_an_expanded_input_that_no_memory_holds():
    u = torch.zeros(1, 1, 64).expand(2**30, 2**10, 64)
    state = torch.zeros(1, 16).expand(2**10, 16)
    with pytest.raises(
        RuntimeError, match=r"rnnkern: can't allocate memory for a tensor of sizes \(1073741824, 1024, "
    ):
        rnnkern.ops.recurrence("lstm", u, torch.zeros(64, 16), (state, state))


# A child forked while one thread is inside operators and another inside what all threads share.
BUSY = """
sample = recurrence_sample("lstm", 40, 32, 64, dtype=torch.float32, requires_grad=True)
wanted = results(sample)
done = False

def call():
    torch.set_num_threads(threads)
    while not done:
        results(sample)

def ask():
    while not done:
        torch.ops.rnnkern.kernel_counts()
        rnnkern.release_memory()

others = [threading.Thread(target=target, daemon=True) for target in (call, ask)]
for other in others:
    other.start()
for number in range(forks):
    pid = os.fork()
    if pid == 0:
        signal.alarm(20)
        torch.set_num_threads(threads)
        right = same(sample, wanted)
        torch.ops.rnnkern.kernel_counts()
        os._exit(not right)
    status = os.waitpid(pid, 0)[1]
    assert status != signal.SIGALRM, f"child {number} hung"
    assert status == 0, f"child {number} ended with {status}"
done = True
for other in others:
    other.join()
assert same(sample, wanted)
"""


@pytest.mark.parametrize(
    ("forks", "threads"), [(12, 2), *(pytest.param(150, n, marks=pytest.mark.proof) for n in (1, 2))]
)
def test_forks_while_other_threads_are_inside_operators(forks, threads):
    """If the threads of a parent's team still existed for a child, it would wait for them forever."""
    says(f"forks = {forks}\n" + BUSY, threads)
