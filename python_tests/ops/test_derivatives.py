"""Derivatives of every order and their transforms, over the table of operators.

Those of the recurrence are in test_autograd.py and test_transforms.py."""

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import rnnkern
from python_tests.samples.operators import C128, F64, OPERATORS, cases, draw, function_of

NAMES = [name for name in OPERATORS if name != "recurrence"]
FAST = {"relevancy_recurrence", "sab_recurrence", "similarity"}
"""Operators whose second derivatives are tested in random directions, of similarity but for one option."""


def small(name, option="", dtype=F64):
    call = draw(name, *OPERATORS[name].small, option=option, dtype=dtype)
    return call._replace(tensors={key: x.nan_to_num(0.3) for key, x in call.tensors.items()})  # of padded objects


DERIVED = [(*case, dtype) for case in cases(NAMES) for dtype in (F64, C128) if dtype in OPERATORS[case[0]].dtypes]


@pytest.mark.parametrize(("name", "option", "dtype"), DERIVED, ids=str)
@pytest.mark.sampled
def test_gradients_of_every_order(name, option, dtype):
    call = small(name, option, dtype)
    leaves = [x.requires_grad_() for x in call.tensors.values()]
    assert gradcheck(function_of(call), leaves, fast_mode=name == "relevancy_recurrence")
    assert gradgradcheck(function_of(call), leaves, fast_mode=name in FAST and option != "eps")


@pytest.mark.parametrize(
    ("name", "option"),
    [
        ("linear_scan", "constant"), ("linear_scan", "per step-packed-reset-reverse-no h0"), ("moment_filter", "adam"),
        ("moment_filter", "momentum"), ("givens_recurrence", "plain"), ("givens_product", "tunable"),
    ],
)  # fmt: skip
def test_second_gradients_where_not_all_is_asked_for(name, option):
    call = small(name, option)
    function = function_of(call)
    for key in call.tensors:
        leaves = {other: x.detach().requires_grad_(other == key) for other, x in call.tensors.items()}
        for k in range(len(function(*leaves.values()))):

            def one(x, leaves=leaves, key=key, k=k):
                return function(*(leaves | {key: x}).values())[k] ** 2

            assert gradgradcheck(one, (leaves[key],))


# ---- transforms


def loss_of(call):
    return lambda *tensors: sum(y.exp().sum() for y in function_of(call)(*tensors))


@pytest.mark.parametrize("name", NAMES)
def test_transforms_and_the_compiler(name):
    call = draw(name, *OPERATORS[name].small)
    values, loss = tuple(call.tensors.values()), loss_of(call)
    leaves = [x.clone().requires_grad_() for x in values]
    gradient = torch.func.grad(loss, tuple(range(len(values))))
    wanted = torch.autograd.grad(loss(*leaves), leaves)
    for found in (gradient, torch.compile(gradient, fullgraph=True, backend="aot_eager")):
        torch.testing.assert_close(found(*values), wanted)
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(torch.autograd.grad(compiled(*leaves), leaves), wanted)
    second = torch.func.jacrev(torch.func.grad(loss, len(values) - 1), 0)
    by_kernel = second(*values)
    with rnnkern.use("reference"):
        torch.testing.assert_close(by_kernel, second(*values))
    if name not in ("cayley", "project_orthogonal"):  # which are made of PyTorch's functions
        with pytest.raises(NotImplementedError, match=f"{name}: forward-mode AD is not supported"):
            torch.func.jvp(loss, values, values)


MEMBERS = {
    "all": lambda count: [0] * count,
    "the first": lambda count: [0, *[None] * (count - 1)],
    "the last": lambda count: [*[None] * (count - 1), 0],
    "in another dimension": lambda count: [1, *[None] * max(count - 2, 0), 0][:count],
}
"""Dimensions of the members in each tensor, None where they share it."""


@pytest.mark.parametrize("dims", MEMBERS)
@pytest.mark.parametrize("name", NAMES)
def test_members_of_vmap(name, dims):
    first, *others = OPERATORS[name].options
    for option in {first, *others[-1:], *[option for option in others if "packed" in option][:1]}:
        call = draw(name, *OPERATORS[name].small, option=option)
        values = call.tensors.values()
        dimensions = MEMBERS[dims](len(values))
        members = [
            x if dim is None else torch.stack([x, x / 2, x / 3], dim) for x, dim in zip(values, dimensions, strict=True)
        ]
        for function in (function_of(call), torch.func.grad(loss_of(call), tuple(range(len(values))))):
            found = torch.vmap(function, tuple(dimensions))(*members)
            for k in range(3):
                one = [x if dim is None else x.select(dim, k) for x, dim in zip(members, dimensions, strict=True)]
                torch.testing.assert_close(tuple(x[k] for x in found), function(*one))
