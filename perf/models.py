"""Recurrent layers of rnnkern and torch.nn by name, each with suitable initial values."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn import LayerNorm, Linear, Module, ModuleList, init

import rnnkern.nn
from rnnkern.nn.filters import Momentum
from rnnkern.parametrizations import Orthogonal
from rnnkern.parametrizations._spectral import SpectralMargin


class Network(Module):
    """A recurrent layer, followed by a linear layer at each step or at the last one.

    Args:
        rnn: called like layers of torch.nn: ``output, state = rnn(x, state)``, x (T, B, I), output (T, B, ``hidden``);
            the state is None, a tensor or nested tuples of tensors. A layer with a wider output has the attribute
            ``output_size``.
        hidden, outputs: sizes.
        each_step: if True, the result is (T, B, ``outputs``), otherwise (B, ``outputs``) from the last step.
    """

    def __init__(self, rnn: Module, hidden: int, outputs: int, each_step: bool) -> None:
        super().__init__()
        self.rnn, self.head = rnn, Linear(getattr(rnn, "output_size", hidden), outputs)
        self.each_step = each_step

    def forward(self, x: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        h, state = self.rnn(x, state)
        return self.head(h if self.each_step else h[-1]), state


class DeepLRU(Module):
    """Two blocks of normalization, LRU, GLU gate and skip connection (Orvieto et al. 2023, figure 1), between a linear
    layer and the head.

    Args:
        inputs, hidden: sizes; each LRU has ``hidden`` complex units.
    """

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.encoder = Linear(inputs, hidden)
        self.norms = ModuleList(LayerNorm(hidden) for _ in range(2))
        self.layers = ModuleList(rnnkern.nn.LRU(hidden, hidden, r_min=0.9, r_max=0.999) for _ in range(2))
        self.gates = ModuleList(Linear(hidden, 2 * hidden) for _ in range(2))

    def forward(self, x: Tensor, state: Any = None) -> tuple[Tensor, tuple[Tensor, ...]]:
        x, states = self.encoder(x), []
        for k, (norm, layer, gate) in enumerate(zip(self.norms, self.layers, self.gates, strict=True)):
            y, last = layer(norm(x), None if state is None else state[k])
            x = x + F.glu(gate(F.gelu(y)), dim=-1)
            states.append(last)
        return x, tuple(states)


def detached(state: Any) -> Any:
    """The state without its graph."""
    if isinstance(state, tuple):
        parts = map(detached, state)
        return type(state)(*parts) if hasattr(state, "_fields") else tuple(parts)
    return state.detach() if isinstance(state, Tensor) else state


def size(network: Module) -> int:
    """Number of trained real numbers: both parts of complex ones; of skew-symmetric parameters and triangles only those
    that are read."""
    triangles = set()
    for found in network.modules():
        if isinstance(found, (Orthogonal, SpectralMargin)):
            triangles |= {id(p) for p in found.originals if p.shape[-2:] == (p.shape[-1],) * 2}

    def count(p: Tensor) -> int:
        size = p.numel() * (2 if p.is_complex() else 1)
        return size * (p.shape[-1] - 1) // (2 * p.shape[-1]) if id(p) in triangles else size

    return sum(map(count, network.parameters()))


# ---- initial values


@torch.no_grad()
def forget_little(lstm: Module) -> None:
    """Sets one bias of the forget gates to 1, so that the network initially forgets little (Gers et al. 2000)."""
    lstm.bias_hh_l0[lstm.hidden_size : 2 * lstm.hidden_size] = 1


def orthogonal_gates(lstm: Module) -> None:
    """Sets each gate's recurrent weight to an orthogonal matrix, and a bias of the forget gates to 1."""
    for weight in lstm.weight_hh_l0.chunk(4):
        init.orthogonal_(weight)
    forget_little(lstm)


def identity(rnn: Module) -> None:
    """Sets the recurrent weight of a relu network to the identity, so that it keeps its state at first (Le et al.
    2015)."""
    init.eye_(rnn.weight_hh_l0)
    init.zeros_(rnn.bias_ih_l0)
    init.zeros_(rnn.bias_hh_l0)


def orthogonal(rnn: Module) -> None:
    init.orthogonal_(rnn.weight_hh_l0)
    init.zeros_(rnn.bias_ih_l0)
    init.zeros_(rnn.bias_hh_l0)
    init.constant_(rnn.modrelu_bias_l0, -0.01)  # above 0, modReLU is discontinuous at z = 0


# ---- the table

