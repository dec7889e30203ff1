"""Long short-term memory."""

import torch

from rnnkern.nn.recurrent import Recurrent


class LSTM(Recurrent, torch.nn.LSTM):
    r"""Long short-term memory over a sequence, in place of :class:`torch.nn.LSTM`.

    .. math::
        i, f, g, o &= W x_t + b_{ih} + R h_{t-1} + b_{hh} \\
        c_t &= \sigma(f) c_{t-1} + \sigma(i) \tanh(g) \\
        h_t &= \sigma(o) \tanh(c_t)

    Arguments, parameters, initial values, shapes and errors are those of :class:`torch.nn.LSTM`, plus ``num_heads``
    and ``reset``. T steps, B sequences, I inputs, H hidden units, K heads of D = H / K units.

    Args:
        input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, proj_size, device, dtype: as in
            torch.nn. ``proj_size`` P gives :math:`W_{hr} h_t`, P columns, in place of h; it has a kernel on a CPU, and on
            a GPU the reference runs (:func:`rnnkern.ops.explain` says so).
        num_heads: K > 1 makes R block-diagonal, ``weight_hh_l{k}`` (K, 4*D, D). Unit k*D+d of the layer is unit d of
            head k.

    Raises:
        ValueError, TypeError: ``num_heads`` does not divide ``hidden_size`` or stands beside ``proj_size``.
        As torch.nn: every other wrong argument.

    Source: Hochreiter and Schmidhuber 1997; gates as in Gers et al. 2000; ``proj_size`` Sak et al. 2014.

    >>> lstm = LSTM(10, 20, num_layers=2, num_heads=4)
    >>> output, (h_n, c_n) = lstm(torch.randn(5, 3, 10))
    >>> output.shape, c_n.shape, lstm.weight_hh_l0.shape
    (torch.Size([5, 3, 20]), torch.Size([2, 3, 20]), torch.Size([4, 20, 5]))
    """

    @property
    def _cell(self) -> str:
        return "lstm_projected" if self.proj_size > 0 else "lstm"
