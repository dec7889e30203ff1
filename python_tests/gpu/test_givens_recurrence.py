"""CUDA kernels of givens_recurrence against the reference: values, gradients, and calls of all kinds."""

import pytest
import torch

from python_tests.gpu import givens_recurrences
from python_tests.gpu.conftest import CHOSEN, running
from python_tests.samples import (
    GIVENS_OPTIONS,
    agree,
    covering_rows,
    givens_recurrence_sample,
    scan_outputs_and_gradients,
    triples,
)
from rnnkern import reference
from rnnkern.ops._recurrence.complex import state_in_parts
from rnnkern.testing import assert_close, assert_close_over_draws

F32, F64, C64, C128 = torch.float32, torch.float64, torch.complex64, torch.complex128


@pytest.fixture(params=CHOSEN)
def place(request, nan_memory):
    """rnnkern.ops.givens_recurrence on each backend."""
    with running(givens_recurrences, request.param) as place:
        yield place


def samples(dtype):
    """Calls of all kinds, each with a seed; with odd seeds, shared memory is too small for a warp's sums."""
    tiny = [("tunable", 1), ("tunable", 2), ("butterfly", 1), ("butterfly", 2)]
    factors = {
        "steps": [0, 1, 2, 9], "batch": [0, 1, 3, 6], "layers": [0, 1, 2, 7],
        "size": [("tunable", 33), ("tunable", 64), ("tunable", 200), ("butterfly", 64), ("butterfly", 256), *tiny],
        "option": list(GIVENS_OPTIONS),
    }  # fmt: skip
    for seed, row in enumerate(covering_rows(factors)):
        (style, size), option = row.pop("size"), GIVENS_OPTIONS[row.pop("option")]
        sample = givens_recurrence_sample(**row, size=size, style=style, **option, dtype=dtype)
        yield seed, sample, f"{row} {style} {size} {option}"


def settings(place, seed, sample):
    place.set_seed(seed)
    place.set_facts(*(givens_recurrences.small(sample.tensors["u"]) if seed % 2 else givens_recurrences.LARGE))


@pytest.mark.parametrize("dtype", [F64, C128])
def test_values_and_gradients_are_the_references(dtype, place):
    for seed, sample, name in samples(dtype):
        settings(place, seed, sample)
        agree(place, reference.givens_recurrence, scan_outputs_and_gradients, [sample], name)


@pytest.mark.parametrize("dtype", [F32, C64])
def test_values_and_gradients_in_float32_are_as_close_to_the_truth_as_plain_pytorch(dtype, place):
    """Compares all calls together: in a call with few steps and sequences, the naive error may be small by chance."""
    calls = []
    for seed, sample, _ in samples(dtype):
        settings(place, seed, sample)
        calls.append(triples(place, reference.givens_recurrence, scan_outputs_and_gradients, sample))
    assert_close_over_draws(calls)


def by_operators(operators, sample, device="cpu"):
    """Results and gradients of the operators, without the public function and its choice of an implementation."""
    tensors = {name: (state_in_parts(x) if x.is_complex() else x).to(device) for name, x in sample.tensors.items()}
    u, angles, h0, bias, *turns = tensors.values()
    args = u, angles, *(turns or (None, None)), bias, h0
    rest = None, None, False, sample.kwargs["style"] == "butterfly"
    h, last = operators.givens_recurrence(*args, *rest)
    found = operators.givens_recurrence_backward(h.cos(), last.sin(), *args, h, *rest)
    return [x.cpu() for x in (h, last, *found)]


@pytest.mark.parametrize(("dtype", "size"), [(F32, 1024), (F64, 512), (C64, 1024), (C128, 256)])
def test_the_largest_state_and_no_larger_one(dtype, size, place):
    """Compares the largest state that fits, in both styles, with the CPU kernels in float64, which form no matrix; and
    checks the reason for larger states."""
    on_cpu = torch.ops.rnnkern
    for style, layers in (("tunable", 3), ("butterfly", 11)):
        sample = givens_recurrence_sample(2, 2, size, layers, style=style, dtype=dtype)
        found = by_operators(place.operators, sample, place.device)
        truth = by_operators(on_cpu, sample.to(F64))
        naive = by_operators(on_cpu, sample)
        for x, y, z in zip(found, naive, truth, strict=True):
            if dtype in (F64, C128):
                torch.testing.assert_close(x, z, rtol=1e-10, atol=1e-10)
            else:
                assert_close(x, y, z, style)
    larger = givens_recurrence_sample(2, 2, size + 1, 2, dtype=dtype)
    assert f"a state of {size + 1} numbers" in givens_recurrences.refusal(larger.tensors["u"])
    assert "a state of" not in str(givens_recurrences.refusal(sample.tensors["u"]))
    with pytest.raises(RuntimeError, match=f"no CUDA kernel takes N = {size + 1}"):
        by_operators(place.operators, larger, place.device)


