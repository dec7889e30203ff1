"""What the interpreter guarantees to authors of kernels: seeds show all that hardware may do, errors have a location.

The kernels are those in faults.cpp and unordered.h."""

import ctypes
import operator
import re
import shutil

import numpy as np
import pytest

from python_tests.gpu import builder, kernels
from python_tests.gpu.kernels import KernelError, fault

pytestmark = pytest.mark.skipif(shutil.which(builder.compiler()[0]) is None, reason="no C++ compiler")
SEEDS = range(30)
NAN = 0xFFFFFFFF


def places(kernel: str) -> list[str]:
    """file:line: of the lines of a kernel that end with a number."""
    for file in (kernels.FAULTS, kernels.UNORDERED):
        before, found, after = (builder.ROOT / file).read_text().partition(f"struct {kernel} ")
        if found:
            line, own = before.count("\n") + 1, after.partition("\n};")[0].split("\n")
            return [f"{file}:{line + k}:" for k, text in enumerate(own) if re.search(r"// [12]$", text)]
    return []


def report(name: str, given=(0,), seed: int = 0) -> str:
    with pytest.raises(KernelError, match=r"^interpret: ") as error:
        fault(name, given, 64, seed=seed)
    return str(error.value)


# ---- the seed determines the schedule


def test_interpret_order_is_that_of_the_seed():
    """Numbers are 4 block + warp. Any warp may come first; one of every block, or one block, comes last."""
    orders = [tuple(fault("Order", words=17, seed=seed)[1:]) for seed in range(200)]
    assert orders[:30] == [tuple(fault("Order", words=17, seed=seed)[1:]) for seed in SEEDS]
    assert len(set(orders)) == len(orders)
    assert {tuple(sorted(order)) for order in orders} == {tuple(range(16))}
    assert {order[0] for order in orders} == set(range(16))
    starved = set()
    for *_, a, b, c, d in orders:
        blocks, warps = ({f(x, 4) for x in (a, b, c, d)} for f in (operator.floordiv, operator.mod))
        assert len(blocks) == 1 or len(warps) == 1
        starved.add(("block", *blocks) if len(blocks) == 1 else ("warp", *warps))
    assert starved == {(kind, number) for kind in ("block", "warp") for number in range(4)}


def test_interpret_shared_memory_starts_as_nan():
    words = fault("Untouched", words=32)
    assert np.isnan(words.view(np.float32)).all()
    assert np.isnan(words.view(np.float16)).all()
    assert np.isnan((words << 16).view(np.float32)).all()  # bfloat16


def test_interpret_stores_arrive_in_any_order():
    assert {int(fault("StoreOrder", words=32, seed=seed)[0]) for seed in SEEDS} == {1, 2, 3}


ORDERED = {
    "ReadsStore": (np.full(64, 7), 15),
    "ReadsCopy": (np.full(32, 9), 10),
    "CopiesOver": (np.full(64, 1), 3),
    "Neighbour": (np.roll(np.arange(128), -1), 10),
    "TagInOneWord": (np.full(32, 7), 1),  # a word says nothing about another one of the same thread
}
"""Kernels that lack a wait, a barrier or a tag unless `in` is not 0; their right result, and the least number of seeds
that show the error."""


@pytest.mark.parametrize("name", ORDERED)
def test_interpret_finds_what_orders_nothing(name):
    wanted, least = ORDERED[name]
    wrong, right = (
        [(fault(name, [given, *[9] * 64], 512, seed=seed)[: len(wanted)] == wanted).all() for seed in SEEDS]
        for given in (0, 1)
    )
    assert least <= wrong.count(False)
    assert name != "ReadsCopy" or any(wrong)  # some copies are made at once
    assert all(right)


def test_interpret_finds_a_thread_that_sleeps_through_two_phases():
    said = set()
    for seed in SEEDS:
        try:
            fault("SleepsThrough", seed=seed)
        except KernelError as error:
            said.add(str(error))
    assert said
    assert all(f"in wait at {places('SleepsThrough')[0]}" in line for line in said)


