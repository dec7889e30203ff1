"""MomentumRNN and MomentumLSTM: shorthands for RNN and LSTM with a momentum filter."""

from typing import Unpack

from rnnkern.nn.filters import Momentum
from rnnkern.nn.lstm import LSTM
from rnnkern.nn.options import LayerOptions, LSTMOptions, with_options
from rnnkern.nn.rnn import RNN


@with_options
class MomentumRNN(RNN):
    r"""Elman network with momentum: :class:`RNN` with ``filter=Momentum(mu, s)``.

    .. math::
        v_t &= \mu v_{t-1} + s \, (W x_t + b_{ih}) \\
        h_t &= \phi(v_t + R h_{t-1} + b_{hh})

    Args:
        input_size, hidden_size, num_layers: I, H and the number of layers.
        mu, s: momentum and step size. The defaults are the published values for pixel-by-pixel MNIST; for permuted
            MNIST the paper uses s = 1.
        options: all other options of :class:`RNN`.

    The state is the tuple (h, v), each (num_layers * directions, B, H). If you pass only h, v starts at 0.

    Raises:
        ValueError, TypeError: as for RNN.

    Source: Nguyen et al. 2020.

    >>> rnn = rnnkern.nn.MomentumRNN(10, 20, mu=0.9)
    >>> output, (h_n, v_n) = rnn(torch.randn(4, 3, 10))
    >>> output.shape, v_n.shape
    (torch.Size([4, 3, 20]), torch.Size([1, 3, 20]))
    """

    _sets = ("filter",)

    def __init__(
        self, input_size: int, hidden_size: int, num_layers: int = 1, *, mu: float = 0.6, s: float = 0.6,
        nonlinearity: str = "tanh", bias: bool = True, **options: Unpack[LayerOptions],
    ) -> None:  # fmt: skip
        super().__init__(input_size, hidden_size, num_layers, nonlinearity, bias, filter=Momentum(mu, s), **options)


@with_options
class MomentumLSTM(LSTM):
    r"""LSTM with momentum: :class:`LSTM` with ``filter=Momentum(mu, s)``.

    .. math::
        v_t &= \mu v_{t-1} + s \, (W x_t + b_{ih}) \\
        i, f, g, o &= v_t + R h_{t-1} + b_{hh}

    Args:
        input_size, hidden_size, num_layers: I, H and the number of layers.
        mu, s: momentum and step size. The defaults are the published values for pixel-by-pixel MNIST; for permuted
            MNIST the paper uses s = 1.
        options: all other options of :class:`LSTM` except ``layer_norm``.

    The state is the tuple (h, c, v), where v has shape (num_layers * directions, B, 4*H). If you pass only (h, c), v
    starts at 0.

    Raises:
        ValueError, TypeError: as for LSTM.

    Source: Nguyen et al. 2020.

    >>> lstm = rnnkern.nn.MomentumLSTM(10, 20)
    >>> output, (h_n, c_n, v_n) = lstm(torch.randn(4, 3, 10))
    >>> output.shape, v_n.shape
    (torch.Size([4, 3, 20]), torch.Size([1, 3, 80]))
    """

    _sets = ("filter",)

    def __init__(
        self, input_size: int, hidden_size: int, num_layers: int = 1, *, mu: float = 0.6, s: float = 0.6,
        **options: Unpack[LSTMOptions],
    ) -> None:  # fmt: skip
        super().__init__(input_size, hidden_size, num_layers, filter=Momentum(mu, s), **options)
