"""FLOPs of each operator, forward and backward: the reference's, those of PyTorch's attention, or counted by hand."""

from collections import Counter

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

from python_tests.samples import outputs_and_gradients, recurrence_sample, takes
from python_tests.samples.operators import draw, results
from rnnkern import ops, reference
from rnnkern.ops._orthogonal import householder
from rnnkern.ops._recurrence.facts import saved_by
from rnnkern.ops._recurrence.pair import both
from rnnkern.reference import CELLS

T, B, I, H = 4, 3, 5, 8  # noqa: E741


def counted(run):
    """FLOPs of each operator by name."""
    with FlopCounterMode(display=False) as counter:
        run()
    return Counter({str(operator): count for operator, count in counter.get_flop_counts()["Global"].items()})


def flops(run):
    return counted(run).total()


RECURRENCES = [
    (cell, options)
    for cell in CELLS
    for options in ({}, {"inputs": I}, {"packed": True, "heads": 2})
    if takes(cell, options)
]


@pytest.mark.parametrize(("cell", "options"), RECURRENCES, ids=str)
def test_a_recurrence_counts_what_the_reference_does_and_what_it_computes_again(cell, options):
    sample = recurrence_sample(cell, requires_grad=True, **options)
    wanted = flops(lambda: outputs_and_gradients(reference.recurrence, sample))
    assert flops(lambda: outputs_and_gradients(ops.recurrence, sample)) == wanted
    _, u, R, _ = sample.args
    weight_ih = sample.kwargs.get("weight_ih", u.new_empty(0))
    again = 2 * u.shape[:-1].numel() * (R.numel() + weight_ih.numel()) if saved_by(cell) else 0
    sample.kwargs["save_gates"] = False
    assert flops(lambda: outputs_and_gradients(ops.recurrence, sample)) == wanted + again


@pytest.mark.parametrize("save_gates", [True, False])
@pytest.mark.parametrize("needs_x", [True, False])
@pytest.mark.parametrize("stacked", [True, False])
def test_a_pair_counts_what_two_calls_do(stacked, needs_x, save_gates, threads):
    def call(inputs):
        sample = recurrence_sample("lstm_projected", T, B, H, inputs=inputs, requires_grad=True)
        return {"R": sample.args[2], "state": sample.args[3], **sample.kwargs, "save_gates": save_gates}

    calls = call(I), call(H // 2 if stacked else I)
    for options in calls:
        options.pop("reverse")
    x = torch.randn(T, B, I, dtype=torch.float64, requires_grad=needs_x)

    def run():
        found = both("lstm_projected", x, *calls, stacked=stacked)
        h = found[0] if stacked else found[0][0] + found[1][0]
        h.sum().backward()

    threads(1)
    wanted = counted(run)
    threads(2)
    found = counted(run)
    assert found == {name.replace("recurrence", "recurrence_pair"): count for name, count in wanted.items()}


@pytest.mark.parametrize("cell", ["gru_reset_before", "lstm_projected"])
def test_a_tangent_counts_as_much_as_a_forward_pass(cell):
    _, (_, u, R, state), options = recurrence_sample(cell)
    tangents = [torch.randn(3, *s.shape, dtype=s.dtype) for s in state]
    found = flops(lambda: ops.recurrence_tangent(cell, u, R, state, tangents, **options))
    assert found == (1 + 3) * flops(lambda: ops.recurrence(cell, u, R, state, **options))


def attention(queries, slots, key_size, value_size):
    """Forward and backward, as PyTorch counts them."""
    query, key, value = (1, 1, queries, key_size), (1, 1, slots, key_size), (1, 1, slots, value_size)
    out = (1, 1, queries, value_size)
    return sdpa_flop_count(query, key, value) + sdpa_backward_flop_count(out, query, key, value)


def by_relevancy(**options):
    call = draw("relevancy_recurrence", T, B, H, cell="lstm", buffer_size=3, relevant_size=2, **options)
    R, W_a, U_a = (call.tensors[name].numel() for name in ("R", "W_a", "U_a"))
    return call, 2 * T * B * (3 * R + 4 * (W_a + U_a)) + attention(T * B, 3 + 2, H, H)


def by_sab(width):
    call = draw("sab_recurrence", T, B, H, width, attend_every=2)
    memories, key_size = 1 + T // 2, width or H
    products = T * B * 4 * H * H + B * (T + memories) * H * (width or 0)
    return call, 4 * 2 * products + attention(T * B, memories, key_size, H)


def by_reference(name, less=0, **options):
    call = draw(name, **options)
    return call, flops(lambda: results(getattr(reference, name), call)) - less


def by_skew_exp(size, dtype, products):
    return draw("skew_exp", size, dtype=dtype), products * 2 * size**3


def by_householder():
    call = draw("householder_product")
    V = call.tensors["V"]
    Q, *kept = householder.forward(V, True)
    return call, flops(lambda: (householder.forward(V, True), householder.backward(Q, V, *kept)))


CASES = {
    "relevancy_recurrence": by_relevancy,
    "relevancy_recurrence, concat": lambda: by_relevancy(combine="concat"),
    "sab_recurrence": lambda: by_sab(None),
    "sab_recurrence, mlp": lambda: by_sab(6),
    "gather_attention": lambda: (draw("gather_attention"), attention(2 * 5, 4, 9, 9)),
    "similarity, two": lambda: by_reference("similarity", two=True, values=3),
    "similarity": lambda: by_reference("similarity", values=3, less=2 * 3 * 6 * 6 * 10),  # one product for both sides
    "schur_weight": lambda: by_reference("schur_weight"),
    "householder_product": by_householder,
    "skew_exp, float32": lambda: by_skew_exp(9, torch.float32, 3 + 5),
    "skew_exp, float64": lambda: by_skew_exp(17, torch.float64, 4 + 7),
    "skew_exp, small": lambda: by_skew_exp(9, torch.float64, 4 + 4 + 7),
} | {
    name: lambda name=name: (draw(name), 0)
    for name in ("linear_scan", "moment_filter", "givens_product", "givens_recurrence")
}  # fmt: skip
"""Each draws a call and counts its FLOPs."""


@pytest.mark.parametrize("name", CASES)
def test_an_operator_counts_its_products(name):
    call, wanted = CASES[name]()
    assert flops(lambda: results(getattr(ops, call.name), call)) == wanted
