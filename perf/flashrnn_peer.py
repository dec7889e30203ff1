"""FlashRNN's LSTM as a peer, if it is installed.

According to its source (NX-AI/flashrnn: flashrnn/flashrnn/flashrnn.py and vanilla/lstm.py), the gates are in torch.nn's
order (input, forget, cell, output), and the last dimension of R belongs to the previous state, as in torch.nn. Shapes:
Wx (B, T, G, K, D), R (G, K, D, D), b (G, K, D), states (S, B, 1, K, D).
"""

import importlib.util

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn import Module

from perf.harness import Values

BACKENDS = ("cuda_fused", "triton_fused")
GATES = 4


def call(Wx: Tensor, R: Tensor, b: Tensor, backend: str) -> Tensor:
    """Runs the LSTM from zero states; returns h (B, T, K, D)."""
    from flashrnn import flashrnn  # imported here, because it is rarely installed

    batch, _, _, heads, d = Wx.shape
    zeros = Wx.new_zeros(2, batch, 1, heads, d)
    states, _ = flashrnn(Wx, R, b, states=zeros, function="lstm", backend=backend)
    return states[0]


class FlashProvider:
    """Counterpart of :class:`perf.providers.Provider`, with weights and input already in FlashRNN's layout.

    All gradients are computed and timed; h and the gradient of the input are returned for comparison.
    """

    def __init__(self, module: Module, heads: int, x: Tensor, backend: str) -> None:
        self.heads, self.backend = heads, backend
        W, R = module.weight_ih_l0.detach(), module.weight_hh_l0.detach()
        R = R.view(heads, GATES, -1, R.shape[-1]).transpose(0, 1).contiguous()
        b = (module.bias_ih_l0.detach() + module.bias_hh_l0.detach()).unflatten(0, (GATES, heads, -1))
        self.leaves = [w.clone().requires_grad_() for w in (W, R, b)]
        self.x = x.detach().transpose(0, 1).contiguous().requires_grad_()  # (B, T, I)

    def forward(self) -> Tensor:
        W, R, b = self.leaves
        Wx = F.linear(self.x, W).unflatten(2, (GATES, self.heads, -1))
        return call(Wx, R, b, self.backend).flatten(2)

    def inference(self, x: Tensor) -> Values:
        with torch.no_grad():
            return {"h": self.forward().transpose(0, 1)}

    def training(self, x: Tensor, grad_h: Tensor) -> Values:
        h = self.forward()
        dx, *_ = torch.autograd.grad(h, [self.x, *self.leaves], grad_h.transpose(0, 1).contiguous())
        return {"h": h.transpose(0, 1), "grad of x": dx.transpose(0, 1)}


def installed() -> bool:
    return importlib.util.find_spec("flashrnn") is not None


def providers(module: Module, heads: int, x: Tensor) -> dict[str, FlashProvider]:
    """The backends that run at this size; prints why another one does not."""
    found = {}
    for backend in BACKENDS:
        try:
            provider = FlashProvider(module, heads, x, backend)
            provider.inference(x)
        except Exception as error:  # compiles at the first call; the type of error varies
            print(f"flashrnn {backend}, {heads} heads, left out: {type(error).__name__}: {str(error)[:200]}")
        else:
            found[f"flashrnn {backend}"] = provider
    return found
