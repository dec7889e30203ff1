"""Which kernel runs which call, and its launch parameters: the edges of the table."""

import math
from types import SimpleNamespace

import pytest
import torch
from torch._subclasses import FakeTensorMode

from python_tests.gpu.recurrences import FACE, plan
from rnnkern import _compiler, _extension
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
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@pytest.mark.parametrize("cell", RESIDENT_CELLS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("hidden", "heads", "padded"),
    [(1, 1, 32), (32, 1, 32), (33, 1, 64), (64, 1, 64), (65, 1, 128), (128, 1, 128), (768, 12, 64), (768, 24, 32),
     (257, 257, 32), (1024, 8, 128)],
)  # fmt: skip
def test_heads_that_fit_stay_on_a_block(cell, dtype, hidden, heads, padded):
    columns = 4 if dtype == torch.float32 else 8
    for device, facts in DEVICES.items():
        too_large = dtype == torch.float32 and padded == 128 and cell in TOO_LARGE.get(device, ())
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
STEPWISE = [
    ("lstm", torch.float32, (258, 2), B200, "129 units"),
    ("gru", torch.float64, (32, 1), H100, "float64"),
    ("lstm_projected", torch.float32, (32, 1), H100, "this cell"),
    ("gru_layer_norm", torch.bfloat16, (512, 1), H100, "this cell"),
    ("gru", torch.float64, (129, 1), H100, "129 units"),
    ("gru", torch.float16, (129, 1), T4, "129 units"),
    ("gru", torch.float16, (32, 1), T4, "capability 8.0"),
]


@pytest.mark.parametrize(("cell", "dtype", "units", "facts", "named"), STEPWISE)
def test_the_rest_goes_step_by_step(cell, dtype, units, facts, named):
    found = plan(cell, dtype, (10, 3, *units), facts)
    assert (found["kernel"], found["padded"]) == ("stepwise", 0)
    assert (found["forward"], found["backward"]) == (NONE, NONE)
    assert named in found["reason"]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_zoneout_and_dropout_go_step_by_step(dtype):
    found = plan("lstm", dtype, (10, 3, 32, 1), H100, noisy=True)
    assert found["kernel"] == "stepwise"
    assert "zoneout and dropout" in found["reason"]
    assert found["chunk_steps"] == plan("lstm", dtype, (10, 3, 32, 1), H100)["chunk_steps"]


@pytest.mark.parametrize("sizes", [(2**28, 1, 8, 1), (2, 2**28, 8, 1), (2, 2, 2**28, 2**27)])
def test_sizes_beyond_32_bits_go_step_by_step(sizes):
    found = plan("tanh", torch.float32, sizes, H100)
    assert found["kernel"] == "stepwise"
    assert "2^28" in found["reason"]
    largest = tuple(min(size, 2**28 - 1) for size in sizes[:2])
    assert plan("tanh", torch.float32, (*largest, 8, 1), H100)["kernel"] == "block"


def test_rows_too_wide_for_an_int_go_step_by_step():
    """The distance between the sequences of a tile is several times G H elements."""
    assert plan("lstm", torch.float32, (1, 8, 2**24, 2**17), H100)["kernel"] == "block"
    wider = plan("lstm", torch.float32, (1, 8, 2**25, 2**18), H100)
    assert wider["reason"] == "H beyond 2^24 has no block kernel"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_shared_memory_that_is_too_small_says_so(dtype):
    """The block kernel runs exactly at the limit, and not with one byte less."""
    found = plan("lstm", dtype, (10, 3, 256, 2), H100)
    needs = max(found[way]["shared_bytes"] for way in ("forward", "backward"))
    assert plan("lstm", dtype, (10, 3, 256, 2), (9, 0, 132, needs)) == found
    refused = plan("lstm", dtype, (10, 3, 256, 2), (9, 0, 132, needs - 1))
    assert refused["kernel"] == "stepwise"
    assert all(f"{size}" in refused["reason"] for size in (needs, needs - 1))


# ---- dense R of more than 128 units: clusters


