"""FlashRNN's LSTM as a peer, where it is installed, by its documented call alone.

Its documentation gives shapes, Wx (B, T, G, K, D), R (G, K, D, D), b (G, K, D), states (S, B, 1, K, D), but neither the
order of the gates nor the side from which R multiplies: they are found by trying its plain backend.
"""

import functools
import importlib.util
import itertools
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn import Module

from perf.harness import Values
from rnnkern import reference

BACKENDS = ("cuda_fused", "triton_fused")
GATES = 4


class Layout(NamedTuple):
    """From torch.nn's to FlashRNN's."""

    order: tuple[int, ...]  # its gates, by their number in torch.nn
    transposed: bool

    def weights(self, R: Tensor) -> Tensor:
        """R (K, G*D, D) as (G, K, D, D)."""
        R = R.unflatten(1, (GATES, -1)).transpose(0, 1)[list(self.order)]
        return (R.mT if self.transposed else R).contiguous()

    def rows(self, w: Tensor) -> Tensor:
        """The rows of each gate of (G*H, ...), put in order."""
        return w.unflatten(0, (GATES, -1))[list(self.order)].flatten(0, 1)


def call(Wx: Tensor, R: Tensor, b: Tensor, backend: str) -> Tensor:
    """From zero states; returns h (B, T, K, D)."""
    from flashrnn import flashrnn  # here: it is seldom installed

    batch, _, _, heads, d = Wx.shape
    zeros = Wx.new_zeros(2, batch, 1, heads, d)
    states, _ = flashrnn(Wx, R, b, states=zeros, function="lstm", backend=backend)
    return states[0]


@functools.cache
def layout(device: torch.device) -> Layout:
    """Raises ValueError if no order of the gates gives an LSTM."""
    generator = torch.Generator().manual_seed(0)
    heads, d, steps = 2, 3, 3
    u, R = (torch.randn(n, generator=generator).to(device, torch.bfloat16) for n in ((steps, 1, 24), (heads, 12, d)))
    zeros = u.new_zeros(1, heads * d)
    h, _ = reference.recurrence("lstm", u.float(), R.float(), (zeros.float(), zeros.float()))
    for order, transposed in itertools.product(itertools.permutations(range(GATES)), (False, True)):
        found = Layout(order, transposed)
        Wx = u.transpose(0, 1).unflatten(2, (GATES, heads, d))[:, :, list(order)]
        theirs = call(Wx.contiguous(), found.weights(R), u.new_zeros(GATES, heads, d), "vanilla")
        if torch.allclose(theirs.flatten(2).transpose(0, 1).float(), h, atol=0.05):
            return found
    raise ValueError("flashrnn: no order of the gates gives an LSTM")


class FlashProvider:
    """As :class:`perf.providers.Provider`, with weights and input in FlashRNN's own layout beforehand.

    Timed are all gradients; returned, to be compared, are h and the gradient of the input.
    """

    def __init__(self, module: Module, heads: int, x: Tensor, backend: str) -> None:
        self.heads, self.backend, own = heads, backend, layout(x.device)
        R, b = module.weight_hh_l0.detach(), module.bias_ih_l0.detach() + module.bias_hh_l0.detach()
        W = own.rows(module.weight_ih_l0.detach())
        R = own.weights(R if R.dim() == 3 else R.unsqueeze(0))
        b = own.rows(b).unflatten(0, (GATES, heads, -1))
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
    """Those backends that run at this size; says why another does not."""
    found = {}
    for backend in BACKENDS:
        try:
            provider = FlashProvider(module, heads, x, backend)
            provider.inference(x)
        except Exception as error:  # it compiles at the call, and says in many ways that it cannot
            print(f"flashrnn {backend}, {heads} heads, left out: {type(error).__name__}: {str(error)[:200]}")
        else:
            found[f"flashrnn {backend}"] = provider
    return found
