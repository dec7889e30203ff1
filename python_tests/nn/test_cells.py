"""RNNCell, LSTMCell and GRUCell against those of torch.nn: values, derivatives, parameters, errors."""

import copy
import itertools

import pytest
import torch

import rnnkern
import rnnkern.nn.cells
from python_tests.samples import draws, numbered
from rnnkern import _extension
from rnnkern.testing import assert_close_over_draws

B, I, H = 3, 5, 20  # noqa: E741

CELLS = {
    "tanh": ("RNNCell", {}),
    "relu": ("RNNCell", {"nonlinearity": "relu"}),
    "relu no bias": ("RNNCell", {"bias": False, "nonlinearity": "relu"}),
    "lstm": ("LSTMCell", {}),
    "lstm no bias": ("LSTMCell", {"bias": False}),
    "gru": ("GRUCell", {}),
    "gru no bias": ("GRUCell", {"bias": False}),
}
cells = pytest.mark.parametrize(("cls", "options"), CELLS.values(), ids=CELLS.keys())
classes = pytest.mark.parametrize("cls", ["RNNCell", "LSTMCell", "GRUCell"])


def pair(cls, dtype=torch.float64, **options):
    """torch.nn's cell and rnnkern's, from the same seed."""
    built = []
    for package in (torch.nn, rnnkern.nn):
        torch.manual_seed(1)
        built.append(getattr(package, cls)(I, H, dtype=dtype, **options))
    return built


def arguments(cls, batch=(B,), dtype=torch.float64, requires_grad=False):
    """x and the state: h, or h and c."""
    x, *state = (torch.randn(*batch, n, dtype=dtype) for n in (I, H, H))
    return [t.requires_grad_(requires_grad) for t in (x, *state[: 2 if cls == "LSTMCell" else 1])]


def run(cell, x, *state):
    """The new state as a tuple."""
    hx = () if not state else (state,) if isinstance(cell, torch.nn.LSTMCell) else state
    new = cell(x, *hx)
    assert isinstance(new, tuple) == isinstance(cell, torch.nn.LSTMCell)
    return new if isinstance(new, tuple) else (new,)


# ---- values and derivatives