@pytest.mark.parametrize("dtype", [F32, C128])
def test_the_same_bits_whatever_the_scheduler_does_and_wherever_sums_are(dtype, place):
    sample = givens_recurrence_sample(5, 4, 100, 5, dtype=dtype, **GIVENS_OPTIONS["packed-reset-reverse"])
    found = []
    for seed in range(4):
        settings(place, seed, sample)
        found.append(scan_outputs_and_gradients(place, sample))
    for other in found[1:]:
        assert all(torch.equal(x, other[name]) for name, x in found[0].items())


def test_more_sequences_than_warps(place):
    """A warp processes one sequence after the other, and there are as many partial sums as warps."""
    sample = givens_recurrence_sample(2, 1030, 6, 3, dtype=F64, **GIVENS_OPTIONS["packed-reset-reverse"])
    agree(place, reference.givens_recurrence, scan_outputs_and_gradients, [sample])


@pytest.mark.parametrize("style", ["tunable", "butterfly"])
def test_nan_stays_with_the_numbers_that_it_reaches(style, place):
    """With one layer, a NaN reaches its partner in the rotation and no other number, also at the last lane of the
    warp."""
    tensors, kwargs = givens_recurrence_sample(1, 2, 64, 2, style=style, dtype=F32)
    tensors = tensors | {"angles": tensors["angles"][1:] if style == "butterfly" else tensors["angles"]}
    tensors["state"][0, 0] = torch.nan
    found, wanted = (f(**tensors, **kwargs)[0].isnan() for f in (place, by_layers))
    assert torch.equal(found, wanted)
    assert 0 < found.sum() < 5


def by_layers(u, angles, state, modrelu_bias, style, **rest):
    """Values of the reference for one step, without the matrix, in which a NaN would spread to all numbers."""
    z = u[0] + reference.givens_product(angles, state, style=style)
    h = torch.where(z.abs() + modrelu_bias > 0, z.sign() * (z.abs() + modrelu_bias), 0 * z)
    return h[None], h


def test_halves_are_the_whole(place):
    for dtype, reverse in ((F32, False), (C128, True)):
        tensors, kwargs = givens_recurrence_sample(8, 3, 40, dtype=dtype, reset=True, reverse=reverse)
        h, last = place(**tensors, **kwargs)
        state, found = tensors["state"], {}
        for half in (slice(5, 8), slice(0, 5)) if reverse else (slice(0, 5), slice(5, 8)):
            part = tensors | {"u": tensors["u"][half], "state": state}
            found[half.start], state = place(**part, **kwargs | {"reset": kwargs["reset"][half]})
        assert torch.equal(torch.cat([found[0], found[5]]), h)
        assert torch.equal(state, last)


@pytest.mark.parametrize(("dtype", "names"), [(F32, "real/{}/float32"), (C128, "complex/{}/float64")])
def test_the_first_call_and_the_kernels_that_it_enters(dtype, names, place):
    sample = givens_recurrence_sample(dtype=dtype, packed=True, reset=True)
    ran = place.entered(lambda: agree(place, reference.givens_recurrence, scan_outputs_and_gradients, [sample]))
    assert ran == {f"givens_recurrence/cuda/{names.format(way)}/warp": 1 for way in ("forward", "backward")}


def test_the_operator_reads_no_memory_that_is_not_there(place):
    tensors, _ = givens_recurrence_sample(dtype=F32)
    u, angles, h0, bias = tensors.values()
    for changed, said in (({"angles": angles[:, 1:]}, "`angles`"), ({"state": h0.double()}, "of the dtype of `u`")):
        args = {"u": u, "angles": angles, "phases": None, "diagonal": None, "bias": bias, "state": h0} | changed
        with pytest.raises(RuntimeError, match=said):
            place.operators.givens_recurrence(*args.values(), None, None, False, False)
