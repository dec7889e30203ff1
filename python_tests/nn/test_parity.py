"""Layers and cells that torch.nn has are drop-in replacements with its values, gradients and parameters."""

import copy
import itertools

import pytest
import torch
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence
from torch.utils._pytree import tree_leaves

import rnnkern.nn
from python_tests.samples import draws, numbered
from rnnkern.testing import assert_close_over_draws

T, B, I, H = 5, 3, 3, 4  # noqa: E741
CLOSE = {"rtol": 1e-10, "atol": 1e-12}

LAYERS = {
    "tanh": ("RNN", {}),
    "relu": ("RNN", {"nonlinearity": "relu"}),
    "lstm": ("LSTM", {}),
    "lstm_proj": ("LSTM", {"proj_size": 2}),
    "gru": ("GRU", {}),
}
FLAGS = {
    "plain": {},
    "two_layers": {"num_layers": 2},
    "both_directions": {"bidirectional": True, "batch_first": True},
    "three_layers_both": {"num_layers": 3, "bidirectional": True},
    "no_bias": {"bias": False, "batch_first": True},
    "no_bias_both": {"num_layers": 2, "bias": False, "bidirectional": True},
}
CELLS = {
    "tanh": ("RNNCell", {}),
    "relu": ("RNNCell", {"nonlinearity": "relu"}),
    "relu no bias": ("RNNCell", {"bias": False, "nonlinearity": "relu"}),
    **{name: (name, {}) for name in ("LSTMCell", "GRUCell")},
    **{f"{name} no bias": (name, {"bias": False}) for name in ("LSTMCell", "GRUCell")},
}
MODULES = {f"{name} {kind}": (cls, options | flags) for name, (cls, options) in LAYERS.items()
           for kind, flags in FLAGS.items()}  # fmt: skip
modules = pytest.mark.parametrize(("cls", "options"), MODULES.values(), ids=MODULES.keys())
cells = pytest.mark.parametrize(("cls", "options"), CELLS.values(), ids=CELLS.keys())


def pair(cls, *args, dtype=torch.float64, **kwargs):
    """torch.nn's module and rnnkern's, from the same seed."""
    built = []
    for package in (torch.nn, rnnkern.nn):
        torch.manual_seed(1)
        built.append(getattr(package, cls)(*args, dtype=dtype, **kwargs))
    return built


def make_input(kind, batch_first):
    """A leaf, and a function that makes the module's input from it."""
    steps = 1 if kind == "one_step" else T
    shape = (steps, I) if kind == "unbatched" else (B, steps, I) if batch_first else (steps, B, I)
    leaf = torch.randn(*shape, dtype=torch.float64, requires_grad=True)
    if not kind.startswith("packed"):
        return leaf, lambda: leaf
    lengths, ordered = ([5, 4, 2], True) if kind == "packed_sorted" else ([2, 5, 4], False)
    return leaf, lambda: pack_padded_sequence(leaf, torch.tensor(lengths), batch_first, enforce_sorted=ordered)


def make_state(module, batch):
    """h, or h and c."""
    cell = isinstance(module, torch.nn.RNNCellBase)
    rows = () if cell else (module.num_layers * (2 if module.bidirectional else 1),)
    widths = [getattr(module, "proj_size", 0) or module.hidden_size]
    widths += [module.hidden_size] * ("LSTM" in type(module).__name__)
    return [torch.randn(*rows, *batch, width, dtype=torch.float64, requires_grad=True) for width in widths]


def call(module, x, state):
    hx = () if not state else (tuple(state),) if "LSTM" in type(module).__name__ else state
    return module(x, *hx)


def results(module, leaf, given, state):
    """Every result by name, and the gradients of a weighted sum with respect to every input and parameter."""
    found, named = call(module, given(), state), {}
    if isinstance(given(), PackedSequence):
        output, hidden = found
        assert isinstance(output, PackedSequence)
        named = output._asdict()
        found = named.pop("data"), hidden
    assert isinstance(found, tuple) == (type(module).__name__ not in ("RNNCell", "GRUCell"))
    values = tree_leaves(found)
    loss = sum((v * torch.linspace(-1, 1, v.numel()).to(v).view_as(v)).sum() for v in values)
    wanted = {"input": leaf, **{f"hx[{k}]": s for k, s in enumerate(state)}, **dict(module.named_parameters())}
    grads = torch.autograd.grad(loss, wanted.values())
    named |= {f"value[{k}]": v.detach() for k, v in enumerate(values)}
    return named | {f"d {name}": grad for name, grad in zip(wanted, grads, strict=True)}


def assert_same(ours, theirs, **close):
    assert list(ours) == list(theirs)
    for name, value in theirs.items():
        if value is None:
            assert ours[name] is None, name
        else:
            torch.testing.assert_close(ours[name], value, **close or CLOSE, msg=lambda m, n=name: f"{n}: {m}")


# ---- values and gradients


@pytest.mark.parametrize("kind", ["batched", "one_step", "unbatched", "packed_sorted", "packed_unsorted"])
@modules
def test_layers(cls, options, kind):
    theirs, ours = pair(cls, I, H, **options)
    leaf, given = make_input(kind, theirs.batch_first)
    for state in ([], make_state(theirs, () if kind == "unbatched" else (B,))):
        assert_same(results(ours, leaf, given, state), results(theirs, leaf, given, state))


