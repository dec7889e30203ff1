"""The kernels of rnnkern.cell compute the function itself, over a table of cells and one of calls; layers with them."""

import copy
import pickle
import subprocess
import sys

import pytest
import torch

import rnnkern
from python_tests.cells.samples import CELLS, NORMALISED, call, oscillators, several
from python_tests.samples import numbered
from rnnkern import _extension
from rnnkern.nn import GRU, RNN, Recurrent
from rnnkern.ops import explain, recurrence
from rnnkern.testing import DRAWS, assert_close_over_draws

pytestmark = pytest.mark.skipif(not _extension.available, reason=f"no compiled part: {_extension.reason}")

FACTOR = 0.8
"""A constant that a cell reads and a test changes."""


def agrees(cell, **kwargs):
    """Asserts that a call has the values and gradients of the reference."""
    with rnnkern.use("reference"):
        expected = call(cell, **kwargs)
    torch.testing.assert_close(call(cell, **kwargs), expected, rtol=1e-10, atol=1e-10)


each_cell = pytest.mark.parametrize("cell", [*CELLS, *NORMALISED], ids=lambda cell: cell.__name__)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@each_cell
@pytest.mark.sampled
def test_a_kernel_computes_the_function(cell, dtype):
    state, params = [torch.zeros(1, 1)] * len(cell.states), [torch.zeros(n) for n in cell.rows]
    u, R = torch.zeros(1, 1, len(cell.gates)), torch.zeros(len(cell.recurrent), 1)
    assert explain(recurrence, cell, u, R, state, params=params).implementation == "cpu"

    def compared(k):
        with rnnkern.use("reference"), cell._by_the_function():
            truth, naive = call(cell, rounded=dtype, drawn_with=k), call(cell, dtype, drawn_with=k)
        return numbered(call(cell, dtype, drawn_with=k), naive, truth)

    if dtype == torch.float64:
        actual, _, truth = zip(*compared(0).values(), strict=True)
        torch.testing.assert_close(actual, truth, rtol=1e-10, atol=1e-10)
    else:
        assert_close_over_draws(map(compared, range(DRAWS)), f"{cell.name}: ")


RESET = torch.arange(15).view(5, 3) % 4 == 2
CALLS = {
    "no steps": {"steps": 0},
    "one": {"steps": 1, "batch": 1, "hidden": 1},
    "odd": {"batch": 17, "hidden": 33},
    "long": {"steps": 63, "hidden": 5},
    "reverse, reset": {"reverse": True, "reset": RESET},
    "gates computed again": {"save_gates": False},
    "noise": {"zoneout": 0.3, "dropout": 0.4, "seed": torch.tensor(3)},
    "mean, reset": {"zoneout": 0.3, "reset": RESET},
}


@each_cell
@pytest.mark.parametrize("options", CALLS)
def test_sizes_and_options(options, cell):
    agrees(cell, **CALLS[options])


@each_cell
@pytest.mark.parametrize("threads", [1, 2])
def test_inference_has_the_bits_of_training(cell, threads):
    """It keeps nothing, so values wait elsewhere between the products and the norms of a step."""
    layer, x = Recurrent(cell, 5, 33), torch.randn(6, 3, 5)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        wanted = layer(x)[0].detach()
        with torch.no_grad():
            assert torch.equal(layer(x)[0], wanted)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("cell", [several, oscillators, rnnkern.cells.li_gru], ids=lambda cell: cell.__name__)
def test_verify(cell):
    assert cell.verify() is cell


def test_a_cell_keeps_the_equations_of_its_definition():
    """A constant from outside that changes later changes neither kernels, nor the reference, nor second derivatives;
    `verify` finds that they no longer compute the function."""
    scale, shift = [0.5], 0.25

    @rnnkern.cell
    def scaled(u, r, h):
        return torch.tanh(scale[0] * u + r) * FACTOR + shift

    def results():
        torch.manual_seed(0)
        u, R, h = (torch.randn(shape, dtype=torch.float64).requires_grad_() for shape in ((3, 2, 4), (4, 4), (2, 4)))
        y = recurrence(scaled, u, R, (h,), save_u=True)[0]
        (first,) = torch.autograd.grad(y.sin().sum(), R, create_graph=True)
        return y, first, torch.autograd.grad(first.sin().sum(), u)[0], scaled(u[0], u[1], h)

    before = results()
    scale[0], shift, globals()["FACTOR"] = 0.7, 0.3, 0.9
    try:
        after = results()
        with rnnkern.use("reference"):
            by_reference = results()
        with pytest.raises(AssertionError):
            scaled.verify()
    finally:
        globals()["FACTOR"] = 0.8
    assert all(map(torch.equal, before, after))
    torch.testing.assert_close(by_reference, before, rtol=1e-12, atol=1e-12)


