"""A sequence with resets equals its episodes run separately, in both directions, and nothing leaks between them."""

import itertools

import pytest
import torch
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import rnnkern
import rnnkern.nn

T, B, I, H = 7, 4, 3, 4  # noqa: E741
STARTS = [[3], [], [0, 1, 6], [2, 5]]  # starts of episodes for each sequence

BUILD = {
    "lstm": lambda **kw: rnnkern.nn.LSTM(I, H, dtype=torch.float64, **kw),
    "lstm_proj": lambda **kw: rnnkern.nn.LSTM(I, H, dtype=torch.float64, proj_size=2, **kw),
    "gru": lambda **kw: rnnkern.nn.GRU(I, H, dtype=torch.float64, **kw),
    "gru_before_heads": lambda **kw: rnnkern.nn.GRU(I, H, dtype=torch.float64, reset_gate="before", num_heads=2, **kw),
    "modrelu": lambda **kw: rnnkern.nn.RNN(I, H, dtype=torch.float64, nonlinearity="modrelu", **kw),
}
modules = pytest.mark.parametrize("build", BUILD.values(), ids=BUILD.keys())
implementations = pytest.mark.parametrize("implementation", [None, "reference"], ids=["chosen", "reference"])


@pytest.fixture
def _implementation(implementation):
    if implementation is None:
        yield
    else:
        with rnnkern.ops.use(implementation):
            yield


def states(module, batch):
    rows = module.num_layers * (2 if module.bidirectional else 1)
    widths = [module.proj_size or H, *([H] if isinstance(module, torch.nn.LSTM) else [])]
    return [torch.randn(rows, batch, width, dtype=torch.float64, requires_grad=True) for width in widths]


def as_hx(module, state):
    return tuple(state) if isinstance(module, torch.nn.LSTM) else state[0]


def as_states(hidden):
    return list(hidden) if isinstance(hidden, tuple) else [hidden]


def episodes(module, x, state, starts):
    """x (T, I), states (rows, H): runs each episode separately without `reset`; returns the output and the final
    states."""
    directions = 2 if module.bidirectional else 1
    backward = (torch.arange(state[0].shape[0]) % directions == 1).unsqueeze(1)
    bounds = sorted({0, *starts, len(x)})
    outputs, final = [], [s * 0 for s in state]
    for first, last in itertools.pairwise(bounds):
        keep = torch.where(backward, last == len(x), first == 0 and 0 not in starts)
        output, hidden = module(x[first:last], as_hx(module, [s * keep for s in state]))
        outputs.append(output)
        mine = torch.where(backward, first == 0, last == len(x))
        final = [f + h * mine for f, h in zip(final, as_states(hidden), strict=True)]
    return torch.cat(outputs), final


def mask(starts, steps=T):
    reset = torch.zeros(steps, len(starts), dtype=torch.bool)
    for b, steps_of_b in enumerate(starts):
        reset[steps_of_b, b] = True
    return reset


def check(module, x, state, run, lengths, starts):
    """`run` returns output (T, B, ·) and states (rows, B, ·); compares values and all gradients."""
    output, final = run()
    alone = [episodes(module, x[:n, b], [s[:, b] for s in state], starts[b]) for b, n in enumerate(lengths)]
    wanted_final = [torch.stack([f[k] for _, f in alone], dim=1) for k in range(len(state))]
    close = {"rtol": 1e-10, "atol": 1e-12}
    loss, wanted_loss = 0, 0
    for b, n in enumerate(lengths):
        torch.testing.assert_close(output[:n, b], alone[b][0], **close)
        weight = torch.randn(n, output.shape[-1], dtype=torch.float64)
        loss, wanted_loss = loss + (output[:n, b] * weight).sum(), wanted_loss + (alone[b][0] * weight).sum()
    for ours, wanted in zip(final, wanted_final, strict=True):
        torch.testing.assert_close(ours, wanted, **close)
        weight = torch.randn_like(wanted)
        loss, wanted_loss = loss + (ours * weight).sum(), wanted_loss + (wanted * weight).sum()
    inputs = [x, *state, *module.parameters()]
    grads, wanted_grads = (torch.autograd.grad(value, inputs) for value in (loss, wanted_loss))
    for ours, wanted in zip(grads, wanted_grads, strict=True):
        torch.testing.assert_close(ours, wanted, **close)


@modules
@implementations
@pytest.mark.usefixtures("_implementation")
@pytest.mark.parametrize(
    "flags", [{}, {"bidirectional": True, "batch_first": True}, {"num_layers": 2, "bidirectional": True}], ids=str
)
def test_batched(build, flags):
    module = build(**flags)
    x, state = torch.randn(T, B, I, dtype=torch.float64, requires_grad=True), states(module, B)

    def run():
        given, reset = (x.transpose(0, 1), mask(STARTS).T) if module.batch_first else (x, mask(STARTS))
        output, hidden = module(given, as_hx(module, state), reset)
        return output.transpose(0, 1) if module.batch_first else output, as_states(hidden)

    check(module, x, state, run, [T] * B, STARTS)


@modules
@implementations
@pytest.mark.usefixtures("_implementation")
@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("lengths", [[7, 6, 6, 3], [3, 6, 7, 6]], ids=["sorted", "unsorted"])
@pytest.mark.sampled
def test_packed(build, lengths, batch_first):
    """`reset` is in the caller's batch order; a reset at or beyond the end of a sequence has no effect."""
    module = build(num_layers=2, bidirectional=True, batch_first=batch_first)
    x, state = torch.randn(T, B, I, dtype=torch.float64, requires_grad=True), states(module, B)
    starts = [[t for t in s if t < n] for s, n in zip(STARTS, lengths, strict=True)]
    reset = mask(starts)
    for b, n in enumerate(lengths):
        reset[n:, b] = True

    def run():
        packed = pack_padded_sequence(x, torch.tensor(lengths), enforce_sorted=lengths[0] == T)
        output, hidden = module(packed, as_hx(module, state), reset.T if batch_first else reset)
        return pad_packed_sequence(output)[0], as_states(hidden)

    check(module, x, state, run, lengths, starts)


