"""The closeness rule of rnnkern.testing: what it accepts and refuses, over tables of errors, and how often over random
results."""

import contextlib
import itertools

import pytest
import torch

from python_tests.tiers import quick_where
from rnnkern.testing import DRAWS, FACTORS, assert_close, assert_close_over_draws

HALF = [torch.float32, torch.bfloat16, torch.float16]
each_dtype = pytest.mark.parametrize("dtype", HALF)


def product(dtype=torch.float32):
    """Two matrices, their product by plain PyTorch, and the truth."""
    a, b = torch.randn(50, 300).to(dtype), torch.randn(300, 400).to(dtype)
    return a, b, summed(a, b, range(300)), a.double() @ b.double()


def summed(a, b, order):
    """A product whose sums are sequential, so that their errors grow as over time steps."""
    total = torch.zeros(len(a), b.shape[1], dtype=a.dtype)
    for k in order:
        total += a[:, k : k + 1] * b[k]
    return total


def refused(what, *tensors, **options):
    with pytest.raises(AssertionError, match=rf"^it: .*{what}"):
        assert_close(*tensors, "it", **options)


# ---- accepted errors


@each_dtype
def test_accepts_every_order_of_summation(dtype):
    a, b, naive, truth = product(dtype)
    backwards = summed(a, b, reversed(range(300)))
    assert not torch.equal(backwards, naive)
    for right in (naive, truth.to(dtype), backwards, a @ b):
        assert_close(right, naive, truth)


@pytest.mark.parametrize("size", [1, 7, 1000, 5000])
@pytest.mark.parametrize("dtype", [*HALF, torch.float64])
def test_accepts_an_error_of_one_unit_where_the_naive_result_is_exact(dtype, size):
    truth = torch.randn(size).to(dtype)
    up = torch.nextafter(truth.abs(), torch.tensor(torch.inf, dtype=dtype)) * truth.sign()
    either = torch.where(torch.rand(size) < 0.5, truth, up)
    assert_close(either, truth, truth.double(), scale=truth.abs().max().item())


def test_a_truth_of_zeros_has_no_direction():
    zeros = torch.zeros(2000)
    assert_close(zeros, zeros, zeros.double())
    assert_close(zeros + 1e-8, zeros, zeros.double(), scale=1.0)
    refused("root mean square error", zeros + 1e-6, zeros, zeros.double(), scale=1.0)
    assert_close(zeros[:0], zeros[:0], zeros[:0].double())


def test_a_dtype_that_overflows_must_overflow_alike():
    truth = torch.tensor([1.0, 1e5], dtype=torch.float64)
    naive = truth.half()
    assert naive[1] == torch.inf
    assert_close(naive, naive, truth)
    refused("1 of 2 elements differ", torch.tensor([1.0, 65504.0]).half(), naive, truth)
    large, tenth, over = (torch.tensor([1.0, value], dtype=torch.float64) for value in (6e4, 6e3, torch.inf))
    assert_close(over.half(), tenth.half(), large)  # both are wrong, the naive result by more
    refused("root mean square error", over.half(), large.half(), large, factor=2.0)
    refused("1 of 2 elements differ", over.half(), tenth.half(), large / 2)
    refused("1 of 2 elements differ", -over.half(), tenth.half(), large)
    infinite = torch.tensor([1.0, torch.inf], dtype=torch.float64)
    finite = torch.tensor([1.0, 65504.0]).half()
    assert_close(finite, finite, infinite)  # elements with an infinite truth are not compared
    refused("root mean square error", finite + 0.1, finite, infinite, factor=2.0)


# ---- rejected errors


@pytest.mark.parametrize("dtype", [*HALF, torch.float64])
@pytest.mark.parametrize("size", [100, 900, 20_000])
def test_refuses_an_error_larger_by_more_than_the_factor(dtype, size):
    truth = torch.randn(size, dtype=torch.float64)
    error = 50 * torch.finfo(dtype).eps * torch.randn(size, dtype=torch.float64)
    naive = (truth + error).to(dtype)
    documented = {torch.float32: 4, torch.float64: 4, torch.bfloat16: 2, torch.float16: 2}[dtype]
    just, more = ((truth + factor * error).to(dtype) for factor in (0.9 * documented, 1.3 * documented))
    assert_close(just, naive, truth)
    assert_close((truth - error).to(dtype), naive, truth)
    refused("root mean square error", more, naive, truth)


