"""RNNCell, LSTMCell and GRUCell put the parameters and checks of torch.nn around one call of the operator."""

from typing import Any, Never

import torch
from torch import Tensor
from torch.fx import Proxy
from torch.nn import RNNCellBase

from rnnkern.nn import autocast
from rnnkern.nn.ecosystem import Unquantized, refuse_or_trace, spelled
from rnnkern.nn.options import with_options
from rnnkern.ops import Choice, recurrence
from rnnkern.ops._recurrence.recurrence import step

CELLS = ("tanh", "relu", "lstm", "gru")


class RecurrentCell(Unquantized, RNNCellBase):
    """Mixin of the cell modules; list it before the torch.nn class. A subclass names its ``_cell``."""

    _cell: str  # name of a cell of rnnkern.ops.recurrence

    def forward(
        self, input: Tensor, hx: Tensor | tuple[Tensor, Tensor] | None = None, **unknown: Never
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Computes one step.

        Args:
            input: tensor of shape (B, I), or (I,) without a batch. It has the dtype of the parameters.
            hx: h, or for an LSTMCell the tuple (h, c), each (B, H), or (H,) without a batch. None means zeros.

        Returns:
            The next h, or for an LSTMCell the tuple of the next (h, c), each with the shape of the states in ``hx``.

        Raises:
            As torch.nn: for every wrong argument.
        """
        if isinstance(input, Proxy) or isinstance(hx, Proxy) or unknown:
            return refuse_or_trace(self, unknown, input, hx)
        unbatched = input.dim() == 1
        call = self._call(input, hx)
        x, stepped = call.pop("u"), None
        if type(x) is Tensor and not torch.is_grad_enabled() and not torch.compiler.is_compiling():
            stepped = step(x=x, **call)
        state = recurrence(u=x, **call)[1] if stepped is None else stepped[1:]
        given = input if hx is None else hx[0] if self._cell == "lstm" else hx
        state = autocast.cast_state(self._cell, given.dtype, state)
        if unbatched:
            state = [s.squeeze(0).clone() for s in state]  # a view could not be detached in place
        return tuple(state) if self._cell == "lstm" else state[0]

    @torch.no_grad()
    def _choose(self, input: Tensor, hx: Tensor | tuple[Tensor, Tensor] | None = None) -> list[Choice]:
        """The :class:`Choice` of the one call, for :func:`rnnkern.ops.explain`. Computes no step."""
        return [recurrence._choose(**self._call(input, hx))]

    def _call(self, input, hx) -> dict[str, Any]:
        """The arguments of the operator. Wrong arguments are passed to torch.nn, which raises the error."""
        states = 2 if isinstance(self, torch.nn.LSTMCell) else 1
        wanted = (*input.shape[:-1], self.hidden_size)
        if hx is None:
            state = [input.new_zeros(wanted) for _ in range(states)]
        else:
            state = hx if states == 2 else (hx,)
        if not self._fits(input, state, states, wanted):
            super().forward(input, hx)  # raises
        x, state = input.unsqueeze(0), tuple(state)
        if len(wanted) == 1:
            x, state = x.unsqueeze(0), tuple(s.unsqueeze(0) for s in state)
        call = {
            "cell": self._cell,
            "R": self.weight_hh,
            "state": state,
            "bias": self.bias_hh,
            "weight_ih": self.weight_ih,
            "bias_ih": self.bias_ih,
        }
        x, call = autocast.cast(x, call)
        for t in (call["weight_ih"], call["R"], *call["state"]):
            if t.dtype != x.dtype or t.device != x.device:
                super().forward(input, hx)  # raises
        return {"u": x, **call}

    def _get_name(self) -> str:
        return spelled(self)

    def _fits(self, input, state, states: int, wanted: tuple[int, ...]) -> bool:
        if input.dim() not in (1, 2) or input.shape[-1] != self.input_size or self._cell not in CELLS:
            return False
        if not isinstance(state, (tuple, list)) or len(state) != states:
            return False
        return all(isinstance(s, Tensor) and s.shape == wanted for s in state)


@with_options
class RNNCell(RecurrentCell, torch.nn.RNNCell):
    r"""One step of an Elman network; a drop-in replacement for :class:`torch.nn.RNNCell`.

    .. math::
        h' = \phi(W x + b_{ih} + R h + b_{hh})

    Arguments, parameters, initial values, shapes and errors are those of :class:`torch.nn.RNNCell`. B is the batch
    size, I the input size and H the hidden size.

    Args:
        input_size, hidden_size, bias, device, dtype: as in torch.nn.
        nonlinearity: :math:`\phi`, ``"tanh"`` or ``"relu"``.

    Source: Elman 1990.

    >>> cell = RNNCell(10, 20)
    >>> h = None
    >>> for x in torch.randn(5, 3, 10):
    ...     h = cell(x, h)
    >>> h.shape
    torch.Size([3, 20])
    """

    @property
    def _cell(self) -> str:
        return self.nonlinearity


@with_options
class LSTMCell(RecurrentCell, torch.nn.LSTMCell):
    r"""One step of an LSTM; a drop-in replacement for :class:`torch.nn.LSTMCell`.

    .. math::
        i, f, g, o &= W x + b_{ih} + R h + b_{hh} \\
        c' &= \sigma(f) c + \sigma(i) \tanh(g) \\
        h' &= \sigma(o) \tanh(c')

    Arguments, parameters, initial values, shapes and errors are those of :class:`torch.nn.LSTMCell`. B is the batch
    size, I the input size and H the hidden size.

    Args:
        input_size, hidden_size, bias, device, dtype: as in torch.nn.

    Source: Hochreiter and Schmidhuber 1997; gates as in Gers et al. 2000.

    >>> cell = LSTMCell(10, 20)
    >>> h, c = cell(torch.randn(3, 10))
    >>> h, c = cell(torch.randn(3, 10), (h, c))
    >>> h.shape, c.shape
    (torch.Size([3, 20]), torch.Size([3, 20]))
    """

    _cell = "lstm"


@with_options
class GRUCell(RecurrentCell, torch.nn.GRUCell):
    r"""One step of a GRU; a drop-in replacement for :class:`torch.nn.GRUCell`.

    .. math::
        r &= \sigma(W_r x + b_{ir} + R_r h + b_{hr}) \\
        z &= \sigma(W_z x + b_{iz} + R_z h + b_{hz}) \\
        n &= \tanh(W_n x + b_{in} + r (R_n h + b_{hn})) \\
        h' &= (1 - z) n + z h

    Arguments, parameters, initial values, shapes and errors are those of :class:`torch.nn.GRUCell`. B is the batch
    size, I the input size and H the hidden size.

    Args:
        input_size, hidden_size, bias, device, dtype: as in torch.nn.

    Source: Chung et al. 2014 and torch.nn (reset gate applied after the recurrent product).

    >>> cell = GRUCell(10, 20)
    >>> cell(torch.randn(10), torch.randn(20)).shape
    torch.Size([20])
    """

    _cell = "gru"
