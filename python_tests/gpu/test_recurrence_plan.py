"""Which kernel runs which call, and its launch parameters: the edges of the table."""

import math
from types import SimpleNamespace

import pytest
import torch
from torch._subclasses import FakeTensorMode

from python_tests.gpu.recurrences import FACE, plan
from rnnkern import _extension
from rnnkern.ops import explain, recurrence
from rnnkern.ops._recurrence.autograd import RESIDENT_CELLS

if not _extension.available:
    pytest.skip(f"no compiled part: {_extension.reason}", allow_module_level=True)

H100 = (9, 0, 132, 232448, 16, 7)
A100 = (8, 0, 108, 166912)
L4 = (8, 9, 58, 101376)
B200 = (10, 0, 148, 232448, 18, 8)
T4 = (7, 5, 40, 65536)
DEVICES = {"H100": H100, "A100": A100, "L4": L4, "B200": B200}
TOO_LARGE = {"A100": {"lstm"}, "L4": {"lstm", "gru", "gru_reset_before", "goru"}}
"""Cells whose R of 128 units in float32 does not fit into the shared memory of a device."""
F32, BF16, F16, F64 = torch.float32, torch.bfloat16, torch.float16, torch.float64
DTYPES = (F32, BF16, F16)


@pytest.mark.parametrize("cell", RESIDENT_CELLS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("hidden", "heads", "padded"),
    [(1, 1, 32), (32, 1, 32), (33, 1, 64), (64, 1, 64), (65, 1, 128), (128, 1, 128), (768, 12, 64), (768, 24, 32),
     (257, 257, 32), (1024, 8, 128)],
)  # fmt: skip
def test_heads_that_fit_stay_on_a_block(cell, dtype, hidden, heads, padded):
    columns = 4 if dtype == F32 else 8
    for device, facts in DEVICES.items():
        too_large = dtype == F32 and padded == 128 and cell in TOO_LARGE.get(device, ())
        for batch in (0, 1, 8, 9, 100):
            found = plan(cell, dtype, (10, batch, hidden, heads), facts)
            if too_large and heads == 1:
                assert found["kernel"] == "grid"  # these devices have no clusters
                continue
            if too_large:
                assert found["kernel"] == "stepwise"
                assert f"{facts[3]}" in found["reason"]
                continue
            assert (found["kernel"], found["padded"]) == ("block", padded)
            assert f"{hidden // heads} units" in found["reason"]
            for shape in (found["forward"], found["backward"]):
                assert shape["columns"] == columns
                assert shape["blocks"] == heads * math.ceil(batch / columns)  # each head of each sequence once
                assert 32 <= shape["threads"] <= 512
                assert shape["threads"] % 32 == 0
                assert 0 < shape["shared_bytes"] <= facts[3]


