"""RNNCell, LSTMCell and GRUCell against those of torch.nn: values, derivatives, parameters, errors."""

import copy
import itertools
import pickle

import pytest
import torch
from torch.nn.utils import parametrize

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


@pytest.mark.parametrize("grad", [True, False])
@classes
def test_a_loop_over_the_cell_is_the_layer(cls, grad):
    _, cell = pair(cls)
    layer = getattr(rnnkern.nn, cls.removesuffix("Cell"))(I, H, dtype=torch.float64)
    layer.load_state_dict({f"{name}_l0": value for name, value in cell.state_dict().items()})
    sequence = torch.randn(6, B, I, dtype=torch.float64)
    with torch.set_grad_enabled(grad):
        state, outputs = (), []
        for x in sequence:
            state = run(cell, x, *state)
            outputs.append(state[0])
        output, wanted = torch.stack(outputs), layer(sequence)[0]
    torch.testing.assert_close(output, wanted, rtol=1e-10, atol=1e-12)
    if grad:
        gradients = [
            torch.autograd.grad(y.square().sum(), list(m.parameters())) for y, m in ((output, cell), (wanted, layer))
        ]
        torch.testing.assert_close(*gradients, rtol=1e-10, atol=1e-12)


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


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))], ids=["copy", "pickle"])
@classes
def test_copies(cls, duplicate):
    _, cell = pair(cls)
    twin, inputs = duplicate(cell), arguments(cls)
    assert type(twin) is type(cell)
    assert torch.equal(run(twin, *inputs)[0], run(cell, *inputs)[0])


class Doubled(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, weight):
        self.calls += 1
        return 2 * weight


@pytest.mark.parametrize("grad", [True, False])
@classes
def test_parametrized_once_per_step(cls, grad):
    theirs, ours = pair(cls)
    doubled = Doubled()
    parametrize.register_parametrization(ours, "weight_hh", doubled)
    with torch.no_grad():
        theirs.weight_hh.mul_(2)
    inputs, doubled.calls = arguments(cls), 0
    with torch.set_grad_enabled(grad):
        torch.testing.assert_close(run(ours, *inputs), run(theirs, *inputs), rtol=1e-10, atol=1e-12)
    assert doubled.calls == 1


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


@pytest.mark.parametrize("grad", [True, False])
@classes
def test_autocast(cls, grad):
    """The dtypes are those of torch.nn too."""
    theirs, cell = pair(cls, dtype=torch.float32)
    inputs = arguments(cls, dtype=torch.float32)
    wanted = run(cell, *inputs)
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.set_grad_enabled(grad):
        state = run(cell, *inputs)
        again = run(cell, inputs[0], *(s.bfloat16() for s in state))
        assert [s.dtype for s in state] == [s.dtype for s in run(theirs, *inputs)]
    assert {s.dtype for s in again} == {torch.bfloat16}
    torch.testing.assert_close(tuple(s.float() for s in state), wanted, rtol=0, atol=0.03)
    if grad:
        sum(s.float().sum() for s in again).backward()
        assert all(p.grad.dtype == torch.float32 for p in cell.parameters())


@pytest.mark.filterwarnings(
    "ignore:<class 'torch.autograd.function.Function'> should not be:DeprecationWarning",
    "ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning",
)
@pytest.mark.parametrize("grad", [True, False])
@classes
def test_compiles_whole(cls, grad):
    _, cell = pair(cls)
    x, *state = arguments(cls)
    compiled = torch.compile(cell, backend="aot_eager", fullgraph=True)
    with torch.set_grad_enabled(grad):
        for hx in (None, tuple(state) if cls == "LSTMCell" else state[0]):
            torch.testing.assert_close(compiled(x, hx), cell(x, hx), rtol=1e-10, atol=1e-12)


@classes
def test_explain_tells_what_runs(cls):
    _, cell = pair(cls)
    x, *state = arguments(cls)
    hx = tuple(state) if cls == "LSTMCell" else state[0]
    (choice,) = rnnkern.ops.explain(cell, x, hx)
    assert choice.implementation == ("cpu" if _extension.available else "reference")
    with rnnkern.use("reference"):
        assert rnnkern.ops.explain(cell, x)[0].implementation == "reference"
    with rnnkern.use("triton"), pytest.raises(ValueError, match="triton"):
        cell(x)
