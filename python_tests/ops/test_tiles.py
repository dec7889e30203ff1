"""Products of bfloat16 at the levels ``avx512_bf16`` and ``amx``, and of float32 in tiles where PyTorch allows it."""

from contextlib import contextmanager, nullcontext
from functools import partial

import pytest
import torch

from python_tests.gpu.recurrences import KINKS, off_kinks
from python_tests.samples import EVERY_CELL, assert_same_bits, draws, outputs_and_gradients, recurrence_sample, takes
from python_tests.samples.agreement import agree
from python_tests.samples.rounded import RoundedProducts, to_bfloat16
from python_tests.tiers import LEVELS, PAIRS
from rnnkern import _extension, build_info, nn, ops, reference
from rnnkern.ops import recurrence

HAS_TILES = build_info().get("simd_level") == "amx"
with_tiles = pytest.mark.skipif(not HAS_TILES, reason="AMX is not in use: the processor, the build or RNNKERN_SIMD")
PARTS = {"high": 2, "medium": 1}
EVERYTHING = {"packed": True, "reset": True, "reverse": True, "inputs": 33, "grad_scale": 1}


@contextmanager
def allowed(precision):
    """PyTorch's setting for the float32 products of the calls inside the block."""
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision("highest")


def under(precision, op=recurrence, **options):
    """The operator with forward passes under the setting."""

    def call(*args, **kwargs):
        with allowed(precision):
            return op(*args, **kwargs, **options)

    return call


def of_integers(batch, heads, units, inputs, steps=2):
    """A call of which every product is a sum of integers, exact in float32 in any order."""
    sample = recurrence_sample("identity", steps, batch, heads * units, heads=heads, inputs=inputs, dtype=torch.float32)
    drawn = lambda x, below: torch.randint_like(x, 1 - below, below)  # noqa: E731
    _, (cell, x, R, (h0,)), kwargs = sample
    args = cell, drawn(x, 16), drawn(R, 3), (drawn(h0, 200),)
    kwargs |= {name: drawn(kwargs[name], 3) for name in ("weight_ih", "bias_ih", "bias")}
    return sample._replace(args=args, kwargs=kwargs).to(torch.float32, requires_grad=True)


@with_tiles
@pytest.mark.parametrize("threads_in_use", [1, 2])
@pytest.mark.parametrize("precision", PARTS)
def test_each_size_of_tiles_and_remainders(precision, threads_in_use, threads):
    """One part of a factor represents 8 bits, which the factors of a single step need."""
    threads(threads_in_use)
    steps = PARTS[precision]
    sizes = [(4, 1, 1, 1), (5, 3, 11, 7), (16, 1, 16, 32), (17, 1, 33, 31), (33, 2, 32, 65), (70, 1, 100, 3)]
    for size in sizes:
        sample = of_integers(*size, steps=steps)
        exact, found = (outputs_and_gradients(op, sample) for op in (recurrence, under(precision)))
        assert_same_bits({name: x for name, x in found.items() if not name.startswith("grad")}, exact)
        for name, value in found.items() if precision == "high" else ():  # the gradients of h are random
            torch.testing.assert_close(value, exact[name], rtol=1e-4, atol=1e-4 * exact[name].abs().max().item())


@with_tiles
@pytest.mark.parametrize("precision", PARTS)
@pytest.mark.parametrize("cell", EVERY_CELL)
def test_as_close_as_rounded_factors(cell, precision):
    def results(op, sample):
        rounding = partial(to_bfloat16, parts=PARTS[precision])
        with RoundedProducts(rounding) if op is reference.recurrence else nullcontext():
            return outputs_and_gradients(op, sample)

    for options in ({"heads": 2}, {"dropout": 0.3}, {"zoneout": 0.2}, EVERYTHING, {"inputs": 5, "bias": False}):
        options = options | ({"inputs": 0} if cell in KINKS else {})
        if takes(cell, options):
            make = partial(recurrence_sample, cell, 3, 19, 36, dtype=torch.float32, requires_grad=True, **options)
            for save_gates in (True, False):
                op = under(precision, save_gates=save_gates)
                agree(op, reference.recurrence, results, map(off_kinks, draws(make)), f"{cell} {options}")


