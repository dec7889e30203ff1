"""A stream computes what one call of the layer with the whole sequence does, to the bit."""

import copy
import itertools
import pickle
import threading
import warnings

import pytest
import torch
from torch import Tensor
from torch.nn.utils import parametrize
from torch.utils._pytree import tree_leaves

import rnnkern
from python_tests.samples.layers import HIDDEN_SIZE, INPUT_SIZE, SEQUENCES, moved, takes
from rnnkern import _extension, nn
from rnnkern.nn.single import Whole
from rnnkern.nn.stream import LayerByLayer, Packed

kernels = pytest.mark.skipif(not _extension.available, reason=_extension.reason or "")
STEPS = 9
CUTS = {"steps": range(STEPS + 1), "pieces": (0, 1, 5, 5, STEPS)}
DTYPES = {"float32": torch.float32, "float64": torch.float64}


def made(name: str, **options) -> torch.nn.Module:
    return moved(name, **options).eval()


def draw(batch: int = 3, dtype: torch.dtype = torch.float32, steps: int = STEPS) -> Tensor:
    return torch.randn(steps, batch, INPUT_SIZE, dtype=dtype)


def streamed(stream: nn.Stream, x: Tensor, cuts=CUTS["steps"]) -> Tensor:
    """The outputs of a stream, called step by step, or with several steps where a piece is longer."""
    pieces = [x[a:b] for a, b in itertools.pairwise(cuts)]
    return torch.cat([stream(piece[0])[None] if len(piece) == 1 else stream(piece) for piece in pieces])


def whole(layer: torch.nn.Module, x: Tensor, *args, **options) -> Tensor:
    with torch.no_grad():
        return layer(x, *args, **options)[0]


def equal(actual, wanted) -> bool:
    actual, wanted = tree_leaves(actual), tree_leaves(wanted)
    return len(actual) == len(wanted) and all(map(torch.equal, actual, wanted))


