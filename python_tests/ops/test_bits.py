"""What docs/numerics.md says differs does differ, and in nothing else: a table that says too little is wrong too.

What it says is the same is held to that where it is made: test_recurrence.py, test_autograd.py, test_pair.py.
"""

import pytest
import torch

import rnnkern
from rnnkern import reference
from rnnkern.ops import recurrence, recurrence_bidirectional
from rnnkern.testing import outputs_and_gradients, recurrence_sample

LEVELS = rnnkern.build_info()["simd_levels"]
SIZES = {"steps": 24, "batch": 64, "hidden": 96}
WEIGHTS = {"grad of R", "grad of bias"}
STATE = ("state[0]", "state[1]")

needs_bf16 = pytest.mark.skipif("avx512_bf16" not in LEVELS, reason="the processor has no avx512_bf16")


def drawn(cell="lstm", dtype=torch.float32, **options):
    return recurrence_sample(cell, **SIZES | options, dtype=dtype, requires_grad=True)


def differing(*results):
    first, second = results
    return {name for name in first if not torch.equal(first[name], second[name])}


def cut(cell, u, R, state, **kwargs):
    half = len(u) // 2
    first, state = recurrence(cell, u[:half], R, state, **kwargs)
    second, state = recurrence(cell, u[half:], R, state, **kwargs)
    return torch.cat([first, second]), state


@pytest.mark.parametrize("cell", ["lstm", "modrelu"])
def test_the_number_of_threads_is_in_the_gradients_of_weights(cell, threads):
    sample, results = drawn(cell), []
    for count in (1, 3):
        threads(count)
        results.append(outputs_and_gradients(recurrence, sample))
    assert differing(*results) == WEIGHTS


def test_both_directions_at_once_are_in_the_gradients_of_weights(threads):
    _, (cell, u, R, state), kwargs = drawn(inputs=8)
    forward = {"R": R, "state": state} | {k: kwargs[k] for k in ("weight_ih", "bias_ih", "bias")}
    threads(2)
    results = []
    for pair in (recurrence_bidirectional(cell, u, forward, forward),
                 (recurrence(cell, u, **forward), recurrence(cell, u, **forward, reverse=True))):  # fmt: skip
        loss = sum(h.sum() for h, _ in pair)
        named = {"h": pair[0][0], "reverse h": pair[1][0]}
        leaves = {"u": u, "R": R, "bias": kwargs["bias"], "weight_ih": kwargs["weight_ih"]}
        gradients = torch.autograd.grad(loss, list(leaves.values()))
        results.append(named | {f"grad of {name}": g for name, g in zip(leaves, gradients, strict=True)})
    assert differing(*results) == WEIGHTS | {"grad of weight_ih"}


def test_gates_computed_again_from_16_bits_are_in_every_gradient():
    assert of_gates_computed_again(torch.float16) == {f"grad of {name}" for name in ("u", "R", "bias", *STATE)}


@needs_bf16
def test_but_not_where_products_took_the_stored_h_forward_too(simd):
    simd("avx512_bf16")
    assert of_gates_computed_again(torch.bfloat16) == set()


def of_gates_computed_again(dtype):
    sample = drawn(dtype=dtype)
    return differing(*(outputs_and_gradients(op, sample) for op in (recurrence, again)))


def again(*args, **kwargs):
    return recurrence(*args, **kwargs, save_gates=False)


def test_a_cut_is_in_the_gradients_of_weights_and_from_16_bits_in_h():
    single, half = drawn(), drawn(dtype=torch.bfloat16)
    found, of_16_bits = (differing(*(outputs_and_gradients(op, x) for op in (recurrence, cut))) for x in (single, half))
    values = {"h", "final state[0]", "final state[1]"}
    assert found >= WEIGHTS
    assert not found & values
    assert of_16_bits >= values | WEIGHTS


@pytest.mark.parametrize("level", LEVELS[1:2])
def test_the_level_is_in_everything(level, simd):
    sample, results = drawn(), []
    for name in ("plain", level):
        simd(name)
        results.append(outputs_and_gradients(recurrence, sample))
    assert differing(*results) == set(results[0])


def test_neither_torch_nn_nor_the_reference_has_the_same_bits():
    sample = drawn()
    results = [outputs_and_gradients(op, sample) for op in (recurrence, reference.recurrence)]
    assert differing(*results) == set(results[0])
    theirs = torch.nn.LSTM(8, 96)
    ours = rnnkern.nn.LSTM(8, 96)
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(24, 64, 8)
    assert not torch.equal(ours(x)[0], theirs(x)[0])


@pytest.mark.parametrize(("batch", "same"), [(4, False), (5, True)])
def test_single_steps_of_a_few_sequences_add_up_in_another_order(batch, same):
    _, (cell, u, R, state), kwargs = recurrence_sample("lstm", 24, batch, 96, dtype=torch.float32)
    whole, _ = recurrence(cell, u, R, state, **kwargs)
    steps = []
    for u_t in u.split(1):
        h, state = recurrence(cell, u_t, R, state, **kwargs)
        steps.append(h)
    assert torch.equal(torch.cat(steps), whole) == same


def test_the_backward_alone_sees_what_rounding_took():
    half = drawn(dtype=torch.float16)
    single = half.to(torch.float32)
    stored, exact = (outputs_and_gradients(recurrence, sample) for sample in (half, single))
    assert torch.equal(stored["h"], exact["h"].half())
    assert not torch.equal(stored["grad of u"], exact["grad of u"].half())


@needs_bf16
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_avx512_bf16_differs_for_bfloat16_alone(dtype, simd):
    sample, results = drawn(dtype=dtype), []
    for name in ("avx512", "avx512_bf16"):
        simd(name)
        results.append(outputs_and_gradients(recurrence, sample))
    assert ("h" in differing(*results)) == (dtype == torch.bfloat16)
    assert bool(differing(*results)) == (dtype == torch.bfloat16)


@needs_bf16
def test_avx512_bf16_takes_subnormal_numbers_for_zero(simd):
    h0 = torch.full((8, 32), 1e-39, dtype=torch.bfloat16)
    u, R = torch.zeros(2, 8, 32, dtype=torch.bfloat16), torch.eye(32, dtype=torch.bfloat16)
    found = {}
    for name in ("avx512", "avx512_bf16"):
        simd(name)
        found[name] = recurrence("identity", u, R, (h0,))[0]
    assert found["avx512"].all()
    assert not found["avx512_bf16"].any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_sigmoid_does_not_reach_0(dtype):
    """As the forget gate over c = 1, beside i = 0."""
    u = torch.zeros(1, 8, 4, dtype=dtype)
    u[..., 1] = -1000
    R, ones = torch.zeros(4, 1, dtype=dtype), torch.ones(8, 1, dtype=dtype)
    _, (_, c) = recurrence("lstm", u, R, (ones, ones))
    assert (c > 0).all()
    assert not torch.sigmoid(u[..., 1]).any()


def test_second_derivatives_are_the_reference_s_in_the_dtype_of_the_tensors():
    half = drawn(dtype=torch.bfloat16, steps=4, batch=3, hidden=8)
    single = half.to(torch.float32)
    rounded, exact = (second_derivative(recurrence, sample) for sample in (half, single))
    assert torch.equal(rounded, second_derivative(reference.recurrence, half))
    assert not torch.equal(rounded, exact.bfloat16())


def second_derivative(op, sample):
    h, _ = op(*sample.args, **sample.kwargs, save_u=True)
    u = sample.args[1]
    (first,) = torch.autograd.grad(h.sum(), u, create_graph=True)
    return torch.autograd.grad(first.sum(), u)[0]