@with_tiles
@pytest.mark.parametrize("precision", [*PARTS, torch.bfloat16], ids=str)
def test_bits_do_not_depend_on_threads_or_pieces(precision, threads):
    dtype, setting = (torch.float32, precision) if precision in PARTS else (precision, "highest")
    sample = recurrence_sample("lstm", 9, 37, 200, inputs=70, dtype=dtype, requires_grad=True)
    op = under(setting)
    results = []
    for count in (1, 2, 3):
        threads(count)
        results.append(outputs_and_gradients(op, sample))
    assert_same_bits({name: results[0][name] for name in ("h", "grad of u")}, results[1])
    assert_same_bits({name: results[0][name] for name in ("h", "grad of u")}, results[2])
    assert_same_bits(results[2], outputs_and_gradients(op, sample))
    if dtype != torch.float32:
        return  # c is rounded between pieces
    _, (cell, x, R, state), kwargs = sample
    pieces = []
    for piece in x.split((1, 3, 5)):
        h, state = op(cell, piece, R, state, **kwargs)
        pieces.append(h)
    assert torch.equal(torch.cat(pieces), results[0]["h"])


@with_tiles
@pytest.mark.parametrize("batch", [3, 4])
def test_at_least_four_sequences(batch):
    sample = recurrence_sample("gru", 4, batch, 40, dtype=torch.float32)
    (exact, _), (found, _) = (op(*sample.args, **sample.kwargs) for op in (recurrence, under("high")))
    assert torch.equal(exact, found) == (batch < 4)
    with allowed("high"):
        reason = ops.explain(recurrence, *sample.args, **sample.kwargs).reason
    assert ("2 bfloat16 parts" in reason) == (batch >= 4)


@with_tiles
def test_the_backward_pass_keeps_the_setting_of_its_call():
    sample = recurrence_sample("lstm", 5, 8, 48, inputs=20, dtype=torch.float32, requires_grad=True)
    kept = outputs_and_gradients(under("high"), sample)
    with allowed("high"):
        assert_same_bits(outputs_and_gradients(recurrence, sample), kept)
    h, _ = recurrence(*sample.args, **sample.kwargs)
    with allowed("medium"):
        (found,) = torch.autograd.grad(h.sum(), sample.args[2])
    h, _ = recurrence(*sample.args, **sample.kwargs)
    assert torch.equal(torch.autograd.grad(h.sum(), sample.args[2])[0], found)


@with_tiles
def test_the_backward_pass_splits_where_the_forward_pass_is_exact_under_either_setting():
    sample = of_integers(8, 1, 48, 20)
    exact, split = (outputs_and_gradients(op, sample) for op in (recurrence, under("high")))
    assert torch.equal(exact["h"], split["h"])
    for name in ("u", "R", "state[0]", "weight_ih"):
        assert not torch.equal(exact[f"grad of {name}"], split[f"grad of {name}"]), name


@with_tiles
@pytest.mark.parametrize("options", [{"bidirectional": True}, {"num_layers": 2}], ids=str)
def test_pairs_of_layers(options, threads):
    threads(2)
    layer, x = nn.LSTM(20, 48, **options), torch.randn(6, 8, 20)

    def gradients():
        h, _ = layer(x)
        return [h, *torch.autograd.grad(h.square().sum(), layer.parameters())]

    exact = gradients()
    with allowed("high"):
        found = gradients()
        layer.zoneout = 1e-30  # less than the least rate: two calls in place of one for the pair
        assert torch.equal(gradients()[0], found[0])
    for one, other in zip(exact, found, strict=True):
        assert not torch.equal(one, other)
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3 * one.abs().max().item())


