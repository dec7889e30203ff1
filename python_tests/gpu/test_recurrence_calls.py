"""Calls of the recurrence's CUDA kernels, over a table of kernels and cells: values, NaN, the choice, what is saved."""

import itertools
import os

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from python_tests.gpu import builder
from python_tests.gpu.recurrences import FAMILY, lacks, off_kinks
from python_tests.ops.test_memory import kept
from python_tests.ops.test_properties import calls
from python_tests.samples import check_recurrence, outputs_and_gradients, recurrence_sample
from rnnkern import reference
from rnnkern.ops import explain, recurrence
from rnnkern.ops._recurrence.recurrence import KERNEL_CELLS
from rnnkern.testing import peak_bytes

FEW = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])

NOISE, MEAN = {"zoneout": 0.3, "dropout": 0.4}, {"zoneout": 0.3, "drawn": False}


def backward_call(place, sample, grad_h=None, needs=(True, True)):
    """Calls the operator directly, which returns [du, dR, dbias, *dstate, *dparams]."""
    cell, u, R, state = sample.args
    rest = [sample.kwargs.get(key) for key in ("bias", "params", "batch_sizes", "reset", "reverse")]
    h, *others = place.operators.recurrence(cell, u, R, state, *rest, True, False, None, None, *sample.noise())
    saved = others[len(state) :]
    rest += [None, h, saved, *needs, None, None, True, True, True, *sample.noise(), False, True, 0]
    return lambda: place.operators.recurrence_backward(cell, grad_h, [], u, R, state, *rest)


def backward(*args, **kwargs):
    return backward_call(*args, **kwargs)()


@FEW
@given(
    call=calls(st.integers(0, 6), st.integers(0, 10), st.integers(1, 40), KERNEL_CELLS, with_keep=False),
    dtype=st.sampled_from(["float32", "bfloat16"]),
)
def test_drawn_calls(place, call, dtype):
    """Any memory layout, lengths down to 0, any number of heads."""
    sample, save_gates = call
    sample = place.sample(off_kinks(sample.to(getattr(torch, dtype), requires_grad=True)))
    check_recurrence(lambda *args, **kwargs: place(*args, **kwargs, save_gates=save_gates), [sample])


@pytest.mark.parametrize("of", ["h", "state", "one state", "both, expanded"])
@pytest.mark.parametrize("cell", ["euler", "lstm", "gru", "gru_reset_before"])
def test_gradients_of_some_outputs(cell, of, place):
    """Missing gradients count as zero."""
    sample = place.sample(recurrence_sample(cell, 5, 9, 6, reset=True, packed=True, requires_grad=True))
    got = []
    for op in (place, reference.recurrence):
        h, final = op(*sample.args, **sample.kwargs)
        y = {"h": (h * h).sum(), "state": sum((s * s).sum() for s in final), "one state": final[-1].sum()}
        y["both, expanded"] = h.sum() + final[0].sum()
        got.append(torch.autograd.grad(y[of], sample.leaves(), materialize_grads=True))
    torch.testing.assert_close(*got)


@pytest.mark.parametrize("sizes", [[2, 2, 0], [0, 0], [17, 9, 8, 1, 0], []])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(("kernel", "cell"), [
    ("block", "lstm"), ("block", "gru_reset_before"), ("stepwise", "lstm"), ("stepwise", "gru_reset_before"),
    ("cluster", "lstm"),
])  # fmt: skip
def test_sequences_without_steps_keep_their_state(kernel, cell, reverse, sizes, place):
    hidden = 130 if kernel == "cluster" else 5
    sample = place.sample(recurrence_sample(cell, 2, 20, hidden, dtype=torch.float32, requires_grad=True))
    _, (name, u, R, state), _ = sample
    rows, first = sum(sizes), max([*sizes, 0])
    reset = torch.ones(len(sizes), 20, dtype=torch.bool, device=u.device)
    sizes = torch.tensor(sizes, dtype=torch.int64)
    h, final = place(name, u.flatten(0, 1)[:rows], R, state, batch_sizes=sizes, reset=reset, reverse=reverse)
    assert h.shape == (rows, hidden)
    assert not h.isnan().any()
    assert all(torch.equal(f[first:], s[first:]) for f, s in zip(final, state, strict=True))
    (grad,) = torch.autograd.grad(final[0].sum(), state[0])
    assert torch.equal(grad[first:], torch.ones_like(grad[first:]))
    assert not grad[:first].any()