@each_dtype
def test_an_exact_naive_result_leaves_the_rounding_of_the_largest_element(dtype):
    truth = torch.ones(900, dtype=torch.float64)
    unit = FACTORS[dtype] * torch.finfo(dtype).eps
    assert_close((truth + unit).to(dtype), truth.to(dtype), truth)
    refused("root mean square error", (truth + 2 * unit).to(dtype), truth.to(dtype), truth)
    refused("root mean square error", (truth + 1.5 * unit).to(dtype), (truth + unit / FACTORS[dtype]).to(dtype), truth)


def passes_by_size(actual, naive, truth):
    """Checks that root mean square and largest error are accepted, in pieces that are too small for the other tests."""
    for piece in zip(*(x.flatten().split(1000) for x in (actual, naive, truth)), strict=True):
        assert_close(*piece)


@each_dtype
def test_refuses_a_small_bias_everywhere(dtype):
    truth = torch.randn(20_000, dtype=torch.float64).sign() * (1 + torch.rand(20_000, dtype=torch.float64))
    eps = torch.finfo(dtype).eps
    naive = (truth + 4 * eps * torch.randn(20_000, dtype=torch.float64)).to(dtype)
    biased = (truth + 4 * eps).to(dtype)
    passes_by_size(biased, naive, truth)
    refused("bias", biased, naive, truth)


def test_refuses_another_direction():
    """A few large elements hide errors of all others from the first two tests, because the largest element determines
    the floor."""
    truth = torch.randn(20_000, dtype=torch.float64)
    truth[::500] = 30
    error = 20 * torch.finfo(torch.float32).eps * torch.randn(20_000, dtype=torch.float64)
    naive, rotated = truth.float(), (truth + error - error.mean()).float()
    passes_by_size(rotated, naive, truth)
    refused("sine", rotated, naive, truth)


@each_dtype
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
    level = torch.full((20_000,), 0.1, dtype=torch.float64)  # rounding the dot product of equal numbers adds up
    assert_close((1 + 2**-30) * level, 2 * level, level)


def put(x, value, at=(3, 4)):
    x = x.clone()
    x[at] = value
    return x


INF, NAN = torch.inf, torch.nan
OTHERS = [-INF, INF, NAN]


@pytest.mark.parametrize("value", OTHERS)
def test_nan_and_infinity_are_in_the_same_places(value):
    _, _, naive, truth = product()
    both = put(naive, value), put(truth, value)
    assert_close(both[0], *both)
    refused("1 of 20000 elements differ", put(naive, value), naive, truth)
    refused("1 of 20000 elements differ", naive, *both)
    refused("2 of 20000", put(naive, value, (0, 0)), *both)
    refused("error", put(both[0], 1e3, (0, 0)), *both)
    for other in OTHERS:
        if other is not value:
            refused("1 of 20000 elements differ", put(naive, other), *both)


@pytest.mark.parametrize("value", [INF, NAN])
def test_where_only_plain_pytorch_overflows_the_kernel_may_overflow_too_but_not_be_wrong(value):
    _, _, naive, truth = product()
    assert_close(naive, put(naive, value), truth)
    assert_close(put(naive, NAN), put(naive, value), truth)
    refused("root mean square error", put(naive, 1e3), put(naive, value), truth)


def test_refuses_to_pool_one_call():
    triple = torch.full((100,), 1 + 1e-6), torch.full((100,), 1 + 1e-7), torch.ones(100, dtype=torch.float64)
    with pytest.raises(ValueError, match=r"^gru: call 2 has the truth of call 1"):
        assert_close_over_draws(({"h": triple} for _ in range(8)), "gru: ")


OTHER = {
    "shapes": lambda x: x.t(),
    "shapes .*": lambda x: x[:1],
    "dtype": lambda x: x.bfloat16(),
    "expected dtype": lambda x: x.double(),
    "device": lambda x: x.to("meta"),
}


@pytest.mark.parametrize("what", OTHER)
def test_refuses_another_shape_dtype_or_device(what):
    _, _, naive, truth = product()
    refused(what, OTHER[what](naive), naive, truth)
    refused("shapes", naive, naive.flatten(), truth)


