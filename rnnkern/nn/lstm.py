"""LSTM replaces that of torch.nn and has more options."""

from collections.abc import Sequence
from typing import Any, ClassVar, Unpack

import torch
from torch import Tensor

from rnnkern import cells
from rnnkern.nn.filters import Filter
from rnnkern.nn.options import StatesOptions, with_options
from rnnkern.nn.recurrent import RecurrentBase, TimeFirst


@with_options
class LSTM(RecurrentBase, torch.nn.LSTM):
    r"""Long short-term memory (LSTM); a drop-in replacement for :class:`torch.nn.LSTM`.

    .. math::
        i, f, g, o &= W x_t + b_{ih} + R h_{t-1} + b_{hh} \\
        c_t &= \sigma(f) c_{t-1} + \sigma(i) \tanh(g) \\
        h_t &= \sigma(o) \tanh(c_t)

    With ``layer_norm``, LN normalizes over the G*H = 4*H values of a product, or over the H values of c:

    .. math::
        i, f, g, o &= \mathrm{LN}(W x_t) + b_{ih} + \mathrm{LN}(R h_{t-1}) + b_{hh} \\
        h_t &= \sigma(o) \tanh(\mathrm{LN}(c_t))

    Arguments, parameters, initial values, shapes and errors are those of :class:`torch.nn.LSTM`. The options below and
    ``reset``, an argument of :meth:`forward`, are additional. T is the number of time steps, B the batch size, I the
    input size, H the hidden size, K the number of heads, each with D = H / K units.

    Args:
        input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, proj_size, device, dtype: as in
            torch.nn. ``proj_size`` P replaces h by its projection :math:`W_{hr} h_t`, which has P columns.
        num_heads: K. With K > 1, R is block-diagonal and ``weight_hh_l{k}`` has shape (K, 4*D, D). Unit k*D+d of the
            layer is unit d of head k.
        layer_norm: if True, applies LayerNorm to Wx, to Rh, and to c where h is computed from it. The gains
            ``weight_ln_ih_l{k}`` and ``weight_ln_hh_l{k}`` (4*H,) and ``weight_ln_c_l{k}`` (H,) are initialized to 1,
            ``bias_ln_c_l{k}`` (H,) to 0. b_ih and b_hh are the biases of the norms of Wx and Rh; eps is 1e-5.
        zoneout: as in :class:`RNN`, or a pair of probabilities for h and c.
        recurrent_dropout, filter: as in :class:`RNN`.
        recurrent_grad_dropout: probability in [0, 1] that, at a step, no gradient flows from the gates to h of the
            previous step. It is drawn per step for the whole batch, separately for each call, layer and direction
            (h-detach, Kanuparthi et al. 2019); inactive in evaluation mode. Gradients through c and to R are not
            affected.
        save_gates: True saves the gates for the backward pass: 6 H floats per sequence and step in total. False saves 2
            H floats and recomputes the gates, which costs one more product with R and one with W. With ``layer_norm``
            the figures are 14 H and 2 H. None means True on a CPU and False on a GPU. You can change the attribute at
            any time.

    Raises:
        ValueError, TypeError: ``num_heads`` does not divide ``hidden_size`` or is combined with ``proj_size``; a rate
            is out of range; or ``layer_norm`` is combined with ``num_heads``, ``proj_size`` or a filter.
        As torch.nn: for every other wrong argument.

    Source: Hochreiter and Schmidhuber 1997; gates as in Gers et al. 2000; ``proj_size`` Sak et al. 2014;
    ``layer_norm`` Ba et al. 2016, eqs. 20-22.

    >>> lstm = LSTM(10, 20, num_layers=2, num_heads=4)
    >>> output, (h_n, c_n) = lstm(torch.randn(5, 3, 10))
    >>> output.shape, c_n.shape, lstm.weight_hh_l0.shape
    (torch.Size([5, 3, 20]), torch.Size([2, 3, 20]), torch.Size([4, 20, 5]))
    >>> lstm = LSTM(10, 20, layer_norm=True)
    >>> lstm(torch.randn(5, 3, 10))[0].shape, lstm.weight_ln_hh_l0.shape, lstm.weight_ln_c_l0.shape
    (torch.Size([5, 3, 20]), torch.Size([80]), torch.Size([20]))
    """

    recurrent_grad_dropout: float = 0.0
    _plain: ClassVar = RecurrentBase._plain | {"recurrent_grad_dropout": 0.0}

    def __init__(
        self, input_size: int, hidden_size: int, num_layers: int = 1, bias: bool = True, batch_first: bool = False,
        dropout: float = 0.0, bidirectional: bool = False, proj_size: int = 0, device: Any = None,
        dtype: torch.dtype | None = None, *, layer_norm: bool = False, recurrent_grad_dropout: float = 0.0,
        filter: Filter | None = None, **options: Unpack[StatesOptions],
    ) -> None:  # fmt: skip
        super().__init__(
            input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, proj_size, device=device,
            dtype=dtype, layer_norm=layer_norm, filter=filter, **options,
        )  # fmt: skip
        rate = recurrent_grad_dropout
        if isinstance(rate, bool) or not isinstance(rate, (int, float)):
            raise TypeError(f"recurrent_grad_dropout should be of type float, got: {type(rate).__name__}")
        if not 0 <= rate <= 1:
            raise ValueError(f"recurrent_grad_dropout must be in [0, 1], got {rate}")
        self.recurrent_grad_dropout = rate

    def _noise(self, sequence: TimeFirst) -> dict[str, Tensor]:
        drawn = super()._noise(sequence)
        if self.recurrent_grad_dropout:
            x, _, batch_sizes, _ = sequence
            steps = x.shape[0] if batch_sizes is None else batch_sizes.shape[0]
            kept = torch.rand(steps, device=x.device) >= self.recurrent_grad_dropout
            drawn["grad_scale"] = kept.to(x.dtype)
        return drawn

    @staticmethod
    def _params_of_norms(
        params: Sequence[Tensor], bias_ih: Tensor | None, bias_hh: Tensor | None
    ) -> tuple[Tensor, ...]:
        of_input, of_state, *rest = params
        if bias_ih is None or bias_hh is None:
            return of_input, of_state, torch.zeros_like(of_input), *rest
        return of_input, of_state, bias_ih + bias_hh, *rest  # u and r are added, so one bias is enough

    @property
    def _cell(self) -> str:
        if self.layer_norm:
            return cells.lstm_layer_norm.name
        return "lstm_projected" if self.proj_size > 0 else "lstm"
