"""Every layer computes each sequence and each episode as if it were alone, in every layout.

It computes a sequence as its steps do, and several layers and directions as single ones do.
"""

import re

import pytest
import torch
from torch.func import functional_call
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.utils._pytree import tree_map_only

from python_tests.samples import layers as table
from rnnkern import _extension

T, B, CUT = 8, 3, 4
LENGTHS = [5, 8, 6]
F64 = torch.float64
CLOSE = {"rtol": 1e-9, "atol": 1e-10}

sequences = pytest.mark.parametrize("name", table.SEQUENCES)


def both_ways(name):
    """Two layers and two directions, of a layer that has them."""
    return {"num_layers": 2, "bidirectional": True} if table.takes(name, "num_layers") else {}


def after_a_reset(name):
    """The state that a reset leaves: that of a new call, except for Adams' method, whose first step then has k = 0."""
    return (torch.zeros(B, table.HIDDEN_SIZE, dtype=F64),) * 2 if name.startswith("ContinuousRNN Adams") else None


def drawn(*shape):
    return torch.randn(*shape, table.INPUT_SIZE, dtype=F64, requires_grad=True)


def run(module, x, hx=None, reset=None, packed=False):
    """Calls a module with x (T, B, I) in the layout that it takes; returns the output, padded (T, B, O), and the
    state."""
    turn = lambda y: y.transpose(0, 1) if module.batch_first and y is not None else y  # noqa: E731
    if not packed:
        output, state = module(turn(x), hx, turn(reset))
        return turn(output), state
    given = pack_padded_sequence(turn(x), LENGTHS, module.batch_first, enforce_sorted=False)
    output, state = module(given, hx, turn(reset))
    return pad_packed_sequence(output)[0], state


def mapped(state, change):
    """Changes what is differentiable in a state."""
    return tree_map_only(torch.Tensor, lambda s: change(s) if s.requires_grad else s, state)


def assert_equal_with_gradients(actual, wanted, leaves):
    """Compares tensors, and the gradients of a random weighted sum of them."""
    torch.testing.assert_close(actual, wanted, **CLOSE)
    upstream = [torch.randn_like(y) for y in wanted]
    more = {"retain_graph": True, "materialize_grads": True}
    found, truth = (torch.autograd.grad(y, leaves, upstream, **more) for y in (actual, wanted))
    torch.testing.assert_close(found, truth, **CLOSE)


@pytest.mark.parametrize("packed", [False, True], ids=["padded", "packed"])
@pytest.mark.parametrize("batch_first", [False, True])
@sequences
def test_a_batch_is_each_sequence_alone(name, batch_first, packed):
    """Each alone is without a batch dimension. The states are compared by a second call that begins with them."""
    module = table.moved(name, batch_first=batch_first, dtype=F64, **both_ways(name))
    x, later, reset = drawn(T, B), drawn(T, B), torch.rand(T, B) < 0.2
    lengths = LENGTHS if packed else [T] * B
    for b, n in enumerate(lengths):
        reset[n:, b] = True  # beyond the end, without effect
    output, state = run(module, x, None, reset, packed)
    more, _ = run(module, later, state, None, packed)
    actual, wanted = [], []
    for b, n in enumerate(lengths):
        alone, own = module(x[:n, b], None, reset[:n, b])
        wanted += [alone, module(later[:n, b], own)[0]]
        actual += [output[:n, b], more[:n, b]]
    assert_equal_with_gradients(actual, wanted, [x, later, *module.parameters()])


@sequences
def test_a_state_carries_a_sequence_on(name):
    module = table.moved(name, dtype=F64)
    before, x = drawn(T, B), drawn(T, B)
    _, begun = module(before)
    whole, end = module(x, begun)
    first, state = module(x[:CUT], begun)
    second, state = module(x[CUT:], state)
    leaves = [before, x, *module.parameters()]
    if getattr(module, "weight_screen_l0", None) is not None:  # its gradient reaches the steps of one call
        leaves = [p for p in module.parameters() if p is not module.weight_screen_l0]
    if not name.startswith("SAB"):  # truncates gradients from the start of a call
        assert_equal_with_gradients([torch.cat([first, second])], [whole], leaves)
    torch.testing.assert_close((torch.cat([first, second]), state), (whole, end), **CLOSE)
    if name == "RNN NAG":
        return  # its schedule begins with each call
    with torch.inference_mode():
        state, steps = mapped(begun, torch.Tensor.detach), []
        for t in range(T):
            output, state = module(x[t : t + 1], state)
            steps.append(output)
    torch.testing.assert_close((torch.cat(steps), state), (whole, end), **CLOSE)