@with_tiles
def test_compiled_functions_keep_the_setting_of_their_compilation():
    sample = recurrence_sample("gru", 4, 5, 32, inputs=12, dtype=torch.float32, requires_grad=True)
    compiled = torch.compile(recurrence, fullgraph=True, backend="aot_eager")
    kept = outputs_and_gradients(under("high"), sample)
    assert_same_bits(outputs_and_gradients(under("high", compiled), sample), kept)
    exact = outputs_and_gradients(recurrence, sample)
    assert_same_bits(outputs_and_gradients(compiled, sample), exact)  # PyTorch compiles anew


@with_tiles
def test_pytorchs_own_products_are_as_before():
    """PyTorch configures the tiles of this thread for its own kernels."""
    x, weight = torch.randn(64, 96, dtype=torch.bfloat16), torch.randn(80, 96, dtype=torch.bfloat16)
    layer, sequence = nn.LSTM(33, 70).bfloat16(), torch.randn(3, 21, 33, dtype=torch.bfloat16)
    before = torch.nn.functional.linear(x, weight)
    first, _ = layer(sequence)
    for _ in range(3):
        assert torch.equal(torch.nn.functional.linear(x, weight), before)
        assert torch.equal(layer(sequence)[0], first)


OTHERS = [(level, torch.float32) for level in LEVELS]
OTHERS += [(level, dtype) for level in PAIRS for dtype in (torch.float64, torch.float16)]


@pytest.mark.parametrize(("level", "dtype"), OTHERS, ids=str)
def test_without_tiles_the_setting_does_nothing(level, dtype, simd):
    """Of other dtypes than bfloat16, the results are those of avx512."""
    simd(level)
    sample = recurrence_sample("lstm", 3, 8, 96, inputs=5, dtype=dtype, requires_grad=True)
    exact = outputs_and_gradients(recurrence, sample)
    for precision in PARTS if (level, dtype) != ("amx", torch.float32) else ():
        assert_same_bits(outputs_and_gradients(under(precision), sample), exact)
        with allowed(precision):
            assert "bfloat16" not in ops.explain(recurrence, *sample.args, **sample.kwargs).reason
    if level in PAIRS:
        simd("avx512")
        assert_same_bits(outputs_and_gradients(recurrence, sample), exact)


@pytest.mark.parametrize("level", PAIRS)
def test_gates_computed_again_give_the_same_gradients_in_bfloat16(level, simd):
    """The products of the forward pass also read h with 16 bits."""
    simd(level)
    sample = recurrence_sample("lstm", 24, 64, 96, dtype=torch.bfloat16, requires_grad=True)
    again = partial(recurrence, save_gates=False)
    assert_same_bits(*(outputs_and_gradients(op, sample) for op in (recurrence, again)))


@pytest.mark.parametrize(("setting", "parts"), [("highest", 0), ("high", 2), ("medium", 1)])
def test_the_setting_is_that_of_pytorchs_products(setting, parts):
    with allowed(setting):
        assert _extension.bfloat16_parts() == parts
    own = torch.backends.mkldnn.matmul
    before = own.fp32_precision
    try:
        own.fp32_precision = {0: "ieee", 1: "bf16", 2: "tf32"}[parts]
        assert _extension.bfloat16_parts() == parts
    finally:
        own.fp32_precision = before


@with_tiles
def test_a_reset_reads_zeros_among_rows_that_stay_in_place():
    _, (cell, u, R, (h0,)), kwargs = recurrence_sample("tanh", 2, 8, 64, dtype=torch.bfloat16)
    reset = torch.zeros(2, 8, dtype=torch.bool)
    reset[1, [2, 5]] = True
    h, _ = recurrence(cell, u, R, (h0,), **kwargs | {"reset": reset})
    first, _ = recurrence(cell, u[:1], R, (h0,), **kwargs)
    second, _ = recurrence(cell, u[1:], R, (first[0] * ~reset[1, :, None],), **kwargs)
    assert torch.equal(h, torch.cat([first, second]))