def test_first_and_second_derivatives():
    def layer(u, R, h, c, leak):
        return recurrence(several, u, R, (h, c), params=(leak,), save_u=True)[0]

    torch.manual_seed(0)
    shapes = (3, 2, 8), (8, 4), (2, 4), (2, 4), (4,)
    leaves = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    assert torch.autograd.gradcheck(layer, leaves)
    assert torch.autograd.gradgradcheck(layer, leaves, fast_mode=True)


def saving(save):
    """An LSTM whose variable names say what is saved."""

    @rnnkern.cell(gates="ifgo", save=save)
    def lstm(u, r, h, c):
        i, f, o = torch.sigmoid(u.i + r.i), torch.sigmoid(u.f + r.f), torch.sigmoid(u.o + r.o)
        g = torch.tanh(u.g + r.g)
        c = f * c + i * g
        y = torch.tanh(c)
        return o * y, c

    return lstm


@pytest.mark.parametrize(("save", "saved"), [(None, 5), ((), 4), ("ifgo", 4), ("ifgoc", 5), ("y", 5)])
def test_what_is_saved(save, saved):
    """The values that the user names, and the smallest set that is missing; results do not depend on it."""
    cell = saving(save)
    assert cell.saved == saved
    agrees(cell)


def test_what_is_saved_is_shown():
    _, kept, *equations = repr(saving("ifgoc")).splitlines()
    start, names = kept.rsplit(": ", 1)
    assert start == "  kept for the backward pass, per unit and step: 5 floats"
    values = dict(line.strip().split(" = ") for line in equations)
    assert [values[name].split("(")[0] for name in names.split(", ")[:4]] == ["sigmoid", "sigmoid", "tanh", "sigmoid"]


@pytest.mark.parametrize("save", [None, ("n",)])
def test_a_parameter_in_the_first_of_two_products(save):
    """`prepare` has no parameters: values that depend on one are computed after the second product."""

    @rnnkern.cell(gates="zqn", save=save)
    def peephole(u, r, h, *, p):
        z = torch.sigmoid(u.z + r.z + p * h)
        n = torch.tanh(u.n + r.n(torch.sigmoid(u.q + r.q) * h))
        return (1 - z) * h + z * n

    agrees(peephole)