@pytest.mark.parametrize(
    ("cell", "dtype", "hidden", "padded", "blocks"),
    [("lstm", torch.bfloat16, 129, 256, 8), ("lstm", torch.float16, 257, 384, 8), ("gru", torch.bfloat16, 385, 512, 16),
     ("gru_reset_before", torch.float16, 640, 640, 16), ("lstm", torch.bfloat16, 768, 768, 16),
     ("tanh", torch.bfloat16, 769, 1024, 16), ("modrelu", torch.float16, 1024, 1024, 16),
     ("lstm", torch.float32, 256, 256, 8), ("gru", torch.float32, 300, 384, 16),
     ("euler", torch.float32, 512, 512, 16)],
)  # fmt: skip
def test_a_dense_r_stays_on_a_cluster(cell, dtype, hidden, padded, blocks):
    most = 8 if dtype == torch.float32 else 16  # two groups
    resident = H100[4] if blocks == 8 else H100[5]
    for batch in (0, 1, 16, resident + 1, resident * most, 2 * resident * most):
        found = plan(cell, dtype, (10, batch, hidden, 1), H100)
        assert (found["kernel"], found["padded"]) == ("cluster", padded)
        assert all(said in found["reason"] for said in (f"{hidden} units", f"{blocks} blocks"))
        assert found["chunk_steps"] >= 256
        each = max(1, math.ceil(batch / resident))  # all clusters are used before any gets more
        for way in ("forward", "backward"):
            # The backward pass of an LSTM with 768 units has shared memory for one group only.
            one = way == "backward" and padded == 768 and cell == "lstm"
            columns, shape = min(8 if one else most, each), found[way]
            assert (shape["columns"], shape["cluster"]) == (columns, blocks)
            assert shape["blocks"] == blocks * math.ceil(batch / columns)
            assert shape["threads"] in (192, 256)
            assert 0 < shape["shared_bytes"] <= H100[3]


@pytest.mark.parametrize(
    ("cell", "dtype", "hidden", "most", "kernel"),
    [("gru", torch.bfloat16, 385, 224, "grid"), ("lstm", torch.float32, 512, 112, "grid"),
     ("lstm", torch.bfloat16, 768, 224, "stepwise")],
)  # fmt: skip
def test_a_batch_beyond_the_clusters_goes_to_the_grid_where_it_can(cell, dtype, hidden, most, kernel):
    assert plan(cell, dtype, (10, most, hidden, 1), H100)["kernel"] == "cluster"
    found = plan(cell, dtype, (10, most + 1, hidden, 1), H100)
    assert found["kernel"] == kernel
    assert f"{hidden} units" in found["reason"]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_shared_memory_that_is_too_small_for_a_cluster_says_so(dtype):
    def on(shared_bytes):
        return plan("lstm", dtype, (10, 3, 512, 1), (9, 0, 31, shared_bytes, 16, 7))

    found = on(H100[3])
    needs = max(found[way]["shared_bytes"] for way in ("forward", "backward"))
    assert found["kernel"] == "cluster"
    assert on(needs) == found
    refused = on(needs - 1)
    assert refused["kernel"] != "cluster"
    assert all(f"{size}" in refused["reason"] for size in (needs, needs - 1))


def test_what_fits_no_block_goes_to_a_cluster():
    """Also with few units."""
    facts = (9, 0, 132, 150000, 16, 7)
    found = plan("lstm", torch.float32, (10, 3, 128, 1), facts)
    assert (found["kernel"], found["padded"]) == ("cluster", 256)


# ---- dense R on all multiprocessors


