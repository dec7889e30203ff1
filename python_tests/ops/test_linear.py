"""The projection of layers outside the recurrence kernels: values, bits of a row, derivatives, where F.linear runs."""

import pytest
import torch
import torch.nn.functional as F
from torch.library import opcheck
from torch.utils.flop_counter import FlopCounterMode

from python_tests.samples.agreement import agree, draws, with_gradients
from python_tests.tiers import each_level
from rnnkern import use
from rnnkern.ops._recurrence import linear as module
from rnnkern.ops._recurrence.linear import linear

F32, F64 = torch.float32, torch.float64


def drawn(*rows, inputs=37, outputs=131, bias=True, dtype=F64, requires_grad=True):
    shapes = ((*rows, inputs), (outputs, inputs), (outputs,))
    tensors = [torch.randn(shape, dtype=dtype, requires_grad=requires_grad) for shape in shapes]
    return tensors if bias else [*tensors[:2], None]


def results(op, tensors):
    leaves = {name: x for name, x in zip("xWb", tensors, strict=True) if x is not None}
    return with_gradients({"y": op(*tensors)}, leaves)


@each_level
@pytest.mark.parametrize("dtype", [F32, F64])
@pytest.mark.parametrize(("rows", "options"), [
    ((5, 3), {}), ((), {"outputs": 33}), ((2, 2, 150), {"bias": False}), ((40,), {"inputs": 1}),
    ((40,), {"outputs": 1}), ((0, 3), {}), ((4,), {"inputs": 0}), ((4,), {"outputs": 0}),
], ids=str)  # fmt: skip
def test_values_and_gradients(rows, options, dtype, level, simd):
    simd(level)
    if 0 in (*rows, *options.values()):
        found, wanted = (results(op, drawn(*rows, dtype=dtype, **options)) for op in (linear, F.linear))
        assert found.keys() == wanted.keys()
        assert all(found[name].shape == wanted[name].shape for name in found)
        return
    agree(linear, F.linear, results, draws(drawn, *rows, dtype=dtype, **options))


def test_without_inputs_the_bias_is_left():
    x, W, b = drawn(2, 3, inputs=0)
    assert torch.equal(linear(x, W, b), b.expand(2, 3, -1))
    assert torch.equal(linear(x, W), torch.zeros(2, 3, 131, dtype=F64))


@each_level
@pytest.mark.parametrize(("dtype", "inputs", "outputs"), [(F32, 37, 131), (F64, 24, 48), (F32, 128, 512), (F32, 64, 1)])
def test_a_row_has_the_bits_that_it_has_alone(dtype, inputs, outputs, level, simd, threads):
    simd(level)
    x, W, b = drawn(600, inputs=inputs, outputs=outputs, dtype=dtype, requires_grad=False)
    threads(1)
    alone = torch.stack([linear(row, W, b) for row in x])
    for count in (1, 2, 3):
        threads(count)
        for rows in (*range(1, 10), 33, 127, 128, 129, 200, 257, 600):
            assert torch.equal(linear(x[:rows], W, b), alone[:rows])


@pytest.mark.parametrize("needed", [(0,), (1,), (2,), (0, 2), (1, 2), (0, 1, 2)], ids=str)
def test_derivatives(needed):
    tensors = drawn(2, 2, inputs=3, outputs=4, requires_grad=False)
    for k in needed:
        tensors[k].requires_grad_()
    assert torch.autograd.gradcheck(linear, tensors)
    if needed != (2,):
        assert torch.autograd.gradgradcheck(lambda *args: linear(*args).sin(), tensors)


def test_no_function_where_nothing_needs_a_gradient():
    tensors = drawn(3)
    assert linear(*tensors).grad_fn is not None
    with torch.no_grad():
        assert linear(*tensors).grad_fn is None
    assert linear(*(x.detach() for x in tensors)).grad_fn is None


