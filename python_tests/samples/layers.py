"""The table of layers: every public layer, and its options that are worth a case, of small sizes."""

import inspect
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

import rnnkern
from rnnkern import nn
from rnnkern.nn.filters import NAG, Adam, Momentum, RMSprop

INPUT_SIZE, OBJECTS, HIDDEN_SIZE = 4, 5, 8
LAYERS: dict[str, dict[str, Any]] = {
    "RNN": {},
    "RNN relu": {"nonlinearity": "relu"},
    "RNN identity": {"nonlinearity": "identity"},
    "RNN hardtanh": {"nonlinearity": "hardtanh", "bias": False},
    "RNN modrelu": {"nonlinearity": "modrelu"},
    "RNN heads": {"nonlinearity": "modrelu", "num_heads": 2},
    "RNN momentum": {"filter": Momentum(0.6, 0.5)},
    "RNN NAG": {"filter": NAG(0.5, 4)},
    "LSTM": {},
    "LSTM projected": {"proj_size": 3},
    "LSTM heads": {"num_heads": 2},
    "LSTM layer norm": {"layer_norm": True},
    "LSTM momentum": {"filter": Momentum(0.6, 0.5)},
    "LSTM Adam": {"filter": Adam(0.6, 0.5, 0.9)},
    "GRU": {},
    "GRU heads": {"num_heads": 2, "bias": False},
    "GRU before": {"reset_gate": "before"},
    "GRU before, heads": {"reset_gate": "before", "num_heads": 2},
    "GRU layer norm": {"layer_norm": True},
    "GRU layer norm, no bias": {"layer_norm": True, "bias": False},
    "Recurrent": {},
    "ExpRNN": {},
    "ExpRNN dynamic": {"base": "dynamic", "bias": True},
    "ExpRNN RMSprop": {"filter": RMSprop(0.5, 0.9)},
    "CayleyRNN": {"num_negative": 3},
    "NonNormalRNN": {},
    "HouseholderRNN": {"reflections": 5},
    "EURNN": {"rotation_layers": 3},
    "EURNN fused": {"style": "butterfly", "fused": True},
    "SpectralRNN": {},
    "OrthogonalInitRNN": {},
    "OrthogonalInitRNN identity": {"init": "identity", "nonlinearity": "relu"},
    "HenaffRNN": {},
    "HenaffRNN tanh": {"input_nonlinearity": "tanh", "bias": False},
    "GORU": {},
    "GORU heads": {"num_heads": 2, "bias": False, "init": "cayley", "base": "dynamic"},
    "UnitaryRNN": {},
    "UnitaryRNN givens": {"unitary_map": "givens", "rotation_layers": 3, "fused": True},
    "UnitaryRNN free": {"unitary_map": "free"},
    "UnitaryRNN exp": {"unitary_map": "exp"},
    "UnitaryRNN scaled Cayley": {"unitary_map": "scaled_cayley", "base": "dynamic"},
    "LRU": {"r_min": 0.5},
    "LRU outputs": {"r_min": 0.5, "output_size": 3},
    "ContinuousRNN": {"dt": 0.7, "timescales": (1.0, 4.0)},
    "ContinuousRNN steps": {"dt": 0.7, "steps": 3, "stable_map": "inverse"},
    "ContinuousRNN Adams": {"dt": 0.7, "method": "adams", "stable_map": "softplus", "bias": False},
    "ContinuousRNN Adams, steps": {"dt": 0.7, "method": "adams", "steps": 3, "stable_map": "direct"},
    "ContinuousRNN linear": {"dt": 0.7, "nonlinearity": "identity"},
    "RelRNN": {"buffer_size": 3, "relevant_size": 2},
    "RelRNN modrelu": {"buffer_size": 2, "relevant_size": 1, "nonlinearity": "modrelu", "combine": "sum"},
    "RelRNN buffer": {"buffer_size": 4, "relevant_size": 0, "nonlinearity": "relu", "alignment": "dot", "bias": False},
    "RelRNN learned": {"buffer_size": 3, "relevant_size": 2, "relevance": "learned", "output": "s"},
    "RelLSTM": {"buffer_size": 3, "relevant_size": 2, "relevance": "fifo"},
    "RelLSTM heads": {"buffer_size": 3, "relevance": "learned", "alignment": "scaled_dot", "num_heads": 4},
    "MemRNN": {},
    "MemRNN heads": {"combine": "concat", "num_heads": 4, "output": "s"},
    "MemLSTM": {},
    "MemLSTM concatenated": {"combine": "concat", "alignment": "scaled_dot"},
    "SABLSTM": {"top_k": 2, "attend_every": 2},
    "SABLSTM mlp": {"top_k": 2, "attend_every": 2, "alignment": "mlp", "bias": False},
    "RNNCell": {},
    "RNNCell relu": {"nonlinearity": "relu", "bias": False},
    "LSTMCell": {},
    "LSTMCell no bias": {"bias": False},
    "GRUCell": {},
    "GRUCell no bias": {"bias": False},
    "NeuralODE": {"steps": 2},
    "NeuralODE Euler": {"steps": 2, "method": "euler", "time_input": True},
    "HeavyBallODE": {"steps": 2},
    "HeavyBallODE generalized": {"steps": 2, "generalized": True, "learn_momentum": True, "time_input": True},
    "ContextNorm": {},
    "Similarity": {},
    "Similarity asymmetric": {"asymmetric": True},
    "CoRelNet": {},
    "CoRelNet difference": {"rule": "difference"},
    "CoRelNet transformer": {"rule": "asymmetric", "decoder": "transformer"},
    "ESBN": {},
}
"""Options by name; the first word of a name is the class."""
USED = {
    "RNN": {},
    "LSTM": {"num_layers": 2, "bidirectional": True},
    "GRU": {"num_layers": 2},
    "ExpRNN": {},
    "ExpRNN dynamic": {"bidirectional": True},
    "EURNN fused": {},
    "RelLSTM": {},
    "LRU": {},
}
"""Rows that stand for all where a test is slow, with more options."""
ARGUMENTS = {
    "Recurrent": lambda inputs: (rnnkern.cells.mgu, inputs, HIDDEN_SIZE),
    "ContextNorm": lambda inputs: (inputs,),
    "Similarity": lambda inputs: (inputs,),
    "CoRelNet": lambda inputs: (inputs, OBJECTS, 2),
    "ESBN": lambda inputs: (inputs, 2, 3, HIDDEN_SIZE),
    "HeavyBallODE": lambda inputs: (inputs, None),
}
"""Arguments of the classes that do not take an input size and a hidden size."""


