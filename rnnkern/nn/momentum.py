"""Networks that read their input with momentum, by name."""

from typing import Unpack

from rnnkern.nn.filters import Momentum
from rnnkern.nn.lstm import LSTM
from rnnkern.nn.options import LayerOptions, LSTMOptions, with_options
from rnnkern.nn.rnn import RNN


@with_options
class MomentumRNN(RNN):
    r"""Elman's network with momentum: :class:`RNN` with ``filter=Momentum(mu, s)``.

    .. math::
        v_t &= \mu v_{t-1} + s \, (W x_t + b_{ih}) \\
        h_t &= \phi(v_t + R h_{t-1} + b_{hh})

    Args:
        input_size, hidden_size, num_layers: I, H and the layers.
        mu, s: momentum and step; as published for MNIST pixel by pixel, of which the permuted one has s = 1.
        options: all others of :class:`RNN`.

    The state is (h, v), each (layers * directions, B, H); h alone begins with v = 0.

    Raises:
        ValueError, TypeError: as RNN.

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
    r"""An LSTM with momentum: :class:`LSTM` with ``filter=Momentum(mu, s)``.

    .. math::
        v_t &= \mu v_{t-1} + s \, (W x_t + b_{ih}) \\
        i, f, g, o &= v_t + R h_{t-1} + b_{hh}

    Args:
        input_size, hidden_size, num_layers: I, H and the layers.
        mu, s: momentum and step; as published for MNIST pixel by pixel, of which the permuted one has s = 1.
        options: all others of :class:`LSTM`, but for ``layer_norm``.

    The state is (h, c, v), v (layers * directions, B, 4*H); (h, c) begins with v = 0.

    Raises:
        ValueError, TypeError: as LSTM.

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
