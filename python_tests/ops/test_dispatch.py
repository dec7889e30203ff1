"""The implementation that `explain` names for the recurrence is the one that runs, over its cells and options."""

import json
import threading
from collections import Counter
from contextlib import nullcontext, suppress

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.nn.utils.rnn import pack_sequence

import rnnkern.nn
from python_tests.samples import covering_rows, outputs_and_gradients, recurrence_sample
from python_tests.tiers import LEVELS
from rnnkern import _extension, use
from rnnkern._torch_private import context_of_backward
from rnnkern.ops import explain, recurrence
from rnnkern.ops._recurrence.recurrence import KERNEL_CELLS
from rnnkern.reference import CELLS

CALLS = covering_rows(
    {
        "cell": list(CELLS),
        "dtype": [torch.float32, torch.float64, torch.bfloat16, torch.float16],
        "mode": ["inference", "training", "gates again"],
        "packed": [False, True],
        "steps": [3, 0],
        "level": LEVELS,
        "forced": [None, "reference", "cpu"],
    }
)


def counts():
    return Counter(json.loads(torch.ops.rnnkern.kernel_counts()))


def entered(call):
    before = counts()
    call()
    return counts() - before


def test_threads_that_count_at_once_miss_no_call():
    args, calls = recurrence_sample("relu", 1, 1, 2).args, 500

    def work():
        for _ in range(calls):
            recurrence(*args)

    threads = [threading.Thread(target=work) for _ in range(4)]

    def all_of_them():
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    level = rnnkern.build_info()["simd_level"]
    assert entered(all_of_them) == {f"recurrence/cpu/forward/relu/{level}": len(threads) * calls}


def spread(sample):
    """The arguments of a sample, as the operator and `explain` take them."""
    return (recurrence, *sample.args), sample.kwargs


def call(mode, sample):
    if mode == "inference":
        with torch.no_grad():
            recurrence(*sample.args, **sample.kwargs)
    elif mode == "training":
        outputs_and_gradients(recurrence, sample)
    else:
        outputs_and_gradients(lambda *args, **kwargs: recurrence(*args, **kwargs, save_gates=False), sample)


@pytest.mark.parametrize("row", CALLS, ids=lambda row: "-".join(str(x).removeprefix("torch.") for x in row.values()))
def test_the_kernels_entered_are_those_that_explain_names(row, simd):
    mode, level, forced, cell, dtype = (row[name] for name in ("mode", "level", "forced", "cell", "dtype"))
    simd(level)
    sample = recurrence_sample(cell, row["steps"], packed=row["packed"], dtype=dtype, requires_grad=True)
    args, kwargs = spread(sample)
    with use(forced) if forced else nullcontext():
        before = counts()
        choice = explain(*args, **kwargs)
        assert counts() == before
        kernels = entered(lambda: call(mode, sample))
    assert choice.implementation == ("reference" if forced == "reference" else "cpu")
    wanted = Counter()
    if choice.implementation == "cpu":
        wanted[f"recurrence/cpu/forward/{cell}/{level}"] = 1
        wanted[f"recurrence/cpu/backward/{cell}/{level}"] = int(mode != "inference")
    assert kernels == +wanted
    if forced:
        assert choice.reason == f"forced by use({forced!r})"


def explained(**options):
    args, kwargs = spread(recurrence_sample(**{"cell": "tanh", **options}))
    return explain(*args, **kwargs)


def test_explain_says_which_cell_has_no_kernel(monkeypatch):
    monkeypatch.delitem(KERNEL_CELLS, "tanh")
    implementation, reason = explained()
    assert implementation == "reference"
    assert "no cuda: the tensors are on cpu" in reason
    assert "no cpu: the cell 'tanh' has no kernel" in reason
    with use("cpu"), pytest.raises(ValueError, match=r"use\('cpu'\) cannot serve this call: the cell 'tanh' has no"):
        explained()