@pytest.mark.parametrize("cell", RESIDENT_CELLS)
@pytest.mark.parametrize(
    ("dtype", "hidden", "batch", "blocks", "columns"),
    [
        (torch.bfloat16, 129, 1, 9, 8),
        (torch.bfloat16, 768, 8, 48, 8),
        (torch.float16, 768, 16, 96, 8),  # two copies of R, each for 8 sequences
        (torch.bfloat16, 768, 17, 96, 16),
        (torch.bfloat16, 768, 33, 96, 24),
        (torch.bfloat16, 768, 0, 48, 0),
        (torch.float16, 1024, 128, 128, 64),
        (torch.bfloat16, 2048, 64, 128, 64),
        (torch.float32, 129, 17, 51, 8),
        (torch.float32, 512, 16, 128, 8),
        (torch.float32, 1024, 16, 128, 16),
    ],
)
def test_a_dense_r_is_shared_out_over_the_multiprocessors(cell, dtype, hidden, batch, blocks, columns):
    """On devices without clusters."""
    for device in (H100, B200):
        found = plan(cell, dtype, (10, batch, hidden, 1), (*device[:2], 132, device[3]))
        assert (found["kernel"], found["padded"]) == ("grid", 0)
        members = math.ceil(hidden / (8 if dtype == torch.float32 else 16))
        assert all(said in found["reason"] for said in (f"{hidden} units", f"{members} blocks"))
        for shape in (found["forward"], found["backward"]):
            assert (shape["blocks"], shape["columns"], shape["threads"]) == (blocks, columns, 256)
            assert shape["cluster"] == 1
            assert shape["blocks"] <= 132
            assert shape["blocks"] * shape["columns"] >= members * batch
            assert 0 < shape["shared_bytes"] <= device[3]


@pytest.mark.parametrize(
    ("cell", "dtype", "hidden", "facts"),
    [("tanh", torch.bfloat16, 1025, H100), ("lstm", torch.bfloat16, 769, H100), ("lstm", torch.float32, 513, B200),
     ("lstm", torch.bfloat16, 768, A100), ("lstm", torch.float16, 512, (*H100[:4], 16, 0)),
     ("lstm", torch.float16, 384, (*H100[:4], 0, 7))],
)  # fmt: skip
def test_what_fits_no_cluster_goes_to_the_grid(cell, dtype, hidden, facts):
    assert plan(cell, dtype, (10, 16, hidden, 1), facts)["kernel"] == "grid"


@pytest.mark.parametrize(
    ("cell", "dtype", "batch", "hidden", "facts", "named"),
    [
        ("tanh", torch.bfloat16, 1, 2113, H100, ("133", "132")),
        ("tanh", torch.float32, 1, 1057, H100, ("133", "132")),
        ("lstm", torch.bfloat16, 1, 2048, A100, ("capability 9.0", "128", "108")),
        ("lstm", torch.float16, 1, 512, (9, 0, 31, H100[3], 16, 0), ("cluster of 16", "32", "31")),
        ("lstm", torch.float16, 1, 384, (9, 0, 23, H100[3], 0, 7), ("cluster of 8", "24", "23")),
        ("lstm", torch.float16, 65, 2048, H100, ("65 sequences", "64")),
        ("lstm", torch.float16, 129, 1024, H100, ("129 sequences", "128")),
    ],
)
def test_what_no_kernel_keeps_goes_step_by_step(cell, dtype, batch, hidden, facts, named):
    found = plan(cell, dtype, (10, batch, hidden, 1), facts)
    assert (found["kernel"], found["padded"]) == ("stepwise", 0)
    assert (found["forward"], found["backward"]) == (NONE, NONE)
    assert [said for said in named if said not in found["reason"]] == []


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_share_of_r_that_is_too_large_says_so(dtype):
    sizes = (10, 3, 1024, 1)
    found = plan("lstm", dtype, sizes, H100)
    needs = max(found[way]["shared_bytes"] for way in ("forward", "backward"))
    assert plan("lstm", dtype, sizes, (9, 0, 132, needs)) == found
    refused = plan("lstm", dtype, sizes, (9, 0, 132, needs - 1))
    assert refused["kernel"] == "stepwise"
    assert all(f"{size}" in refused["reason"] for size in (needs, needs - 1))


@pytest.mark.parametrize(
    ("facts", "batch", "wanted"),
    [(H100, 16, 264), (H100, 66, 64), (H100, 67, 64), (H100, 1, 4224), (H100, 0, 4224), (A100, 16, 216),
     (T4, 3, 426), (H100, 10**6, 64)],
)  # fmt: skip
def test_chunks_fill_the_device_and_are_at_least_64_steps(facts, batch, wanted):
    for dtype in (*DTYPES, torch.float64):
        for hidden in (32, 1000):
            assert plan("lstm", dtype, (5, batch, hidden, 1), facts)["chunk_steps"] == wanted