@pytest.mark.parametrize("directions", [1, 2])
@sequences
def test_an_episode_is_a_sequence_alone(name, directions):
    if directions == 2 and name not in table.DEEP:
        pytest.skip("it has one direction")
    module = table.moved(name, dtype=F64, **both_ways(name) if directions == 2 else {})
    x, later, reset = drawn(T, B), drawn(T, B), torch.zeros(T, B, dtype=torch.bool)
    reset[CUT] = True
    output, end = module(x, None, reset)
    (first, early), (second, late) = module(x[:CUT]), module(x[CUT:], after_a_reset(name))
    actual, wanted = [output], [torch.cat([first, second])]
    if directions == 1:
        actual.append(module(later, end)[0])
        wanted.append(module(later, late)[0])
        _, state = module(later)
        both = torch.arange(T)[:, None].expand(T, B) % CUT == 0
        wanted.append(module(x, after_a_reset(name), reset)[0])
        actual.append(module(x, state, both)[0])
    else:  # the first episode is where the reverse direction ends
        for found, a, b in zip(*map(table.values, (end, early, late)), strict=True):
            actual.append(found)
            wanted.append(torch.stack([b[0], a[1], b[2], a[3]]))
    assert_equal_with_gradients(actual, wanted, [x, later, *module.parameters()])


@pytest.mark.parametrize("poisoned", ["before", "after"])
@pytest.mark.parametrize("packed", [False, True], ids=["padded", "packed"])
@sequences
@pytest.mark.sampled
def test_nan_does_not_cross_into_another_episode(name, packed, poisoned):
    """Neither into outputs, nor into the final state of that direction, nor into gradients of the input."""
    module = table.moved(name, dtype=F64, **both_ways(name))
    bad, good = slice(0, CUT), slice(CUT, T)
    bad, good = (bad, good) if poisoned == "before" else (good, bad)
    x, reset = torch.randn(T, B, table.INPUT_SIZE, dtype=F64), torch.zeros(T, B, dtype=torch.bool)
    reset[CUT] = True
    clean, _ = module(x[good], after_a_reset(name) if poisoned == "before" else None)
    x[bad] = torch.nan
    x.requires_grad_()
    given = pack_padded_sequence(x, torch.full((B,), T)) if packed else x
    output, state = module(given, None, reset)
    output = pad_packed_sequence(output)[0] if packed else output
    assert output[bad].isnan().any()
    torch.testing.assert_close(output[good], clean, **CLOSE)
    if name in table.DEEP:
        assert all(part[2 if poisoned == "before" else 3].isfinite().all() for part in table.values(state))
    elif poisoned == "before":
        assert all(part.isfinite().all() for part in table.values(state))
    (grad,) = torch.autograd.grad(output[good].sum(), x)
    assert grad[good].isfinite().all()


@sequences
def test_an_initial_state_of_nan_ends_at_a_reset(name):
    module, x, reset = table.moved(name, dtype=F64), drawn(T, B), torch.zeros(T, B, dtype=torch.bool)
    reset[0] = True
    _, state = module(x)
    lost = mapped(state, lambda s: s * torch.nan)
    output, end = module(x, lost, reset)
    torch.testing.assert_close(output, module(x, after_a_reset(name))[0], **CLOSE)
    assert all(part.isfinite().all() for part in table.values(end))


@sequences
def test_a_mask_without_a_reset_in_reach_changes_no_bit(name):
    module, x = table.moved(name, **both_ways(name)), torch.randn(T, B, table.INPUT_SIZE)
    beyond, never = torch.arange(T)[:, None] >= torch.tensor(LENGTHS), torch.zeros(T, B, dtype=torch.bool)
    for reset, packed in ((beyond, True), (never, False)):
        found, wanted = run(module, x, None, reset, packed), run(module, x, None, None, packed)
        assert table.same(table.values(found), table.values(wanted))