@kernels
@pytest.mark.parametrize("cuts", CUTS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", SEQUENCES)
def test_bits_are_those_of_the_whole_sequence(name, dtype, cuts):
    deep = ({}, {"num_layers": 3}) if takes(name, "num_layers") else ({},)
    for options, batch in itertools.product(deep, (1, 3, 5)):
        layer = made(name, dtype=DTYPES[dtype], **options)
        x = draw(batch, DTYPES[dtype])
        assert torch.equal(streamed(layer.stream(batch), x, CUTS[cuts]), whole(layer, x)), f"B = {batch}"


def called(layer: torch.nn.Module, x: Tensor) -> Tensor:
    """The outputs of the layer itself, called step by step with the state that it returned."""
    outputs, hx = [], None
    for row in x:
        with torch.no_grad():
            y, hx = layer(row[None], hx)
        outputs.append(y)
    return torch.cat(outputs)


@kernels
@pytest.mark.parametrize("batch", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layer", [nn.LSTM, nn.GRU, nn.RNN])
def test_bits_of_wide_layers(layer, dtype, batch):
    """Sizes of more than one square of weights, which are no multiple of one."""
    layer, x = layer(37, 50, 2, dtype=DTYPES[dtype]), torch.randn(STEPS, batch, 37, dtype=DTYPES[dtype])
    wanted = whole(layer, x)
    assert torch.equal(streamed(layer.stream(batch), x), wanted)
    assert torch.equal(called(layer, x), wanted)
    first = nn.LSTM(37, 50, dtype=x.dtype)  # one layer has a path of its own
    assert torch.equal(called(first, x), whole(first, x))


@kernels
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", ["LSTM", "GRU", "RNN", "LSTM projected"])
def test_sixteen_bit_states_are_not_rounded_between_steps(name, dtype):
    layer = made(name, num_layers=2).to(dtype)
    x = draw().to(dtype)
    assert torch.equal(streamed(layer.stream(3), x), whole(layer, x))


@pytest.mark.parametrize("name", SEQUENCES)
def test_state(name):
    layer, x = made(name), draw()
    stream = layer.stream(3)
    streamed(stream, x[:4], range(5))
    with torch.no_grad():
        _, hx = layer(x[:4])
    for own, wanted in zip(tree_leaves(stream.state), tree_leaves(hx), strict=True):
        if isinstance(own, Tensor):
            torch.testing.assert_close(own, wanted, rtol=1e-4, atol=1e-4)
    other, at_four = layer.stream(3), stream.state
    other.state = at_four
    linear = getattr(layer, "filter", None) and layer.filter.linear
    if linear:
        torch.testing.assert_close(streamed(other, x[4:], range(6)), whole(layer, x[4:], at_four))
    else:
        assert torch.equal(streamed(other, x[4:], range(6)), streamed(stream, x[4:], range(6)))
    for held in tree_leaves(at_four):  # a copy, both ways
        if isinstance(held, Tensor) and held.is_floating_point():
            held.fill_(torch.nan)
    assert other(x[0]).isfinite().all()
    stream.state = None
    assert torch.equal(streamed(stream, x), streamed(layer.stream(3), x))


@kernels
@pytest.mark.parametrize("name", SEQUENCES)
def test_reset(name):
    layer, x = made(name), draw()
    stream, reset = layer.stream(3), torch.zeros(STEPS, 3, dtype=torch.bool)
    reset[4, 1] = reset[4, 2] = reset[6, 0] = True
    outputs = []
    for row, mask in zip(x, reset, strict=True):
        if mask.any():
            for part in (mask & torch.tensor([True, True, False]), mask & torch.tensor([False, False, True])):
                stream.reset(part)
        outputs.append(stream(row))
    assert torch.equal(torch.stack(outputs), whole(layer, x, reset=reset))
    stream.reset()
    assert torch.equal(streamed(stream, x), whole(layer, x))


@kernels
@pytest.mark.parametrize("name", ["LSTM", "LSTM Adam", "RelRNN"])
def test_batch_first(name):
    layer = made(name, batch_first=True)
    x = draw().transpose(0, 1)
    y, stream = whole(layer, x), layer.stream(3)
    assert torch.equal(torch.cat([stream(x[:, 0]).unsqueeze(1), stream(x[:, 1:])], 1), y)


def changes():
    def in_place(layer):
        with torch.no_grad():
            layer.weight_hh_l0.mul_(0.5)

    def replaced(layer):
        layer.weight_hh_l0 = torch.nn.Parameter(layer.weight_hh_l0.detach() * 0.5)

    def data(layer):
        layer.weight_hh_l0.data = layer.weight_hh_l0.data * 0.5

    def loaded(layer):
        layer.load_state_dict({name: 0.5 * x for name, x in layer.state_dict().items()})

    def parametrized(layer):
        class Half(torch.nn.Module):
            def forward(self, x):
                return 0.5 * x

        parametrize.register_parametrization(layer, "weight_hh_l0", Half())

    return [in_place, replaced, data, loaded, parametrized]


@kernels
@pytest.mark.parametrize("name", ["GRU", "LSTM layer norm", "SABLSTM"])
@pytest.mark.parametrize("change", changes())
def test_weights_that_change(name, change):
    layer, x = made(name), draw()
    stream = layer.stream(3)
    streamed(stream, x[:4], range(5))
    with torch.no_grad():
        _, hx = layer(x[:4])
    change(layer)
    with pytest.warns(UserWarning, match=r"stream: the layer's weights have changed") as warned:
        after = stream(x[4:])
    assert warned[0].filename == __file__
    assert torch.equal(after, whole(layer, x[4:], hx))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        stream(x)


@kernels
@pytest.mark.parametrize("name", ["LSTM", "RNN NAG"])
def test_writes_that_are_not_counted_need_pack(name):
    layer, x = made(name), draw()
    stream = layer.stream(3)
    stream(x[:4])
    layer.weight_ih_l0.data.mul_(0.5)
    assert torch.equal(layer.stream(3)(x), whole(layer, x)), "a new stream shares packed weights of other values"
    stream.pack()
    assert not torch.equal(stream(x[4:]), whole(layer, x)[4:]), "the state has not stayed"
    stream.reset()
    assert torch.equal(stream(x), whole(layer, x))


def test_parametrized_weights_are_computed_once():
    class Counted(torch.nn.Module):
        calls = 0

        def forward(self, x):
            Counted.calls += 1
            return x * 0.5

    for name in ("GRU", "LRU", "RelRNN", "LSTM layer norm"):
        layer, x = made(name), draw()
        weight = "B" if name == "LRU" else "weight_ih_l0"
        parametrize.register_parametrization(layer, weight, Counted())
        stream, before = layer.stream(3), Counted.calls
        y = streamed(stream, x)
        assert Counted.calls == before, name
        torch.testing.assert_close(y, whole(layer, x))


def test_weights_that_a_hook_computes():
    layer, x = made("LSTM"), draw()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        layer = torch.nn.utils.weight_norm(layer, "weight_hh_l0")
    with torch.no_grad():
        layer.weight_hh_l0_g.mul_(2)
    torch.testing.assert_close(layer.stream(3)(x), whole(layer, x))


@kernels
def test_streams_share_packed_weights():
    layer = made("LSTM")
    one, two, other = layer.stream(), layer.stream(), copy.deepcopy(layer).stream()
    assert one._engine._pack is two._engine._pack is not other._engine._pack
    x = draw(1)
    one(x[0])
    assert torch.equal(two(x), whole(layer, x))
    del one, two
    layer.stream()  # the pack is gone, and made again
    assert torch.equal(layer.stream()(x), whole(layer, x))


@kernels
def test_threads_that_begin_together_share_packed_weights():
    layer, begin, streams = nn.LSTM(64, 256), threading.Barrier(8), [None] * 8

    def client(k):
        torch.set_num_threads(1)  # the number of a new thread is the default
        begin.wait()
        streams[k] = layer.stream()

    threads = [threading.Thread(target=client, args=(k,)) for k in range(len(streams))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(stream._engine._pack) for stream in streams}) == 1


@kernels
@pytest.mark.parametrize("name", ["GRU", "LSTM Adam", "LRU"])
def test_a_stream_per_thread(name):
    layer = made(name)
    inputs = [draw(1, steps=200) for _ in range(8)]
    found = [None] * len(inputs)
    streams = [layer.stream() for _ in inputs]

    def client(k):
        found[k] = streamed(streams[k], inputs[k], range(201))

    threads = [threading.Thread(target=client, args=(k,)) for k in range(len(inputs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(torch.equal(y, whole(layer, x)) for x, y in zip(inputs, found, strict=True))


@kernels
def test_a_step_with_enough_work_uses_all_threads_and_gives_the_same_bits():
    layer, x = nn.LSTM(500, 301, num_layers=2), torch.randn(3, 2, 500)
    before = torch.get_num_threads()
    try:
        found = []
        for packed, run in itertools.product((1, 2, 3), repeat=2):
            torch.set_num_threads(packed)
            stream = layer.stream(2)
            torch.set_num_threads(run)
            found.append(stream(x))
    finally:
        torch.set_num_threads(before)
    assert equal(found, [whole(layer, x)] * len(found))


@kernels
def test_what_computes_the_steps():
    kinds = {
        "LSTM": Packed,
        "Recurrent": Packed,
        "ExpRNN": Packed,
        "GRU before, heads": Packed,
        "RNN NAG": LayerByLayer,
    }
    kinds |= {"LSTM layer norm": Packed, "EURNN fused": LayerByLayer, "LRU": Whole, "SABLSTM": Whole}
    assert {name: type(made(name).stream()._engine) for name in kinds} == kinds


@pytest.mark.parametrize("name", ["LSTM", "Recurrent", "LSTM momentum"])
def test_the_reference_runs_where_it_is_forced(name):
    layer, x = made(name), draw()
    with rnnkern.use("reference"):
        stream = layer.stream(3)
        torch.testing.assert_close(streamed(stream, x), whole(layer, x))


@pytest.mark.parametrize("name", ["LSTM", "LSTM layer norm", "LRU"])
def test_outputs_have_no_gradient_and_no_shared_memory(name):
    layer, x = made(name), draw().requires_grad_()
    stream = layer.stream(3)
    first, second = stream(x[0]), stream(x[0])
    assert not first.requires_grad
    assert not torch.equal(first, second)
    with torch.inference_mode():
        stream.reset(torch.tensor([True, True, True]))
        inside = stream(x.detach()[0])
    stream.reset()
    assert equal([inside, stream(x[0])], [first, first])
    with torch.autocast("cpu", torch.bfloat16):
        assert stream(x[0]).dtype == torch.float32
    assert stream(x[:0]).shape == (0, *first.shape)


@pytest.mark.parametrize(
    ("wrong", "error", "told"),
    [
        (lambda x: x[:, :2], ValueError, r"must be \(3, 4\) or \(T, 3, 4\), got \(3, 2\)"),
        (lambda x: x[:2], ValueError, r"got \(2, 4\)"),
        (lambda x: x[0], ValueError, r"got \(4,\)"),
        (lambda x: x[None, None], ValueError, r"got \(1, 1, 3, 4\)"),
        (lambda x: x.double(), TypeError, r"dtype torch.float32, got torch.float64"),
        (lambda x: x.to("meta"), TypeError, r"device cpu, got meta"),
        (lambda x: x.tolist(), TypeError, r"must be a tensor, got list"),
    ],
)
@pytest.mark.parametrize("name", ["LSTM", "LSTM layer norm", "LRU"])
def test_errors_of_the_input(name, wrong, error, told):
    stream, x = made(name).stream(3), draw()[0]
    with pytest.raises(error, match=rf"{name.split()[0]}\.stream: the input .*{told}"):
        stream(wrong(x))
    stream(x)


def test_errors():
    layer = made("GRU")
    for size, error in ((0, ValueError), (True, TypeError), (1.0, TypeError)):
        with pytest.raises(error, match=r"GRU\.stream: `batch_size`"):
            layer.stream(size)
    with pytest.raises(ValueError, match=r"GRU\.stream: `bidirectional` must be False"):
        made("GRU", bidirectional=True).stream()
    stream = layer.stream(3)
    for mask, error in (([True] * 3, TypeError), (torch.ones(3), TypeError), (torch.ones(2).bool(), ValueError)):
        with pytest.raises(error, match=r"GRU\.stream: `mask`"):
            stream.reset(mask)
    with pytest.raises(RuntimeError, match="Expected hidden size"):
        stream.state = torch.zeros(1, 3, HIDDEN_SIZE + 1)
    for copied in (copy.deepcopy, copy.copy, pickle.dumps):
        with pytest.raises(TypeError, match="cannot be copied or saved"):
            copied(stream)
    assert repr(stream) == "GRU.stream(batch_size=3)"


@kernels
def test_operators_refuse_what_is_no_stream():
    operators = torch.ops.rnnkern
    layer, x = made("GRU"), draw()[0]
    pack = layer.stream(3)._engine._pack._memory
    stream = operators.recurrence_stream(pack)
    other = made("GRU").stream(3)._engine._pack._memory
    wrong = [(stream.clone(), pack), (stream[:8], pack), (pack, pack), (stream, other), (torch.zeros(0), pack)]
    wrong += [(torch.zeros(999), pack), (stream.double(), pack), (torch.zeros(999, dtype=torch.int64), pack)]
    for given in wrong:
        with pytest.raises(RuntimeError, match="must be"):
            operators.recurrence_stream_step(*given, x)
    for not_a_pack in (stream, pack.clone(), torch.zeros(0), torch.zeros(999), torch.zeros(3).long()):
        with pytest.raises(RuntimeError, match="must be"):
            operators.recurrence_stream(not_a_pack)
    h, W, R = torch.zeros(3, 8), layer.weight_ih_l0.detach(), layer.weight_hh_l0.detach()
    wrong = ([R], [h, h], [W]), ([R], [h], [W, W]), ([], [h], []), ([R], [h[:2]], [W]), ([R, R], [h, h], [W, W])
    for Rs, states, Ws in wrong:
        with pytest.raises(RuntimeError):
            operators.recurrence_pack("gru", x[None], Rs, states, None, None, Ws, None)
