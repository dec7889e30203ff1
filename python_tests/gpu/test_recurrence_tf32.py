"""The cluster kernel in TF32: compared with a reference whose products round like tensor cores, and its dependence on
PyTorch's setting."""

import math

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from python_tests.gpu.recurrences import off_kinks, plan
from python_tests.samples import check_recurrence, outputs_and_gradients, recurrence_sample
from python_tests.samples.rounded import RoundedProducts, to_tf32
from rnnkern import _extension, reference
from rnnkern.ops import explain, recurrence
from rnnkern.ops._recurrence.autograd import RESIDENT_CELLS
from rnnkern.testing import assert_close

SIZES = (256, 384, 512, 640, 768, 1024)
TILES = ("modrelu", "gru", "lstm", "gru_reset_before")
if not _extension.available:
    pytest.skip(f"no compiled part: {_extension.reason}", allow_module_level=True)

H200 = (9, 0, 132, 232448, 16, 7)
A100 = (8, 0, 108, 166912)
EVERYTHING = {"packed": True, "reset": True, "reverse": True, "grad_scale": 1}


@pytest.fixture
def rounded(clusters, monkeypatch):
    """PyTorch allows TF32 for recurrent layers only."""
    monkeypatch.setattr(torch.backends.cudnn.rnn, "fp32_precision", "tf32")
    return clusters


def check(place, sample):
    """Uses the factor for 16-bit dtypes; also checks that the results are less accurate than exact products."""
    sample = place.sample(off_kinks(sample))
    results = {}
    entered = place.entered(lambda: results.update(outputs_and_gradients(place, sample)))
    assert entered == {f"recurrence/cuda/{way}/{sample.args[0]}/cluster_tf32": 1 for way in ("forward", "backward")}
    with RoundedProducts(to_tf32):
        naive = outputs_and_gradients(reference.recurrence, sample)
    exact = outputs_and_gradients(reference.recurrence, sample)
    truth = outputs_and_gradients(reference.recurrence, sample.to(torch.float64))
    for name, result in results.items():
        assert_close(result, naive[name], truth[name], f"{sample.name}: {name}", factor=2.0)
    with pytest.raises(AssertionError, match="exceeds"):
        assert_close(results["h"], exact["h"], truth["h"])


def test_the_first_call(rounded):
    check(rounded, recurrence_sample("lstm", 3, 17, 133, **EVERYTHING, dtype=torch.float32, requires_grad=True))


@pytest.mark.parametrize("cell", RESIDENT_CELLS)
def test_everything_at_once(cell, rounded):
    rounded.set_seed(len(cell))
    check(rounded, recurrence_sample(cell, 3, 17, 133, **EVERYTHING, dtype=torch.float32, requires_grad=True))


@pytest.mark.parametrize(
    ("cell", "hidden"),
    [(cell, size - 7 * (k % 2)) for k, size in enumerate(SIZES) for cell in TILES
     if size <= 512 or reference.CELLS[cell].gates == 1],
)  # fmt: skip
def test_every_tile(cell, hidden, rounded):
    """Three sequences on one cluster, the number of clusters that the interpreter simulates."""
    rounded.set_facts(*rounded.facts[:4], 1, 1)
    found = rounded.plan(cell, torch.float32, 3, 3, hidden)
    assert found["kernel"] == "cluster_tf32"
    assert 0 <= found["padded"] - hidden <= 7
    rounded.set_seed(hidden)
    check(
        rounded,
        recurrence_sample(cell, 3, 3, hidden, packed=True, reverse=True, dtype=torch.float32, requires_grad=True),
    )


@pytest.mark.parametrize(("cell", "batch"), [(cell, 9 + 3 * k % 8) for k, cell in enumerate(RESIDENT_CELLS)])
def test_more_rows_than_a_product_has_take_turns(cell, batch, rounded):
    rounded.set_facts(*rounded.facts[:4], 1, 1)
    rounded.set_seed(batch)
    check(rounded, recurrence_sample(cell, 4, batch, 133, **EVERYTHING, dtype=torch.float32, requires_grad=True))


@pytest.mark.parametrize("cell", ["euler", "lstm", "gru_reset_before"])
def test_the_same_bits_by_any_schedule(cell, rounded):
    options = {"packed": True, "reset": True}
    sample = rounded.sample(recurrence_sample(cell, 3, 3, 140, **options, dtype=torch.float32, requires_grad=True))
    wanted = outputs_and_gradients(rounded, sample)
    for seed in range(1, 5):
        rounded.set_seed(seed)
        for name, value in outputs_and_gradients(rounded, sample).items():
            assert torch.equal(value, wanted[name]), name


# ---- the setting


def test_the_setting_is_that_of_pytorchs_own_layers(monkeypatch):
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