OPTIONS = [
    {},
    {"num_layers": 2, "bidirectional": True},
    {"num_heads": 3},
    {"batch_first": True, "zoneout": (0.1, 0.2), "recurrent_dropout": 0.3},
    {"bias": False, "num_layers": 2, "save_gates": False, "dropout": 0.5},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_layer(options):
    torch.manual_seed(0)
    layer, x = Recurrent(several, 4, 12, **options), torch.randn(5, 5, 4, requires_grad=True)

    def outputs():
        torch.manual_seed(2)
        output, state = layer(x)
        return [output, *state, *torch.autograd.grad(output.sin().sum(), [x, *layer.parameters()])]

    with rnnkern.use("reference"):
        expected = outputs()
    torch.testing.assert_close(outputs(), expected, rtol=1e-4, atol=1e-5)
    assert [c.implementation for c in rnnkern.explain(layer, x)] == ["cpu"] * len(layer._all_weights)


def test_parameters_of_a_layer():
    layer = Recurrent(several, 4, 12, num_heads=2)
    shapes = {name: tuple(p.shape) for name, p in layer.named_parameters()}
    assert shapes == {
        "weight_ih_l0": (24, 4), "weight_hh_l0": (2, 12, 6), "bias_ih_l0": (24,), "bias_hh_l0": (24,), "leak_l0": (12,)
    }  # fmt: skip
    assert ((layer.leak_l0 >= 0.1) & (layer.leak_l0 <= 0.9)).all()
    assert layer.weight_ih_l0.abs().max() <= 12**-0.5
    assert "several" in repr(layer)
    with pytest.raises(TypeError, match=r"`cell` must be made by rnnkern\.cell"):
        Recurrent("mgu", 4, 12)
    with pytest.raises(RuntimeError, match=r"hx must have 2 states \(h, c\)"):
        layer(torch.randn(3, 2, 4), (torch.zeros(1, 2, 12),))


def test_packed_unbatched_reset_and_halves():
    torch.manual_seed(0)
    layer = Recurrent(several, 4, 6)
    x, lengths = torch.randn(5, 3, 4), [2, 5, 3]
    packed, state = layer(torch.nn.utils.rnn.pack_padded_sequence(x, lengths, enforce_sorted=False))
    padded, _ = torch.nn.utils.rnn.pad_packed_sequence(packed)
    for b, length in enumerate(lengths):
        one, last = layer(x[:length, b])
        torch.testing.assert_close(padded[:length, b], one)
        for s, t in zip(state, last, strict=True):
            torch.testing.assert_close(s[:, b], t)
    first, between = layer(x[:2])
    torch.testing.assert_close(torch.cat([first, layer(x[2:], between)[0]]), layer(x)[0])
    reset = torch.zeros(5, 3, dtype=torch.bool)
    reset[2] = True
    torch.testing.assert_close(layer(x, reset=reset)[0], torch.cat([first, layer(x[2:])[0]]))


def test_copies_and_pickles():
    layer, x = Recurrent(several, 4, 6), torch.randn(3, 2, 4)
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert other.cell is several
        assert torch.equal(other(x)[0], layer(x)[0])
    for cell in (several, saving("ifgoc"), NORMALISED[-1]):
        restore, (module, name, *rest) = cell.__reduce__()
        assert restore(module, f"no_longer_there.{name}", *rest).source == cell.source


def test_equal_bodies_share_a_kernel_and_new_ones_have_their_own():
    def made(scale):
        return rnnkern.cell(lambda u, r, h: torch.tanh(scale * (u + r)))

    one, same, other = made(2.0), made(2.0), made(3.0)
    assert one.name == same.name != other.name
    u, R, h0 = torch.randn(2, 1, 3), torch.randn(3, 3), torch.zeros(1, 3)
    assert torch.equal(recurrence(one, u, R, (h0,))[0], recurrence(same, u, R, (h0,))[0])
    assert not torch.equal(recurrence(one, u, R, (h0,))[0], recurrence(other, u, R, (h0,))[0])


@pytest.mark.proof
@torch._dynamo.config.patch(allow_rnn=True)
def test_a_program_names_the_cell(tmp_path):
    layer, x = Recurrent(several, 4, 6).eval(), torch.randn(3, 2, 4)
    expected = layer(x)[0]
    torch.testing.assert_close(torch.compile(layer, fullgraph=True, backend="aot_eager")(x)[0], expected)
    program = torch.export.export(layer, (x,))
    torch.testing.assert_close(program.module()(x)[0], expected)
    torch.export.save(program, tmp_path / "program.pt2")
    load = f"torch.export.load({str(tmp_path / 'program.pt2')!r}).module()(torch.zeros(3, 2, 4))"
    done = subprocess.run([sys.executable, "-c", f"import torch, rnnkern\n{load}"], capture_output=True, text=True)
    assert f"the cell `{several.name}` has no kernel; if rnnkern.cell made it, define it" in done.stderr


LAYERS = [
    (lambda: RNN(3, 5, nonlinearity="leaky_relu"), rnnkern.cells.rnn("leaky_relu")),
    (lambda: GRU(3, 5, activation="hardtanh", gate="hardsigmoid"), rnnkern.cells.gru("hardtanh", "hardsigmoid")),
]


@pytest.mark.parametrize(("make", "cell"), LAYERS)
def test_activations_that_torch_lacks(make, cell):
    """Of layers of torch.nn; test_collection.py has the cells."""
    layer, other, x = make(), Recurrent(cell, 3, 5), torch.randn(4, 2, 3)
    other.load_state_dict(layer.state_dict())
    torch.testing.assert_close(layer(x)[0], other(x)[0])


def test_wrong_activations():
    with pytest.raises(ValueError, match=r"an activation must be one of tanh, .*, got 'tahn'"):
        GRU(3, 5, activation="tahn")
    with pytest.raises(ValueError, match="must be 'tanh' and 'sigmoid' with reset_gate = 'before'"):
        GRU(3, 5, activation="relu", reset_gate="before")
