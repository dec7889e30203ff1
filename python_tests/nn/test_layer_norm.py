"""LSTM and GRU with layer_norm=True."""

import pytest
import torch
import torch.nn.functional as F
from torch.nn.utils.rnn import pack_sequence, unpack_sequence

import rnnkern.nn
from python_tests.samples import draws, numbered
from rnnkern.testing import assert_close_over_draws

T, B, I, H = 6, 3, 3, 5  # noqa: E741

CLOSE = {"rtol": 1e-10, "atol": 1e-12}
CLASSES = ("LSTM", "GRU")


def build(cls, *args, **kwargs):
    """A module with parameters that differ from their initial values."""
    module = getattr(rnnkern.nn, cls)(*args, layer_norm=True, **kwargs)
    with torch.no_grad():
        for name, p in module.named_parameters():
            p.add_(0.3 * torch.randn_like(p) if "_ln_" in name else 0)
    return module


def direction(module, suffix, x, state):
    """A simple loop for one layer and direction."""
    parameters = dict(module.named_parameters())
    W, R, b_ih, b_hh, ln_ih, ln_hh, *ln_c = (
        parameters.get(f"{name}_{suffix}")
        for name in (
            "weight_ih",
            "weight_hh",
            "bias_ih",
            "bias_hh",
            "weight_ln_ih",
            "weight_ln_hh",
            "weight_ln_c",
            "bias_ln_c",
        )
    )
    outputs = []
    for x_t in x:
        u, r = F.layer_norm(x_t @ W.T, ln_ih.shape, ln_ih, b_ih), F.layer_norm(state[0] @ R.T, ln_hh.shape, ln_hh, b_hh)
        if module.mode == "LSTM":
            i, f, g, o = (u + r).chunk(4, -1)
            c = f.sigmoid() * state[1] + i.sigmoid() * g.tanh()
            state = o.sigmoid() * F.layer_norm(c, (H,), *ln_c).tanh(), c
        else:
            (u_r, u_z, u_n), (r_r, r_z, r_n) = u.chunk(3, -1), r.chunk(3, -1)
            z = (u_z + r_z).sigmoid()
            state = ((1 - z) * (u_n + (u_r + r_r).sigmoid() * r_n).tanh() + z * state[0],)
        outputs.append(state[0])
    return torch.stack(outputs), state


def plain(module, x, state):
    finals = []
    for layer in range(module.num_layers):
        initial = [tuple(s[2 * layer + d] for s in state) for d in range(2)]
        forward, end = direction(module, f"l{layer}", x, initial[0])
        backward, start = direction(module, f"l{layer}_reverse", x.flip(0), initial[1])
        x = torch.cat([forward, backward.flip(0)], -1)
        finals += [end, start]
    return x, tuple(map(torch.stack, zip(*finals, strict=True)))


def hx_of(module, state):
    return state if module.mode == "LSTM" else state[0]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("cls", CLASSES)
def test_layers_and_directions_are_plain_loops(cls, bias):
    module = build(cls, I, H, 2, bidirectional=True, bias=bias, dtype=torch.float64)
    x = torch.randn(T, B, I, dtype=torch.float64, requires_grad=True)
    state = tuple(torch.randn(4, B, H, dtype=torch.float64) for _ in range(1 + (cls == "LSTM")))
    output, final = module(x, hx_of(module, state))
    wanted, wanted_final = plain(module, x, state)
    torch.testing.assert_close((output, final), (wanted, hx_of(module, wanted_final)), **CLOSE)
    weight, leaves = torch.randn_like(output), [x, *module.parameters()]
    grads, wanted_grads = (torch.autograd.grad((y * weight).sum(), leaves) for y in (output, wanted))
    torch.testing.assert_close(grads, wanted_grads, **CLOSE)
    with torch.no_grad():
        torch.testing.assert_close(module(x, hx_of(module, state))[0], wanted, **CLOSE)


@pytest.mark.parametrize("cls", CLASSES)
def test_packed_unbatched_batch_first_and_reset(cls):
    module = build(cls, I, H, bidirectional=True, dtype=torch.float64)
    x = torch.randn(T, B, I, dtype=torch.float64)
    output, _ = module(x)
    torch.testing.assert_close(module(x[:, 1])[0], output[:, 1], **CLOSE)
    packed, _ = module(pack_sequence([x[:, 0], x[:4, 1], x[:1, 2]], enforce_sorted=False))
    for k, sequence in enumerate(unpack_sequence(packed)):
        torch.testing.assert_close(sequence, module(x[: len(sequence), k])[0], **CLOSE)
    starts = torch.zeros(T, B, dtype=torch.bool)
    starts[4] = True
    episodes = torch.cat([module(x[:4])[0], module(x[4:])[0]])
    torch.testing.assert_close(module(x, reset=starts)[0], episodes, **CLOSE)
    module.batch_first = True
    torch.testing.assert_close(module(x.transpose(0, 1))[0].transpose(0, 1), output, **CLOSE)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("cls", CLASSES)
