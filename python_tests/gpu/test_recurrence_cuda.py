"""The recurrence on hardware: streams, graphs, several devices, and torch.compile. Skipped without a GPU."""

import pytest
import torch
from torch.library import opcheck

import rnnkern
from python_tests.gpu.graphs import captured
from python_tests.gpu.recurrences import moved
from python_tests.samples import outputs_and_gradients, recurrence_sample
from rnnkern import _extension, reference
from rnnkern.ops import recurrence
from rnnkern.ops._recurrence.recurrence import KERNEL_CELLS

CELLS = ["tanh", "lstm", "gru_reset_before"]
HIDDEN = {"block": 48, "cluster": 160, "grid": 160, "stepwise": 160}
cells = pytest.mark.parametrize("cell", CELLS)


def sample_of(cell, kernel, device, steps=20, batch=9, dtype=torch.float32, **options):
    return moved(recurrence_sample(cell, steps, batch, HIDDEN[kernel], dtype=dtype, **options), device)


@pytest.fixture(params=HIDDEN)
def kernel(request, monkeypatch):
    """A kernel that runs every call that it supports; the other kernels are disabled."""
    monkeypatch.setenv("RNNKERN_CUDA_KERNELS", request.param)
    return request.param


@pytest.fixture
def no_waiting():
    yield lambda: torch.cuda.set_sync_debug_mode("error")
    torch.cuda.set_sync_debug_mode("default")


@cells
def test_calls_run_on_the_current_stream(cell, kernel, gpu):
    """Calls see values that were written on the current stream immediately before, while another stream is busy."""
    sample = sample_of(cell, kernel, gpu, requires_grad=True)
    wanted = outputs_and_gradients(recurrence, sample)
    values = sample.args[1].detach().clone()
    upstream = torch.randn_like(wanted["h"])
    (du,) = torch.autograd.grad(recurrence(*sample.args, **sample.kwargs)[0], sample.args[1], upstream)
    stream = torch.cuda.Stream(gpu)
    stream.wait_stream(torch.cuda.current_stream(gpu))
    with torch.cuda.stream(stream):
        sample.args[1].data.fill_(float("nan"))
        torch.cuda._sleep(100_000_000)
        sample.args[1].data.copy_(values)
        h, _ = recurrence(*sample.args, **sample.kwargs)
        (again,) = torch.autograd.grad(h, sample.args[1], upstream)
    stream.synchronize()
    torch.testing.assert_close((h, again), (wanted["h"], du))


@pytest.mark.parametrize("noise", [0.0, 0.3])
@pytest.mark.parametrize("packed", [False, True])
@cells
def test_nothing_waits_for_the_device(cell, kernel, packed, noise, gpu, no_waiting):
    options = {"packed": packed, "reset": True, "grad_scale": 2, "zoneout": noise, "dropout": noise}
    sample = sample_of(cell, kernel, gpu, **options, requires_grad=True)
    upstream = torch.ones_like(recurrence(*sample.args, **sample.kwargs)[0])
    torch.cuda.synchronize()
    no_waiting()
    h, _ = recurrence(*sample.args, **sample.kwargs)
    torch.autograd.grad(h, sample.leaves(), upstream, materialize_grads=True)


def test_facts_are_those_of_the_device(gpu):
    major, _, multiprocessors, shared_bytes, of_8, of_16 = _extension.device_facts(gpu)
    found = torch.cuda.get_device_properties(gpu)
    assert (major, multiprocessors) == (found.major, found.multi_processor_count)
    assert shared_bytes == found.shared_memory_per_block_optin
    assert (of_8 > 0) == (major >= 9)
    assert max(8 * of_8, 16 * of_16) <= multiprocessors


@pytest.mark.parametrize("noise", [0.0, 0.3])
@pytest.mark.parametrize("backward", [False, True])
@cells
def test_graphs_capture_and_replay(cell, kernel, backward, noise, gpu):
    """Replays with new values and another seed, which the kernels read from device memory."""
    options = {"reset": True, "zoneout": noise, "dropout": noise}
    sample = sample_of(cell, kernel, gpu, steps=70, **options, requires_grad=backward)
    upstream = torch.randn(70, 9, HIDDEN[kernel], device=gpu)

    def call():
        h, final = recurrence(*sample.args, **sample.kwargs)
        gradients = torch.autograd.grad(h, sample.leaves(), upstream) if backward else ()
        return [x.detach() for x in (h, *final, *gradients)]

    graph, results = captured(call)
    for _ in range(2):
        sample.args[1].data.normal_()
        if noise:
            sample.kwargs["seed"].add_(1)
        wanted = call()
        for x in results:
            x.fill_(float("nan"))
        graph.replay()
        torch.testing.assert_close(results, wanted)


