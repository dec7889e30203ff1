"""torch.compile, torch.export and AOTInductor take every layer of the table."""

import pytest
import torch
from torch.func import functional_call, grad, jvp, vmap
from torch.nn.utils.rnn import pack_padded_sequence

import rnnkern._extension
import rnnkern.nn
from python_tests.samples import recurrence_sample
from python_tests.samples.layers import CELLS, LAYERS, SEQUENCES, draw_input, moved, values_and_gradients
from python_tests.tiers import quick_where
from rnnkern.ops import recurrence

# All sizes differ, because torch.compile treats equal sizes as one.
T, B, I, H = 6, 3, 4, 8  # noqa: E741
CLOSE = {"rtol": 1e-4, "atol": 1e-5}

compiled_part = pytest.mark.skipif(
    not rnnkern._extension.available,
    reason=f"the reference has a loop that the compiler unrolls, and {rnnkern._extension.reason}",
)


@pytest.fixture(autouse=True)
def compiler():
    torch.compiler.reset()
    with torch._dynamo.config.patch(allow_rnn=True):
        yield


class Compiled(torch.nn.Module):
    """A compiled module that has the parameters of the module."""

    def __init__(self, module, **options):
        super().__init__()
        self.module, self.call = module, torch.compile(module, fullgraph=True, **options)

    def forward(self, *args):
        return self.call(*args)


def arguments(name):
    """Arguments of forward, with an initial state and resets where there are any."""
    module, x = moved(name), draw_input(name, requires_grad=True)
    with torch.no_grad():
        if name in CELLS:
            return module, (x, module(x))
        if name in SEQUENCES:
            return module, (x, module(x)[1], torch.rand(x.shape[:2]) < 0.3)
    return module, (x,)


QUICK = ("RNN", "LSTM Adam", "GRU", "ExpRNN", "EURNN fused", "UnitaryRNN givens", "LRU", "ContinuousRNN Adams",
         "RelLSTM", "SABLSTM", "LSTMCell", "NeuralODE", "HeavyBallODE", "ESBN", "Recurrent")  # fmt: skip


@compiled_part
@pytest.mark.parametrize("name", quick_where(lambda name: name in QUICK, LAYERS))
@pytest.mark.drawn
def test_every_layer_is_one_graph(name):
    module, args = arguments(name)
    compiled = Compiled(module, backend="aot_eager")
    torch.testing.assert_close(values_and_gradients(compiled, *args), values_and_gradients(module, *args), **CLOSE)
    if name in CELLS:
        with torch.no_grad():
            torch.testing.assert_close(compiled(args[0]), module(args[0]), **CLOSE)


def sample(module, steps=T, batch=B):
    x = torch.randn(batch, steps, I) if module.batch_first else torch.randn(steps, batch, I)
    return x.requires_grad_(), torch.rand(x.shape[:2]) < 0.3


def compare(compiled, module, steps, batch):
    x, reset = sample(module, steps, batch)
    actual, wanted = (values_and_gradients(each, x, None, reset) for each in (compiled, module))
    if not torch.is_autocast_enabled("cpu"):
        torch.testing.assert_close(actual, wanted, **CLOSE)
        return
    for a, b in zip(actual, wanted, strict=True):  # inductor rounds fewer intermediate results than PyTorch
        torch.testing.assert_close(a, b, rtol=0, atol=0.02 * b.abs().max().item())


OF_ANY_LENGTH = {
    "LSTM heads": {"bidirectional": True},
    "GRU layer norm": {"batch_first": True},
    "LSTM projected": {},
    "GRU before": {"num_layers": 2, "batch_first": True},
    "RNN modrelu": {"bidirectional": True},
    "ExpRNN dynamic": {"num_layers": 2},
    "NonNormalRNN": {"bidirectional": True},
    "LSTM layer norm": {"num_layers": 2, "bidirectional": True},
}


@pytest.mark.parametrize("name", quick_where(lambda name: name in ("LSTM heads", "GRU layer norm"), OF_ANY_LENGTH))
@pytest.mark.drawn
def test_one_graph_for_any_length_and_batch(name):
    module = moved(name, **OF_ANY_LENGTH[name])
    compiled = Compiled(module, backend="aot_eager", dynamic=True)
    compare(compiled, module, T, B)
    with torch._dynamo.config.patch(error_on_recompile=True):
        compare(compiled, module, 9, 2)
        compare(compiled, module, 2, 17)


@pytest.mark.parametrize(("steps", "batch"), [(1, 1), (0, B), (T, 0)])
def test_sizes_that_the_compiler_takes_for_constants(steps, batch):
    module = moved("LSTM")
    compare(Compiled(module, backend="aot_eager"), module, steps, batch)