def explained_on(device, cell, monkeypatch, refused=None):
    """Which implementation a call on another device would use, and why."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert _extension.cuda_refusal(torch.device("cuda")) is None, "one that is not here is taken to be one that can"
    monkeypatch.setattr(_extension, "cuda_refusal", lambda device: refused)
    sample = recurrence_sample(cell)
    with FakeTensorMode():
        move = lambda x: torch.empty(x.shape, dtype=x.dtype, device=device)  # noqa: E731
        _, u, R, state = sample.args
        params = tuple(map(move, sample.kwargs["params"]))
        return explain(recurrence, cell, move(u), move(R), tuple(map(move, state)), params=params)


@pytest.mark.parametrize("cell", KERNEL_CELLS)
def test_on_a_gpu_every_cell_has_a_kernel(cell, monkeypatch):
    implementation, reason = explained_on("cuda", cell, monkeypatch)
    assert implementation == "cuda"
    assert reason == "the cuda kernel serves this call; the CUDA variant is chosen at run time; no device found"


@pytest.mark.parametrize(("device", "refused"), [("cuda", "it is old"), ("meta", None)])
def test_explain_says_why_the_reference_serves(device, refused, monkeypatch):
    implementation, reason = explained_on(device, "gru", monkeypatch, refused)
    assert implementation == "reference"
    assert f"no cpu: the tensors are on {device}" in reason
    assert f"no cuda: {refused or 'the tensors are on meta'}" in reason


def test_explain_refuses_what_the_call_would():
    _, (cell, u, R, state), _ = recurrence_sample("lstm")
    with pytest.raises(ValueError, match=r"`R` must be \(G\*H, H\)"):
        explain(recurrence, cell, u, R[:-1], state)
    with pytest.raises((RuntimeError, ValueError), match="Expected 3, got 2"):
        explain(rnnkern.nn.LSTM(3, 4), torch.randn(5, 2, 2))
    for op in (torch.tanh, torch.nn.LSTM(1, 1), None):
        with pytest.raises(
            TypeError, match=r"explain: `op` must be an operator of rnnkern.ops or a module of rnnkern.nn"
        ):
            explain(op)
    with pytest.raises(TypeError, match=r"got LSTM; rnnkern.explain\(model\), without other arguments"):
        explain(torch.nn.LSTM(1, 1), torch.randn(5, 2, 1))


MODULES = [
    ("LSTM", {}, "lstm"),
    ("LSTM", {"proj_size": 2}, "lstm_projected"),
    ("LSTM", {"layer_norm": True}, rnnkern.cells.lstm_layer_norm.name),
    ("GRU", {"layer_norm": True}, rnnkern.cells.gru_layer_norm.name),
    ("GRU", {}, "gru"),
    ("GRU", {"reset_gate": "before"}, "gru_reset_before"),
    *(("RNN", {"nonlinearity": cell}, cell) for cell in ("tanh", "relu", "identity", "hardtanh", "modrelu")),
    ("RNN", {"dtype": torch.bfloat16}, "tanh"),
]


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(("name", "options", "cell"), MODULES)
def test_explain_of_a_module_is_held_to_the_counters(name, options, cell, packed):
    module = getattr(rnnkern.nn, name)(3, 4, num_layers=2, bidirectional=True, **options)
    x = torch.randn(5, 2, 3, dtype=options.get("dtype"))
    x = pack_sequence(list(x.unbind(1))) if packed else x
    assert not entered(lambda: explain(module, x))
    choices = explain(module, x)
    assert [c.implementation for c in choices] == ["cpu"] * 4
    with torch.no_grad():
        kernels = entered(lambda: module(x))
    level = rnnkern.build_info()["simd_level"]
    assert kernels == {f"recurrence/cpu/forward/{cell}/{level}": 4}
    with use("reference"):
        places = [f"layer {k}, {way} direction" for k in range(2) for way in ("forward", "reverse")]
        assert explain(module, x) == [("reference", f"{place}: forced by use('reference')") for place in places]
        assert not entered(lambda: module(x))


def test_use_nests_and_restores_also_after_an_exception():
    with use("reference"):
        with suppress(ZeroDivisionError), use("cpu"):
            assert explained().reason == "forced by use('cpu')"
            with use("reference"):
                assert explained().implementation == "reference"
            assert explained().implementation == "cpu"
            raise ZeroDivisionError
        assert explained().reason == "forced by use('reference')"
    with pytest.raises(ValueError, match="cannot serve"), use("triton"):
        explained()
    assert explained() == ("cpu", "the cpu kernel serves this call")


@pytest.mark.parametrize("name", ["gpu", "CPU", "", None])
def test_use_refuses_unknown_names_at_once(name):
    with (
        pytest.raises(ValueError, match=r"use: `implementation` must be one of \('reference', 'cpu', .*\), got "),
        use(name),
    ):
        pytest.fail("entered")
    assert explained().implementation == "cpu"


@pytest.mark.parametrize(
    ("forced", "why"),
    [("cuda", "the tensors are on cpu"), ("triton", "recurrence has no triton kernel")],
)
def test_use_raises_where_the_implementation_cannot_serve(forced, why):
    args, kwargs = spread(recurrence_sample("lstm"))
    module, x = rnnkern.nn.LSTM(3, 4), torch.randn(5, 2, 3)
    with use(forced):
        for attempt in (lambda: recurrence(*args[1:], **kwargs), lambda: explain(*args, **kwargs), lambda: module(x)):
            with pytest.raises(ValueError, match=rf"recurrence: use\('{forced}'\) cannot serve this call: {why}"):
                assert not entered(attempt)


def test_use_is_for_the_thread_that_entered_it():
    """Blocks that overlap in time leave no state behind, and threads do not affect each other."""
    entered_first, left_first, seen = threading.Event(), threading.Event(), []

    def first():
        with use("reference"):
            entered_first.set()
            second.ready.wait(60)
            seen.append(explained().reason)
        left_first.set()

    def second():
        entered_first.wait(60)
        seen.append(explained().implementation)
        with use("cpu"):
            second.ready.set()
            left_first.wait(60)
            seen.append(explained().reason)
        seen.append(explained().reason)

    second.ready = threading.Event()
    threads = [threading.Thread(target=run) for run in (first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == ["cpu", "forced by use('reference')", "forced by use('cpu')", "the cpu kernel serves this call"]
    assert explained().implementation == "cpu"


@pytest.mark.skipif(
    tuple(map(int, torch.__version__.split(".")[:2])) < (2, 12), reason="torch 2.11 keeps no context for them"
)
def test_use_reaches_the_threads_that_autograd_runs_a_backward_in():
    """On a GPU, autograd's own threads run the backward pass of a checkpoint, which recomputes the forward pass. Here a
    thread receives the same context that autograd passes to its threads."""
    seen = []

    def device_thread(context):
        torch._C._stash_obj_in_tls("context", context)
        seen.append(explained().reason)
        with use("cpu"):
            seen.append(explained().reason)
        torch._C._remove_obj_from_tls("context")
        seen.append(explained().reason)

    class Identity(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            thread = threading.Thread(target=device_thread, args=(context_of_backward(),))
            thread.start()
            thread.join()
            return grad

    y = Identity.apply(torch.ones(1, requires_grad=True))
    with use("reference"):
        y.backward()
    assert seen == ["forced by use('reference')", "forced by use('cpu')", "the cpu kernel serves this call"]


def test_use_inside_compiled_code():
    sample = recurrence_sample("lstm")
    _, (cell, *tensors), _ = sample

    def both(*tensors):
        with use("reference"):
            forced = recurrence(cell, *tensors)[0]
        return forced, recurrence(cell, *tensors)[0]

    compiled = torch.compile(both, fullgraph=True, backend="eager")
    compiled(*tensors)
    assert sum(entered(lambda: compiled(*tensors)).values()) == 1
    torch.testing.assert_close(compiled(*tensors), both(*tensors))
    assert explained().implementation == "cpu"


def test_use_reaches_compiled_code():
    compiled = torch.compile(recurrence, fullgraph=True, backend="eager")
    args, kwargs = spread(recurrence_sample("lstm"))
    run = lambda: compiled(*args[1:], **kwargs)  # noqa: E731
    run()
    assert sum(entered(run).values()) == 1
    with use("reference"):
        run()
        assert not entered(run)
    assert sum(entered(run).values()) == 1


def test_without_the_compiled_part_the_reference_serves(monkeypatch):
    monkeypatch.setattr(_extension, "available", False)
    monkeypatch.setattr(_extension, "reason", "it was left out")
    assert explained() == ("reference", "no cuda: the tensors are on cpu; no cpu: it was left out")
    assert not entered(lambda: call("training", recurrence_sample("lstm", requires_grad=True)))
    with use("cpu"), pytest.raises(ValueError, match=r"use\('cpu'\) cannot serve this call: it was left out"):
        explained()