@pytest.mark.parametrize("batch", [(B,), (1,), (0,), ()], ids=str)
@cells
def test_cells(cls, options, batch):
    """Without derivatives, a step is another call of the kernel."""
    theirs, ours = pair(cls, I, 20, **options)
    x = torch.randn(*batch, I, dtype=torch.float64, requires_grad=True)
    for state in ([], make_state(theirs, batch)):
        assert_same(results(ours, x, lambda: x, state), results(theirs, x, lambda: x, state))
        with torch.no_grad():
            torch.testing.assert_close(call(ours, x, state), call(theirs, x, state), **CLOSE)


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN:UserWarning")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@modules
@pytest.mark.sampled
def test_layers_in_low_precision(cls, options, dtype):
    """With gradients in float32."""
    theirs, ours = pair(cls, I, H, **options)

    def compared():
        leaf, state = make_input("batched", theirs.batch_first)[0], make_state(theirs, (B,))
        found = []
        for module, to in ((ours, dtype), (theirs, dtype), (theirs, torch.float64)):
            x, *hx = (s.detach().to(to).requires_grad_(dtype == torch.float32) for s in (leaf, *state))
            module = copy.deepcopy(module).to(to).requires_grad_(dtype == torch.float32)
            run = results if dtype == torch.float32 else lambda module, x, given, hx: tree_leaves(call(module, x, hx))
            named = run(module, x, lambda x=x: x, hx)
            found.append(named.values() if isinstance(named, dict) else named)
        return numbered(*found)

    assert_close_over_draws(draws(compared))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@cells
def test_cells_in_low_precision(cls, options, dtype):
    theirs, ours = pair(cls, 5, 20, dtype=dtype, **options)

    def compared(batch, grad):
        x, *state = (s.detach().to(dtype) for s in (torch.randn(*batch, 5), *make_state(theirs, batch)))
        with torch.set_grad_enabled(grad):
            actual = tree_leaves(call(ours, x, state))
        truth = call(copy.deepcopy(theirs).double(), x.double(), [s.double() for s in state])
        return numbered(actual, tree_leaves(call(theirs, x, state)), tree_leaves(truth))

    for batch, grad in itertools.product([(1,), (9,), ()], [True, False]):
        assert_close_over_draws(draws(compared, batch, grad), f"batch {batch}, grad {grad}: ")


@pytest.mark.parametrize("cls", ["RNN", "LSTM", "GRU"])
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize(("dropout", "batch_first"), [(0.0, False), (0.5, False), (0.5, True), (1.0, False)])
def test_dropout_draws_the_same_mask(cls, training, dropout, batch_first):
    theirs, ours = pair(cls, I, H, 3, dropout=dropout, bidirectional=True, batch_first=batch_first)
    for kind in ("batched", "packed_unsorted"):
        leaf, given = make_input(kind, batch_first)
        found = []
        for module in (ours.train(training), theirs.train(training)):
            torch.manual_seed(2)
            found.append(results(module, leaf, given, []))
        assert_same(*found)


# ---- parameters


@pytest.mark.parametrize(("cls", "options"), [*MODULES.values(), *CELLS.values()], ids=[*MODULES, *CELLS])
def test_same_seed_same_parameters_and_state_dict_both_ways(cls, options):
    theirs, ours = pair(cls, I, H, **options)
    after = torch.rand(1)
    torch.manual_seed(1)
    getattr(torch.nn, cls)(I, H, dtype=torch.float64, **options)
    assert torch.equal(after, torch.rand(1)), "the generator stands elsewhere"
    assert isinstance(ours, type(theirs))
    assert [n for n, _ in ours.named_parameters()] == [n for n, _ in theirs.named_parameters()]
    exact = {"rtol": 0, "atol": 0}
    assert_same(ours.state_dict(), theirs.state_dict(), **exact)
    if isinstance(theirs, torch.nn.RNNBase):
        assert [[id(w) for w in ws] for ws in ours.all_weights] == [
            [id(getattr(ours, n)) for n in names] for names in theirs._all_weights
        ]
    for module in (theirs, ours):
        torch.manual_seed(3)
        module.reset_parameters()
    assert_same(ours.state_dict(), theirs.state_dict(), **exact)
    for source, target in ((theirs, ours), (ours, theirs)):
        with torch.no_grad():
            for p in source.parameters():
                p.add_(1)
        assert target.load_state_dict(source.state_dict()) == ([], [])
        assert_same(target.state_dict(), source.state_dict(), **exact)


@pytest.mark.parametrize(
    ("cls", "args", "kwargs"),
    [
        ("RNN", (I, H, 2, "relu", False, True, 0.5, True), {}),
        ("RNN", (), {"input_size": I, "hidden_size": H, "nonlinearity": "relu"}),
        ("LSTM", (I, H, 2, False, True, 0.5, True, 2), {}),
        ("GRU", (I, H, 2, False, True, 0.5, True), {"device": "cpu"}),
        ("RNNCell", (I, H, False, "relu"), {}),
        ("LSTMCell", (I, H, False, "cpu"), {}),
        ("GRUCell", (), {"input_size": I, "hidden_size": H}),
    ],
)
def test_constructor_takes_the_same_positions(cls, args, kwargs):
    theirs, ours = pair(cls, *args, **kwargs)
    assert repr(ours) == f"rnnkern.nn.{theirs}" or ours.extra_repr().startswith(theirs.extra_repr())
    for name in ("nonlinearity", "proj_size"):
        assert getattr(ours, name, None) == getattr(theirs, name, None)
    assert_same(ours.state_dict(), theirs.state_dict())