CELLS = ["tanh", "relu", "hardtanh", "modrelu", "euler", "lstm", "gru", "gru_reset_before"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("kernel", "cell"), [*itertools.product(("block", "stepwise"), CELLS), ("cluster", "lstm"), ("grid", "lstm")]
)
def test_nan_and_infinity_pass_through_as_in_pytorch(kernel, cell, dtype, place):
    """They do not reach other sequences, or gradients of them."""
    sample = recurrence_sample(cell, 3, 6, 140 if kernel == "cluster" else 5, dtype=dtype, requires_grad=True)
    sample = place.sample(sample)
    u = sample.args[1]
    with torch.no_grad():
        u[1, 0, 0], u[1, 1, 0], u[1, 2, 0], u[0, 3, 0] = float("nan"), float("inf"), -float("inf"), 0.0
    actual, wanted = (op(*sample.args, **sample.kwargs)[0] for op in (place, reference.recurrence))
    assert torch.equal(actual.isnan(), wanted.isnan())
    assert not actual[:, 3:].isnan().any()
    (du,) = torch.autograd.grad(actual.sum(), u)
    assert not du[:, 3:].isnan().any()
    tolerance = {} if dtype == torch.float32 else {"rtol": 0.05, "atol": 0.05}
    torch.testing.assert_close(actual, wanted, equal_nan=True, **tolerance)


def test_a_reset_ends_what_nan_began(place):
    sample = place.sample(recurrence_sample("lstm", 4, 2, 5, dtype=torch.float32, requires_grad=True))
    reset = torch.zeros(4, 2, dtype=torch.bool, device=place.device)
    reset[2, 0] = True
    sample.args[1].data[1, 0] = float("nan")
    h, _ = place(*sample.args, **sample.kwargs, reset=reset)
    assert h[1, 0].isnan().all()
    assert not h[2:].isnan().any()
    (du,) = torch.autograd.grad(h[2:].sum(), sample.args[1])
    assert not du[2:].isnan().any()


@pytest.mark.parametrize("cell", ["modrelu", "lstm", "gru_reset_before"])
def test_what_is_not_needed_is_not_computed(cell, place):
    sample = place.sample(recurrence_sample(cell, 5, 9, 6, heads=2, dtype=torch.float32))
    grad_h = torch.randn(5, 9, 6, device=place.device)
    du, dR, dbias, *rest = backward(place, sample, grad_h)
    assert dR.shape == sample.args[2].shape
    assert dR.abs().max() > 0
    assert dbias.abs().max() > 0
    for needs in ((False, True), (True, False), (False, False)):
        du1, dR1, dbias1, *rest1 = backward(place, sample, grad_h, needs=needs)
        assert (dR1.numel(), dbias1.numel()) == (needs[0] * dR.numel(), needs[1] * dbias.numel())
        assert all(map(torch.equal, (du1, *rest1), (du, *rest)))


def test_no_gradient_at_all_gives_zeros(place):
    for gradient in backward(place, place.sample(recurrence_sample("lstm", 5, 3, 6, dtype=torch.float32))):
        assert not gradient.any()


# ---- the kernels that run, and what a call saves


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64], ids=str)
@pytest.mark.parametrize(("hidden", "heads", "noise"), [(6, 1, {}), (258, 1, {}), (258, 2, {}), (6, 1, NOISE)], ids=str)
@pytest.mark.parametrize("cell", ["tanh", "lstm"])
def test_the_kernels_entered_are_those_that_explain_and_plan_name(cell, hidden, heads, noise, dtype, place):
    sample = recurrence_sample(cell, 2, 3, hidden, heads=heads, **noise, dtype=dtype, requires_grad=True)
    sample = place.sample(sample)
    choice = []
    assert not place.entered(lambda: choice.append(explain(recurrence, *sample.args, **sample.kwargs)))
    plan = place.plan(cell, dtype, 2, 3, hidden, heads, noisy=bool(noise))
    assert choice[0].implementation == "cuda"
    said, _, compiled = choice[0].reason.partition("; ")
    assert said == f"the cuda kernel serves this call: {plan['kernel']}, for {plan['reason']}"
    assert "compiled" in compiled
    entry = "recurrence/cuda/{}/" + f"{cell}/{plan['kernel']}"
    with torch.no_grad():
        assert place.entered(lambda: place(*sample.args, **sample.kwargs)) == {entry.format("forward"): 1}
    both = {entry.format("forward"): 1, entry.format("backward"): 1}
    assert place.entered(lambda: outputs_and_gradients(place, sample)) == both


def described(tensors):
    return sorted((str(x.dtype), x.shape) for x in tensors)


def h_and_c(sample):
    """Tensors with the sizes of h and c at all steps."""
    _, u, _, (h0, *rest) = sample.args
    wide = torch.promote_types(u.dtype, torch.float32)
    return [s.expand(u.shape[0], *s.shape) for s in (h0, *(c.to(wide) for c in rest))]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("noise", [{}, NOISE, MEAN], ids=["", "noise", "mean"])
@pytest.mark.parametrize("cell", KERNEL_CELLS)
def test_h_and_c_are_kept_and_nothing_else(cell, noise, dtype, place):
    """Where zoneout takes the mean also h before it, for cells whose backward pass needs it."""
    sample = place.sample(recurrence_sample(cell, 7, 3, 16, **noise, dtype=dtype, requires_grad=True))
    inputs = {x.data_ptr() for x in (*sample.leaves(), sample.kwargs.get("seed")) if x is not None}
    extra = [x for x in kept(lambda: place(*sample.args, **sample.kwargs)) if x.data_ptr() not in inputs]
    wanted = h_and_c(sample)
    if noise == MEAN and not KERNEL_CELLS[cell]["saved"]:
        wanted.append(wanted[0].to(torch.promote_types(dtype, torch.float32)))
    assert described(extra) == described(wanted)
    with torch.no_grad():
        assert kept(lambda: place(*sample.args, **sample.kwargs)) == []


