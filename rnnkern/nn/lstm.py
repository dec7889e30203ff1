"""Long short-term memory."""

import torch

from rnnkern.nn.layer_norm import LayerNormed


class LSTM(LayerNormed, torch.nn.LSTM):
    r"""Long short-term memory over a sequence, in place of :class:`torch.nn.LSTM`.

    .. math::
        i, f, g, o &= W x_t + b_{ih} + R h_{t-1} + b_{hh} \\
        c_t &= \sigma(f) c_{t-1} + \sigma(i) \tanh(g) \\
        h_t &= \sigma(o) \tanh(c_t)

    With ``layer_norm``, LN the norm over all G*H = 4*H values of a step, or the H of c:

    .. math::
        i, f, g, o &= \mathrm{LN}(W x_t) + b_{ih} + \mathrm{LN}(R h_{t-1}) + b_{hh} \\
        h_t &= \sigma(o) \tanh(\mathrm{LN}(c_t))

    Arguments, parameters, initial values, shapes and errors are those of :class:`torch.nn.LSTM`, plus ``num_heads``,
    ``layer_norm``, ``zoneout``, ``recurrent_dropout`` and ``reset``. T steps, B sequences, I inputs, H hidden units, K
    heads of D = H / K units.

    Args:
        input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, proj_size, device, dtype: as in
            torch.nn. ``proj_size`` P gives :math:`W_{hr} h_t`, P columns, in place of h; it has a kernel on a CPU; on
            a GPU the reference runs (:func:`rnnkern.ops.explain` says so).
        num_heads: K > 1 makes R block-diagonal, ``weight_hh_l{k}`` (K, 4*D, D). Unit k*D+d of the layer is unit d of
            head k.
        layer_norm: normalise the products with W and R and what h is made of c. The gains ``weight_ln_ih_l{k}`` and
            ``weight_ln_hh_l{k}`` (4*H,) and ``weight_ln_c_l{k}`` (H,) begin at 1, ``bias_ln_c_l{k}`` (H,) at 0; b_ih
            and b_hh are the other norms' biases; eps is 1e-5. It has a kernel on a CPU; on a GPU the reference runs.
        zoneout: probability in [0, 1) with which a unit of the state keeps its old value at a step, or a pair of them,
            for h and c; in evaluation the mean of the old value and the new (Krueger et al. 2017).
        recurrent_dropout: probability in [0, 1) with which R does not see a unit of h, the same units at all steps of a
            sequence, the others times 1 / (1 - p) (Gal and Ghahramani 2016); none in evaluation. Both are drawn
            in the kernel from a seed of torch's generator, and again in the backward: no mask is kept.

    Raises:
        ValueError, TypeError: ``num_heads`` does not divide ``hidden_size`` or stands beside ``proj_size``; a rate is
            not in [0, 1); ``layer_norm`` stands beside ``num_heads`` or ``proj_size``.
        As torch.nn: every other wrong argument.

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

    @property
    def _cell(self) -> str:
        if self.layer_norm:
            return "lstm_layer_norm"
        return "lstm_projected" if self.proj_size > 0 else "lstm"
