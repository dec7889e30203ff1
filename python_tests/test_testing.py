"""Tests of rnnkern.testing: assert_close accepts ordinary rounding errors and nothing worse; memory as counted by
hand."""

import itertools

import pytest
import torch

import rnnkern
from python_tests.samples import check_recurrence, outputs_and_gradients, recurrence_sample
from rnnkern import reference
from rnnkern.testing import FACTORS, assert_close, assert_close_over_draws, peak_bytes, saved_bytes

SHAPE = (50, 400)
HALF = [torch.float32, torch.bfloat16, torch.float16]


@pytest.fixture
def product():
    """A matrix product: the truth, the result of plain PyTorch in a dtype, and its error."""

    def compute(dtype, inner=300):
        a, b = torch.randn(SHAPE[0], inner).to(dtype), torch.randn(inner, SHAPE[1]).to(dtype)
        truth = a.double() @ b.double()
        naive = torch.zeros(SHAPE, dtype=dtype)
        for k in range(inner):  # sums sequentially, so that the error grows as over time steps
            naive += a[:, k : k + 1] * b[k]
        return a, b, naive, truth

    return compute


def refused(what, *tensors):
    with pytest.raises(AssertionError, match=rf"^it: .*{what}"):
        assert_close(*tensors, "it")


# ---- accepted errors


@pytest.mark.parametrize("dtype", HALF)
def test_accepts_the_naive_result_and_the_truth_itself(dtype, product):
    _, _, naive, truth = product(dtype)
    assert_close(naive, naive, truth)
    assert_close(truth.to(dtype), naive, truth)


@pytest.mark.parametrize("dtype", HALF)
def test_accepts_another_order_of_summation(dtype, product):
    a, b, naive, truth = product(dtype)
    backwards = torch.zeros_like(naive)
    for k in reversed(range(a.shape[1])):
        backwards += a[:, k : k + 1] * b[k]
    assert not torch.equal(backwards, naive)
    assert_close(backwards, naive, truth)
    assert_close(a @ b, naive, truth)


@pytest.mark.parametrize(
    ("dtype", "size"),
    [
        *itertools.product([*HALF, torch.float64], [1, 7, 1000]),
        *itertools.product([*HALF, torch.float64], [5000]),
    ],
)
def test_accepts_an_error_of_one_unit_where_the_naive_result_is_exact(dtype, size):
    truth = torch.randn(size).to(dtype)
    up = torch.nextafter(truth.abs(), torch.tensor(torch.inf, dtype=dtype)) * truth.sign()
    either = torch.where(torch.rand(size) < 0.5, truth, up)
    assert (either != truth).any() or size == 1
    assert_close(either, truth, truth.double())


def test_accepts_nothing_and_zeros():
    for shape in ((0,), (3, 0), ()):
        assert_close(*(torch.zeros(shape, dtype=dtype) for dtype in (torch.float32, torch.float32, torch.float64)))


def test_a_truth_of_zeros_has_no_direction():
    zeros = torch.zeros(2000)
    assert_close(zeros, zeros, zeros.double())
    refused("root mean square error", zeros + 1e-30, zeros, zeros.double())


def test_a_dtype_that_overflows_must_overflow_alike():
    truth = torch.tensor([1.0, 1e5], dtype=torch.float64)
    naive = truth.half()
    assert naive[1] == torch.inf
    assert_close(naive, naive, truth)
    refused("1 of 2 elements are not finite where", torch.tensor([1.0, 65504.0]).half(), naive, truth)
    infinite = torch.tensor([1.0, torch.inf], dtype=torch.float64)
    finite = torch.tensor([1.0, 65504.0]).half()
    assert_close(finite, finite, infinite)  # elements with an infinite truth are not compared
    refused("root mean square error", finite + 0.1, finite, infinite)


def test_accepts_the_same_nan_and_infinity(product):
    _, _, naive, truth = product(torch.float32)
    for value in (torch.nan, torch.inf, -torch.inf):
        spoilt = [x.clone() for x in (naive, naive, truth)]
        for x in spoilt:
            x[3, 4] = value
        assert_close(*spoilt)
    everywhere = torch.full_like(naive, torch.nan)
    assert_close(everywhere, everywhere, everywhere.double())


# ---- rejected errors


