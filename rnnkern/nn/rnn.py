"""Elman's network."""

from typing import Any

import torch

from rnnkern import cells
from rnnkern.nn.filters import Filter, Filtered
from rnnkern.nn.options import with_options
from rnnkern.reference import CELLS

NONLINEARITIES = ("tanh", "relu", "identity", "hardtanh", "modrelu", "sigmoid", "leaky_relu", "softplus")


@with_options
class RNN(Filtered, torch.nn.RNN):
    r"""Elman's network over a sequence, in place of :class:`torch.nn.RNN`.

    .. math::
        h_t = \phi(W x_t + b_{ih} + R h_{t-1} + b_{hh})

    Arguments, parameters, initial values, shapes and errors are those of :class:`torch.nn.RNN`, plus more
    nonlinearities, ``num_heads``, ``zoneout``, ``recurrent_dropout``, ``filter`` and ``reset``. T steps, B sequences, I
    inputs, H hidden units, K heads of D = H / K units.

    Args:
        input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, device, dtype: as in torch.nn.
        nonlinearity: :math:`\phi`, one of ``"tanh"``, ``"relu"``, ``"identity"``, ``"hardtanh"``, ``"sigmoid"``,
            ``"leaky_relu"``, ``"softplus"`` (these three are compiled at their first use) and ``"modrelu"``,
            :math:`\mathrm{sign}(z) \, \mathrm{relu}(|z| + b)`, whose b is the parameter ``modrelu_bias_l{k}`` (H,) of
            each layer and direction, drawn from U(-0.01, 0.01) after all others.
        num_heads: K > 1 makes R block-diagonal, ``weight_hh_l{k}`` (K, D, D). Unit k*D+d of the layer is unit d of
            head k.
        zoneout: probability in [0, 1) with which a unit of the state keeps its old value at a step; in evaluation the
            mean of the old value and the new (Krueger et al. 2017).
        recurrent_dropout: rate in [0, 1) of variational dropout on the recurrent connection, one mask per sequence (Gal
            and Ghahramani 2016); none in evaluation. Zoneout and dropout masks are generated inside the kernel from a
            seed of torch's generator and regenerated in the backward pass; no mask is stored.
        save_gates: of no effect, since these cells keep nothing but h; as in LSTM and GRU.
        filter: of the input projection, one of :mod:`rnnkern.nn.filters` (Nguyen et al. 2020), such as ``Adam(0.6, 0.6,
            0.99)``. The state that is returned is longer by what the filter carries.

    Raises:
        ValueError, TypeError: ``nonlinearity`` is unknown; ``num_heads`` does not divide ``hidden_size``; a rate is
            not in [0, 1).
        As torch.nn: every other wrong argument.

    Source: Elman 1990; modReLU Arjovsky et al. 2016, eq. 8, for a real state.

    >>> rnn = RNN(10, 20, nonlinearity="modrelu")
    >>> starts = torch.tensor([[True] * 3, [False] * 3, [True] * 3, [False] * 3])
    >>> output, h_n = rnn(torch.randn(4, 3, 10), reset=starts)
    >>> output.shape, h_n.shape, rnn.modrelu_bias_l0.shape
    (torch.Size([4, 3, 20]), torch.Size([1, 3, 20]), torch.Size([20]))
    """

    def __init__(
        self, input_size: int, hidden_size: int, num_layers: int = 1, nonlinearity: str = "tanh", bias: bool = True,
        batch_first: bool = False, dropout: float = 0.0, bidirectional: bool = False, device: Any = None,
        dtype: torch.dtype | None = None, *, num_heads: int = 1, zoneout: float = 0.0, recurrent_dropout: float = 0.0,
        save_gates: bool | None = None, filter: Filter | None = None,
    ) -> None:  # fmt: skip
        if nonlinearity not in NONLINEARITIES:
            wanted = ", ".join(map(repr, NONLINEARITIES))
            raise ValueError(f"Unknown nonlinearity '{nonlinearity}'. Select from {wanted}.")
        known = nonlinearity if nonlinearity == "relu" else "tanh"  # to torch.nn, which builds the rest
        super().__init__(
            input_size, hidden_size, num_layers, known, bias, batch_first, dropout, bidirectional, device=device,
            dtype=dtype, num_heads=num_heads, zoneout=zoneout, recurrent_dropout=recurrent_dropout,
            save_gates=save_gates, filter=filter,
        )  # fmt: skip
        self.nonlinearity = nonlinearity
        self.mode = f"RNN_{nonlinearity.upper()}"
        if nonlinearity == "modrelu":
            self._add_modrelu_biases()

    def reset_parameters(self) -> None:
        super().reset_parameters()
        self._reset_modrelu_biases()

    @property
    def _cell(self) -> str:
        return self.nonlinearity if self.nonlinearity in CELLS else cells.rnn(self.nonlinearity).name

    def extra_repr(self) -> str:
        shown = f", nonlinearity={self.nonlinearity}" if self.nonlinearity != "tanh" else ""
        return super().extra_repr() + shown
