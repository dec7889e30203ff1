"""RNN, an Elman network, replaces that of torch.nn and has more options."""

from typing import Any, ClassVar, Unpack

import torch

from rnnkern import cells
from rnnkern.nn.filters import Filter
from rnnkern.nn.options import StepOptions, with_options
from rnnkern.nn.recurrent import RecurrentBase
from rnnkern.reference import CELLS

NONLINEARITIES = ("tanh", "relu", "identity", "hardtanh", "modrelu", "sigmoid", "leaky_relu", "softplus")


@with_options
class RNN(RecurrentBase, torch.nn.RNN):
    r"""Elman network; a drop-in replacement for :class:`torch.nn.RNN`.

    .. math::
        h_t = \phi(W x_t + b_{ih} + R h_{t-1} + b_{hh})

    Arguments, parameters, initial values, shapes and errors are those of :class:`torch.nn.RNN`. More nonlinearities,
    the options below and ``reset``, an argument of :meth:`forward`, are additional. T is the number of time steps, B
    the batch size, I the input size, H the hidden size, K the number of heads, each with D = H / K units.

    Args:
        input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, device, dtype: as in torch.nn.
        nonlinearity: :math:`\phi`, one of ``"tanh"``, ``"relu"``, ``"identity"``, ``"hardtanh"``, ``"modrelu"``,
            ``"sigmoid"``, ``"leaky_relu"`` and ``"softplus"``. The last three are compiled at their first use. modReLU
            is :math:`\mathrm{sign}(z) \, \mathrm{relu}(|z| + b)`, where b is the parameter ``modrelu_bias_l{k}`` (H,)
            of each layer and direction, initialized from U(-0.01, 0.01) after all other parameters.
        num_heads: K. With K > 1, R is block-diagonal and ``weight_hh_l{k}`` has shape (K, D, D). Unit k*D+d of the
            layer is unit d of head k.
        zoneout: probability in [0, 1) that a unit of the state keeps its previous value at a step. In evaluation mode
            the expected value replaces the draw (Krueger et al. 2017).
        recurrent_dropout: rate in [0, 1) of variational dropout on the recurrent connection, one mask per sequence (Gal
            and Ghahramani 2016); inactive in evaluation mode. Zoneout and dropout masks are generated inside the kernel
            from a seed of torch's generator and regenerated in the backward pass; no mask is stored.
        save_gates: has no effect, because these cells save only h. It exists for consistency with LSTM and GRU.
        filter: a filter of :mod:`rnnkern.nn.filters` for the input projection (Nguyen et al. 2020), such as ``Adam(0.6,
            0.6, 0.99)``. The returned state then also contains the state of the filter.

    Raises:
        ValueError, TypeError: ``nonlinearity`` is unknown; ``num_heads`` does not divide ``hidden_size``; a rate is
            not in [0, 1).
        As torch.nn: for every other wrong argument.

    Source: Elman 1990; modReLU Arjovsky et al. 2016, eq. 8, for a real state.

    >>> rnn = RNN(10, 20, nonlinearity="modrelu")
    >>> starts = torch.tensor([[True] * 3, [False] * 3, [True] * 3, [False] * 3])
    >>> output, h_n = rnn(torch.randn(4, 3, 10), reset=starts)
    >>> output.shape, h_n.shape, rnn.modrelu_bias_l0.shape
    (torch.Size([4, 3, 20]), torch.Size([1, 3, 20]), torch.Size([20]))
    """

    _plain: ClassVar = RecurrentBase._plain | {"nonlinearity": "tanh"}

    def __init__(
        self, input_size: int, hidden_size: int, num_layers: int = 1, nonlinearity: str = "tanh", bias: bool = True,
        batch_first: bool = False, dropout: float = 0.0, bidirectional: bool = False, device: Any = None,
        dtype: torch.dtype | None = None, *, filter: Filter | None = None, **options: Unpack[StepOptions],
    ) -> None:  # fmt: skip
        if nonlinearity not in NONLINEARITIES:
            wanted = ", ".join(map(repr, NONLINEARITIES))
            raise ValueError(f"Unknown nonlinearity '{nonlinearity}'. Select from {wanted}.")
        known = nonlinearity if nonlinearity == "relu" else "tanh"  # torch.nn creates the rest and accepts only these
        super().__init__(
            input_size, hidden_size, num_layers, known, bias, batch_first, dropout, bidirectional, device=device,
            dtype=dtype, filter=filter, **options,
        )  # fmt: skip
        self.nonlinearity = nonlinearity
        self.mode = f"RNN_{nonlinearity.upper()}"
        if nonlinearity == "modrelu":
            self._add_parameters({"modrelu_bias": hidden_size})

    @property
    def _cell(self) -> str:
        return self.nonlinearity if self.nonlinearity in CELLS else cells.rnn(self.nonlinearity).name
