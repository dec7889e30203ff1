"""What a call keeps for the backward pass, over the table of operators."""

import pytest

from python_tests.samples.operators import draw, outputs
from rnnkern.testing import saved_bytes

KEPT = {
    "linear_scan": ((30, 2, 5), {}, ("a", "state"), 300),  # h, which exists anyway
    "moment_filter": ((40, 2, 5), {}, ("u", "v0", "q0"), 2 * 2 * 10),  # v and q at each sixteenth of 40 steps
    "moment_filter, momentum": ((40, 2, 5), {"beta": None}, ("v0",), 0),
    "givens_recurrence, 1": ((30, 2, 6, 1), {}, ("u", "angles", "state", "modrelu_bias"), 360),  # h
    "givens_recurrence, 9": ((30, 2, 6, 9), {}, ("u", "angles", "state", "modrelu_bias"), 360),  # no more for 9 layers
    "gather_attention": ((2, 30, 12, 8, 40), {}, ("q", "u", "h", "v", "idx"), 2 * 30),  # a number per query
    "similarity": ((4, 9, 128), {"packed": True, "values": 3}, ("x", "weight", "bias", "values"), 4 * 45),  # R
}
"""Sizes and options, the arguments that are kept, and how many numbers besides."""


@pytest.mark.parametrize("name", KEPT)
def test_what_the_backward_keeps(name):
    sizes, options, arguments, more = KEPT[name]
    call = draw(name.split(",")[0], *sizes, **options)
    tensors = {key: x.requires_grad_() * 1 for key, x in call.tensors.items()}  # no leaves, which would not count
    found = saved_bytes(lambda: outputs(call.with_tensors(tensors)))
    given = tensors | call.options
    assert found == sum(given[key].nbytes for key in arguments) + 8 * more
