"""GORU against a loop over its equations, and as a module."""

import copy
import pickle

import pytest
import torch
from torch.nn.utils.rnn import pack_sequence, unpack_sequence

import rnnkern
from rnnkern.nn import GORU
from rnnkern.parametrizations import orthogonal_gate, reset_parameters

T, B, I, H = 6, 3, 2, 4  # noqa: E741
F64 = torch.float64
CLOSE = {"rtol": 1e-10, "atol": 1e-12}


@torch.no_grad()
def made(*args, by=0.3, dtype=F64, **options):
    """A GORU with a nonzero A."""
    module = GORU(*(args or (I, H)), dtype=dtype, **options)
    for name, p in module.named_parameters():
        if name.endswith("original0"):
            p.add_(by * torch.randn(p.shape))
    return module


def recurrent_weight(module, suffix="l0"):
    found = module.parametrizations[f"weight_hh_{suffix}"]
    Q = found[0].base @ rnnkern.reference.skew_exp(found.original0)
    return torch.cat([found.original1, Q], -2)


def direction(module, suffix, x, h):
    W, b_ih, b_hh, b = (
        getattr(module, f"{name}_{suffix}", torch.zeros((), dtype=x.dtype))
        for name in ("weight_ih", "bias_ih", "bias_hh", "modrelu_bias")
    )
    R, outputs = recurrent_weight(module, suffix), []
    if R.dim() == 3:
        R = torch.cat([torch.block_diag(*gate) for gate in zip(*(head.chunk(3) for head in R), strict=True)])
    for x_t in x:
        u, r = (W @ x_t + b_ih).chunk(3), (R @ h + b_hh).chunk(3)
        z, a = torch.sigmoid(u[1] + r[1]), u[2] + torch.sigmoid(u[0] + r[0]) * r[2]
        h = (1 - z) * torch.sign(a) * torch.relu(abs(a) + b) + z * h
        outputs.append(h)
    return torch.stack(outputs)


@pytest.mark.parametrize("options", [{}, {"bias": False, "init": "cayley"}, {"num_heads": 2}], ids=str)
def test_as_the_loop(options):
    module = made(num_layers=1, bidirectional=True, **options)
    x, h0 = torch.randn(T, B, I, dtype=F64), torch.randn(2, B, H, dtype=F64)
    output, h_n = module(x, h0)
    wanted = torch.stack(
        [
            torch.cat(
                [
                    direction(module, "l0", x[:, n], h0[0, n]),
                    direction(module, "l0_reverse", x[:, n].flip(0), h0[1, n]).flip(0),
                ],
                -1,
            )
            for n in range(B)
        ],
        1,
    )
    torch.testing.assert_close(output, wanted, **CLOSE)
    torch.testing.assert_close(h_n, torch.stack([output[-1, :, :H], output[0, :, H:]]), **CLOSE)
    parameters = list(module.parameters())
    torch.testing.assert_close(
        torch.autograd.grad(output.sin().sum(), parameters), torch.autograd.grad(wanted.sin().sum(), parameters)
    )


def test_packed_and_layers():
    module = made(num_layers=2)
    sequences = [torch.randn(n, I, dtype=F64) for n in (5, 3)]
    output, h_n = module(pack_sequence(sequences))
    for x, y, last in zip(sequences, unpack_sequence(output), h_n.unbind(1), strict=True):
        alone, state = module(x)
        torch.testing.assert_close((y, last), (alone, state), **CLOSE)


@pytest.mark.parametrize("base", ["static", "dynamic"])
def test_the_candidate_stays_orthogonal(base):
    module = GORU(I, H, base=base)
    optimiser = torch.optim.RMSprop(rnnkern.optim.param_groups(module, 0.01))
    assert [len(group["params"]) for group in optimiser.param_groups] == [5, 1]
    before = module.weight_hh_l0.detach().clone()
    for _ in range(300):
        optimiser.zero_grad()
        module(torch.randn(T, B, I))[0].square().sum().backward()
        optimiser.step()
    moved = (module.weight_hh_l0 - before).abs()
    assert moved[: 2 * H].max() > 0.01
    assert moved[2 * H :].max() > 0.01
    Q = module.weight_hh_l0[2 * H :].detach().double()
    assert (Q.T @ Q - torch.eye(H, dtype=F64)).abs().max() < 2e-6


def test_10_000_updates_of_a_moving_base_stay_orthogonal():
    cell = orthogonal_gate(torch.nn.GRUCell(2, 16), "weight_hh", base="dynamic", rebase_every=10)
    A, begun = cell.parametrizations.weight_hh.original0, cell.weight_hh[32:].detach().clone()
    optimiser, generator = torch.optim.SGD([A], 1e-3), torch.Generator().manual_seed(0)
    for _ in range(10_000):
        A.grad = torch.randn(16, 16, generator=generator)
        optimiser.step()
    Q = cell.weight_hh[32:].detach()
    assert (Q - begun).abs().max() > 0.1
    assert (Q.double().T @ Q.double() - torch.eye(16, dtype=F64)).abs().max() < 2e-6


def test_checkpoints_copies_and_fresh_values():
    module, again = made(base="dynamic"), made(base="dynamic")
    again.load_state_dict(module.state_dict())
    for other in (again, copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert torch.equal(other.weight_hh_l0, module.weight_hh_l0)
        other.reset_parameters()
        assert not torch.equal(other.weight_hh_l0, module.weight_hh_l0)
        assert other.weight_hh_l0[: 2 * H].abs().max() <= H**-0.5
        assert other.modrelu_bias_l0.abs().max() <= 0.01
    assert made(device="meta").weight_hh_l0.shape == (3 * H, H)


def test_a_weight_may_be_assigned():
    cell = orthogonal_gate(torch.nn.GRUCell(2, 3, dtype=F64), "weight_hh")
    Q, _ = torch.linalg.qr(torch.randn(3, 3, dtype=F64))
    weight = torch.cat([torch.randn(6, 3, dtype=F64), Q])
    cell.weight_hh = weight
    torch.testing.assert_close(cell.weight_hh, weight)
    with pytest.raises(ValueError, match=r"the weight must be \(9, 3\), got \(3, 3\)"):
        cell.weight_hh = Q
    with pytest.raises(ValueError, match="the weight must be orthogonal"):
        cell.weight_hh = weight.flip(0)
    reset_parameters(cell, "weight_hh")
    assert not torch.equal(cell.weight_hh, weight)


def test_wrong_arguments():
    with pytest.raises(ValueError, match="`base` must be one of"):
        GORU(I, H, base="moving")
    with pytest.raises(ValueError, match=r"`weight_hh` must be \(..., 4\*N, N\), got \(9, 3\)"):
        orthogonal_gate(torch.nn.GRUCell(2, 3), "weight_hh", gates=4)
    with pytest.raises(ValueError, match="`gates` must be a positive integer, got 0"):
        orthogonal_gate(torch.nn.GRUCell(2, 3), "weight_hh", gates=0)


def test_replace_leaves_it_as_it_is():
    model = torch.nn.ModuleList([GORU(I, H)])
    rnnkern.replace(model)
    rnnkern.restore(model)
    assert type(model[0]).__name__ == "ParametrizedGORU"