@modules
@pytest.mark.parametrize("batch_first", [False, True])
def test_unbatched(build, batch_first):
    module = build(num_layers=2, bidirectional=True, batch_first=batch_first)
    for starts in STARTS:
        x, state = torch.randn(T, 1, I, dtype=torch.float64, requires_grad=True), states(module, 1)

        def run(x=x, state=state, starts=starts):
            output, hidden = module(x[:, 0], as_hx(module, [s[:, 0] for s in state]), mask([starts])[:, 0])
            return output[:, None], [s[:, None] for s in as_states(hidden)]

        check(module, x, state, run, [T], [starts])


def test_packed_without_a_reset_in_reach_is_packed_without_reset():
    gru = rnnkern.nn.GRU(I, H, bidirectional=True)
    lengths, h0 = torch.tensor([4, 7, 1]), torch.randn(2, 3, H)
    packed = pack_padded_sequence(torch.randn(T, 3, I), lengths, enforce_sorted=False)
    beyond = torch.arange(T)[:, None] >= lengths
    (output, h_n), (wanted, wanted_h_n) = gru(packed, h0, beyond), gru(packed, h0)
    assert torch.equal(output.data, wanted.data)
    assert torch.equal(h_n, wanted_h_n)


@modules
@implementations
@pytest.mark.usefixtures("_implementation")
@pytest.mark.parametrize("poisoned", ["before", "after"])
@pytest.mark.parametrize("packed", [False, True])
def test_nan_does_not_cross(build, poisoned, packed):
    """NaN in one episode reaches neither the outputs nor the input gradients of the other."""
    module = build(num_layers=2, bidirectional=True)
    start = 4
    bad = slice(0, start) if poisoned == "before" else slice(start, T)
    good = slice(start, T) if poisoned == "before" else slice(0, start)
    x = torch.randn(T, B, I, dtype=torch.float64)
    clean = x.clone()
    x[bad] = torch.nan
    x.requires_grad_()
    given = pack_padded_sequence(x, torch.full((B,), T)) if packed else x
    output, hidden = module(given, reset=mask([[start]] * B))
    output = pad_packed_sequence(output)[0] if packed else output
    assert torch.isnan(output[bad]).all()
    torch.testing.assert_close(output[good], module(clean[good])[0], rtol=1e-10, atol=1e-12)
    last_forward = 2 if poisoned == "before" else 3  # layer 2: the forward state ends in the second episode
    for s in as_states(hidden):
        assert torch.isfinite(s[last_forward]).all()
    (grad,) = torch.autograd.grad(output[good].sum(), x)
    assert torch.isfinite(grad[good]).all()


@modules
def test_nan_initial_state_ends_at_a_reset(build):
    module = build()
    state = [s.detach().fill_(torch.nan) for s in states(module, B)]
    x = torch.randn(T, B, I, dtype=torch.float64)
    reset = torch.zeros(T, B, dtype=torch.bool)
    reset[0] = True
    output, hidden = module(x, as_hx(module, state), reset)
    torch.testing.assert_close(output, module(x)[0], rtol=0, atol=0)
    assert all(torch.isfinite(s).all() for s in as_states(hidden))


def test_no_reset_is_all_false():
    module = BUILD["lstm"](num_layers=2, bidirectional=True)
    x = torch.randn(T, B, I, dtype=torch.float64)
    assert torch.equal(module(x, reset=torch.zeros(T, B, dtype=torch.bool))[0], module(x)[0])


@pytest.mark.parametrize(
    ("reset", "kind", "words"),
    [
        ([[True]], TypeError, "`reset` must be a bool tensor, got list"),
        (torch.zeros(T, B), TypeError, "`reset` must be a bool tensor, got torch.float32"),
        (torch.zeros(T, B, dtype=torch.bool, device="meta"), TypeError, "`reset` must be on cpu.*got meta"),
        (torch.zeros(B, T, dtype=torch.bool), ValueError, r"`reset` must be \(T, B\) = \(7, 4\), got \(4, 7\)"),
        (torch.zeros(T, dtype=torch.bool), ValueError, r"`reset` must be \(T, B\) = \(7, 4\), got \(7,\)"),
        (torch.zeros(T, 1, dtype=torch.bool), ValueError, r"`reset` must be \(T, B\) = \(7, 4\), got \(7, 1\)"),
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_errors_name_the_argument(reset, kind, words, packed):
    x = torch.zeros(T, B, I)
    given = pack_padded_sequence(x, torch.tensor([2, 7, 3, 7]), enforce_sorted=False) if packed else x
    with pytest.raises(kind, match=f"LSTM: {words}"):
        rnnkern.nn.LSTM(I, H)(given, reset=reset)


def test_errors_speak_of_the_callers_layout():
    gru = rnnkern.nn.GRU(I, H, batch_first=True)
    with pytest.raises(ValueError, match=r"GRU: `reset` must be \(B, T\) = \(4, 7\), got \(7, 4\)"):
        gru(torch.zeros(B, T, I), reset=torch.zeros(T, B, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"GRU: `reset` must be \(T,\) = \(7,\), got \(7, 1\)"):
        gru(torch.zeros(T, I), reset=torch.zeros(T, 1, dtype=torch.bool))