# ---- the order of words and blocks


def test_interpret_words_are_there_after_a_flag():
    """And a thread reads what it wrote last."""
    for seed in SEEDS:
        assert (fault("FlagAfterWords", words=512, seed=seed)[:32] == 7).all()


def test_interpret_blocks_run_in_any_order():
    assert any((fault("Predecessor", words=8, seed=seed) != np.arange(1, 9)).any() for seed in range(5))


def test_interpret_blocks_take_turns():
    counts = [int(fault("Counts", words=1, seed=seed)[0]) for seed in SEEDS]
    assert min(counts) < 16


# ---- reports

REPORTS = {
    "DivergesAtBarrier": [
        "divergence: block_barrier of block 0 thread ", "{0}", " meets block_barrier, block 0 thread ", "{1}"
    ],
    "DivergesInWarp": ["divergence: shuffle", " of block 0 thread ", " meets shuffle", "_xor", "{0}", "{1}"],
    "HalfAtBarrier": [
        "deadlock: 64 of 64 threads are stuck, 0 have ended", "32 in block_barrier at {0}", "32 in shuffle at {1}"
    ],
    "LeavesEarly": ["deadlock: 63 of 64 threads are stuck, 1 have ended", "63 in block_barrier at {0}"],
    "SpinsForever": [
        "deadlock: 32 of 64 threads are stuck, 32 have ended", "32 in spin_until at {0}", ", first block 0 thread 32"
    ],
    "SpinsTogether": ["in spin_until at {0}"],  # all lanes try again without end
    "WaitsForever": ["64 in wait at {0}", "its phase of parity 0 lacks 1 of 2 arrivals and 48 bytes"],
    "StoresAlone": ["store_async: the launch has no clusters"],
    "HalfWarp": ["at most 1024 threads, not 48"],
    "OddCluster": ["3 blocks are not clusters of 2"],
    "TooManyBytes": ["at most 232448 bytes of shared memory, not 232464"],
    "WideCluster": ["no cluster of 32 blocks runs on this device"],
    "TooManyAtOnce": ["265 blocks are to run at once, and this device runs 264"],
}  # fmt: skip
"""Kernels, and parts of the report; {0} and {1} are numbered lines."""


@pytest.mark.parametrize("name", REPORTS)
def test_interpret_reports_what_cannot_go_on(name):
    for seed in range(5):
        said = report(name, seed=seed)
        assert [part for part in REPORTS[name] if part.format(*places(name)) not in said] == []


def test_interpret_conditions_may_wait_for_other_lanes():
    for seed in range(5):
        fault("SpinsTogether", [1], seed=seed)


# ---- misuse


MISUSE = {
    1: "load_matrices: the row is not in shared memory",
    2: "load_matrices_transposed: the row is not on 16 bytes",
    3: "wait: the barrier was never initialised",
    4: "expect: the barrier was never initialised",
    5: "store_async: the barrier was never initialised",
    6: "store_async: the barrier is in another block than the data",
    7: "store_async: not aligned",
    8: "store_async: not in the cluster's shared memory",
    9: "map: no such rank in the cluster",
    10: "map: the pointer is not in this block's shared memory",
    11: "copy_async: not aligned",
    12: "copy_async: the target is not in shared memory",
    13: "expect: more arrivals than the phase has",
    14: "wait: the barrier is not in this block's shared memory",
    15: "init: the number of arrivals",
    17: "trap",
    18: "store_async: no init_fence after init of the barrier",
    19: "store_async: no cluster_barrier after init_fence",
    20: "expect: a phase counts less than 1048576 bytes",
}