@pytest.mark.parametrize(("setting", "kernel"), [("ieee", "cluster"), ("tf32", "cluster_tf32")])
def test_explain_follows_it(monkeypatch, setting, kernel):
    monkeypatch.setattr(_extension, "cuda_refusal", lambda device: None)
    monkeypatch.setattr(_extension, "device_facts", lambda device: H200)
    monkeypatch.setattr(torch.backends.cudnn.rnn, "fp32_precision", setting)
    with FakeTensorMode():
        u, R, h0 = (torch.empty(shape, device="cuda") for shape in ((5, 2, 600), (600, 200), (2, 200)))
        said = explain(recurrence, "gru", u, R, (h0,)).reason
    assert said.startswith(f"the cuda kernel serves this call: {kernel}, for R of 200 units stays on")


def test_each_call_asks_anew(clusters, monkeypatch):
    """The backward pass of a forward pass in TF32 may be exact."""
    sample = clusters.sample(recurrence_sample("gru", 3, 3, 140, dtype=torch.float32, requires_grad=True))
    results = []
    entered = lambda: clusters.entered(lambda: results.append(clusters(*sample.args, **sample.kwargs)[0]))  # noqa: E731
    for setting, kernel in (("ieee", "cluster"), ("tf32", "cluster_tf32"), ("ieee", "cluster")):
        monkeypatch.setattr(torch.backends.cudnn.rnn, "fp32_precision", setting)
        assert entered() == {f"recurrence/cuda/forward/gru/{kernel}": 1}
    exact, rounded, again = results
    assert torch.equal(exact, again)
    assert not torch.equal(exact, rounded)
    backward = clusters.entered(lambda: rounded.sum().backward())
    assert backward == {"recurrence/cuda/backward/gru/cluster": 1}


def test_float32_stays_exact_where_tf32_is_not_allowed(clusters):
    sample = recurrence_sample("gru", 3, 3, 140, dtype=torch.float32, requires_grad=True)
    check_recurrence(clusters, [clusters.sample(sample)])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_16_bits_know_nothing_of_it(dtype, clusters, monkeypatch):
    sample = clusters.sample(recurrence_sample("tanh", 3, 3, 140, dtype=dtype, requires_grad=True))
    before = outputs_and_gradients(clusters, sample)
    monkeypatch.setattr(torch.backends.cudnn.rnn, "fp32_precision", "tf32")
    after = outputs_and_gradients(clusters, sample)
    assert all(torch.equal(before[name], after[name]) for name in before)


# ---- the plan


@pytest.mark.parametrize(
    ("cell", "hidden", "padded", "blocks"),
    [("lstm", 129, 256, 8), ("gru", 257, 384, 16), ("gru_reset_before", 512, 512, 16), ("tanh", 513, 640, 16),
     ("modrelu", 1024, 1024, 16)],
)  # fmt: skip
def test_float32_goes_to_a_cluster_in_tf32_where_that_is_allowed(cell, hidden, padded, blocks):
    resident = H200[4] if blocks == 8 else H200[5]
    for batch in (1, 16, 32 * resident):
        found = plan(cell, torch.float32, (10, batch, hidden, 1), H200, tf32=True)
        assert (found["kernel"], found["padded"]) == ("cluster_tf32", padded)
        said = f"a cluster of {blocks} blocks, in TF32 as torch.backends.cudnn.rnn.fp32_precision allows"
        assert found["reason"] == f"R of {hidden} units stays on {said}"
        for way in ("forward", "backward"):
            one = way == "backward" and padded == 1024  # shared memory for one group only
            columns, shape = min(8 if one else 16, math.ceil(batch / resident)), found[way]
            assert (shape["columns"], shape["threads"], shape["cluster"]) == (columns, 256, blocks)
            assert 0 < shape["shared_bytes"] <= H200[3]


@pytest.mark.parametrize(
    ("cell", "dtype", "hidden", "facts", "noisy"),
    [("lstm", torch.float32, 128, H200, False), ("lstm", torch.float32, 513, H200, False),
     ("tanh", torch.float32, 1025, H200, False), ("lstm", torch.float32, 512, A100, False),
     ("lstm", torch.float32, 512, H200, True), ("lstm", torch.bfloat16, 512, H200, False),
     ("lstm", torch.float16, 512, H200, False), ("lstm", torch.float64, 512, H200, False)],
)  # fmt: skip
def test_tf32_changes_nothing_elsewhere(cell, dtype, hidden, facts, noisy):
    sizes = (10, 3, hidden, 1)
    assert plan(cell, dtype, sizes, facts, noisy, tf32=True) == plan(cell, dtype, sizes, facts, noisy)


def test_a_cluster_in_tf32_is_left_out_as_any_other(monkeypatch):
    monkeypatch.setenv("RNNKERN_CUDA_KERNELS", "grid")
    assert plan("lstm", torch.float32, (10, 3, 512, 1), H200, tf32=True)["kernel"] == "grid"