@pytest.mark.parametrize("sizes", [(1, 1, 5, 2), (1, 1, 4, 0), (1, 1, 4)])
def test_the_plan_of_nonsense_is_refused(sizes):
    with pytest.raises(RuntimeError, match="recurrence_plan: wants a cell with a kernel"):
        plan("tanh", torch.float32, sizes, H100)
    with pytest.raises(RuntimeError, match="recurrence_plan: wants a cell with a kernel"):
        plan("a cell", torch.float32, (1, 1, 4, 1), H100)


# ---- without a device


def explained(cell="gru", dtype=torch.float32, device="cuda", **options):
    with FakeTensorMode():
        u, R, h0 = (torch.empty(shape, dtype=dtype, device=device) for shape in ((5, 2, 12), (12, 4), (2, 4)))
        return explain(recurrence, cell, u, R, (h0,), **options)


def test_explain_leaves_the_kernel_to_the_device(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    said = "the cuda kernel serves this call; the CUDA variant is chosen at run time; no device found"
    for dtype in (*DTYPES, torch.float64):
        assert explained(dtype=dtype) == ("cuda", said)


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
    without = "the cuda kernel serves this call: stepwise, for zoneout and dropout have no block kernel; "
    assert noisy.reason.startswith(without)
    assert explained(dropout=0.1) == explained()  # without a seed nothing is dropped


@pytest.fixture
def refused(monkeypatch):
    """The result of explain on a GPU with this compute capability and a PyTorch built with this version of CUDA."""

    def explain_there(version, capability):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
        monkeypatch.setattr(torch.version, "cuda", version)
        _extension._cuda_refusal.cache_clear()
        return explained()

    yield explain_there
    _extension._cuda_refusal.cache_clear()


@pytest.mark.parametrize(("version", "capability", "said"), [
    ("12.8", (9, 0), "need a PyTorch built with CUDA 13, got torch"),
    (None, (9, 0), "need a PyTorch built with CUDA 13, got torch"),
    ("13.0", (7, 5), "need a GPU with compute capability 8.0 or later, got 7.5"),
])  # fmt: skip
def test_explain_says_why_no_kernel_serves_a_gpu(version, capability, said, refused):
    choice = refused(version, capability)
    assert choice.implementation == "reference"
    assert choice.reason.startswith("no cuda: ")
    assert said in choice.reason
    assert choice.reason.endswith("; no cpu: the tensors are on cuda:0")


def test_explain_says_that_there_is_no_compiler(monkeypatch, refused, tmp_path):
    monkeypatch.setattr(_compiler, "nvrtc", lambda: None)
    monkeypatch.setenv("RNNKERN_CACHE_DIR", str(tmp_path))  # an empty cache: compiled kernels would be enough
    reason = refused("13.0", (9, 0)).reason
    assert reason.startswith("no cuda: NVRTC (libnvrtc.so.13), which compiles rnnkern's CUDA kernels")


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


@pytest.mark.parametrize(
    ("kernels", "hidden", "kernel"),
    [("grid", 20, "grid"), ("cluster,grid", 20, "cluster"), ("grid,block", 20, "block"), ("grid", 129, "grid"),
     ("block", 129, "stepwise")],
)  # fmt: skip
def test_the_environment_leaves_kernels_out(kernels, hidden, kernel, monkeypatch):
    monkeypatch.setenv("RNNKERN_CUDA_KERNELS", kernels)
    found = plan("gru", torch.bfloat16, (10, 3, hidden, 1), H100)
    assert found["kernel"] == kernel
    assert (kernel == "stepwise") == ("RNNKERN_CUDA_KERNELS" in found["reason"])


def test_the_environment_names_kernels_that_there_are(monkeypatch):
    monkeypatch.setenv("RNNKERN_CUDA_KERNELS", "block,gird")
    with pytest.raises(RuntimeError, match="must be a list of block, cluster, grid and stepwise, got 'block,gird'"):
        plan("gru", torch.bfloat16, (10, 3, 20, 1), H100)
