"""The modules against those of torch.nn in float64: values, gradients, parameters, errors."""

import pytest
import torch
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

import rnnkern.nn

T, B, I, H = 5, 3, 3, 4  # noqa: E741

MODULES = {
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
INPUTS = ["batched", "one_step", "unbatched", "packed_sorted", "packed_unsorted"]


def pair(cls, *args, **kwargs):
    """torch.nn's module and rnnkern's, from the same seed."""
    modules = []
    for package in (torch.nn, rnnkern.nn):
        torch.manual_seed(1)
        modules.append(getattr(package, cls)(*args, dtype=torch.float64, **kwargs))
    return modules


def make_input(kind, batch_first):
    """A leaf, and a function that makes the module's input from it."""
    steps = 1 if kind == "one_step" else T
    shape = (steps, I) if kind == "unbatched" else (B, steps, I) if batch_first else (steps, B, I)
    leaf = torch.randn(*shape, dtype=torch.float64, requires_grad=True)
    if not kind.startswith("packed"):
        return leaf, lambda: leaf
    lengths, ordered = ([5, 4, 2], True) if kind == "packed_sorted" else ([2, 5, 4], False)
    return leaf, lambda: pack_padded_sequence(leaf, torch.tensor(lengths), batch_first, enforce_sorted=ordered)


def make_state(module, kind):
    rows = module.num_layers * (2 if module.bidirectional else 1)
    batch = () if kind == "unbatched" else (B,)
    widths = [module.proj_size or module.hidden_size]
    widths += [module.hidden_size] * isinstance(module, torch.nn.LSTM)
    return [torch.randn(rows, *batch, width, dtype=torch.float64, requires_grad=True) for width in widths]


def results(module, leaf, given, state, weights):
    """Output, final states, and the gradients of a weighted sum of all of them with respect to every input and
    parameter."""
    hx = state if not state else tuple(state) if isinstance(module, torch.nn.LSTM) else state[0]
    output, hidden = module(given(), hx) if state else module(given())
    named = {}
    if isinstance(given(), PackedSequence):
        assert isinstance(output, PackedSequence)
        for field in ("batch_sizes", "sorted_indices", "unsorted_indices"):
            named[field] = getattr(output, field)
        output = output.data
    values = [output, *(hidden if isinstance(hidden, tuple) else [hidden])]
    if not weights:
        weights += [torch.randn_like(v) for v in values]
    loss = sum((v * w).sum() for v, w in zip(values, weights, strict=True))
    wanted = {"input": leaf, **{f"hx[{k}]": s for k, s in enumerate(state)}, **dict(module.named_parameters())}
    grads = torch.autograd.grad(loss, wanted.values())
    named |= {f"value[{k}]": v.detach() for k, v in enumerate(values)}
    return named | {f"d {name}": grad for name, grad in zip(wanted, grads, strict=True)}


def assert_same(ours, theirs):
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        if value is None:
            assert ours[name] is None, name
            continue
        torch.testing.assert_close(ours[name], value, rtol=1e-10, atol=1e-12, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("kind", INPUTS)
@pytest.mark.parametrize("flags", FLAGS.values(), ids=FLAGS.keys())
@pytest.mark.parametrize(("cls", "options"), MODULES.values(), ids=MODULES.keys())
def test_values_and_gradients(cls, options, flags, kind):
    theirs, ours = pair(cls, I, H, **options, **flags)
    leaf, given = make_input(kind, theirs.batch_first)
    for state in ([], make_state(theirs, kind)):
        weights = []
        wanted = results(theirs, leaf, given, state, weights)
        assert_same(results(ours, leaf, given, state, weights), wanted)


@pytest.mark.parametrize("cls", ["RNN", "LSTM", "GRU"])
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("dropout", [0.0, 0.5, 1.0])
def test_dropout_draws_the_same_mask(cls, training, dropout):
    theirs, ours = (m.train(training) for m in pair(cls, I, H, 3, dropout=dropout, bidirectional=True))
    for kind in ("batched", "packed_unsorted"):
        leaf, given = make_input(kind, False)
        weights = []
        torch.manual_seed(2)
        wanted = results(theirs, leaf, given, [], weights)
        torch.manual_seed(2)
        assert_same(results(ours, leaf, given, [], weights), wanted)


@pytest.mark.parametrize("batch_first", [False, True])
def test_dropout_mask_with_batch_first(batch_first):
    theirs, ours = pair("GRU", I, H, 2, dropout=0.5, batch_first=batch_first)
    x, _ = make_input("batched", batch_first)
    outputs = []
    for module in (theirs, ours):
        torch.manual_seed(2)
        outputs.append(module(x)[0])
    torch.testing.assert_close(outputs[1], outputs[0], rtol=1e-10, atol=1e-12)


# ---- parameters


@pytest.mark.parametrize("flags", FLAGS.values(), ids=FLAGS.keys())
@pytest.mark.parametrize(("cls", "options"), MODULES.values(), ids=MODULES.keys())
def test_same_seed_same_parameters_and_state_dict_both_ways(cls, options, flags):
    theirs, ours = pair(cls, I, H, **options, **flags)
    after = [torch.rand(1), None]
    torch.manual_seed(1)
    getattr(rnnkern.nn, cls)(I, H, dtype=torch.float64, **options, **flags)
    after[1] = torch.rand(1)
    assert after[0] == after[1], "the generator stands elsewhere"
    assert isinstance(ours, type(theirs))
    assert list(ours.state_dict()) == list(theirs.state_dict())
    assert [n for n, _ in ours.named_parameters()] == [n for n, _ in theirs.named_parameters()]
    assert_same(ours.state_dict(), theirs.state_dict())
    assert [[id(w) for w in ws] for ws in ours.all_weights] == [
        [id(getattr(ours, n)) for n in names] for names in theirs._all_weights
    ]
    for source, target in ((theirs, ours), (ours, theirs)):
        with torch.no_grad():
            for p in source.parameters():
                p.add_(1)
        assert target.load_state_dict(source.state_dict()) == ([], [])
        assert_same(target.state_dict(), source.state_dict())


def test_reset_parameters_draws_as_torch():
    for cls in ("RNN", "LSTM", "GRU"):
        theirs, ours = pair(cls, I, H, 2)
        for module in (theirs, ours):
            torch.manual_seed(3)
            module.reset_parameters()
        assert_same(ours.state_dict(), theirs.state_dict())


@pytest.mark.parametrize(
    ("cls", "args", "kwargs"),
    [
        ("RNN", (I, H, 2, "relu", False, True, 0.5, True), {}),
        ("RNN", (), {"input_size": I, "hidden_size": H, "nonlinearity": "relu"}),
        ("LSTM", (I, H, 2, False, True, 0.5, True, 2), {}),
        ("GRU", (I, H, 2, False, True, 0.5, True), {"device": "cpu"}),
    ],
)
def test_constructor_takes_the_same_positions(cls, args, kwargs):
    theirs, ours = pair(cls, *args, **kwargs)
    assert ours.extra_repr().startswith(theirs.extra_repr())
    assert getattr(ours, "nonlinearity", None) == getattr(theirs, "nonlinearity", None)
    assert ours.proj_size == theirs.proj_size
    assert_same(ours.state_dict(), theirs.state_dict())


def test_device_and_dtype():
    lstm = rnnkern.nn.LSTM(I, H, device="meta", dtype=torch.bfloat16, num_heads=2)
    assert {(p.device.type, p.dtype) for p in lstm.parameters()} == {("meta", torch.bfloat16)}
    gru = rnnkern.nn.GRU(I, H).to(torch.float64)
    assert gru(torch.zeros(T, B, I, dtype=torch.float64))[0].dtype == torch.float64


@pytest.mark.parametrize(("steps", "batch"), [(0, B), (T, 0), (0, 0)])
@pytest.mark.parametrize("cls", ["RNN", "LSTM", "GRU"])
def test_empty(cls, steps, batch):
    _, ours = pair(cls, I, H, 2, bidirectional=True)
    hx = torch.randn(4, batch, H, dtype=torch.float64)
    given = (hx, hx) if cls == "LSTM" else hx
    output, hidden = ours(torch.zeros(steps, batch, I, dtype=torch.float64), given)
    assert output.shape == (steps, batch, 2 * H)
    for s in hidden if cls == "LSTM" else [hidden]:
        assert s.shape == hx.shape
        assert steps or torch.equal(s, hx)


# ---- errors: type and message are those of torch.nn


def error(f):
    try:
        f()
    except Exception as e:
        return type(e), str(e)
    return None


@pytest.mark.parametrize(
    ("classes", "args", "kwargs"),
    [
        (("RNN", "LSTM", "GRU"), (I, H), {"dropout": 2}),
        (("RNN", "LSTM", "GRU"), (I, H), {"dropout": True}),
        (("RNN", "LSTM", "GRU"), (I, H), {"dropout": 0.5}),  # a warning
        (("RNN", "LSTM", "GRU"), (I, H), {"bias": 1}),
        (("RNN", "LSTM", "GRU"), (I, H), {"batch_first": 1}),
        (("RNN", "LSTM", "GRU"), (0, H), {}),
        (("RNN", "LSTM", "GRU"), (1.5, H), {}),
        (("RNN", "LSTM", "GRU"), (I, 0), {}),
        (("RNN", "LSTM", "GRU"), (I, "4"), {}),
        (("RNN", "LSTM", "GRU"), (I, H, 0), {}),
        (("LSTM",), (I, H), {"proj_size": -1}),
        (("LSTM",), (I, H), {"proj_size": H}),
    ],
)
def test_constructor_errors(classes, args, kwargs):
    for cls in classes:
        wanted = error(lambda cls=cls: getattr(torch.nn, cls)(*args, **kwargs))
        assert wanted is not None
        assert error(lambda cls=cls: getattr(rnnkern.nn, cls)(*args, **kwargs)) == wanted


def zeros(*shape, dtype=torch.float64):
    return torch.zeros(*shape, dtype=dtype)


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("cls", ["RNN", "LSTM", "GRU"])
@pytest.mark.parametrize(
    ("x", "hx"),
    [
        (zeros(I), None),
        (zeros(1, T, B, I), None),
        (zeros(T, B, I + 1), None),
        (zeros(T, I + 1), None),
        (zeros(T, B, I, dtype=torch.float32), None),
        (zeros(T, B, I), zeros(2, B, H + 1)),
        (zeros(T, B, I), zeros(2, B + 4, H)),
        (zeros(T, B, I), zeros(1, B, H)),
        (zeros(T, B, I), zeros(2, H)),
        (zeros(T, I), zeros(2, B, H)),
        (zeros(T, I), zeros(1, H)),
        ([[0.0]], None),
    ],
    ids=lambda v: "x".join(map(str, v.shape)) if isinstance(v, torch.Tensor) else str(v),
)
def test_forward_errors(cls, batch_first, x, hx):
    theirs, ours = pair(cls, I, H, 2, batch_first=batch_first)
    given = (hx, hx) if cls == "LSTM" and hx is not None else hx
    wanted = error(lambda: theirs(x, given))
    assert wanted is not None
    assert error(lambda: ours(x, given)) == wanted


@pytest.mark.parametrize("cls", ["RNN", "LSTM", "GRU"])
def test_state_of_the_other_kind(cls):
    theirs, ours = pair(cls, I, H)
    hx = zeros(1, B, H)
    wrong = hx if cls == "LSTM" else (hx, hx)
    wanted = error(lambda: theirs(zeros(T, B, I), wrong))
    assert wanted is not None
    assert error(lambda: ours(zeros(T, B, I), wrong)) == wanted


@pytest.mark.parametrize("cls", ["RNN", "LSTM", "GRU"])
def test_packed_errors_name_the_sizes(cls):
    """torch.nn checks the state of a packed batch late or not at all; here it is always checked first."""
    _, ours = pair(cls, I, H)
    packed = pack_padded_sequence(zeros(T, B, I), torch.tensor([2, 5, 4]), enforce_sorted=False)
    for batch in (B - 1, B + 1):
        hx = zeros(1, batch, H)
        with pytest.raises(RuntimeError, match=rf"Expected hidden.* size \(1, {B}, {H}\), got \[1, {batch}, {H}\]"):
            ours(packed, (hx, hx) if cls == "LSTM" else hx)
    wide = pack_padded_sequence(zeros(T, B, I + 1), torch.tensor([5, 5, 4]))
    with pytest.raises(RuntimeError, match=f"Expected {I}, got {I + 1}"):
        ours(wide)
