"""Recurrent is the layer for cells that users write."""

import math
from collections.abc import Sequence
from typing import Any, Unpack

import torch
from torch import Tensor
from torch.nn import Parameter, init

from rnnkern._cell import Cell
from rnnkern.nn.options import StatesOptions, with_options
from rnnkern.nn.recurrent import RecurrentBase


@with_options
class Recurrent(RecurrentBase):
    r"""A recurrent layer whose cell is a function of your own, made by :func:`rnnkern.cell`.

    For each layer and direction it holds ``weight_ih_l{k}`` (G*H, I); ``weight_hh_l{k}`` (G*H, H), with H rows for each
    gate that has a recurrent part; ``bias_ih_l{k}`` and ``bias_hh_l{k}``; and the cell's own parameters,
    ``{name}_l{k}`` (H,), or (G*H,) if it belongs to a norm over all gates. Weights, biases and parameters without an
    ``init`` are drawn from :math:`U(-1 / \sqrt{H}, 1 / \sqrt{H})`. I is the input size, H the hidden size and G the
    number of gates.

    Args:
        cell: a cell that :func:`rnnkern.cell` returned.
        input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, device, dtype: as in
            :class:`torch.nn.RNN`.
        num_heads: K. With K > 1, R is block-diagonal and ``weight_hh_l{k}`` has shape (K, G*D, D), D = H / K. Must be 1
            for a cell with norms.
        zoneout: as in :class:`rnnkern.nn.RNN`, or one probability for each state.
        recurrent_dropout: as in :class:`rnnkern.nn.RNN`.
        save_gates: True saves the cell's intermediate values for the backward pass; False recomputes them there.

    Input, output, packed sequences and ``reset`` are those of :class:`rnnkern.nn.RNN`; with several states ``hx`` and
    the returned state are tuples, each (num_layers * directions, B, H).

    Raises:
        TypeError: ``cell`` was not made by :func:`rnnkern.cell`.
        ValueError: an option has a wrong value, as in torch.nn.

    >>> @rnnkern.cell(gates="fn")
    ... def mgu(u, r, h):
    ...     f = torch.sigmoid(u.f + r.f)
    ...     n = torch.tanh(u.n + f * r.n)
    ...     return (1 - f) * h + f * n
    >>> layer = Recurrent(mgu, 8, 16, num_layers=2, bidirectional=True)
    >>> output, h_n = layer(torch.randn(5, 2, 8))
    >>> output.shape, h_n.shape
    (torch.Size([5, 2, 32]), torch.Size([4, 2, 16]))
    """

    def __init__(
        self, cell: Cell, input_size: int, hidden_size: int, num_layers: int = 1, bias: bool = True,
        batch_first: bool = False, dropout: float = 0.0, bidirectional: bool = False, device: Any = None,
        dtype: torch.dtype | None = None, **options: Unpack[StatesOptions],
    ) -> None:  # fmt: skip
        if not isinstance(cell, Cell):
            raise TypeError(f"Recurrent: `cell` must be made by rnnkern.cell, got {cell!r}")
        self.cell = cell
        super().__init__(
            "RNN_TANH", input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, device=device,
            dtype=dtype, **options,
        )  # fmt: skip
        if self.num_heads > 1 and cell._derived.traced.norms:
            raise ValueError(f"num_heads must be 1 for a cell with norms, got {self.num_heads}")
        self.mode = "CELL"
        gates, recurrent, heads = len(cell.gates), len(cell.recurrent), self.num_heads
        d = hidden_size // heads
        for names in self._all_weights:
            like = getattr(self, names[0])
            square = (recurrent * d, d) if heads == 1 else (heads, recurrent * d, d)
            shapes = [(gates * hidden_size, like.shape[1]), square]
            shapes += [(gates * hidden_size,), (recurrent * hidden_size,)] if bias else []
            suffix = names[0].removeprefix("weight_ih")
            own = [f"{name}{suffix}" for name in cell.params]
            for name, shape in zip([*names, *own], [*shapes, *((n * hidden_size,) for n in cell.rows)], strict=True):
                setattr(self, name, Parameter(like.new_empty(shape)))
            names.extend(own)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initializes all parameters again."""
        bound = 1 / math.sqrt(self.hidden_size)
        for name, parameter in self.named_parameters():
            init.uniform_(parameter, *self.cell.init.get(name.rpartition("_l")[0], (-bound, bound)))

    @property
    def _states(self) -> int:
        return len(self.cell.states)

    @property
    def _cell(self) -> str:
        return self.cell.name

    def check_forward_args(self, input: Tensor, hidden: Tensor | Sequence[Tensor], batch_sizes: Tensor | None) -> None:
        self.check_input(input, batch_sizes)
        states = hidden if self._states > 1 else (hidden,)
        if len(states) != self._states:
            raise RuntimeError(f"hx must have {self._states} states ({', '.join(self.cell.states)}), got {len(states)}")
        for name, state in zip(self.cell.states, states, strict=True):
            wanted = self.get_expected_hidden_size(input, batch_sizes)
            self.check_hidden_size(state, wanted, f"Expected hidden[{name}] size {{}}, got {{}}")

    def extra_repr(self) -> str:
        return f"{self.cell.__name__}, {super().extra_repr()}"
