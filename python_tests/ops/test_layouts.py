"""Memory layouts, changes in place, frozen tensors and autocast change no number, over the table of operators."""

import pytest
import torch

import rnnkern
from python_tests.samples import EVERY_CELL
from python_tests.samples.operators import OPERATORS, draw, outputs, results
from rnnkern import ops

LAYOUTS = {
    "transposed": lambda x: x.transpose(0, -1).contiguous().transpose(0, -1),
    "expanded": lambda x: x[:1].expand_as(x),
    "gaps": lambda x: torch.stack([x, x], -1).flatten(-2)[..., ::2],
    "conjugate": lambda x: x.conj(),
}
BY_PYTORCH = ("cayley", "project_orthogonal", "householder_product")
"""Operators of PyTorch's products, whose bits depend on strides."""


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", OPERATORS)
def test_any_layout(name, layout):
    call = draw(name, dtype=OPERATORS[name].dtypes[-1])  # complex if it can be
    strange = {key: LAYOUTS[layout](x) for key, x in call.tensors.items()}
    plain = {key: x.resolve_conj().contiguous() for key, x in strange.items()}
    op = getattr(ops, name)
    found, wanted = (results(op, call._replace(tensors=tensors)) for tensors in (strange, plain))
    for what in wanted:
        if name in BY_PYTORCH:
            torch.testing.assert_close(found[what], wanted[what])
        else:
            assert torch.equal(found[what], wanted[what]), what


FROZEN = [(name, {}) for name in OPERATORS if len(draw(name).tensors) > 1 and name != "recurrence"]
FROZEN += [("recurrence", {"cell": cell, "inputs": inputs}) for cell in EVERY_CELL for inputs in (0, 4)]


@pytest.mark.parametrize(("name", "options"), FROZEN, ids=str)
def test_a_frozen_tensor_changes_no_other_gradient(name, options):
    """Gradients that are not requested are not computed, and the others do not change."""
    op, call = getattr(ops, name), draw(name, dtype=torch.float32, **options)
    wanted = results(op, call)
    for frozen in call.tensors:
        for what, x in results(op, call, frozen=frozen).items():
            assert torch.equal(x, wanted[what]), (frozen, what)


@pytest.mark.parametrize("name", sorted(OPERATORS.keys() - {"linear_scan", "recurrence", "relevancy_recurrence"}))
def test_outputs_may_be_changed_in_place_before_the_backward_pass(name):
    op, call = getattr(ops, name), draw(name)
    found, wanted = results(op, call, lambda y: y.mul_(2).sin_()), results(op, call, lambda y: (2 * y).sin())
    assert all(torch.equal(found[what], wanted[what]) for what in wanted)


@pytest.mark.parametrize("name", ["linear_scan"])
def test_a_change_of_what_the_backward_pass_reads_is_refused(name):
    call = draw(name)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        results(getattr(ops, name), call, lambda y: y.mul_(2))


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.sampled
def test_outputs_may_be_changed_in_place_inside_torch_compile(name):
    call = draw(name, *OPERATORS[name].small)
    leaves = [x.requires_grad_() for x in call.tensors.values()]

    def gradients(change, compiled):
        def loss(*leaves):
            found = outputs(call.with_tensors(dict(zip(call.tensors, leaves, strict=True))))
            return sum(change(y).sum() for y in found if y.requires_grad)

        run = torch.compile(loss, backend="aot_eager", fullgraph=True) if compiled else loss
        return torch.autograd.grad(run(*leaves), leaves, materialize_grads=True)

    found, wanted = gradients(lambda y: y.mul_(2).sin_(), True), gradients(lambda y: (2 * y).sin(), False)
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("name", [*BY_PYTORCH, "schur_weight", "skew_exp", "givens_product"])
def test_autocast_does_not_reach_matrices(name):
    call = draw(name, dtype=torch.float32)
    wanted = outputs(call)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(outputs(call)[0], wanted[0])
        with rnnkern.use("reference"):
            torch.testing.assert_close(outputs(call), wanted)