NONE = {"blocks": 0, "threads": 0, "columns": 0, "shared_bytes": 0, "cluster": 1}
EDGES = [
    # A block is too small.
    ("lstm", F32, (3, 258, 2), B200, "stepwise", "129 units"),
    ("gru", F64, (3, 32, 1), H100, "stepwise", "float64"),
    ("lstm_projected", F32, (3, 32, 1), H100, "stepwise", "this cell"),
    ("gru", F64, (3, 129, 1), H100, "stepwise", "129 units"),
    ("gru", F16, (3, 129, 1), T4, "stepwise", "129 units"),
    ("gru", F16, (3, 32, 1), T4, "stepwise", "capability 8.0"),
    ("lstm", F32, (3, 128, 1), (9, 0, 132, 150000, 16, 7), "cluster", "128 units"),
    # Numbers that 32 bits do not count: of sequences, of units, and of elements between the sequences of a tile.
    ("tanh", F32, (2**28, 8, 1), H100, "stepwise", "2^28"),
    ("tanh", F32, (2**28 - 1, 8, 1), H100, "block", "8 units"),
    ("tanh", F32, (2, 2**28, 2**27), H100, "stepwise", "2^28"),
    ("lstm", F32, (8, 2**24, 2**17), H100, "block", "128 units"),
    ("lstm", F32, (8, 2**25, 2**18), H100, "stepwise", "H beyond 2^24 has no block kernel"),
    # The batch is too large for the clusters.
    ("gru", BF16, (224, 385, 1), H100, "cluster", "385 units"),
    ("gru", BF16, (225, 385, 1), H100, "grid", "385 units"),
    ("lstm", F32, (112, 512, 1), H100, "cluster", "512 units"),
    ("lstm", F32, (113, 512, 1), H100, "grid", "512 units"),
    ("lstm", BF16, (224, 768, 1), H100, "cluster", "768 units"),
    ("lstm", BF16, (225, 768, 1), H100, "stepwise", "768 units"),
    # A cluster is too small, or there is none.
    ("tanh", BF16, (16, 1025, 1), H100, "grid", "1025 units"),
    ("lstm", BF16, (16, 769, 1), H100, "grid", "769 units"),
    ("lstm", F32, (16, 513, 1), B200, "grid", "513 units"),
    ("lstm", BF16, (16, 768, 1), A100, "grid", "768 units"),
    ("lstm", F16, (16, 512, 1), (*H100[:4], 16, 0), "grid", "512 units"),
    ("lstm", F16, (16, 384, 1), (*H100[:4], 0, 7), "grid", "384 units"),
    # So is the whole device.
    ("tanh", BF16, (1, 2113, 1), H100, "stepwise", "133", "132"),
    ("tanh", F32, (1, 1057, 1), H100, "stepwise", "133", "132"),
    ("lstm", BF16, (1, 2048, 1), A100, "stepwise", "capability 9.0", "128", "108"),
    ("lstm", F16, (1, 512, 1), (9, 0, 31, H100[3], 16, 0), "stepwise", "cluster of 16", "32", "31"),
    ("lstm", F16, (1, 384, 1), (9, 0, 23, H100[3], 0, 7), "stepwise", "cluster of 8", "24", "23"),
    ("lstm", F16, (65, 2048, 1), H100, "stepwise", "65 sequences", "64"),
    ("lstm", F16, (129, 1024, 1), H100, "stepwise", "129 sequences", "128"),
]
"""Cell, dtype, (batch, units, heads), device, the kernel, and what the reason names."""


@pytest.mark.parametrize("edge", EDGES, ids=str)
def test_the_edges_of_what_a_kernel_keeps(edge):
    cell, dtype, sizes, facts, kernel, *named = edge
    found = plan(cell, dtype, (10, *sizes), facts)
    assert found["kernel"] == kernel
    assert [said for said in named if said not in found["reason"]] == []
    if kernel == "stepwise":
        assert (found["padded"], found["forward"], found["backward"]) == (0, NONE, NONE)


def test_a_number_of_steps_that_32_bits_do_not_count_goes_step_by_step():
    assert plan("tanh", F32, (2**28, 1, 8, 1), H100)["kernel"] == "stepwise"
    assert plan("tanh", F32, (2**28 - 1, 1, 8, 1), H100)["kernel"] == "block"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_zoneout_and_dropout_go_step_by_step(dtype):
    found = plan("lstm", dtype, (10, 3, 32, 1), H100, noisy=True)
    assert found["kernel"] == "stepwise"
    assert "zoneout and dropout" in found["reason"]
    assert found["chunk_steps"] == plan("lstm", dtype, (10, 3, 32, 1), H100)["chunk_steps"]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("kernel", "sizes", "clusters"), [("block", (256, 2), ()), ("cluster", (512, 1), (16, 7)), ("grid", (1024, 1), ())]
)
def test_shared_memory_that_is_too_small_says_so(kernel, sizes, clusters, dtype):
    """The kernel runs exactly at the limit, and not with one byte less."""

    def on(shared_bytes):
        return plan("lstm", dtype, (10, 3, *sizes), (9, 0, 31 if clusters else 132, shared_bytes, *clusters))

    found = on(H100[3])
    needs = max(found[way]["shared_bytes"] for way in ("forward", "backward"))
    assert found["kernel"] == kernel
    assert on(needs) == found
    refused = on(needs - 1)
    assert refused["kernel"] != kernel
    assert all(f"{size}" in refused["reason"] for size in (needs, needs - 1))