@pytest.mark.parametrize("dtype", [*HALF, torch.float64])
@pytest.mark.parametrize("size", [20, 900, 20_000])
def test_refuses_an_error_larger_by_more_than_the_factor(dtype, size):
    truth = torch.randn(size, dtype=torch.float64)
    error = 50 * torch.finfo(dtype).eps * torch.randn(size, dtype=torch.float64)
    naive = (truth + error).to(dtype)
    documented = {torch.float32: 4, torch.float64: 4, torch.bfloat16: 2, torch.float16: 2}[dtype]
    just, more = ((truth + factor * error).to(dtype) for factor in (0.9 * documented, 1.3 * documented))
    assert_close(just, naive, truth)
    assert_close((truth - error).to(dtype), naive, truth)
    refused("root mean square error", more, naive, truth)


@pytest.mark.parametrize("dtype", [*HALF, torch.float64])
def test_an_exact_naive_result_leaves_the_rounding_of_the_largest_element(dtype):
    truth = torch.ones(900, dtype=torch.float64)
    unit = FACTORS[dtype] * torch.finfo(dtype).eps
    assert_close((truth + unit).to(dtype), truth.to(dtype), truth)
    refused("root mean square error", (truth + 2 * unit).to(dtype), truth.to(dtype), truth)


def test_refuses_a_factor_of_five_in_float32_and_of_three_in_bfloat16(product):
    for dtype, factor in ((torch.float32, 5), (torch.bfloat16, 3)):
        _, _, naive, truth = product(dtype)
        noise = (naive.double() - truth).square().mean().sqrt() * torch.randn(SHAPE, dtype=torch.float64)
        assert_close((truth + noise).to(dtype), naive, truth)
        refused("exceeds", (truth + factor * noise).to(dtype), naive, truth)


def passes_by_size(actual, naive, truth):
    """Whether the tests of root mean square and largest error accept the result: it is compared in pieces that are too
    small for the other tests."""
    pieces = zip(*(x.flatten().split(1000) for x in (actual, naive, truth)), strict=True)
    for piece in pieces:
        assert_close(*piece)
    return True


@pytest.mark.parametrize("dtype", HALF)
def test_refuses_a_small_bias_everywhere(dtype):
    truth = torch.randn(20_000, dtype=torch.float64).sign() * (1 + torch.rand(20_000, dtype=torch.float64))
    eps = torch.finfo(dtype).eps
    naive = (truth + 4 * eps * torch.randn(20_000, dtype=torch.float64)).to(dtype)
    biased = (truth + 4 * eps).to(dtype)
    assert passes_by_size(biased, naive, truth)
    refused("bias", biased, naive, truth)


def test_refuses_another_direction():
    """A few large elements hide errors of all others from the first two tests, because the largest element determines
    the floor."""
    truth = torch.randn(20_000, dtype=torch.float64)
    truth[::500] = 30
    error = 20 * torch.finfo(torch.float32).eps * torch.randn(20_000, dtype=torch.float64)
    naive, rotated = truth.float(), (truth + error - error.mean()).float()
    assert passes_by_size(rotated, naive, truth)
    refused("sine", rotated, naive, truth)


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("size", [1000, 20_000])
def test_refuses_one_error_that_the_others_hide(size, dtype):
    truth = torch.randn(size).to(dtype)
    truth[0] = 4  # about the largest element
    unit = torch.finfo(dtype).eps * truth.abs().max().item()
    few, many = truth.clone(), truth.clone()
    few[0] += 2 * FACTORS[dtype] * unit
    many[0] += 10 * FACTORS[dtype] * unit
    assert_close(few, truth, truth.double())
    refused("largest error", many, truth, truth.double())


def test_a_change_of_length_alone_is_no_change_of_direction():
    truth = torch.randn(2000, dtype=torch.float64)
    longer, elsewhere = 1.0001 * truth, truth + 0.0002 * torch.randn(2000, dtype=torch.float64)
    refused("sine", elsewhere.float(), longer.float(), truth)
    refused("root mean square", (1.001 * truth).float(), truth.float(), truth)