@pytest.mark.parametrize(("mistake", "wanted"), MISUSE.items(), ids=lambda x: x if isinstance(x, str) else "")
def test_interpret_reports_misuse(mistake, wanted):
    """The report contains the thread and the location."""
    said = report("Misuse", [mistake, 0, 0, 0])
    block = r"\d" if mistake == 19 else "0"
    assert re.fullmatch(rf"interpret: {re.escape(wanted)}, block {block} thread \d+, {kernels.FAULTS}:\d+:\d+", said)


def test_interpret_reports_bytes_that_no_phase_can_count():
    for seed in range(3):
        assert "store_async: 1048576 bytes that the phase did not expect" in report("Misuse", [21], seed)


def test_interpret_reports_stores_into_a_block_that_has_ended():
    """The error occurs only if the block ends before the stores arrive; with other seeds it does not."""
    said = []
    for seed in SEEDS:
        try:
            fault("Misuse", [16], seed=seed)
        except KernelError as error:
            said.append(str(error))
    assert len(said) > len(SEEDS) / 3
    assert all("store_async: " in line and places("Misuse")[0] in line for line in said)
    assert any("block 1 had threads that ended when the store arrived" in line for line in said)
    assert any("the block has threads that ended, block 0 thread 0" in line for line in said)


def test_interpret_goes_on_after_an_error():
    report("LeavesEarly")
    assert (fault("Neighbour", [1], 128) == np.roll(np.arange(128), -1)).all()


@pytest.mark.parametrize(("apart", "conflicts"), [(0, 0), (1, 0), (2, 4), (4, 12), (5, 0), (8, 28)])
def test_interpret_counts_bank_conflicts_of_matrices(apart, conflicts):
    """A matrix has 8 rows of 16 bytes, and there are 8 groups of banks of 16 bytes; 4 matrices are loaded."""
    count = kernels.library().bank_conflicts
    count.restype = ctypes.c_int64
    before = count()
    fault("ReadsRows", [apart])
    assert count() - before == conflicts


# ---- under the address sanitizer

SANITIZE = "-fsanitize=address"
SANITIZED = """
import numpy as np
from python_tests.gpu import kernels
flags = ("-fsanitize=address",)
given = np.zeros(64 * 32 * 10 * 4, np.uint32)
for name in "{names}".split():
    for seed in range(2):
        kernels.launch(name, given, 65536, seed=seed, flags=flags)
for name in ("LeavesEarly", "DivergesAtBarrier", "SpinsForever"):
    try:
        kernels.fault(name, [0], 64, flags=flags)
    except kernels.KernelError as error:
        assert "interpret:" in str(error)
    else:
        raise AssertionError(name)
print("clean")
kernels.fault("OutOfBounds", [1024 - 32], 32, flags=flags)
print("inside")
kernels.fault("OutOfBounds", [1024 - 31], 32, flags=flags)
print("not reached")
"""


def test_interpret_under_the_address_sanitizer():
    """Conformance kernels have no errors, also after failed launches, and a read beyond the end of shared memory is
    found."""
    preload = builder.libraries("libasan", "libstdc++")
    if not preload:
        pytest.skip("no libasan")
    kernels.build_library("interpret", (SANITIZE,))
    table = (builder.ROOT / kernels.CONFORMANCE).read_text()
    names = {*re.search(r"named<(.*?)>;", table, re.S)[1].replace(",", " ").split()} - {"Trap", "Spins"}
    assert len(names) > 20
    code = SANITIZED.format(names=" ".join(sorted(names)))
    done = builder.run_python("-c", code, LD_PRELOAD=preload, ASAN_OPTIONS="detect_leaks=0")
    assert done.stdout.split() == ["clean", "inside"], done.stdout + done.stderr
    assert done.returncode != 0
    assert re.search(r"AddressSanitizer: heap-buffer-overflow .*READ of size 4", done.stderr, re.S)
    assert f"heap-buffer-overflow {places('OutOfBounds')[0].rstrip(':')} in run" in done.stderr