@pytest.mark.parametrize("noise", [{}, NOISE], ids=["", "noise"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("cell", ["tanh", "lstm", "gru", "gru_reset_before"])
@pytest.mark.drawn
def test_work_space_does_not_grow_with_the_number_of_steps(cell, dtype, noise, place):
    batch, hidden = 64 if place.name == "cuda" else 9, 8
    chunk = place.plan(cell, dtype, 1, batch, hidden)["chunk_steps"]
    peaks = []
    for steps in (2 * chunk, 6 * chunk):
        sample = place.sample(recurrence_sample(cell, steps, batch, hidden, **noise, dtype=dtype))
        call = backward_call(place, sample, grad_h=torch.ones(steps, batch, hidden, dtype=dtype, device=place.device))
        call()
        peaks.append(peak_bytes(call) - sample.args[1].nbytes)
    assert peaks[0] > 0
    assert peaks[1] == peaks[0]


@pytest.mark.parametrize("kernel", ["cluster"])
def test_each_call_asks_anew(kernel, place, monkeypatch):
    """The backward pass of a forward pass in TF32 may be exact."""
    sample = place.sample(recurrence_sample("gru", 3, 3, 140, dtype=torch.float32, requires_grad=True))
    results = []
    entered = lambda: place.entered(lambda: results.append(place(*sample.args, **sample.kwargs)[0]))  # noqa: E731
    for setting, kernel in (("ieee", "cluster"), ("tf32", "cluster_tf32"), ("ieee", "cluster")):
        monkeypatch.setattr(torch.backends.cudnn.rnn, "fp32_precision", setting)
        assert entered() == {f"recurrence/cuda/forward/gru/{kernel}": 1}
    exact, rounded, again = results
    assert torch.equal(exact, again)
    assert not torch.equal(exact, rounded)
    backward = place.entered(lambda: rounded.sum().backward())
    assert backward == {"recurrence/cuda/backward/gru/cluster": 1}


# ---- under the address sanitizer

SANITIZE = ("-fsanitize=address,alignment", "-O0", "-g0")
SANITIZED = """
import torch
from python_tests.gpu import drivers, recurrences
from rnnkern.ops._recurrence.autograd import KERNEL_CELLS, RESIDENT_CELLS
from python_tests.samples import outputs_and_gradients, recurrence_sample
torch.set_num_threads(1)
operators = drivers.interpreted(recurrences.FAMILY, {flags})
for kernel in recurrences.FACTS:
    with recurrences.routed(recurrences.Place("interpret", kernel, operators)) as place:
        tf32, few = kernel == "cluster_tf32", kernel.startswith("cluster")  # thousands of threads
        cells = KERNEL_CELLS if kernel == "stepwise" else RESIDENT_CELLS
        for cell in ("modrelu", "lstm", "gru_reset_before") if few else cells:
            for dtype in (torch.float32,) if tf32 else (torch.float32, torch.bfloat16):
                for reverse in (True,) if tf32 or kernel == "grid" else (False, True):
                    for sizes in ((2, 5, 133),) if few else ((3, 9, 33), (0, 2, 5), (2, 0, 5), (66, 1, 1)):
                        for noise in (0.0, 0.3) if kernel == "stepwise" else (0.0,):
                            options = dict(packed=True, reset=True, grad_scale=2, reverse=reverse, dtype=dtype)
                            options.update(zoneout=noise, dropout=noise)
                            sample = recurrence_sample(cell, *sizes, **options, requires_grad=True)
                            entered = place.entered(lambda: outputs_and_gradients(place, sample))
                            assert {{name.split("/")[-1] for name in entered}} <= {{kernel}}, (kernel, entered)
                            assert entered or sizes[0] * sizes[1] == 0, (kernel, sizes)
print("clean")
"""


@pytest.mark.skipif("RNNKERN_SANITIZE" not in os.environ, reason="minutes long: `make sanitize` runs it")
def test_interpret_under_the_address_sanitizer():
    if missing := lacks("interpret"):
        pytest.skip(missing)
    preload = builder.libraries("libasan", "libubsan", "libstdc++")
    if not preload:
        pytest.skip("no libasan or libubsan")
    FAMILY.build(SANITIZE)
    code = SANITIZED.format(flags=SANITIZE)
    done = builder.run_python("-c", code, LD_PRELOAD=preload, ASAN_OPTIONS="detect_leaks=0")
    assert (done.returncode, done.stdout) == (0, "clean\n"), done.stderr
    assert "runtime error" not in done.stderr, done.stderr