def test_refuses_to_judge_without_a_bound():
    zeros, truth = torch.zeros(3), torch.randn(200, dtype=torch.float64)
    with pytest.raises(ValueError, match=r"^it: the naive error and the truth are zero; `scale` must say"):
        assert_close(zeros + 1e-30, zeros, zeros.double(), "it")
    for judge in (lambda triple: assert_close(*triple, "it"), lambda triple: draws_of([triple])):
        judge((truth, truth, truth))  # the same bits
        with pytest.raises(ValueError, match=r"^it: the naive result in float64 is the truth itself"):
            judge((truth + 1e-15, truth, truth))


# ---- how often


def draws_of(triples):
    assert_close_over_draws(({"": triple} for triple in triples), "it")


def random_results(dtype, size, tails, factor=1.0, change=None):
    """Errors of a few roundings, and ``factor`` times that of the kernel. With tails, all errors of a call are larger
    by the same random factor, as if a single number were ill-conditioned."""
    least, largest = (4, 1) if dtype.itemsize == 2 else (10, 1000)
    while True:
        truth = torch.randn(size, dtype=torch.float64)
        error = least * torch.finfo(dtype).eps * largest ** (tails * torch.rand(()).item())
        found = truth if change is None else change(truth, error)
        sizes = (found, factor * error), (truth, error)
        yield *((x + e * torch.randn(size, dtype=torch.float64)).to(dtype) for x, e in sizes), truth


def refusals(trials, *given, **options):
    """How many pools of random calls are refused."""
    count, results = 0, random_results(*given, **options)
    for _ in range(trials):
        try:
            draws_of(results)
        except AssertionError:
            count += 1
    return count


KINDS = pytest.mark.parametrize(("dtype", "tails"), list(itertools.product([*HALF, torch.float64], [False, True])))
TRIALS = [(1, 20), (20, 20), (1500, 100), *((size, 1000) for size in (1, 3, 20, 100, 3000))]


@KINDS
@pytest.mark.parametrize(("size", "trials"), quick_where(lambda each: each[1] < 1000, TRIALS))
@pytest.mark.drawn
def test_no_correct_kernel_is_refused(size, trials, dtype, tails):
    assert refusals(trials, dtype, size, tails) == 0


@KINDS
@pytest.mark.parametrize("size", [20, 100, 1500])
@pytest.mark.sampled
def test_errors_of_five_times_are_refused(size, dtype, tails):
    assert refusals(20, dtype, size, tails, factor=5.0) >= 19


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_of_single_numbers_only_larger_errors_are_refused(dtype):
    """The limit of what eight calls of one element can say."""
    assert refusals(20, dtype, 1, False, factor=6.0) >= 5
    assert refusals(20, dtype, 1, False, factor=20.0) >= 19


@pytest.mark.parametrize("size", [20, 1500])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize(
    "change",
    [lambda x, error: x * (1 - 2 * (torch.arange(len(x)) % 16 == 3)), lambda x, error: x.roll(1), lambda x, error: -x,
     lambda x, error: x + 10 * error],
    ids=["a column with the wrong sign", "wrong index", "wrong sign", "bias"],
)  # fmt: skip
@pytest.mark.sampled
def test_what_is_wrong_is_always_refused(change, dtype, size):
    assert refusals(10, dtype, size, False, change=change) == 10


def test_wrong_values_in_one_of_eight_calls_are_found():
    results = list(itertools.islice(random_results(torch.float32, 20, False), 8))
    results[3] = (-results[3][0], *results[3][1:])
    with pytest.raises(AssertionError, match="exceeds 4 times the naive one"):
        draws_of(results)
    with pytest.raises(AssertionError, match=r"^it of call 2: .* exceeds"):
        assert_close_over_draws([{"": triple} for triple in results[2:5]], "it")


def test_calls_are_taken_as_they_are_needed():
    def taken(size, factor=1.0):
        count = itertools.count()
        results = random_results(torch.float32, size, False, factor)
        with contextlib.suppress(AssertionError):
            draws_of(triple for triple in results if next(count) >= 0)
        return next(count)

    assert (taken(100), taken(60), taken(20), taken(3)) == (1, 2, 8, 8)
    assert taken(100, factor=9.0) == DRAWS
