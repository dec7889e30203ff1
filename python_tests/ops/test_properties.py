"""For random calls of the recurrence, drawn by Hypothesis, kernel and reference agree."""

import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch.utils._pytree import tree_map_only

from python_tests.gpu.recurrences import KINKS, off_kinks
from python_tests.ops.drawn import FEW, batch_sizes_of, laid_out_like, machine, spread
from python_tests.samples import EVERY_CELL, NORMALISED, Sample, outputs_and_gradients, recurrence_sample, takes
from python_tests.tiers import LEVELS
from rnnkern import reference
from rnnkern.ops import recurrence
from rnnkern.testing import GROSS, assert_close

FEWER = settings(FEW, max_examples=25)

USES = {
    "all": lambda h, final: (h, final),
    "h": lambda h, final: (h, ()),
    "the final state": lambda h, final: (final[0], final[1:]),
    "transposed": lambda h, final: (h.mT, tuple(s.mT for s in final)),
    "sums": lambda h, final: (h.sum(0), tuple(s.sum(0) for s in final)),
}
"""How the results are used: their gradients are missing, strided or expanded."""


NO_INPUTS = st.just(0)
RATES = st.just(0.0) | st.floats(1e-6, 0.9)  # rates below 2^-32 count as 0


@st.composite
def calls(draw, steps, batches, units, cells=EVERY_CELL, inputs=NO_INPUTS, with_keep=True):
    """Strategy for calls. `inputs` draws I, or 0 for a call with u; with `with_keep`, some calls have `keep`."""
    torch.manual_seed(draw(st.integers(0, 2**31)))
    cell, T, B, H = draw(st.sampled_from(list(cells))), draw(steps), draw(batches), draw(units)
    heads = draw(st.sampled_from([k for k in range(1, H + 1) if H % k == 0])) if takes(cell, {"heads"}) else 1
    keep = draw(st.sampled_from([0, 0, 1, 2])) if with_keep and takes(cell, {"keep"}) else 0
    flags = {name: draw(st.booleans()) for name in ("bias", "reset", "reverse", "drawn")}
    sample = recurrence_sample(
        cell, T, B, H, heads=heads, inputs=draw(inputs), keep=keep, dropout=draw(RATES),
        zoneout=0.0 if keep else draw(RATES), grad_scale=draw(st.integers(0, 2)), **flags,
    )  # fmt: skip
    _, u, R, state = sample.args
    batch_sizes = draw(st.none() | batch_sizes_of(T, B))
    if batch_sizes is not None:
        u = u.flatten(0, 1)[: int(batch_sizes.sum())]
    if heads == 1 and takes(cell, {"heads"}) and draw(st.booleans()):
        R = R.unsqueeze(0)
    # of constant rows, LayerNorm returns rounding errors only
    R = draw(spread(R) if cell in NORMALISED else laid_out_like(R))
    anywhere = lambda x: draw(laid_out_like(x)) if x.is_floating_point() else x.t().contiguous().t()  # noqa: E731
    u, state, kwargs = tree_map_only(torch.Tensor, anywhere, (u, state, sample.kwargs))
    kwargs["batch_sizes"] = batch_sizes
    return Sample(f"{cell}-{T}-{B}-{H}", (cell, u, R, state), kwargs), draw(st.booleans())


def used(op, use, **options):
    return lambda *args, **kwargs: USES[use](*op(*args, **kwargs, **options))


def check(call, use, level, threads, dtype=torch.float64):
    """Compares float64 with a small tolerance, and other dtypes with a large one."""
    sample, save_gates = call
    assume(use != "h" or sample.args[1].shape[0] > 0)  # without steps, h depends on no input
    if dtype == torch.float64:
        for leaf in sample.leaves():
            leaf.requires_grad_()
    else:
        sample = off_kinks(sample.to(dtype, requires_grad=True))
    wanted = outputs_and_gradients(used(reference.recurrence, use), sample)
    with machine(level, threads):
        actual = outputs_and_gradients(used(recurrence, use, save_gates=save_gates), sample)
        with torch.no_grad():
            h, final = used(recurrence, use)(*sample.args, **sample.kwargs)
    if dtype == torch.float64:
        for name, value in wanted.items():
            scale = value.detach().abs().max().item() if value.numel() else 0
            close = max(1e-11 * scale, 1e-13)  # LayerNorm over one unit has rounding errors as gradient
            torch.testing.assert_close(actual[name], value, rtol=1e-11, atol=close, msg=lambda m, n=name: f"{n}: {m}")
    else:
        truth = outputs_and_gradients(used(reference.recurrence, use), sample.to(torch.float64))
        for name, value in wanted.items():  # one call says little; other tests pool many
            assert_close(actual[name], value, truth[name], name, GROSS, scale=1.0)
    assert torch.equal(h, actual["h"])
    assert all(torch.equal(s, actual[f"final state[{k}]"]) for k, s in enumerate(final))


SMALL = {"steps": st.integers(0, 6), "batches": st.integers(0, 5), "units": st.integers(1, 20)}
INPUTS = st.sampled_from([0, 0, 1, 3, 9, 17])


@FEW
@given(calls(**SMALL, inputs=INPUTS), st.sampled_from(list(USES)), st.sampled_from(LEVELS), st.integers(1, 3))
def test_small_calls(call, use, level, threads):
    check(call, use, level, threads)


@FEWER
@given(
    calls(st.integers(1, 4), st.integers(6, 24), st.integers(64, 110), inputs=st.sampled_from([0, 5, 40])),
    st.sampled_from(list(USES)),
    st.sampled_from(LEVELS),
    st.integers(2, 3),
)
def test_calls_large_enough_for_a_team(call, use, level, threads):
    """Smaller calls run in one thread, regardless of the number of threads."""
    check(call, use, level, threads)


@FEW
@given(
    calls(**SMALL, cells=[cell for cell in EVERY_CELL if cell not in KINKS], inputs=INPUTS) | calls(**SMALL),
    st.sampled_from(list(USES)),
    st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
    st.sampled_from(LEVELS),
    st.integers(1, 3),
)
def test_small_calls_in_low_precision(call, use, dtype, level, threads):
    """If the input projection is computed inside, u cannot be moved away from kinks."""
    check(call, use, level, threads, dtype)