@pytest.mark.parametrize(("layers", "ends"), [(3, ("",)), (2, ("", "_reverse"))], ids=["layers", "directions"])
@pytest.mark.parametrize("name", table.DEEP)
def test_layers_and_directions_are_single_ones(name, layers, ends):
    """Each layer and direction has the parameters of its own single layer."""
    module, x = table.moved(name, dtype=F64, num_layers=layers, bidirectional=len(ends) > 1), drawn(T, B)
    found, named = x, dict(module.named_parameters()) | dict(module.named_buffers())
    for k in range(layers):
        ways = []
        for end in ends:
            one = table.layer(name, found.shape[-1], dtype=F64)
            place = re.compile(rf"_l{k}{end}(?=\.|$)")
            own = {place.sub("_l0", key): p for key, p in named.items() if place.search(key)}
            assert own.keys() == {*dict(one.named_parameters()), *dict(one.named_buffers())}
            output, _ = functional_call(one, own, (found.flip(0) if end else found,))
            ways.append(output.flip(0) if end else output)
        found = torch.cat(ways, -1)
    assert_equal_with_gradients([found], [module(x)[0]], [x, *module.parameters()])


@pytest.mark.parametrize(("steps", "batch"), [(0, B), (T, 0), (0, 0)])
@sequences
@pytest.mark.sampled
def test_no_steps_or_no_sequences(name, steps, batch):
    module, x = table.moved(name, dtype=F64, **both_ways(name)), drawn(T, B)
    full, state = module(x)
    for hx in (None, state) if batch else (None,):
        output, end = module(x[:steps, :batch], hx, torch.zeros(steps, batch, dtype=torch.bool))
        assert output.shape == (steps, batch, full.shape[-1])
        if hx is not None:
            torch.testing.assert_close(end, state, rtol=0, atol=0)


@pytest.mark.parametrize("name", table.ODES)
def test_no_states(name):
    assert table.values(table.layer(name)(table.draw_input(name, batch=0)))[0].shape == (0, table.INPUT_SIZE)


@pytest.mark.parametrize("name", [*table.SEQUENCES, *table.CELLS])
def test_arguments_that_are_not_contiguous(name):
    module, x = table.moved(name, dtype=F64), table.draw_input(name, dtype=F64)
    state = module(x)[1] if name in table.SEQUENCES else module(x)
    spread = lambda s: s.detach().repeat_interleave(2, dim=-1)[..., ::2].requires_grad_()  # noqa: E731
    plain = lambda s: s.detach().contiguous().requires_grad_()  # noqa: E731
    actual, wanted = (table.values_and_gradients(module, form(x), mapped(state, form)) for form in (spread, plain))
    torch.testing.assert_close(actual, wanted, **CLOSE)


IN_PIECES = [name for name in table.SEQUENCES if not name.endswith(("momentum", "NAG"))]
"""Those filters are applied to the input of a whole sequence, but to the projections of later pieces."""


@pytest.mark.skipif(not _extension.available, reason="the reference's bits depend on the number of rows")
@pytest.mark.parametrize("name", IN_PIECES)
@torch.no_grad()
def test_a_sequence_has_the_bits_of_its_pieces(name):
    module = table.moved(name, **({"num_layers": 2} if table.takes(name, "num_layers") else {}))
    x = torch.randn(30, 2, table.INPUT_SIZE)
    whole = module(x)
    for cuts in ([1] * 30, [17, 13], [1, 2, 6, 21]):
        outputs, state = [], None
        for piece in x.split(cuts):
            output, state = module(piece, state)
            outputs.append(output)
        assert torch.equal(torch.cat(outputs), whole[0])
        torch.testing.assert_close(state, whole[1], rtol=0, atol=0)


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("name", table.CELLS)
def test_a_loop_over_a_cell_is_the_layer(name, grad):
    cell = table.moved(name, dtype=F64)
    whole = table.layer(name.split()[0].removesuffix("Cell"), dtype=F64, **table.LAYERS[name])
    whole.load_state_dict({f"{key}_l0": value for key, value in cell.state_dict().items()})
    x, state, outputs = drawn(T, B), None, []
    with torch.set_grad_enabled(grad):
        for x_t in x:
            state = cell(x_t, state)
            outputs.append(state[0] if isinstance(state, tuple) else state)
        found, wanted = torch.stack(outputs), whole(x)[0]
    torch.testing.assert_close(found, wanted, **CLOSE)
    if grad:
        found, wanted = (
            torch.autograd.grad(y.square().sum(), [x, *m.parameters()]) for y, m in ((found, cell), (wanted, whole))
        )
        torch.testing.assert_close(found, wanted, **CLOSE)
