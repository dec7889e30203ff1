"""Runs PyTorch's own test inputs for RNN, LSTM and GRU (torch.testing._internal.common_modules) with the modules of
torch.nn and rnnkern."""

import functools

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.nn.utils.rnn import PackedSequence
from torch.utils._pytree import tree_leaves, tree_map_only

import rnnkern.nn
from python_tests.samples import changed, numbered
from rnnkern.testing import DRAWS, assert_close_over_draws

pytest.importorskip("expecttest", reason="torch.testing._internal needs expecttest, which is not installed")
common_modules = pytest.importorskip("torch.testing._internal.common_modules")
# Importing it disables setting torch.backends' flags for the whole process, which tests of perf need.
torch.backends.disable_global_flags.__globals__["__allow_nonbracketed_mutation_flag"] = True

pytestmark = pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN:UserWarning")

INFOS = {
    info.module_cls.__name__: info
    for info in common_modules.module_db
    if info.module_cls in (torch.nn.RNN, torch.nn.LSTM, torch.nn.GRU)
}


@functools.cache
def given(name, kind="inputs"):
    make = getattr(INFOS[name], f"module_{kind}_func")
    packed = {"with_packed_sequence": True} if kind == "inputs" else {}
    torch.manual_seed(0)
    return make(INFOS[name], device="cpu", dtype=torch.float64, requires_grad=True, training=True, **packed)


def parametrize(kind, every=1):
    cases = [(name, k) for name in INFOS for k in range(len(given(name, kind)))]
    return pytest.mark.parametrize(("name", "k"), cases[every - 1 :: every])


def build(name, k, package, seed=1):
    """The module of one package; the seed makes the parameters of both packages equal."""
    constructor = given(name)[k].constructor_input
    torch.manual_seed(seed)
    return getattr(package, name)(*constructor.args, **constructor.kwargs, dtype=torch.float64)


def convert(tree, to):
    """Applies ``to`` to the floating-point tensors of arguments or results."""
    return tree_map_only(torch.Tensor, lambda x: to(x) if x.is_floating_point() else x, tree)


def arguments(name, k):
    """Arguments of forward, as new leaves."""
    return convert(given(name)[k].forward_input.args, lambda x: x.detach().clone().requires_grad_())


def floats(tree):
    return [x for x in tree_leaves(tree) if isinstance(x, torch.Tensor) and x.is_floating_point()]


def values_and_gradients(module, args):
    values = floats(module(*args))
    generator = torch.Generator().manual_seed(2)
    upstream = [torch.randn(y.shape, generator=generator, dtype=torch.float64).to(y) for y in values]
    leaves = [x for x in (*floats(args), *module.parameters()) if x.requires_grad]
    return values + list(torch.autograd.grad(values, leaves, upstream))


def compare(run, name, k, dtype):
    """Compares the results of ``run``: rnnkern's module in a dtype, torch.nn's in the same dtype, and torch.nn's in
    float64."""

    def compared(seed):
        ours, theirs = (build(name, k, package, seed).to(dtype) for package in (rnnkern.nn, torch.nn))
        args = changed(arguments(name, k), lambda x: (x * (0.5 + torch.rand_like(x))).to(dtype))
        actual, naive = run(ours, args), run(theirs, args)
        return numbered(actual, naive, run(theirs.double(), changed(args, torch.Tensor.double)))

    assert_close_over_draws(map(compared, range(DRAWS)))


@parametrize("inputs")
@pytest.mark.sampled
def test_values_and_gradients(name, k):
    compare(values_and_gradients, name, k, torch.float32)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@parametrize("inputs", every=3)
@pytest.mark.sampled
def test_values_in_16_bits(name, k, dtype):
    with torch.no_grad():
        compare(lambda module, args: floats(module(*args)), name, k, dtype)


@parametrize("inputs")
def test_pytorchs_own_reference(name, k):
    args = arguments(name, k)
    if not isinstance(args[0], PackedSequence):
        module = build(name, k, rnnkern.nn)
        wanted = given(name)[k].reference_fn(module, *args)
        torch.testing.assert_close(module(*args), wanted)


@parametrize("error_inputs")
def test_errors(name, k):
    wrong = given(name, "error_inputs")[k]
    constructor, forward = wrong.module_error_input.constructor_input, wrong.module_error_input.forward_input
    build = lambda: getattr(rnnkern.nn, name)(*constructor.args, **constructor.kwargs)  # noqa: E731
    if wrong.error_on is common_modules.ModuleErrorEnum.CONSTRUCTION_ERROR:
        with pytest.raises(wrong.error_type, match=wrong.error_regex):
            build()
    else:
        module = build()
        with pytest.raises(wrong.error_type, match=wrong.error_regex):
            module(*forward.args, **forward.kwargs)


@parametrize("inputs", every=7)
@pytest.mark.sampled
def test_gradcheck(name, k):
    module, args = build(name, k, rnnkern.nn), arguments(name, k)
    names = [n for n, _ in module.named_parameters()]

    def call(*leaves):
        rest = iter(leaves)
        given = convert(args, lambda _: next(rest))
        return tuple(floats(torch.func.functional_call(module, dict(zip(names, rest, strict=True)), given)))

    leaves = (*floats(args), *module.parameters())
    assert gradcheck(call, leaves, fast_mode=True)
    assert gradgradcheck(call, leaves, fast_mode=True)


# ---- other uses of a module, for every form of constructor and input
