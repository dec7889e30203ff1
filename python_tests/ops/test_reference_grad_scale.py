"""grad_scale of the reference, against equations that detach h or scale its gradient explicitly."""

import pytest
import torch
import torch.nn.functional as F

from python_tests.samples import outputs_and_gradients, recurrence_sample
from rnnkern.reference import CELLS, recurrence


class Scaled(torch.autograd.Function):
    """Identity whose gradient is multiplied by a factor."""

    @staticmethod
    def forward(ctx, x, factor):
        ctx.save_for_backward(factor)
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.saved_tensors[0], None


def lstm_by_hand(u, R, b, state, cut):
    h, c = state
    outputs = []
    for t in range(len(u)):
        i, f, g, o = (u[t] + cut(h, t) @ R.T + b).chunk(4, -1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
        outputs.append(h)
    return torch.stack(outputs), (h, c)


def gru_by_hand(u, R, b, state, cut):
    (h,) = state
    outputs = []
    for t in range(len(u)):
        r_r, r_z, r_n = (cut(h, t) @ R.T + b).chunk(3, -1)
        u_r, u_z, u_n = u[t].chunk(3, -1)
        z = (u_z + r_z).sigmoid()
        h = (1 - z) * (u_n + (u_r + r_r).sigmoid() * r_n).tanh() + z * h
        outputs.append(h)
    return torch.stack(outputs), (h,)


def gru_reset_before_by_hand(u, R, b, state, cut):
    (h,) = state
    R_gates, R_n = R.split([2 * h.shape[1], h.shape[1]])
    b_gates, b_n = b.split([2 * h.shape[1], h.shape[1]])
    outputs = []
    for t in range(len(u)):
        u_r, u_z, u_n = u[t].chunk(3, -1)
        r_r, r_z = (cut(h, t) @ R_gates.T + b_gates).chunk(2, -1)
        z = (u_z + r_z).sigmoid()
        h = (1 - z) * (u_n + cut((u_r + r_r).sigmoid() * h, t) @ R_n.T + b_n).tanh() + z * h
        outputs.append(h)
    return torch.stack(outputs), (h,)


def euler_by_hand(u, R, b, state, cut, dt):
    (h,) = state
    outputs = []
    for t in range(len(u)):
        h = h + dt * (u[t] + cut(h, t) @ R.T + b).tanh()
        outputs.append(h)
    return torch.stack(outputs), (h,)


def lstm_layer_norm_by_hand(u, R, b, state, cut, gain, *affine_c):
    h, c = state
    outputs = []
    for t in range(len(u)):
        i, f, g, o = (u[t] + F.layer_norm(cut(h, t) @ R.T, gain.shape, gain, b)).chunk(4, -1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * F.layer_norm(c, c.shape[1:], *affine_c).tanh()
        outputs.append(h)
    return torch.stack(outputs), (h, c)


def gru_layer_norm_by_hand(u, R, b, state, cut, gain):
    (h,) = state
    outputs = []
    for t in range(len(u)):
        r_r, r_z, r_n = F.layer_norm(cut(h, t) @ R.T, gain.shape, gain, b).chunk(3, -1)
        u_r, u_z, u_n = u[t].chunk(3, -1)
        z = (u_z + r_z).sigmoid()
        h = (1 - z) * (u_n + (u_r + r_r).sigmoid() * r_n).tanh() + z * h
        outputs.append(h)
    return torch.stack(outputs), (h,)


DETACHED = {
    "lstm_layer_norm": lstm_layer_norm_by_hand,
    "gru_layer_norm": gru_layer_norm_by_hand,
    "lstm": lstm_by_hand,
    "gru": gru_by_hand,
    "gru_reset_before": gru_reset_before_by_hand,
    "euler": euler_by_hand,
}


@pytest.mark.parametrize("scale", ["zeros", "some steps", "(T,)", "(T, B)"])
@pytest.mark.parametrize("cell", DETACHED)
def test_grad_scale_is_h_detach(cell, scale):
    """Only the gradient of h through the product is removed or reduced; other gradients of h and c do not change."""
    sample = recurrence_sample(cell, 5, 2, 3, requires_grad=True)
    mask = torch.tensor([0.0, 1.0, 0.0, 0.0, 1.0], dtype=torch.float64)
    factors = {
        "zeros": torch.zeros_like(mask),
        "some steps": mask,
        "(T,)": torch.rand(5, dtype=torch.float64),
        "(T, B)": 2 * torch.rand(5, 2, dtype=torch.float64),
    }[scale]

    def cut(h, t):
        if scale in ("zeros", "some steps"):
            return h if factors[t] == 1 else h.detach()
        return Scaled.apply(h, factors[t] if factors.dim() == 1 else factors[t, :, None])

    def by_hand(name, u, R, state, bias, params, **_):
        return DETACHED[cell](u, R, bias, state, cut, *params)

    wanted = outputs_and_gradients(by_hand, sample)
    plain = outputs_and_gradients(recurrence, sample)
    sample.kwargs["grad_scale"] = factors
    scaled = outputs_and_gradients(recurrence, sample)
    torch.testing.assert_close(scaled, wanted, rtol=1e-12, atol=1e-12)
    assert not torch.allclose(plain["grad of u"], scaled["grad of u"])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [0.0, 0.1, 1.0, -3.0])
@pytest.mark.parametrize("cell", CELLS)
def test_grad_scale_leaves_the_values_alone(cell, scale, dtype):
    _, args, kwargs = recurrence_sample(cell, 6, 3, 4, reset=True, dtype=dtype)
    h, final = recurrence(*args, **kwargs)
    scaled, scaled_final = recurrence(*args, **kwargs, grad_scale=torch.full((6, 3), scale, dtype=dtype))
    assert torch.equal(h, scaled)
    assert all(map(torch.equal, final, scaled_final))


def test_grad_scale_leaves_infinite_values_alone():
    u, R, h0 = torch.zeros(1, 1, 1), torch.ones(1, 1), torch.full((1, 1), torch.inf)
    assert torch.equal(recurrence("relu", u, R, (h0,), grad_scale=torch.ones(1))[0], h0[None])


def test_grad_scale_is_a_constant():
    _, args, kwargs = recurrence_sample("tanh", requires_grad=True)
    scale = torch.ones(4, dtype=torch.float64, requires_grad=True)
    h, _ = recurrence(*args, **kwargs, grad_scale=scale)
    assert torch.autograd.grad(h.sum(), scale, allow_unused=True) == (None,)
