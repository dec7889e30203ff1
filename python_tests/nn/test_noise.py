"""Zoneout and recurrent dropout as options of the modules."""

import copy
import pickle

import pytest
import torch
from torch.func import functional_call, vmap
from torch.nn.utils.rnn import pack_sequence

import rnnkern.nn
from rnnkern.ops import recurrence

T, B, I, H = 5, 4, 3, 6  # noqa: E741
NOISE = {"zoneout": 0.3, "recurrent_dropout": 0.4}
MODULES = [("RNN", {"nonlinearity": "modrelu"}), ("LSTM", {}), ("GRU", {}), ("GRU", {"reset_gate": "before"})]


def build(cls, *args, **kwargs):
    return getattr(rnnkern.nn, cls)(*args, dtype=torch.float64, **kwargs)


@pytest.mark.parametrize(("cls", "options"), MODULES)
def test_training_draws_and_evaluation_takes_the_mean(cls, options):
    module, x = build(cls, I, H, **NOISE, **options), torch.randn(T, B, I, dtype=torch.float64)
    first, second = module(x)[0], module(x)[0]
    assert not torch.equal(first, second)
    torch.manual_seed(1)
    first = module(x)[0]
    torch.manual_seed(1)
    assert torch.equal(first, module(x)[0])
    module.eval()
    assert torch.equal(module(x)[0], module(x)[0])
    call = module._calls(module._check(x, None, None))[0][0]
    assert call["zoneout"] == 0.3
    wanted, _ = recurrence(module._cell, x, **{**call, "seed": None, "dropout": 0.0})
    assert torch.equal(module(x)[0], wanted)
    module.zoneout = 0.0
    plain = build(cls, I, H, **options)
    plain.load_state_dict(module.state_dict())
    assert torch.equal(module(x)[0], plain(x)[0])


@pytest.mark.parametrize(("cls", "options"), MODULES)
def test_training_is_the_operator_with_the_seeds_that_torch_draws(cls, options):
    module, x = build(cls, I, H, bidirectional=True, **NOISE, **options), torch.randn(T, B, I, dtype=torch.float64)
    torch.manual_seed(3)
    output, _ = module(x)
    torch.manual_seed(3)
    seeds = [torch.randint(-(2**63), 2**63 - 1, ()) for _ in range(2)]
    assert seeds[0] != seeds[1]
    calls = module._calls(module._check(x, None, None))[0]
    wanted = [
        recurrence(module._cell, x, **call, seed=seed, reverse=reverse)[0]
        for call, seed, reverse in zip(calls, seeds, (False, True), strict=True)
    ]
    assert torch.equal(output, torch.cat(wanted, dim=-1))


def test_one_rate_for_each_state_of_an_lstm():
    h_alone, x = build("LSTM", I, H, zoneout=(0.9, 0.0)), torch.zeros(1, 200, I, dtype=torch.float64)
    state = tuple(torch.full((1, 200, H), 7.0, dtype=torch.float64) for _ in range(2))
    _, (h_n, c_n) = h_alone(x, state)
    assert 0.8 < (h_n == 7).double().mean() < 0.97
    assert not (c_n == 7).any()


def test_packed_input():
    module, packed = build("GRU", I, H, 2, **NOISE), pack_sequence([torch.randn(n, I).double() for n in (5, 3, 2)])
    torch.manual_seed(5)
    output, h_n = module(packed)
    torch.manual_seed(5)
    again, _ = module(packed)
    assert torch.equal(output.data, again.data)
    (h_n.sum() + output.data.sum()).backward()
    assert all(p.grad.isfinite().all() for p in module.parameters())


def test_copies_keep_their_rates_and_say_them():
    module = build("LSTM", I, H, zoneout=(0.1, 0.2), recurrent_dropout=0.5)
    for other in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert (other.zoneout, other.recurrent_dropout) == ((0.1, 0.2), 0.5)
    assert repr(module) == "rnnkern.nn.LSTM(3, 6, zoneout=(0.1, 0.2), recurrent_dropout=0.5)"
    assert repr(build("GRU", I, H)) == "rnnkern.nn.GRU(3, 6)"


def test_members_of_an_ensemble_draw_as_vmap_is_told():
    module, x = build("GRU", I, H, **NOISE), torch.randn(3, T, B, I, dtype=torch.float64)
    x[1:] = x[:1]

    def member(x):
        return functional_call(module, dict(module.named_parameters()), (x,))[0]

    same, different = (vmap(member, randomness=r)(x) for r in ("same", "different"))
    assert torch.equal(same[0], same[2])
    assert not torch.equal(different[0], different[2])
    with pytest.raises(RuntimeError, match="randomness"):
        vmap(member)(x)


def test_compiled():
    module, x = rnnkern.nn.LSTM(I, H, **NOISE), torch.randn(T, B, I)
    compiled = torch.compile(lambda x: module(x)[0], backend="aot_eager", fullgraph=True)
    with torch._dynamo.config.patch(allow_rnn=True):
        torch.manual_seed(6)
        output = compiled(x)
        (grad,) = torch.autograd.grad(output.sum(), module.weight_hh_l0)
    torch.manual_seed(6)
    wanted = module(x)[0]
    torch.testing.assert_close(output, wanted)
    torch.testing.assert_close(grad, torch.autograd.grad(wanted.sum(), module.weight_hh_l0)[0])
