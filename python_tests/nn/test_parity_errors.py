"""Wrong arguments of the layers and cells that torch.nn has are errors of the same type and text as torch.nn's."""

import pytest
import torch
from torch.nn.utils.rnn import pack_padded_sequence

import rnnkern.nn

T, B, I, H = 5, 3, 3, 4  # noqa: E741
LAYERS, CELLS = ("RNN", "LSTM", "GRU"), ("RNNCell", "LSTMCell", "GRUCell")
layers, cells = (pytest.mark.parametrize("cls", classes) for classes in (LAYERS, CELLS))
with_and_without_gradients = pytest.mark.parametrize("grad", [True, False])


def error(f):
    try:
        f()
    except Exception as e:
        return type(e), str(e)
    return None


def assert_same_error(cls, run, *args, **kwargs):
    """``run`` is called with a module of each package, or with None its constructor is called."""
    said = []
    for package in (torch.nn, rnnkern.nn):
        make = lambda package=package: getattr(package, cls)(*args, **kwargs)  # noqa: E731
        module = make() if run else None
        said.append(error((lambda module=module: run(module)) if run else make))
    assert said[0] is not None
    assert said[1] == said[0]


@pytest.mark.parametrize(
    ("classes", "args", "kwargs"),
    [
        (LAYERS, (I, H), {"dropout": 2}),
        (LAYERS, (I, H), {"dropout": True}),
        (LAYERS, (I, H), {"dropout": 0.5}),  # a warning
        (LAYERS, (I, H), {"bias": 1}),
        (LAYERS, (I, H), {"batch_first": 1}),
        (LAYERS, (0, H), {}),
        (LAYERS, (1.5, H), {}),
        (LAYERS, (I, 0), {}),
        (LAYERS, (I, "4"), {}),
        (LAYERS, (I, H, 0), {}),
        (("LSTM",), (I, H), {"proj_size": -1}),
        (("LSTM",), (I, H), {"proj_size": H}),
        (CELLS, (), {}),
        (CELLS, (I, "4"), {}),
        (CELLS, (-1, H), {}),
        (CELLS, (I, H, True, 0, 0, 0), {}),
    ],
)
def test_constructors(classes, args, kwargs):
    for cls in classes:
        assert_same_error(cls, None, *args, **kwargs)


def zeros(*shape, **kwargs):
    return torch.zeros(*shape, **{"dtype": torch.float64, **kwargs})


def named(value):
    return "x".join(map(str, value.shape)) if isinstance(value, torch.Tensor) else str(value)


@pytest.mark.parametrize("batch_first", [False, True])
@layers
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
    ids=named,
)
def test_calls_of_layers(cls, batch_first, x, hx):
    given = (hx, hx) if cls == "LSTM" and hx is not None else hx
    assert_same_error(cls, lambda module: module(x, given), I, H, 2, batch_first=batch_first, dtype=torch.float64)


@with_and_without_gradients
@cells
@pytest.mark.parametrize(
    ("x", "hx"),
    [
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
    ],
    ids=named,
)
def test_calls_of_cells(cls, x, hx, grad):
    given = (hx, hx) if cls == "LSTMCell" and hx is not None else hx
    with torch.set_grad_enabled(grad):
        assert_same_error(cls, lambda module: module(x, given), I, H, dtype=torch.float64)


@with_and_without_gradients
@pytest.mark.parametrize("cls", [*LAYERS, *CELLS])
def test_states_of_the_other_kind(cls, grad):
    x, h = (zeros(T, B, I), zeros(1, B, H)) if cls in LAYERS else (zeros(B, I), zeros(B, H))
    other = h if "LSTM" in cls else (h, h)
    with torch.set_grad_enabled(grad):
        for hx in (other,) if cls in LAYERS else ((h,), (h, h, h), other, torch.stack([h, h])):
            assert_same_error(cls, lambda module, hx=hx: module(x, hx), I, H, dtype=torch.float64)


def test_a_nonlinearity_that_torch_does_not_know():
    x, options = torch.zeros(B, I), {"nonlinearity": "hardtanh"}
    assert_same_error("RNNCell", lambda module: module(x), I, H, **options)
    with pytest.raises(RuntimeError, match="Unknown nonlinearity: hardtanh"):
        rnnkern.nn.RNNCell(I, H, **options)(x)


@with_and_without_gradients
def test_what_torch_lets_pass_and_the_operator_does_not(grad):
    """torch.nn promotes a c with another dtype than h; here it is an error."""
    cell, state = rnnkern.nn.LSTMCell(I, H), (torch.zeros(B, H), zeros(B, H))
    with torch.set_grad_enabled(grad), pytest.raises((TypeError, RuntimeError), match="`state"):
        cell(torch.zeros(B, I), state)


@layers
def test_packed_errors_name_the_sizes(cls):
    """torch.nn checks the state of a packed batch late or not at all; here it is always checked first."""
    ours = getattr(rnnkern.nn, cls)(I, H, dtype=torch.float64)
    packed = pack_padded_sequence(zeros(T, B, I), torch.tensor([2, 5, 4]), enforce_sorted=False)
    for batch in (B - 1, B + 1):
        hx = zeros(1, batch, H)
        with pytest.raises(RuntimeError, match=rf"Expected hidden.* size \(1, {B}, {H}\), got \[1, {batch}, {H}\]"):
            ours(packed, (hx, hx) if cls == "LSTM" else hx)
    wide = pack_padded_sequence(zeros(T, B, I + 1), torch.tensor([5, 5, 4]))
    with pytest.raises(RuntimeError, match=f"Expected {I}, got {I + 1}"):
        ours(wide)