@pytest.mark.parametrize("given", [True, False], ids=["state", "zeros"])
@pytest.mark.parametrize("batch", [(B,), (1,), (0,), ()], ids=str)
@cells
def test_values_and_gradients(cls, options, batch, given):
    theirs, ours = pair(cls, **options)
    inputs = arguments(cls, batch, requires_grad=True)[: None if given else 1]
    actual, wanted = run(ours, *inputs), run(theirs, *inputs)
    with torch.no_grad():
        short = run(ours, *inputs)
    torch.testing.assert_close(actual, wanted, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(short, tuple(s.detach() for s in wanted), rtol=1e-10, atol=1e-12)
    upstream = [torch.randn_like(s) for s in wanted]
    gradients = [
        torch.autograd.grad(new, [*inputs, *cell.parameters()], upstream)
        for cell, new in ((ours, actual), (theirs, wanted))
    ]
    torch.testing.assert_close(*gradients, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@cells
def test_low_precision(cls, options, dtype):
    theirs, ours = pair(cls, dtype=dtype, **options)

    def compared(batch, grad):
        inputs = arguments(cls, batch, dtype)
        with torch.set_grad_enabled(grad):
            actual = run(ours, *inputs)
        truth = run(copy.deepcopy(theirs).double(), *(t.double() for t in inputs))
        return numbered(actual, run(theirs, *inputs), truth)

    for batch, grad in itertools.product([(1,), (9,), ()], [True, False]):
        assert_close_over_draws(draws(compared, batch, grad), f"batch {batch}, grad {grad}: ")


@cells
@pytest.mark.sampled
def test_second_derivatives(cls, options):
    cell = getattr(rnnkern.nn, cls)(2, 2, dtype=torch.float64, **options)
    inputs = [t[:, :2] for t in arguments(cls, (1,))]
    names = [name for name, _ in cell.named_parameters()]

    def call(*tensors):
        x, *state = tensors[: len(inputs)]
        parameters = dict(zip(names, tensors[len(inputs) :], strict=True))
        return torch.func.functional_call(cell, parameters, (x, tuple(state) if cls == "LSTMCell" else state[0]))

    leaves = [t.detach().clone().requires_grad_() for t in (*inputs, *cell.parameters())]
    assert torch.autograd.gradcheck(call, leaves)
    assert torch.autograd.gradgradcheck(call, leaves)


# ---- parameters


@cells
def test_same_seed_same_parameters_and_state_dict_both_ways(cls, options):
    theirs, ours = pair(cls, **options)
    assert isinstance(ours, type(theirs))
    assert repr(ours) == f"rnnkern.nn.{theirs}"
    assert list(ours.state_dict()) == list(theirs.state_dict())
    torch.testing.assert_close(dict(ours.named_parameters()), dict(theirs.named_parameters()), rtol=0, atol=0)
    for source, target in ((theirs, ours), (ours, theirs)):
        with torch.no_grad():
            for p in source.parameters():
                p.add_(1)
        assert target.load_state_dict(source.state_dict()) == ([], [])
        torch.testing.assert_close(dict(target.state_dict()), dict(source.state_dict()), rtol=0, atol=0)


# ---- errors: type and message are those of torch.nn


def error(f):
    try:
        f()
    except Exception as e:
        return type(e), str(e)
    return None


@pytest.mark.parametrize(("args", "kwargs"), [((), {}), ((I, "4"), {}), ((-1, H), {}), ((I, H, True, 0, 0, 0), {})])
@classes
def test_constructor_errors(cls, args, kwargs):
    wanted = error(lambda: getattr(torch.nn, cls)(*args, **kwargs))
    assert wanted is not None
    assert error(lambda: getattr(rnnkern.nn, cls)(*args, **kwargs)) == wanted


def zeros(*shape, **kwargs):
    return torch.zeros(*shape, **{"dtype": torch.float64, **kwargs})


WRONG = [
    (zeros(()), None),
    (zeros(1, B, I), None),
    (zeros(B, I + 1), None),
    (zeros(I + 1), None),
    (zeros(B, I, dtype=torch.float32), None),
    (zeros(B, I, dtype=torch.int64), None),
    ([0.0], None),
    (zeros(B, I), zeros(B, H + 1)),
    (zeros(B, I), zeros(B + 1, H)),
    (zeros(B, I), zeros(1, H)),
    (zeros(B, I), zeros(H)),
    (zeros(B, I), zeros(1, B, H)),
    (zeros(I), zeros(B, H)),
    (zeros(I), zeros(1, H)),
    (zeros(B, I), zeros(B, H, dtype=torch.float32)),
    (zeros(B, I), zeros(B, H, device="meta")),
    (zeros(B, I), [[0.0]]),
]


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("wrong", range(len(WRONG)))
@classes
def test_forward_errors(cls, wrong, grad):
    x, h = WRONG[wrong]
    hx = (h, h) if cls == "LSTMCell" and h is not None else h
    with torch.set_grad_enabled(grad):
        said = [error(lambda cell=cell: cell(x, hx)) for cell in pair(cls)]
    assert said[0] is not None
    assert said[1] == said[0]


@pytest.mark.parametrize("grad", [True, False])
@classes
def test_state_of_the_other_kind(cls, grad):
    x, h = zeros(B, I), zeros(B, H)
    for hx in ((h,), (h, h, h), h if cls == "LSTMCell" else (h, h), torch.stack([h, h])):
        with torch.set_grad_enabled(grad):
            said = [error(lambda cell=cell, hx=hx: cell(x, hx)) for cell in pair(cls)]
        assert said[0] is not None
        assert said[1] == said[0]


def test_a_nonlinearity_that_torch_does_not_know():
    said = [error(lambda cell=cell: cell(zeros(B, I))) for cell in pair("RNNCell", nonlinearity="hardtanh")]
    assert said[0] == said[1] == (RuntimeError, "Unknown nonlinearity: hardtanh")


@pytest.mark.parametrize("grad", [True, False])
def test_what_torch_lets_pass_and_the_operator_does_not(grad):
    """torch.nn promotes a c with another dtype than h; here it is an error."""
    _, cell = pair("LSTMCell")
    x, h, c = arguments("LSTMCell")
    with torch.set_grad_enabled(grad), pytest.raises((TypeError, RuntimeError), match="`state"):
        cell(x, (h, c.float()))


# ---- with other parts of PyTorch


@pytest.mark.skipif(not _extension.available, reason=_extension.reason or "")
@classes
def test_without_derivatives_the_short_way_is_taken(cls, monkeypatch):
    steps, short = [], rnnkern.nn.cells.step

    def step(**kwargs):
        steps.append(short(**kwargs))
        return steps[-1]

    monkeypatch.setattr(rnnkern.nn.cells, "step", step)
    _, cell = pair(cls)
    inputs = arguments(cls)
    run(cell, *inputs)
    assert steps == []
    with torch.no_grad():
        run(cell, *inputs)
        with rnnkern.use("reference"):
            run(cell, *inputs)
    assert [s is None for s in steps] == [False, True]
