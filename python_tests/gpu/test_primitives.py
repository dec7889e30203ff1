"""Every primitive of csrc/device/device.h behaves as its comment says, on the interpreter for several seeds."""

import numpy as np
import pytest
import torch

from python_tests.gpu import builder, layouts

RNG = np.random.default_rng(0)
WORDS = RNG.integers(1, 2**32, 4096, dtype=np.uint32)


def assert_same(actual, wanted):
    np.testing.assert_array_equal(actual, np.asarray(wanted).reshape(-1).astype(np.uint32))


# ---- ids, shared memory, barriers


def test_ids(launch):
    got = launch("Ids", [0], 3 * 96 * 5).reshape(3, 96, 5)
    thread = np.arange(96)
    for block in range(3):
        wanted = [thread, np.full(96, block), np.full(96, 3), thread % 32, thread // 32]
        assert_same(got[block].T.reshape(-1), wanted)


def test_shared_memory_is_carved_into_aligned_arrays(launch):
    got = launch("SharedMemory", [1, 2, 3], 38)
    assert_same(got[:32], 7 + 9 + 5 + np.arange(31, -1, -1) + 3)
    assert_same(got[32:], [0, 16, 48, 48 + 512, 48 + 512 + 16, 0])


def test_block_barrier(launch):
    assert_same(launch("BlockBarrier", WORDS[:128], 128), np.roll(WORDS[:128], -5))


def test_warp_barrier(launch):
    assert_same(launch("WarpBarrier", WORDS[:128], 128), np.roll(WORDS[:128].reshape(4, 32), -5, axis=1))


def test_cluster_ids(launch):
    assert_same(launch("ClusterIds", [0], 16), [[block % 4, 4] for block in range(8)])


def test_cluster_barrier(launch):
    given = WORDS[: 8 * 64].reshape(2, 4, 64)
    got = launch("ClusterBarrier", given.reshape(-1), 4 * 8 * 64)
    assert_same(got[: 8 * 64], np.roll(given, -3, axis=1))


# ---- mbarriers and stores into other blocks


def test_mbarrier_phases(launch):
    wanted = WORDS[:64].astype(np.uint64)
    for _ in range(5):
        wanted = 3 * np.roll(wanted, -1) % 2**32
    assert_same(launch("MbarrierPhases", WORDS[:64], 64), wanted)


@pytest.mark.parametrize("size", [8, 16])
def test_store_async(launch, size):
    """Each block stores `value + 100 k + receiver` for the words k into each other block."""
    value = WORDS[: 8 * 64].astype(np.uint64).reshape(2, 4, 64)
    for _ in range(5):
        received = np.zeros_like(value)
        for receiver in range(4):
            for sender in range(4):
                for k in range(size // 4):
                    part = np.roll(value[:, sender], -1, axis=1) + 100 * k + receiver
                    received[:, receiver] += part * (sender + k + 1)
        value = received % 2**32
    assert_same(launch(f"StoreAsync<Word{size}>", WORDS[: 8 * 64], 8 * 64), value)


# ---- warps


def test_shuffle(launch):
    lanes = RNG.integers(0, 32, 64, dtype=np.uint32)
    values = RNG.standard_normal(64).astype(np.float32).view(np.uint32)
    wanted = values.reshape(2, 32)[np.arange(2)[:, None], lanes.reshape(2, 32)]
    assert_same(launch("Shuffle", np.concatenate([values, lanes]), 64), wanted)


def test_shuffle_xor(launch):
    got = launch("ShuffleXor", WORDS[:64], 5 * 64).reshape(5, 64)
    for k in range(5):
        assert_same(got[k], WORDS[np.arange(64) ^ (1 << k)])


def halves(words: np.ndarray) -> np.ndarray:
    """The last axis with 16-bit elements instead of words, low halves first."""
    return np.stack([words & 0xFFFF, words >> 16], -1).reshape(*words.shape[:-1], -1)


@pytest.mark.parametrize("transposed", [False, True], ids=["rows", "transposed"])
def test_load_matrices(launch, transposed):
    """Rows are given in any order, some of them twice."""
    rows = RNG.integers(0, 32, 32, dtype=np.uint32)
    matrices = halves(WORDS[:128].reshape(32, 4))[rows].reshape(4, 8, 8)
    if transposed:
        matrices = matrices.transpose(0, 2, 1)
    got = launch(f"LoadMatrices<{str(transposed).lower()}>", np.concatenate([WORDS[:128], rows]), 128)
    got = got.reshape(32, 4, 1)
    for (lane, element), place in layouts.LDMATRIX.items():
        for matrix in range(4):
            assert halves(got)[lane, matrix, element] == matrices[matrix][place]


STORAGES = ("bfloat16", "float16", "tfloat32")


def as_stored(storage: str, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Bits of the nearest values in this storage format, and the values themselves."""
    x = torch.tensor(np.asarray(values, np.float32))
    if storage == "tfloat32":
        rounded = x.view(torch.int32) & ~0x1FFF
        return rounded.numpy().view(np.uint32), rounded.view(torch.float32).double().numpy()
    x = x.to(getattr(torch, storage))
    return x.view(torch.uint16).numpy().astype(np.uint32), x.double().numpy()


def fragments(layout: layouts.Layout, bits: np.ndarray, wide: bool) -> np.ndarray:
    """Rearranges (products, rows, columns) into (products, 32, registers)."""
    elements = np.zeros((len(bits), 32, len(layout) // 32), np.uint32)
    for (lane, element), (row, column) in layout.items():
        elements[:, lane, element] = bits[:, row, column]
    return elements[..., ::2] | elements[..., 1::2] << 16 if wide else elements


def multiply(launch, storage: str, A, B, C) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A B + C as the primitive computes it, A B + C in float64, and the allowed rounding error."""
    wide = storage != "tfloat32"
    (a, A), (b, B) = as_stored(storage, A), as_stored(storage, B)
    C = np.asarray(C, np.float32)
    layout_a, layout_b = (layouts.A_16, layouts.B_16) if wide else (layouts.A_TF32, layouts.B_TF32)
    parts = [fragments(layout_a, a, wide), fragments(layout_b, b, wide), fragments(layouts.C, C.view(np.uint32), False)]
    count = len(A)
    lanes = np.concatenate(parts, 2)
    lanes = np.concatenate([lanes, np.zeros((-count % 64, *lanes.shape[1:]), np.uint32)]).reshape(
        -1, 64, *lanes.shape[1:]
    )
    got = [launch(f"Mma<{storage}>", np.ascontiguousarray(chunk).reshape(-1), 64 * 128) for chunk in lanes]
    got = np.concatenate(got).view(np.float32).reshape(-1, 32, 4)[:count]
    product = np.zeros((count, 16, 8), np.float32)
    for (lane, element), (row, column) in layouts.C.items():
        product[:, row, column] = got[:, lane, element]
    return product, A @ B + C, 2.0**-21 * (np.abs(A) @ np.abs(B) + np.abs(C))


@pytest.mark.parametrize("storage", STORAGES)
def test_mma_places(launch, storage):
    """One matrix has a single one and the other contains element numbers, so all products are exact."""
    depth = 8 if storage == "tfloat32" else 16
    places_a, places_b = np.eye(16 * depth).reshape(-1, 16, depth), np.eye(depth * 8).reshape(-1, depth, 8)
    numbers_a, numbers_b = 1.0 + np.arange(16 * depth).reshape(16, depth), 1.0 + np.arange(depth * 8).reshape(depth, 8)
    A = np.concatenate([places_a, np.broadcast_to(numbers_a, (len(places_b), 16, depth))])
    B = np.concatenate([np.broadcast_to(numbers_b, (len(places_a), depth, 8)), places_b])
    C = np.broadcast_to(1000.0 * np.arange(128).reshape(16, 8), (len(A), 16, 8))
    actual, wanted, _ = multiply(launch, storage, A, B, C)
    np.testing.assert_array_equal(actual, wanted)


@pytest.mark.parametrize("storage", STORAGES)
def test_mma_products(launch, storage):
    depth = 8 if storage == "tfloat32" else 16
    A, B, C = (RNG.standard_normal((64, *shape)) for shape in ((16, depth), (depth, 8), (16, 8)))
    actual, wanted, bound = multiply(launch, storage, A, B, C)
    assert (np.abs(actual - wanted) <= bound).all()


# ---- copies


@pytest.mark.parametrize("size", [4, 8, 16])
def test_copy_async(launch, size):
    words = 4 * 64 * size // 4
    got = launch(f"CopyAsync<{size}>", WORDS[:words], 2 * words)
    assert_same(got[:words], WORDS[:words])
    assert_same(got[words:], WORDS[:words][::-1])


# ---- words and flags in global memory


def test_relaxed_words(launch):
    wanted = WORDS[:256].astype(np.uint64).reshape(4, 64)
    for _ in range(6):
        x = np.roll(wanted, -1, axis=0)
        wanted = (x + 5 * (x + 1) + 7 * (x + 2)) % 2**32
    got = launch("RelaxedWords", WORDS[:256], 4 * 64 * 4 * 3)
    assert_same(got.reshape(3, 256, 4)[0, :, 0], wanted)


def test_flags_and_spin_until(launch):
    wanted = WORDS[:256].astype(np.uint64).reshape(4, 64)
    for _ in range(6):
        wanted = np.roll(wanted, -1, axis=0)[:, ::-1] + 1
    assert_same(launch("Flags", WORDS[:256], 256 + 6 * 256 + 4)[:256], wanted % 2**32)


# ---- storage


@pytest.mark.parametrize("storage", ["bfloat16", "float16"])
def test_widen_all_bit_patterns(launch, storage):
    patterns = torch.arange(65536, dtype=torch.int32).to(torch.uint16).view(getattr(torch, storage))
    wanted = patterns.float()
    got = torch.from_numpy(launch(f"Widen<{storage}>", [0], 65536).view(np.float32))
    assert torch.equal(got.isnan(), wanted.isnan())
    number = ~wanted.isnan()
    assert torch.equal(got.view(torch.int32)[number], wanted.view(torch.int32)[number])


@pytest.mark.parametrize("storage", ["bfloat16", "float16"])
def test_narrow_is_to_the_nearest_with_ties_to_even(launch, storage):
    """Inputs between neighboring values of the format: the lower value, the tie, and values slightly beside them; then
    random floats."""
    kept = torch.arange(0, 65536, 5, dtype=torch.int32).to(torch.uint16).view(getattr(torch, storage)).float()
    tie = {"bfloat16": 0x8000, "float16": 0x1000}[storage]
    bits = kept.view(torch.int32)
    x = torch.cat([bits, bits | tie, bits | tie - 1, bits | tie + 1]).numpy().view(np.uint32)
    x = np.concatenate([x, RNG.integers(0, 2**32, 65536 - len(x), dtype=np.uint32)])
    wanted = torch.from_numpy(x.view(np.float32)).to(getattr(torch, storage))
    got = launch(f"Narrow<{storage}>", x, 65536).astype(np.uint16)
    got = torch.from_numpy(got).view(getattr(torch, storage))
    assert torch.equal(got.isnan(), wanted.isnan())
    number = ~wanted.isnan()
    assert torch.equal(got.view(torch.int16)[number], wanted.view(torch.int16)[number])


def test_nearest_tfloat32_is_to_the_nearest_with_ties_away_from_zero(launch):
    """Inputs are TF32 values, ties, and values slightly beside them, some of which round to infinity; then random
    floats."""
    kept = (torch.arange(0, 2**19, 41) << 13).to(torch.uint32).view(torch.int32).numpy().view(np.uint32)
    x = np.concatenate([kept, kept | 0x1000, kept | 0xFFF, kept | 0x1001])
    x = np.concatenate([x, RNG.integers(0, 2**32, 65536 - len(x), dtype=np.uint32)])
    with np.errstate(invalid="ignore", over="ignore"):
        value = x.view(np.float32).astype(np.float64)
        ulp = 2.0 ** (np.maximum(np.frexp(value)[1], -125) - 11)
        wanted = (np.trunc(value / ulp + np.copysign(0.5, value)) * ulp).astype(np.float32)
    wanted[np.isinf(value)] = value[np.isinf(value)]
    got = launch("NearestTfloat32", x, 65536).view(np.float32)
    np.testing.assert_array_equal(got, wanted)


# ---- traps: in separate processes, because a trap makes the CUDA context unusable


@pytest.mark.parametrize(("name", "said", "of_cuda"), [
    ("Trap", "trap, block 0 thread 5", "unspecified launch failure"),
    ("Spins", "deadlock: 32 of 32 threads are stuck", "device-side assert triggered"),
])  # fmt: skip
def test_ends_with_an_error(backend, name, said, of_cuda):
    """A trap; and an endless spin, which hardware stops after some time."""
    code = f"from python_tests.gpu import kernels; kernels.launch({name!r}, [5], 1, backend={backend.name!r})"
    done = builder.run_python("-c", code)
    assert done.returncode == 1
    said = f"interpret: {said}" if backend.name == "interpret" else f"CUDA error: {of_cuda}"
    assert f"KernelError: {said}" in done.stderr