def test_a_second_device_is_served_where_its_tensors_are(gpu, monkeypatch):
    if torch.cuda.device_count() < 2:
        pytest.skip("one GPU")
    other = torch.device("cuda", (gpu.index + 1) % torch.cuda.device_count())
    for kernel in HIDDEN:
        monkeypatch.setenv("RNNKERN_CUDA_KERNELS", kernel)
        here = sample_of("lstm", kernel, gpu, packed=True, requires_grad=True)
        wanted, there = (outputs_and_gradients(recurrence, moved(here, device)) for device in (gpu, other))
        assert torch.cuda.current_device() == gpu.index
        for name, value in wanted.items():
            assert there[name].device == other
            torch.testing.assert_close(there[name].cpu(), value.cpu())
    here = recurrence_sample("tanh", dtype=torch.float32)
    (_, u, _, state), there = moved(here, gpu).args, moved(here, other).args
    with pytest.raises(TypeError, match=r"`R` must be on cuda:\d like `u`, got cuda:\d"):
        recurrence("tanh", u, there[2], state)


@cells
def test_autocast(cell, kernel, gpu):
    module = {"tanh": "RNN", "lstm": "LSTM"}.get(cell, "GRU")
    options = {"reset_gate": "before"} if cell == "gru_reset_before" else {}
    module = getattr(rnnkern.nn, module)(8, HIDDEN[kernel], **options).to(gpu)
    x = torch.randn(5, 3, 8, device=gpu)
    wanted, _ = module(x)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        y, _ = module(x)
    assert y.dtype in (torch.bfloat16, torch.float32)
    torch.testing.assert_close(y.float(), wanted, rtol=0.05, atol=0.05)
    y.float().sum().backward()
    assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in module.parameters())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("cell", KERNEL_CELLS)
def test_opcheck(cell, kernel, dtype, gpu):
    sample = sample_of(cell, kernel, gpu, steps=3, dtype=dtype, reset=True)
    cell, u, R, state = sample.args
    rest = (sample.kwargs["bias"], list(sample.kwargs["params"]), None, sample.kwargs["reset"], False)
    for save_gates in (False, True):
        args = (cell, u, R, list(state), *rest, True, save_gates)
        opcheck(torch.ops.rnnkern.recurrence.default, args)
        h, *others = torch.ops.rnnkern.recurrence.default(*args)
        args = (cell, h, [], u, R, list(state), *rest, None, h, others[len(state) :], True, True)
        args += (None, None, True, True, True, None, 0.0, None, None, False, True, 0)
        opcheck(torch.ops.rnnkern.recurrence_backward.default, args, test_utils=("test_schema", "test_faketensor"))


@cells
def test_compiled(cell, kernel, gpu):
    sample = sample_of(cell, kernel, gpu, requires_grad=True)
    backends = ["aot_eager"]
    if torch.utils._triton.has_triton():
        backends.append("inductor")
    for backend in backends:
        compiled = torch.compile(recurrence, fullgraph=True, backend=backend)
        actual, wanted = outputs_and_gradients(compiled, sample), outputs_and_gradients(recurrence, sample)
        torch.testing.assert_close(actual, wanted)


def test_offsets_are_64_bit(gpu):
    """u has more than 2^31 elements, and the last ones are not zero."""
    if torch.cuda.mem_get_info(gpu)[0] < 24 * 2**30:
        pytest.skip("needs 24 GiB of free memory")
    steps, batch = 2**15 + 1, 1024
    for hidden, heads in ((16, 1), (16, 4)):
        u = torch.zeros(steps, batch, 4 * hidden, device=gpu, dtype=torch.bfloat16)
        u[-1] = torch.arange(4 * hidden, device=gpu) % 5
        R = torch.zeros(*((64, 16) if heads == 1 else (4, 16, 4)), device=gpu, dtype=u.dtype)
        state = (torch.zeros(batch, hidden, device=gpu, dtype=u.dtype),) * 2
        u.requires_grad_()
        h, final = recurrence("lstm", u, R, state)
        end = u[-1:].detach().float().requires_grad_()
        last, _ = reference.recurrence("lstm", end, R.float(), tuple(x.float() for x in state))
        for found in (h[-1:], final[0][None]):
            torch.testing.assert_close(found.float(), last, rtol=0.01, atol=0)
        assert not h[:-1].any()
        (du,) = torch.autograd.grad(final[0].sum(), u)
        (wanted,) = torch.autograd.grad(last.sum(), end)
        torch.testing.assert_close(du[-1:].float(), wanted, rtol=0.01, atol=1e-3)
        assert not du[:, :, 3 * hidden :][:-1].any()
        del u, h, final, du