Build = Callable[..., Module]
"""Function of the sizes of input and state, and of options."""


def made(cls: type[Module], initialise: Callable[[Module], None] = lambda rnn: None, **options: Any) -> Build:
    def build(inputs: int, hidden: int, **more: Any) -> Module:
        rnn = cls(inputs, hidden, **options | more)
        initialise(rnn)
        return rnn

    return build


MODELS: dict[str, Build] = {
    "rnnkern.RNN": made(rnnkern.nn.RNN),
    "rnnkern.RNN-relu": made(rnnkern.nn.RNN, identity, nonlinearity="relu"),
    "rnnkern.RNN-modrelu": made(rnnkern.nn.RNN, orthogonal, nonlinearity="modrelu"),
    "rnnkern.GRU": made(rnnkern.nn.GRU),
    "rnnkern.LSTM": made(rnnkern.nn.LSTM, forget_little),
    "rnnkern.LSTM-h-detach": made(rnnkern.nn.LSTM, forget_little, recurrent_grad_dropout=0.25),
    "rnnkern.LSTM-glorot": made(rnnkern.nn.LSTM, rnnkern.nn.init.glorot_normal_),
    "rnnkern.RNN-glorot": made(rnnkern.nn.RNN, rnnkern.nn.init.glorot_normal_, nonlinearity="modrelu"),
    "rnnkern.ExpRNN": made(rnnkern.nn.ExpRNN),
    "rnnkern.CayleyRNN": made(rnnkern.nn.CayleyRNN),
    "rnnkern.NonNormalRNN": made(rnnkern.nn.NonNormalRNN),
    "rnnkern.OrthogonalInitRNN": made(rnnkern.nn.OrthogonalInitRNN),
    "rnnkern.OrthogonalInitRNN-soft": made(rnnkern.nn.OrthogonalInitRNN),
    "rnnkern.HenaffRNN": made(rnnkern.nn.HenaffRNN),
    "rnnkern.UnitaryRNN-exp": made(rnnkern.nn.UnitaryRNN, unitary_map="exp"),
    "rnnkern.UnitaryRNN-scaled_cayley": made(rnnkern.nn.UnitaryRNN, unitary_map="scaled_cayley"),
    "rnnkern.HouseholderRNN": made(rnnkern.nn.HouseholderRNN),
    "rnnkern.EURNN": made(rnnkern.nn.EURNN),
    "rnnkern.EURNN-butterfly": made(rnnkern.nn.EURNN, style="butterfly"),
    "rnnkern.SpectralRNN": made(rnnkern.nn.SpectralRNN),
    "rnnkern.GORU": made(rnnkern.nn.GORU),
    "rnnkern.UnitaryRNN": made(rnnkern.nn.UnitaryRNN),
    "rnnkern.UnitaryRNN-givens": made(rnnkern.nn.UnitaryRNN, unitary_map="givens", rotation_layers=8),
    "rnnkern.UnitaryRNN-free": made(rnnkern.nn.UnitaryRNN, unitary_map="free"),
    "rnnkern.RelRNN": made(rnnkern.nn.RelRNN),
    "rnnkern.RelRNN-modrelu": made(rnnkern.nn.RelRNN, nonlinearity="modrelu"),
    "rnnkern.RelRNN-sum": made(rnnkern.nn.RelRNN, combine="sum"),
    "rnnkern.RelRNN-random": made(rnnkern.nn.RelRNN, relevance="random"),
    "rnnkern.MemRNN": made(rnnkern.nn.MemRNN),
    "rnnkern.RelLSTM": made(rnnkern.nn.RelLSTM),
    "rnnkern.SABLSTM": made(rnnkern.nn.SABLSTM),
    "rnnkern.MomentumLSTM": made(rnnkern.nn.LSTM, forget_little, filter=Momentum(0.6, 1.0)),
    "rnnkern.LRU": made(DeepLRU),
    "rnnkern.ContinuousRNN": made(rnnkern.nn.ContinuousRNN, nonlinearity="identity", dt=1.0, stable_map="softplus"),
    **{
        f"rnnkern.ContinuousRNN-{map}": made(rnnkern.nn.ContinuousRNN, nonlinearity="identity", dt=1.0, stable_map=map)
        for map in ("inverse", "exp", "direct")
    },
    "torch.RNN": made(torch.nn.RNN),
    "torch.RNN-relu": made(torch.nn.RNN, identity, nonlinearity="relu"),
    "torch.GRU": made(torch.nn.GRU),
    "torch.LSTM": made(torch.nn.LSTM, forget_little),
}
