"""rnnkern.integrations.tirex: a patched sLSTM is the published loop in float32. A stand-in has its attributes."""

import pytest
import torch
import torch.nn.functional as F

from rnnkern.integrations import tirex

T, B, K, D = 7, 3, 2, 4


class Stand(torch.nn.Module):
    def __init__(self, backend="torch"):
        super().__init__()
        self.backend = backend
        self._recurrent_kernel_ = torch.nn.Parameter(torch.randn(K, D, 4 * D))
        self._bias_ = torch.nn.Parameter(torch.randn(K * 4 * D))

    def _impl_torch(self, x, states):
        h, c, n, m = (part.view(B, K, D) for part in states)
        outputs = []
        for x_t in x:
            r = torch.einsum("bkd,kdg->bkg", h, self._recurrent_kernel_) + self._bias_.view(K, -1)
            i, f, z, o = (x_t + r.view(B, K, 4, D).transpose(1, 2)).unbind(1)
            kept = m + F.logsigmoid(f)
            m = torch.where(n == 0, i, torch.maximum(i, kept))
            c = torch.exp(kept - m) * c + torch.exp(i - m) * torch.tanh(z)
            n = torch.exp(kept - m) * n + torch.exp(i - m)
            h = torch.sigmoid(o) * c / n
            outputs.append(h.flatten(1))
        return torch.stack(outputs), torch.stack([part.flatten(1) for part in (h, c, n, m)])


def test_a_patched_slstm_is_the_loop():
    torch.manual_seed(0)
    cell = Stand()
    x, states = torch.randn(2 * T, B, 4, K, D), torch.zeros(4, B, K * D)
    with torch.no_grad():
        first = cell._impl_torch(x[:T], states)
        second = cell._impl_torch(x[T:], first[1])
        assert tirex.patch(torch.nn.Sequential(cell)) == 1
        own = cell._impl_torch(x[:T], states)
        torch.testing.assert_close(own, first)
        torch.testing.assert_close(cell._impl_torch(x[T:], own[1]), second)


@pytest.mark.parametrize("model", [torch.nn.Linear(2, 2), Stand("cuda")], ids=["none", "cuda"])
def test_errors(model):
    with pytest.raises(ValueError, match="`model` must"):
        tirex.patch(model)