def test_one_step_without_derivatives(cls, bias):
    """Without layer_norm, such calls use a fast path."""
    module = build(cls, I, H, bias=bias)
    x, h = torch.randn(1, B, I), torch.randn(1, B, H)
    hx = (h, torch.randn(1, B, H)) if cls == "LSTM" else h
    wanted = module(x, hx)
    with torch.no_grad():
        torch.testing.assert_close(module(x, hx), wanted, rtol=0, atol=0)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("cls", CLASSES)
def test_torchs_parameters_are_drawn_as_torch_draws_them_and_norms_begin_at_one(cls, bias):
    torch.manual_seed(1)
    theirs, following = getattr(torch.nn, cls)(I, H, 2, bidirectional=True, bias=bias), torch.rand(1)
    torch.manual_seed(1)
    ours = getattr(rnnkern.nn, cls)(I, H, 2, bidirectional=True, bias=bias, layer_norm=True)
    assert torch.equal(following, torch.rand(1))
    rows = (4 if cls == "LSTM" else 3) * H
    sizes = {"weight_ln_ih": rows, "weight_ln_hh": rows}
    sizes |= {"weight_ln_c": H, "bias_ln_c": H} if cls == "LSTM" else {}
    suffixes = [f"l{k}{direction}" for k in (0, 1) for direction in ("", "_reverse")]
    added = {f"{name}_{suffix}": size for suffix in suffixes for name, size in sizes.items()}
    assert set(ours.state_dict()) == set(theirs.state_dict()) | set(added)
    for name, p in theirs.named_parameters():
        assert torch.equal(getattr(ours, name), p)
    for _ in range(2):
        for name, size in added.items():
            assert torch.equal(getattr(ours, name), torch.full((size,), float(name.startswith("weight"))))
        with torch.no_grad():
            for p in ours.parameters():
                p.fill_(7)
        ours.reset_parameters()
    assert ours.weight_hh_l0.unique().numel() == ours.weight_hh_l0.numel()


@pytest.mark.parametrize("cls", CLASSES)
def test_state_dict_and_dtype(cls):
    module, other = (build(cls, I, H, 2) for _ in range(2))
    x = torch.randn(T, B, I)
    assert not torch.equal(module(x)[0], other(x)[0])
    other.load_state_dict(module.state_dict())
    assert torch.equal(module(x)[0], other(x)[0])
    with pytest.raises(RuntimeError, match="weight_ln_ih_l0"):
        getattr(rnnkern.nn, cls)(I, H, 2).load_state_dict(module.state_dict())
    torch.testing.assert_close(other.double()(x.double())[0].float(), module(x)[0])
    assert other.weight_ln_hh_l1.dtype == torch.float64


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("cls", CLASSES)
def test_autocast(cls, dtype):

    def compared():
        module, x = build(cls, 20, 30, 2), torch.randn(8, 16, 20, requires_grad=True)
        results = []
        for implementation in ("cpu", "reference"):
            with torch.autocast("cpu", dtype), rnnkern.use(implementation):
                output, _ = module(x)
            grads = torch.autograd.grad(output.float().square().sum(), [x, *module.parameters()])
            results.append([output, *grads])
        assert results[0][0].dtype == (torch.float32 if cls == "GRU" else dtype)
        assert {g.dtype for g in results[0][1:]} == {torch.float32}
        double = x.detach().double().requires_grad_()
        truth, _ = module.double()(double)
        truth = [truth, *torch.autograd.grad(truth.square().sum(), [double, *module.parameters()])]
        return numbered(*([y.to(dtype) for y in each] for each in results), truth)

    assert_close_over_draws(draws(compared))


@pytest.mark.parametrize(
    ("cls", "kwargs", "kind", "words"),
    [
        ("LSTM", {"layer_norm": 1}, TypeError, "layer_norm should be of type bool, got: int"),
        ("GRU", {"layer_norm": None}, TypeError, "layer_norm should be of type bool, got: NoneType"),
        (
            "LSTM",
            {"layer_norm": True, "proj_size": 2},
            ValueError,
            "layer_norm must be False with proj_size = 2, got True",
        ),
        (
            "LSTM",
            {"layer_norm": True, "num_heads": 5},
            ValueError,
            "layer_norm must be False with num_heads = 5, got True",
        ),
        (
            "GRU",
            {"layer_norm": True, "num_heads": 5},
            ValueError,
            "layer_norm must be False with num_heads = 5, got True",
        ),
        (
            "GRU",
            {"layer_norm": True, "reset_gate": "before"},
            ValueError,
            "layer_norm must be False with reset_gate = 'before', got True",
        ),
        ("RNN", {"layer_norm": True}, TypeError, "layer_norm"),
    ],
)
def test_wrong_options(cls, kwargs, kind, words):
    with pytest.raises(kind, match=words):
        getattr(rnnkern.nn, cls)(I, H, **kwargs)


def test_extra_repr():
    assert build("LSTM", I, H, 2).extra_repr() == "3, 5, num_layers=2, layer_norm=True"
    assert build("GRU", I, H).extra_repr() == "3, 5, layer_norm=True"
    assert rnnkern.nn.GRU(I, H, layer_norm=False).extra_repr() == "3, 5"