@compiled_part
@pytest.mark.filterwarnings("ignore:Torchinductor does not support code generation for complex")  # for LRU
@pytest.mark.parametrize("dtype", [None, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ["GRU", "LSTM", "RNN", "ExpRNN dynamic", "RelRNN", "LRU", "SABLSTM mlp"])
@pytest.mark.proof
@pytest.mark.drawn
def test_inductor(name, dtype):
    module = moved(name)
    compiled = Compiled(module, dynamic=True)
    with torch.autocast("cpu", dtype, enabled=dtype is not None):
        compare(compiled, module, T, B)
        compare(compiled, module, 9, 2)


@pytest.mark.sampled
def test_packed():
    gru = rnnkern.nn.GRU(I, H, bidirectional=True)
    compiled = torch.compile(gru, backend="aot_eager", fullgraph=True)
    for lengths in ([2, 6, 4], [6, 1, 6]):
        x = pack_padded_sequence(torch.randn(T, B, I), torch.tensor(lengths), enforce_sorted=False)
        (output, h_n), (wanted, wanted_h_n) = compiled(x), gru(x)
        torch.testing.assert_close(output.data, wanted.data, **CLOSE)
        torch.testing.assert_close(h_n, wanted_h_n, **CLOSE)


def test_without_the_setting_the_compiler_goes_around_the_module():
    """torch.compile rejects every instance of torch.nn.RNN, LSTM and GRU before it looks at the forward method."""
    model = torch.nn.Sequential(torch.nn.Linear(I, I), rnnkern.nn.GRU(I, H))
    x = torch.randn(T, B, I)
    with torch._dynamo.config.patch(allow_rnn=False):
        with pytest.raises(torch._dynamo.exc.Unsupported, match="allow_rnn=True"):
            torch.compile(model, backend="aot_eager", fullgraph=True)(x)
        torch.compiler.reset()
        torch.testing.assert_close(torch.compile(model, backend="aot_eager")(x)[0], model(x)[0], **CLOSE)


# ---- torch.func inside the graph


def loss(module):
    return lambda parameters, x: functional_call(module, parameters, (x,))[0].sin().sum()


TRANSFORMS = {
    "gradient": lambda module: grad(loss(module), argnums=(0, 1)),
    "second gradient": lambda module: grad(lambda p, x: grad(loss(module), argnums=1)(p, x).sin().sum()),
    "members": lambda module: lambda p, x: vmap(lambda x: functional_call(module, p, (x,))[0])(x[None].tanh()),
    "tangent": lambda module: lambda p, x: jvp(lambda x: functional_call(module, p, (x,))[0], (x,), (x.cos(),)),
    "gradients per sample": lambda module: lambda p, x: vmap(grad(loss(module)), (None, 0))(p, x[None].tanh()),
}


@compiled_part
@pytest.mark.parametrize("transform", quick_where(lambda name: name in ("gradient", "members", "tangent"), TRANSFORMS))
def test_transforms(transform):
    """Compares gradients, because one that is lost in the graph would silently be zero."""
    module = rnnkern.nn.LSTM(I, H)
    parameters, x = {name: p.detach() for name, p in module.named_parameters()}, torch.randn(T, B, I)
    function = TRANSFORMS[transform](module)
    actual = torch.compile(function, backend="aot_eager", fullgraph=True)(parameters, x)
    torch.testing.assert_close(actual, function(parameters, x), **CLOSE)


@compiled_part
def test_second_derivatives_of_packed_input_say_that_they_cannot_be_traced():
    cell, u, R, state = recurrence_sample("tanh", packed=True).args
    sizes = recurrence_sample("tanh", packed=True).kwargs["batch_sizes"]
    first = grad(lambda u: recurrence(cell, u, R, state, batch_sizes=sizes)[0].sin().sum())
    torch.testing.assert_close(torch.compile(first, backend="aot_eager", fullgraph=True)(u), first(u))
    second = grad(lambda u: first(u).sin().sum())
    assert second(u).abs().sum() > 0
    with pytest.raises(Exception, match="cannot trace second derivatives of packed input"):
        torch.compile(second, backend="aot_eager", fullgraph=True)(u)


# ---- exported programs


def exported(module, x, reset, **options):
    sizes = {0: torch.export.Dim("T", min=0), 1: torch.export.Dim("B", min=0)}
    shapes = {"input": sizes, "hx": None, "reset": sizes}
    return torch.export.export(module, (x,), {"hx": None, "reset": reset}, dynamic_shapes=shapes, **options)


def assert_runs_like(program, module):
    for steps, batch in ((T, B), (9, 1), (1, 4), (0, 2)):
        x, reset = (y.detach() for y in sample(module, steps, batch))
        torch.testing.assert_close(program(x, hx=None, reset=reset), module(x, None, reset), **CLOSE)


@compiled_part
@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("name", quick_where(lambda name: name == "LSTM", ["LSTM", "LSTM projected", "RNN modrelu"]))
def test_export_for_any_length_and_batch(name, strict):
    module = moved(name)
    program = exported(module, *sample(module), strict=strict).module()
    with torch.no_grad():
        assert_runs_like(program, module)


@pytest.mark.proof
@compiled_part
@pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec:FutureWarning")
def test_aotinductor(tmp_path):
    """A cell without parameters of its own and one with some, forward only."""

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm = rnnkern.nn.LSTM(I, H, bidirectional=True)
            self.rnn = rnnkern.nn.RNN(2 * H, H, nonlinearity="modrelu")
            self.batch_first = False

        def forward(self, input, hx, reset):
            return self.rnn(self.lstm(input, hx, reset)[0])

    module = Model()
    with torch.no_grad():
        program = exported(module, *sample(module))
        path = torch._inductor.aoti_compile_and_package(program, package_path=str(tmp_path / "model.pt2"))
        assert_runs_like(torch._inductor.aoti_load_package(path), module)


@compiled_part
def test_a_tensor_may_stand_twice():
    """The same tensor may be passed twice, such as zeros for h and c, or a tied weight."""
    cell, x, zeros = rnnkern.nn.LSTMCell(H, H), torch.randn(B, H), torch.zeros(B, H)
    cell.weight_hh = cell.weight_ih
    compiled = torch.compile(lambda x: cell(x, (zeros, zeros)), backend="aot_eager", fullgraph=True)
    actual, wanted = (
        (y, torch.autograd.grad(y[0].sum() + y[1].sin().sum(), cell.weight_ih))
        for y in (compiled(x), cell(x, (zeros, zeros)))
    )
    torch.testing.assert_close(actual, wanted, **CLOSE)