# ---- dense R of more than 128 units: clusters


@pytest.mark.parametrize(
    ("cell", "dtype", "hidden", "padded", "blocks", "tf32"),
    [("lstm", BF16, 129, 256, 8, False), ("lstm", F16, 257, 384, 8, False), ("gru", BF16, 385, 512, 16, False),
     ("gru_reset_before", F16, 640, 640, 16, False), ("lstm", BF16, 768, 768, 16, False),
     ("tanh", BF16, 769, 1024, 16, False), ("modrelu", F16, 1024, 1024, 16, False), ("lstm", F32, 256, 256, 8, False),
     ("gru", F32, 300, 384, 16, False), ("euler", F32, 512, 512, 16, False), ("lstm", F32, 129, 256, 8, True),
     ("gru", F32, 257, 384, 16, True), ("gru_reset_before", F32, 512, 512, 16, True), ("tanh", F32, 513, 640, 16, True),
     ("modrelu", F32, 1024, 1024, 16, True)],
)  # fmt: skip
def test_a_dense_r_stays_on_a_cluster(cell, dtype, hidden, padded, blocks, tf32):
    """In TF32 where that is allowed."""
    most = 8 if dtype == F32 and not tf32 else 16  # two groups
    resident = H100[4] if blocks == 8 else H100[5]
    for batch in (0, 1, 16, resident + 1, resident * most, 2 * resident * most):
        found = plan(cell, dtype, (10, batch, hidden, 1), H100, tf32=tf32)
        assert (found["kernel"], found["padded"]) == ("cluster_tf32" if tf32 else "cluster", padded)
        assert all(said in found["reason"] for said in (f"{hidden} units", f"{blocks} blocks"))
        assert tf32 == found["reason"].endswith("in TF32 as torch.backends.cudnn.rnn.fp32_precision allows")
        assert found["chunk_steps"] >= 256
        each = max(1, math.ceil(batch / resident))  # all clusters are used before any gets more
        for way in ("forward", "backward"):
            # The backward pass of the largest tiles has shared memory for one group only.
            one = way == "backward" and ((padded == 768 and cell == "lstm") or (padded == 1024 and tf32))
            columns, shape = min(most // 2 if one else most, each), found[way]
            assert (shape["columns"], shape["cluster"]) == (columns, blocks)
            assert shape["blocks"] == blocks * math.ceil(batch / columns)
            assert shape["threads"] in (192, 256)
            assert 0 < shape["shared_bytes"] <= H100[3]


@pytest.mark.parametrize(
    ("cell", "dtype", "hidden", "facts", "noisy"),
    [("lstm", F32, 128, H100, False), ("lstm", F32, 513, H100, False), ("tanh", F32, 1025, H100, False),
     ("lstm", F32, 512, A100, False), ("lstm", F32, 512, H100, True), ("lstm", BF16, 512, H100, False),
     ("lstm", F16, 512, H100, False), ("lstm", F64, 512, H100, False)],
)  # fmt: skip
def test_tf32_changes_nothing_elsewhere(cell, dtype, hidden, facts, noisy):
    sizes = (10, 3, hidden, 1)
    assert plan(cell, dtype, sizes, facts, noisy, tf32=True) == plan(cell, dtype, sizes, facts, noisy)


# ---- dense R on all multiprocessors


@pytest.mark.parametrize("cell", RESIDENT_CELLS)
@pytest.mark.parametrize(
    ("dtype", "hidden", "batch", "blocks", "columns"),
    [
        (BF16, 129, 1, 9, 8),
        (BF16, 768, 8, 48, 8),
        (F16, 768, 16, 96, 8),  # two copies of R, each for 8 sequences
        (BF16, 768, 17, 96, 16),
        (BF16, 768, 33, 96, 24),
        (BF16, 768, 0, 48, 0),
        (F16, 1024, 128, 128, 64),
        (BF16, 2048, 64, 128, 64),
        (F32, 129, 17, 51, 8),
        (F32, 512, 16, 128, 8),
        (F32, 1024, 16, 128, 16),
    ],
)
def test_a_dense_r_is_shared_out_over_the_multiprocessors(cell, dtype, hidden, batch, blocks, columns):
    """On devices without clusters."""
    for device in (H100, B200):
        found = plan(cell, dtype, (10, batch, hidden, 1), (*device[:2], 132, device[3]))
        assert (found["kernel"], found["padded"]) == ("grid", 0)
        members = math.ceil(hidden / (8 if dtype == F32 else 16))
        assert all(said in found["reason"] for said in (f"{hidden} units", f"{members} blocks"))
        for shape in (found["forward"], found["backward"]):
            assert (shape["blocks"], shape["columns"], shape["threads"]) == (blocks, columns, 256)
            assert shape["cluster"] == 1
            assert shape["blocks"] <= 132
            assert shape["blocks"] * shape["columns"] >= members * batch
            assert 0 < shape["shared_bytes"] <= device[3]


@pytest.mark.parametrize(
    ("facts", "batch", "wanted"),
    [(H100, 16, 264), (H100, 66, 64), (H100, 67, 64), (H100, 1, 4224), (H100, 0, 4224), (A100, 16, 216),
     (T4, 3, 426), (H100, 10**6, 64)],
)  # fmt: skip
def test_chunks_fill_the_device_and_are_at_least_64_steps(facts, batch, wanted):
    for dtype in (*DTYPES, F64):
        for hidden in (32, 1000):
            assert plan("lstm", dtype, (5, batch, hidden, 1), facts)["chunk_steps"] == wanted


@pytest.mark.parametrize("sizes", [(1, 1, 5, 2), (1, 1, 4, 0), (1, 1, 4)])
def test_the_plan_of_nonsense_is_refused(sizes):
    with pytest.raises(RuntimeError, match="recurrence_plan: wants a cell with a kernel"):
        plan("tanh", F32, sizes, H100)
    with pytest.raises(RuntimeError, match="recurrence_plan: wants a cell with a kernel"):
        plan("a cell", F32, (1, 1, 4, 1), H100)


# ---- without a device


def explained(hidden=4, **options):
    with FakeTensorMode():
        shapes = ((5, 2, 3 * hidden), (3 * hidden, hidden), (2, hidden))
        u, R, h0 = (torch.empty(shape, device="cuda") for shape in shapes)
        return explain(recurrence, "gru", u, R, (h0,), **options)


@pytest.mark.parametrize(("facts", "said"), [
    (H100, "block, for heads of 4 units stay on one block"),
    (T4, "stepwise, for the block kernel needs compute capability 8.0"),
])  # fmt: skip
def test_explain_with_a_device_names_the_kernel(monkeypatch, facts, said):
    monkeypatch.setattr(_extension, "cuda_refusal", lambda device: None)
    monkeypatch.setattr(_extension, "device_facts", lambda device: facts)
    choice, noisy = explained(), explained(zoneout=0.1)
    assert choice.implementation == noisy.implementation == "cuda"
    assert choice.reason.startswith(f"the cuda kernel serves this call: {said}; ")
    assert ": stepwise, for zoneout and dropout have no block kernel; " in noisy.reason
    assert explained(dropout=0.1) == explained()  # without a seed nothing is dropped


@pytest.mark.parametrize(("setting", "kernel"), [("ieee", "cluster"), ("tf32", "cluster_tf32")])
def test_explain_follows_the_setting_for_tf32(monkeypatch, setting, kernel):
    monkeypatch.setattr(_extension, "cuda_refusal", lambda device: None)
    monkeypatch.setattr(_extension, "device_facts", lambda device: H100)
    monkeypatch.setattr(torch.backends.cudnn.rnn, "fp32_precision", setting)
    assert explained(200).reason.startswith(f"the cuda kernel serves this call: {kernel}, for R of 200 units stays on")


def test_the_setting_for_tf32_is_that_of_pytorchs_own_layers(monkeypatch):
    allows = torch.ops.rnnkern.allows_tf32
    for allowed in (True, False):
        monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", allowed)
        assert allows() is allowed
    for setting, allowed in (("ieee", False), ("tf32", True), ("none", False)):
        monkeypatch.setattr(torch.backends.cudnn.rnn, "fp32_precision", setting)
        assert allows() is allowed
    of_products = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("high")
        assert allows() is False
    finally:
        torch.set_float32_matmul_precision(of_products)


@pytest.mark.parametrize(("device", "wanted"), [("cpu", True), ("cuda", False)])
def test_gates_are_saved_on_a_cpu_and_not_on_a_gpu(monkeypatch, device, wanted):
    monkeypatch.setattr(_extension, "cuda_refusal", lambda device: None)
    asked = []
    call = lambda cell, reverse, saving, *_: asked.append(saving[0]) or (None,) * 2  # noqa: E731
    monkeypatch.setattr(FACE, "differentiable", call)
    with FakeTensorMode():
        u, R, h0 = (torch.empty(x, device=device) for x in ((5, 2, 12), (12, 4), (2, 4)))
        for save_gates in (None, True, False):
            recurrence("gru", u.requires_grad_(), R, (h0,), save_gates=save_gates)
    assert asked == [wanted, True, False]


def test_the_compiler_takes_the_choice_for_a_constant(monkeypatch):
    cuda = SimpleNamespace(is_available=lambda: True, get_device_capability=lambda device: (9, 0))
    # torch.compile queries torch.cuda too, so only rnnkern sees the replacement.
    monkeypatch.setattr(_extension, "torch", SimpleNamespace(cuda=cuda, version=torch.version))
    monkeypatch.setattr(_extension, "_cuda_refusal", lambda version, capability: "it is old")
    torch.compiler.reset()
    told = torch.compile(lambda x: (x + 1, _extension.cuda_refusal(x.device)), fullgraph=True, backend="eager")
    assert told(torch.zeros(1))[1] == "it is old"


# ---- RNNKERN_CUDA_KERNELS


@pytest.mark.parametrize("tf32", [False, True])
@pytest.mark.parametrize(
    ("kernels", "hidden", "kernel"),
    [("grid", 20, "grid"), ("cluster,grid", 20, "cluster"), ("grid,block", 20, "block"), ("grid", 129, "grid"),
     ("block", 129, "stepwise")],
)  # fmt: skip
def test_the_environment_leaves_kernels_out(kernels, hidden, kernel, tf32, monkeypatch):
    monkeypatch.setenv("RNNKERN_CUDA_KERNELS", kernels)
    found = plan("gru", F32, (10, 3, hidden, 1), H100, tf32=tf32)
    assert found["kernel"].removesuffix("_tf32") == kernel
    assert (kernel == "stepwise") == ("RNNKERN_CUDA_KERNELS" in found["reason"])


def test_the_environment_names_kernels_that_there_are(monkeypatch):
    monkeypatch.setenv("RNNKERN_CUDA_KERNELS", "block,gird")
    with pytest.raises(RuntimeError, match="must be a list of block, cluster, grid and stepwise, got 'block,gird'"):
        plan("gru", BF16, (10, 3, 20, 1), H100)