def class_of(name: str) -> type[torch.nn.Module]:
    return getattr(nn, name.split()[0])


def layer(name: str, inputs: int = INPUT_SIZE, **more: Any) -> torch.nn.Module:
    """The layer of a row, with more options."""
    cls = class_of(name)
    arguments = ARGUMENTS.get(cls.__name__, lambda inputs: (inputs, HIDDEN_SIZE))
    return cls(*arguments(inputs), **LAYERS[name] | more)


@torch.no_grad()
def moved(name: str, inputs: int = INPUT_SIZE, by: float = 0.1, **more: Any) -> torch.nn.Module:
    """A layer whose parameters have left their initial values, of which some are 0 or 1."""
    found = layer(name, inputs, **more)
    for p in found.parameters():
        p.add_(by * torch.randn_like(p))
    return found


def takes(name: str, option: str) -> bool:
    return option in inspect.signature(class_of(name)).parameters


NAMES = [
    name for name in nn.__all__ if isinstance(found := getattr(nn, name), type) and issubclass(found, torch.nn.Module)
]
"""Every public layer, each with one row."""
CELLS = [name for name in LAYERS if class_of(name).__name__.endswith("Cell")]
ODES = [name for name in LAYERS if class_of(name).__name__.endswith("ODE")]
RELATIONAL = [name for name in LAYERS if class_of(name).__name__ in ("ContextNorm", "Similarity", "CoRelNet", "ESBN")]
"""Models of sets of objects, (B, objects, d)."""
SEQUENCES = [name for name in LAYERS if takes(name, "batch_first")]
"""Layers that are called with (input, hx, reset) and return the output and the state."""
DEEP = [name for name in SEQUENCES if takes(name, "num_layers")]
"""Those with several layers and directions."""


def draw_input(name: str, steps: int = 6, batch: int = 3, **options: Any) -> Tensor:
    """An input of a layer, with time first if it has time."""
    rows = (batch,) if name in CELLS or name in ODES else (batch, OBJECTS) if name in RELATIONAL else (steps, batch)
    return torch.randn(*rows, INPUT_SIZE, **options)


def values(results: Any) -> list[Tensor]:
    """The tensors that a layer returned, real and with gradients."""
    tensors = [y for y in tree_leaves(results) if isinstance(y, Tensor) and y.requires_grad]
    return [torch.view_as_real(y) if y.is_complex() else y for y in tensors]


def values_and_gradients(module: torch.nn.Module, *args: Any) -> list[Tensor]:
    """Results of a call, and gradients of the arguments that require them and of the parameters."""
    found = values(module(*args))
    loss = sum((y * torch.linspace(0.5, 1, y.numel()).to(y).view_as(y)).sum() for y in found)
    leaves = [x for x in (*tree_leaves(args), *module.parameters()) if isinstance(x, Tensor) and x.requires_grad]
    return found + list(torch.autograd.grad(loss, leaves, materialize_grads=True))


def same(actual: list[Tensor], wanted: list[Tensor]) -> bool:
    """Whether results are equal to the bit."""
    return len(actual) == len(wanted) and all(map(torch.equal, actual, wanted))
