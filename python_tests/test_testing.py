"""The closeness rule finds a wrong result or gradient of a whole call; memory is as counted by hand."""

import pytest
import torch

import rnnkern
from python_tests.samples import Sample, check_recurrence, draws, recurrence_sample
from rnnkern import reference
from rnnkern.testing import peak_bytes, saved_bytes

# ---- a whole call


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (lambda h, final: (h * 1.0001, final), "h"),
        (lambda h, final: (h, (final[0], final[1] + 1e-4)), r"final state\[1\]"),
        (lambda h, final: (h.detach() + 0 * h, final), "grad of u"),
    ],
)
def test_a_wrong_result_is_found(change, name):
    samples = draws(recurrence_sample, "lstm", 5, 3, 8, dtype=torch.float32, requires_grad=True)

    def op(cell, u, R, state, **kwargs):
        return change(*reference.recurrence(cell, u, R, state, **kwargs))

    with pytest.raises(AssertionError, match=f"^lstm: {name}"):
        check_recurrence(op, samples, "lstm")


@pytest.mark.parametrize("at", range(7))
@pytest.mark.sampled
def test_a_wrong_gradient_of_any_argument_is_found(at):
    samples = draws(recurrence_sample, "lstm", 5, 3, 8, inputs=4, dtype=torch.float32, requires_grad=True)

    def op(cell, u, R, state, **kwargs):
        wrong = Sample("", (cell, u, R, state), kwargs).leaves()[at]

        def change(x):
            if isinstance(x, tuple):
                return tuple(map(change, x))
            return 1.001 * x - 0.001 * x.detach() if x is wrong else x

        return reference.recurrence(cell, *map(change, (u, R, state)), **{k: change(x) for k, x in kwargs.items()})

    name = ["u", "R", r"state\[0\]", r"state\[1\]", "bias", "weight_ih", "bias_ih"][at]
    with pytest.raises(AssertionError, match=f"^lstm: grad of {name}"):
        check_recurrence(op, samples, "lstm")


# ---- memory


def test_saved_bytes_are_those_counted_by_hand():
    x, weight = torch.randn(100, 3), torch.nn.Parameter(torch.randn(8, 3))
    call = lambda: torch.tanh(x @ weight.T)  # noqa: E731, keeps x for the weight's gradient and tanh's result
    assert saved_bytes(call) == 4 * (300 + 800)
    assert saved_bytes(call, besides=[x]) == 4 * 800
    with torch.no_grad():
        assert saved_bytes(call) == 0


def test_saved_storages_count_once_and_whole_and_only_while_their_graph_lives():
    x = torch.randn(10, 10, requires_grad=True)

    def views():
        y = x.exp()  # kept once, though three nodes save it or a part of it
        return y, y[:2].square(), y.square()

    assert saved_bytes(views) == 400

    def forgotten():
        torch.randn(1000).requires_grad_().exp().sum()
        return x.exp()

    assert saved_bytes(forgotten) == 400
    part = torch.nn.Parameter(torch.randn(10, 8))[:, :4]  # neither leaves nor their views count
    assert saved_bytes(lambda: torch.tanh(x @ part)) == 160


@pytest.mark.parametrize(("save_gates", "values"), [(True, 6), (False, 2)])
@pytest.mark.parametrize(("steps", "batch", "hidden"), [(20, 3, 16), (500, 8, 128)])  # below and above 1 MB
def test_the_pool_of_a_layer_is_counted_alike_from_call_to_call(steps, batch, hidden, save_gates, values):
    lstm, x = rnnkern.nn.LSTM(5, hidden, save_gates=save_gates), torch.randn(steps, batch, 5)
    kept = values * steps * batch * hidden + batch * hidden  # and the zeros that are h_0 and c_0
    peaks = set()
    for _ in range(3):
        assert saved_bytes(lambda: lstm(x)[0], [x]) == 4 * kept
        peaks.add(peak_bytes(lambda: lstm(x)[0]))
    (peak,) = peaks
    assert 4 * kept <= peak <= 1.2 * 4 * (kept + 4 * steps * batch * hidden)


def test_peak_bytes_counts_what_is_held_at_once():
    held = torch.ones(250)

    def call():
        a, b = torch.empty(2500), torch.empty(1250)
        del a
        c = torch.empty(1750)
        return b.clone(), c, held

    assert peak_bytes(call) == 4 * (1250 + 1250 + 1750)  # b, its copy and c, which exceed a and b


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_memory_on_a_gpu():
    x = torch.randn(1024, 256, device="cuda", requires_grad=True)  # 1 MiB

    def call():
        y = x.exp()
        return y.square().sum()

    assert saved_bytes(call) == 2**20
    assert peak_bytes(call) in range(2 * 2**20, 2 * 2**20 + 4096)  # blocks of the allocator are multiples of 512 bytes
