"""The registered operators that a call or its backward pass enters pass torch.library.opcheck, over the table."""

import pytest
import torch
from torch import Tensor
from torch.library import opcheck
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from python_tests.samples import EVERY_CELL, RECURRENCE_OPTIONS, takes
from python_tests.samples.operators import F32, F64, OPERATORS, cases, draw, outputs
from python_tests.tiers import quick_where

FAST = ("test_schema", "test_autograd_registration", "test_faketensor")
"""Checks of opcheck. The other one takes half a minute to compile the reference's second derivative."""
TRACED = ("test_aot_dispatch_dynamic",)
WITH_OPERATORS = [name for name in OPERATORS if name not in ("cayley", "project_orthogonal", "recurrence")]


class Entered(TorchDispatchMode):
    """The operators of the library that run, with their arguments."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        if operator.namespace == "rnnkern":
            self.calls.append((operator, args))
        return operator(*args, **(kwargs or {}))


def backward(call, wanted):
    """Runs a call, and the backward pass to some of its tensors."""
    tensors = {key: x.detach().requires_grad_(key in wanted) for key, x in call.tensors.items()}
    found = [y for y in outputs(call.with_tensors(tensors)) if y.requires_grad]
    if found:
        upstream = [torch.randn_like(y) for y in found]
        torch.autograd.grad(found, [tensors[key] for key in wanted], upstream, allow_unused=True)


def check_operators(call, checks=FAST, first=None):
    """Checks the operators that a call enters for inference and for several backward passes, or the first of them.
    Those of a backward pass have derivatives, but without the lengths of packed sequences, which fake tensors lack."""
    names = list(call.tensors)
    with Entered() as entered:
        with torch.no_grad():
            outputs(call)
        for wanted in (names, names[:1], names[1:], names[-1:]):
            backward(call, wanted)
    for operator, args in entered.calls[:first]:
        assert operator._opname in (call.name, f"{call.name}_backward")
        derived = set()
        if operator._opname.endswith("_backward") and call.options.get("batch_sizes") is None:
            derived = {x.name for x in operator._schema.arguments}
            derived = derived & {"grad_h", "u"} if call.name == "recurrence" else derived  # h and saved have none
        leaves = [
            tree_map_only(Tensor, lambda y, known=x.name in derived: leaf(y, known), given)
            for x, given in zip(operator._schema.arguments, args, strict=False)
        ]
        opcheck(operator, tuple(leaves), test_utils=checks)


def leaf(x, differentiable):
    return x.detach().clone().requires_grad_(differentiable and (x.is_floating_point() or x.is_complex()))


@pytest.mark.parametrize(("name", "option"), cases(WITH_OPERATORS))
@pytest.mark.sampled
def test_opcheck(name, option):
    for dtype in OPERATORS[name].dtypes[1:3]:
        check_operators(draw(name, option=option, dtype=dtype))


@pytest.mark.parametrize("name", [name for name in WITH_OPERATORS if name != "relevancy_recurrence"])
def test_opcheck_by_tracing(name):
    """The reference's second derivative of a relevancy recurrence reads the selected events, so it cannot be traced."""
    check_operators(draw(name, *OPERATORS[name].small), TRACED, first=1)


NOTHING = {
    "linear_scan": (0, 2, 3),
    "moment_filter": (4, 0, 3),
    "givens_recurrence": (0, 3, 4, 2),
    "givens_product": (4, 0, 5),
    "gather_attention": (0, 2, 3, 2, 4),
    "similarity": (0, 3, 5),
    "skew_exp": (2, (0,)),
    "schur_weight": (4, (0,)),
    "householder_product": (4, 0),
    "sab_recurrence": (4, 0, 3),
}


@pytest.mark.parametrize("name", NOTHING)
def test_opcheck_of_nothing(name):
    check_operators(draw(name, *NOTHING[name], dtype=F32))


# ---- the recurrence, of which each cell has operators

CELLS = [
    (cell, option, dtype)
    for cell in EVERY_CELL
    for option, options in RECURRENCE_OPTIONS.items()
    for dtype in (F64, *([torch.bfloat16] if option == "plain" else []))
    if takes(cell, options)
]


@pytest.mark.parametrize(("cell", "option", "dtype"), CELLS, ids=str)
@pytest.mark.sampled
def test_opcheck_of_a_cell(cell, option, dtype):
    check_operators(draw("recurrence", 3, 3, 4, cell=cell, option=option, dtype=dtype))


@pytest.mark.parametrize("cell", quick_where(lambda cell: cell == "lstm", EVERY_CELL))
@pytest.mark.drawn
def test_opcheck_of_a_cell_by_tracing(cell):
    call = draw("recurrence", 3, 3, 4, cell=cell)
    check_operators(call._replace(options=call.options | {"save_u": True}), TRACED, first=3)
