"""Memory of the recurrence, for every cell: what a call saves, the peak of its passes, and buffers that are cached."""

import pytest
import torch

import rnnkern
from python_tests.samples import EVERY_CELL, recurrence_sample
from rnnkern.nn.filters import Adam
from rnnkern.ops import recurrence
from rnnkern.ops._recurrence.facts import saved_by
from rnnkern.reference._recurrence import cell_of
from rnnkern.testing import peak_bytes

STEPS, BATCH, HIDDEN = 7, 3, 16


def kept(call) -> list[torch.Tensor]:
    """The distinct tensors that autograd saves during a call."""
    saved = {}
    with torch.autograd.graph.saved_tensors_hooks(lambda x: saved.setdefault(x.data_ptr(), x), lambda x: x):
        call()
    return list(saved.values())


def kept_of_rows(call) -> float:
    """Number of elements in the storages of distinct saved tensors with one row per step and sequence, including
    inputs."""
    tensors = [x for x in kept(call) if x.shape[:2] == (STEPS, BATCH)]
    return sum(x.untyped_storage().nbytes() // x.element_size() for x in tensors) / (STEPS * BATCH)


def per_row(sample, save_gates) -> int:
    """Values per step and sequence: h, for an LSTM c, and the gates if they are saved."""
    cell, _, _, state = sample.args
    gates = saved_by(cell) if save_gates else 0
    return sum(s.shape[1] for s in state) + gates * HIDDEN


@pytest.mark.parametrize("options", [{}, {"inputs": 5}, {"save_u": True}], ids=str)
@pytest.mark.parametrize("save_gates", [True, False])
@pytest.mark.parametrize("cell", EVERY_CELL)
def test_the_backward_needs_h_and_c_and_the_gates_or_the_input(cell, save_gates, options):
    inputs = options.get("inputs", 0)
    sample = recurrence_sample(cell, STEPS, BATCH, HIDDEN, inputs=inputs, requires_grad=True)
    values = per_row(sample, save_gates) + inputs
    if options.get("save_u") or (saved_by(cell) and not save_gates and not inputs):
        values += cell_of(cell).gates * HIDDEN
    more = {"save_gates": save_gates, "save_u": "save_u" in options}
    assert kept_of_rows(lambda: recurrence(*sample.args, **sample.kwargs, **more)) == values


@pytest.mark.parametrize(
    ("module", "values"),
    [
        (rnnkern.nn.LSTM(5, HIDDEN), 5 + 6 * HIDDEN),
        (rnnkern.nn.LSTM(5, HIDDEN, save_gates=False), 5 + 2 * HIDDEN),
        (rnnkern.nn.LSTM(5, HIDDEN, layer_norm=True), 5 + 14 * HIDDEN),
        (rnnkern.nn.LSTM(5, HIDDEN, layer_norm=True, save_gates=False), 5 + 2 * HIDDEN),
        (rnnkern.nn.RNN(5, HIDDEN, filter=Adam(0.6, 0.6, 0.99)), 5 + 2 * HIDDEN),
        (rnnkern.nn.UnitaryRNN(5, HIDDEN), 5 + 8 * HIDDEN),
    ],
    ids=["plain", "save_gates", "layer norm", "layer norm, save_gates", "filter", "unitary"],
)
def test_a_module_does_not_keep_u(module, values):
    assert kept_of_rows(lambda: module(torch.randn(STEPS, BATCH, 5))) == values


@pytest.mark.parametrize("cell", EVERY_CELL)
def test_inference_keeps_nothing(cell):
    sample = recurrence_sample(cell, STEPS, BATCH, HIDDEN)
    assert kept(lambda: recurrence(*sample.args, **sample.kwargs)) == []
    bias, params = sample.kwargs["bias"], sample.kwargs["params"]
    outputs = torch.ops.rnnkern.recurrence(*sample.args, bias, params, None, None, False, False, False)
    assert len(outputs) == 1 + cell_of(cell).states  # h and the final state; neither c nor gates


@pytest.mark.parametrize("save_gates", [True, False])
@pytest.mark.parametrize("cell", EVERY_CELL)
def test_forward_and_backward_grow_with_time_by_nothing_else(cell, save_gates):
    """h, c, the gates if they are saved, and the gradient of x; not u, its gradient or that of r."""

    def sample_of(steps):
        return recurrence_sample(cell, steps, BATCH, HIDDEN, inputs=5, dtype=torch.float32, requires_grad=True)

    def peak(steps):
        sample = sample_of(steps)
        upstream = torch.randn(steps, BATCH, sample.args[3][0].shape[1])

        def call():
            h, _ = recurrence(*sample.args, **sample.kwargs, save_gates=save_gates)
            torch.autograd.grad(h, sample.leaves(), upstream, materialize_grads=True)

        call()
        return peak_bytes(call)

    steps = 300  # several chunks; too small to be cached
    values = 5 + per_row(sample_of(1), save_gates)
    assert abs(peak(2 * steps) - peak(steps) - 4 * values * steps * BATCH) < 1000


# ---- large buffers are cached

LARGE = {"steps": 70, "batch": 64, "hidden": 128}  # gates need 9 MB, c a quarter of that


def saved_of(sample):
    _, u, R, state = sample.args
    bias = sample.kwargs["bias"]
    return torch.ops.rnnkern.recurrence("lstm", u, R, list(state), bias, [], None, None, False, True, True)[-1]


def test_what_is_freed_serves_the_next_call_and_what_is_alive_does_not():
    rnnkern.release_memory()
    sample = recurrence_sample("lstm", **LARGE, dtype=torch.float32)
    first = saved_of(sample)
    bytes_of_one = first.numel() * 4
    place, values = first.data_ptr(), first.clone()
    second = saved_of(sample)
    assert second.data_ptr() != place
    assert torch.equal(first, values)
    assert torch.equal(second, values)
    view = first[3:5]
    del first
    third = saved_of(sample)
    assert third.data_ptr() != place, "a view keeps it alive"
    del view
    fourth = saved_of(sample)
    assert fourth.data_ptr() == place
    assert torch.equal(fourth, values)
    del second, third, fourth
    one_c = bytes_of_one // 4  # each call reused the buffer of the previous call
    assert rnnkern.release_memory() == 3 * bytes_of_one + one_c
    assert rnnkern.release_memory() == 0


def test_idle_memory_and_memory_in_use_stay_below_the_most_in_use():
    rnnkern.release_memory()
    sizes = [70, 110, 80, 160, 100, 72]
    for steps in sizes:
        saved_of(recurrence_sample("lstm", **LARGE | {"steps": steps}, dtype=torch.float32))
    assert 0 < rnnkern.release_memory() <= max(sizes) * 64 * (512 + 128) * 4


def test_what_is_in_use_is_counted_and_a_small_tensor_takes_no_large_block():
    rnnkern.release_memory()

    def kept_for(steps):
        # c is too small to be cached
        return saved_of(recurrence_sample("lstm", **LARGE | {"steps": steps, "batch": 32}, dtype=torch.float32))

    small, large = kept_for(30), kept_for(60)
    bytes_of_small, bytes_of_large = small.nbytes, large.nbytes
    del small, large
    small = kept_for(30)  # the large block stays cached, because both were in use at once
    assert rnnkern.release_memory() == bytes_of_large
    del small
    assert rnnkern.release_memory() == bytes_of_small
    large = kept_for(60)
    del large
    small = kept_for(30)  # a new block replaces it: both would exceed the peak
    assert rnnkern.release_memory() == 0
    del small
    assert rnnkern.release_memory() == bytes_of_small