@pytest.mark.parametrize("dtype", [F32, F64])
def test_arguments_that_are_not_contiguous(dtype):
    x, W, b = drawn(6, 5, dtype=dtype, requires_grad=False)
    spread = (x.transpose(0, 1).contiguous().transpose(0, 1), W.t().contiguous().t(), b.repeat_interleave(2)[::2])
    assert torch.equal(linear(*spread), linear(x, W, b))
    assert torch.equal(linear(x[:1].expand(6, -1, -1), W, b), linear(x[:1], W, b).expand(6, -1, -1))


def by_autocast(op, *tensors):
    with torch.autocast("cpu", torch.bfloat16):
        return op(*tensors)


def by_the_reference(op, *tensors):
    with use("reference"):
        return op(*tensors)


class Other(torch.Tensor):
    pass


OTHERS = {
    "autocast": by_autocast,
    "vmap": lambda op, x, W, b: torch.vmap(op, (0, None, None))(x, W, b),
    "jvp": lambda op, x, W, b: torch.func.jvp(lambda x: op(x, W, b), (x,), (x,))[1],
    "grad": lambda op, x, W, b: torch.func.grad(lambda W: op(x, W, b).sin().sum())(W),
    "compile": lambda op, *tensors: torch.compile(op, backend="eager", fullgraph=True)(*tensors),
    "trace": lambda op, *tensors: torch.jit.trace(op, tensors, check_trace=False)(*tensors),
    "reference": by_the_reference,
    "bfloat16": lambda op, *tensors: op(*(x.bfloat16() for x in tensors)),
    "a subclass": lambda op, x, W, b: op(x, W.as_subclass(Other), b),
    "sparse": lambda op, x, W, b: op(x, W.to_sparse_coo()),
    "meta": lambda op, *tensors: op(*(x.to("meta") for x in tensors)).shape,
}


@pytest.mark.parametrize("name", OTHERS)
def test_everything_else_is_computed_by_pytorch(name, monkeypatch):
    tensors = drawn(3, 4, dtype=F32, requires_grad=False)
    wanted = OTHERS[name](F.linear, *tensors)
    monkeypatch.setattr(module, "_operators", None)
    found = OTHERS[name](linear, *tensors)
    assert found == wanted if name == "meta" else torch.equal(found, wanted)


def test_so_is_float32_whose_factors_pytorch_may_split(monkeypatch):
    tensors = drawn(3, dtype=F32)
    monkeypatch.setattr(module._extension, "bfloat16_parts", lambda: 2)
    assert torch.equal(linear(*tensors), F.linear(*tensors))
    monkeypatch.setattr(module, "_operators", None)
    linear(*tensors)


def test_the_operator_is_complete():
    x, W, b = drawn(3, 4, requires_grad=False)
    opcheck(torch.ops.rnnkern.linear.default, (x, W, b))
    opcheck(torch.ops.rnnkern.linear.default, (x[0, 0].float(), W.float(), None))
    with FlopCounterMode(display=False) as counter:
        linear(x, W, b)
    assert counter.get_total_flops() == 2 * 3 * 4 * 37 * 131


CHANGES = {
    "a column less of x": lambda x, W, b: (x[..., 1:], W, b),
    "x without dimensions": lambda x, W, b: (x[0, 0, 0], W, b),
    "a column more of W": lambda x, W, b: (x, torch.cat([W, W], 1), b),
    "W a vector": lambda x, W, b: (x, W[0], b),
    "a row less of W": lambda x, W, b: (x, W[1:], b),
    "b a matrix": lambda x, W, b: (x, W, b[None]),
    "b of one element": lambda x, W, b: (x, W, b[:1]),
    "another dtype of x": lambda x, W, b: (x.float(), W, b),
    "another dtype of b": lambda x, W, b: (x, W, b.float()),
    "16 bits": lambda *tensors: [x.half() for x in tensors],
}


@pytest.mark.parametrize("change", CHANGES)
def test_the_operator_refuses_what_does_not_fit(change):
    with pytest.raises(RuntimeError, match="linear: `"):
        torch.ops.rnnkern.linear(*CHANGES[change](*drawn(3, 4, requires_grad=False)))