@pytest.mark.parametrize("size", [10, 20_000])
def test_refuses_one_wrong_element(size, product):
    _, _, naive, truth = (x if x is None else x.flatten()[:size] for x in product(torch.float32))
    at = truth.abs().argmax()
    flipped = naive.clone()
    flipped[at] *= -1
    refused("error", flipped, naive, truth)
    flipped = naive.clone()
    flipped[truth.abs().kthvalue(max(size // 100, 1)).indices] += 0.01
    refused("error", flipped, naive, truth)


def test_refuses_all_zeros_and_what_was_never_written(product):
    _, _, naive, truth = product(torch.float32)
    refused("root mean square error", torch.zeros_like(naive), naive, truth)
    refused("not finite", torch.full_like(naive, torch.nan), naive, truth)
    refused("root mean square error", torch.ones(3), torch.zeros(3), torch.zeros(3).double())


def test_refuses_nan_and_infinity_in_other_places(product):
    _, _, naive, truth = product(torch.float32)

    def having(x, value, at=(3, 4)):
        x = x.clone()
        x[at] = value
        return x

    inf, nan = torch.inf, torch.nan
    for value in (nan, inf, -inf):
        refused("1 of 20000 elements are not finite where", having(naive, value), naive, truth)
        refused("1 of 20000 elements are not finite where", naive, having(naive, value), having(truth, value))
        refused("2 of 20000", having(naive, value, (0, 0)), having(naive, value), having(truth, value))
    refused("not finite", having(naive, -inf), having(naive, inf), having(truth, inf))
    refused("not finite", having(naive, nan), having(naive, inf), having(truth, inf))
    worse = having(having(naive, nan), 1e3, (0, 0))
    refused("error", worse, having(naive, nan), having(truth, nan))


def test_refuses_another_shape_dtype_or_device(product):
    _, _, naive, truth = product(torch.float32)
    refused("shapes", naive.t(), naive, truth)
    refused("shapes", naive[:1], naive, truth)
    refused("shapes", naive, naive.flatten(), truth)
    refused("dtype", naive.double(), naive, truth)
    refused("dtype", naive.bfloat16(), naive, truth)
    refused("device", naive.to("meta"), naive, truth)
    refused("shapes", torch.zeros(0, 3), torch.zeros(3, 0), torch.zeros(3, 0).double())


# ---- a whole call


def spoilt(change):
    """The reference with one result or gradient changed."""

    def op(cell, u, R, state, **kwargs):
        h, final = reference.recurrence(cell, u, R, state, **kwargs)
        return change(h, final)

    return op


def scaled_gradient(h, final):
    h = h.clone()
    h.register_hook(lambda grad: 1.0001 * grad)
    return h, final


def draws_of(error, count=60, naive_error=3e-7):
    """Results of one element, with errors from one distribution; only their scale differs."""
    for _ in range(count):
        truth = torch.randn(1, dtype=torch.float64).exp()
        actual, naive = (truth * (1 + size * torch.randn(1).double()) for size in (error, naive_error))
        yield actual.float(), naive.float(), truth


def test_errors_that_differ_by_luck_alone_pass_over_many_draws():
    def judge_each():
        for draw in draws:
            assert_close(*draw)

    torch.manual_seed(0)
    draws = list(draws_of(1e-6, naive_error=1e-6))
    with pytest.raises(AssertionError, match="exceeds"):
        judge_each()
    assert_close_over_draws(draws)


@pytest.mark.parametrize("error", [6e-6, 1e-3])
def test_errors_that_are_larger_in_most_draws_are_found(error):
    torch.manual_seed(0)
    with pytest.raises(AssertionError, match="exceeds"):
        assert_close_over_draws(draws_of(error))


def test_one_wrong_draw_of_many_is_found():
    torch.manual_seed(0)
    draws = list(draws_of(3e-7))
    draws[30] = (draws[30][0] * 1.01, *draws[30][1:])
    with pytest.raises(AssertionError, match="of call 30"):
        assert_close_over_draws(draws)


def test_nothing_and_zeros_pass_over_many_draws():
    zero, none = (torch.zeros(2), torch.zeros(2), torch.zeros(2, dtype=torch.float64)), (torch.zeros(0),) * 3
    assert_close_over_draws([])
    assert_close_over_draws([zero, none])


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (lambda h, final: (h * 1.0001, final), "h"),
        (lambda h, final: (h, (final[0], final[1] + 1e-4)), r"final state\[1\]"),
        (lambda h, final: (h, (final[1], final[0])), r"final state\[0\]"),
        (scaled_gradient, "grad of u"),
        (lambda h, final: (h.detach() + 0 * h, final), "grad of u"),
    ],
)
def test_a_wrong_result_or_gradient_is_found(change, name):
    sample = recurrence_sample("lstm", 5, 3, 8, dtype=torch.float32, requires_grad=True)
    with pytest.raises(AssertionError, match=f"^lstm: {name}: "):
        check_recurrence(spoilt(change), sample)


@pytest.mark.parametrize("at", range(7))
def test_a_wrong_gradient_of_any_argument_is_found(at):
    sample = recurrence_sample("lstm", 5, 3, 8, inputs=4, dtype=torch.float32, requires_grad=True)
    wrong = sample.leaves()[at]

    def op(cell, u, R, state, **kwargs):
        def change(x):
            if isinstance(x, tuple):
                return tuple(map(change, x))
            return 1.001 * x - 0.001 * x.detach() if x is wrong else x

        return reference.recurrence(cell, *map(change, (u, R, state)), **{k: change(x) for k, x in kwargs.items()})

    name = ["u", "R", r"state\[0\]", r"state\[1\]", "bias", "weight_ih", "bias_ih"][at]
    with pytest.raises(AssertionError, match=f"^lstm: grad of {name}: "):
        check_recurrence(op, sample)


def test_results_and_gradients_have_their_names():
    sample = recurrence_sample("modrelu", requires_grad=True)
    gradients = ["grad of u", "grad of R", "grad of state[0]", "grad of bias", "grad of params[0]"]
    results = outputs_and_gradients(reference.recurrence, sample)
    assert list(results) == ["h", "final state[0]", *gradients]
    assert [results[name].shape for name in gradients] == [x.shape for x in sample.leaves()]
    again = outputs_and_gradients(reference.recurrence, sample)
    assert all(torch.equal(results[name], again[name]) for name in results)
    other = outputs_and_gradients(reference.recurrence, sample, seed=1)
    assert not torch.equal(results["grad of u"], other["grad of u"])
    no_bias = outputs_and_gradients(reference.recurrence, recurrence_sample("lstm", bias=False, requires_grad=True))
    assert [n for n in no_bias if "grad" in n] == ["grad of u", "grad of R", "grad of state[0]", "grad of state[1]"]


# ---- memory

KILO = 250
"""float32 values."""


def test_saved_bytes_are_those_counted_by_hand():
    x, weight = torch.randn(100, 3), torch.nn.Parameter(torch.randn(8, 3))
    call = lambda: torch.tanh(x @ weight.T)  # noqa: E731, keeps x for the weight's gradient and tanh's result
    assert saved_bytes(call) == 4 * (300 + 800)
    assert saved_bytes(call, besides=[x]) == 4 * 800
    with torch.no_grad():
        assert saved_bytes(call) == 0


def test_views_of_parameters_do_not_count():
    W, x = torch.nn.Parameter(torch.randn(8, 8)), torch.randn(3, 4, requires_grad=True)
    assert saved_bytes(lambda: torch.tanh(x @ W[:4])) == 4 * 3 * 8


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


@pytest.mark.parametrize(("save_gates", "values"), [(True, 6), (False, 2)])
@pytest.mark.parametrize(("steps", "batch", "hidden"), [(20, 3, 16), (500, 8, 128)])  # below and above 1 MB
def test_the_pool_of_a_layer_is_counted_alike_from_call_to_call(steps, batch, hidden, save_gates, values):
    lstm, x = rnnkern.nn.LSTM(5, hidden, save_gates=save_gates), torch.randn(steps, batch, 5)
    kept = values * steps * batch * hidden + 2 * batch * hidden  # and the initial state
    peaks = set()
    for _ in range(3):
        assert saved_bytes(lambda: lstm(x)[0], [x]) == 4 * kept
        peaks.add(peak_bytes(lambda: lstm(x)[0]))
    (peak,) = peaks
    assert 4 * kept <= peak <= 1.2 * 4 * (kept + 4 * steps * batch * hidden)


def test_peak_bytes_counts_what_is_held_at_once():
    held = torch.ones(KILO)

    def call():
        a, b = torch.empty(10 * KILO), torch.empty(5 * KILO)
        del a
        c = torch.empty(7 * KILO)
        return b.clone(), c, held

    assert peak_bytes(call) == 17_000  # b, its copy and c, which exceed a and b


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_memory_on_a_gpu():
    x = torch.randn(1024, 256, device="cuda", requires_grad=True)  # 1 MiB

    def call():
        y = x.exp()
        return y.square().sum()

    assert saved_bytes(call) == 2**20
    assert peak_bytes(call) in range(2 * 2**20, 2 * 2**20 + 4096)  # blocks of the allocator are multiples of 512 bytes
