"""PyTorch's own test inputs for RNN, LSTM and GRU (torch.testing._internal.common_modules) pass its own checks."""

import functools

import pytest
import torch

import rnnkern.nn

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
    torch.manual_seed(0)
    return make(INFOS[name], device="cpu", dtype=torch.float64, requires_grad=True, training=True)


def parametrize(kind):
    cases = [(name, k) for name in INFOS for k in range(len(given(name, kind)))]
    return pytest.mark.parametrize(("name", "k"), cases)


@parametrize("inputs")
def test_pytorchs_own_reference(name, k):
    constructor, args = given(name)[k].constructor_input, given(name)[k].forward_input.args
    module = getattr(rnnkern.nn, name)(*constructor.args, **constructor.kwargs, dtype=torch.float64)
    torch.testing.assert_close(module(*args), given(name)[k].reference_fn(module, *args))


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
