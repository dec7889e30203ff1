"""A recurrent network in continuous time."""

from collections.abc import Callable
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn import Parameter, init
from torch.nn.utils.rnn import PackedSequence

from rnnkern import parametrizations
from rnnkern.nn import autocast
from rnnkern.nn.options import with_options
from rnnkern.nn.single import SingleLayer
from rnnkern.ops import linear_scan, recurrence

NONLINEARITIES = ("tanh", "identity")


@with_options
class ContinuousRNN(SingleLayer):
    r"""A recurrent network in continuous time with a stable recurrent weight.

    .. math::
        \frac{dh}{dt} = \phi(W h + U x + b), \qquad W = g(M)

    Each step of a sequence is a time dt, in which x stays as it is. One layer and one direction. T steps, B sequences,
    I inputs, H hidden units.

    - :math:`\phi = \tanh`: W (H, H) is symmetric, and a step is one of forward Euler, :math:`h_t = h_{t-1} + dt
      \tanh(W h_{t-1} + U x_t + b)`.
    - The identity: W (H,) is diagonal, which in the basis of its eigenvectors every symmetric one is. A step is exact,
      :math:`h_t = e^{W dt} h_{t-1} + W^{-1} (e^{W dt} - 1) (U x_t + b)`, for every dt, and the sequence one
      :func:`rnnkern.ops.linear_scan`.

    Args:
        input_size, hidden_size: I and H.
        dt: the time of a step.
        nonlinearity: :math:`\phi`, ``"tanh"`` or ``"identity"``.
        stable_map, timescales: how W is kept stable and what it begins with, see
            :func:`rnnkern.parametrizations.stable`; ``timescales`` are in the unit of ``dt``.
        bias: whether there is a b.
        batch_first: input and output are (B, T, .).
        device, dtype: of the parameters.

    Parameters: W ``weight_hh_l0``, parametrized; U ``weight_ih_l0`` (H, I) and b ``bias_ih_l0`` (H,) from
    :math:`U(-H^{-1/2}, H^{-1/2})`.

    Raises:
        ValueError, TypeError: a size or an option is wrong.

    Source: Wang, Li and Li 2024, eq. 3 and section 3.4.

    >>> rnn = rnnkern.nn.ContinuousRNN(3, 8, dt=0.1, nonlinearity="identity", stable_map="softplus")
    >>> output, h_n = rnn(torch.randn(30, 4, 3))
    >>> output.shape, h_n.shape, bool((rnn.weight_hh_l0 < 0).all())
    (torch.Size([30, 4, 8]), torch.Size([4, 8]), True)
    """

    _plain: ClassVar = {
        "dt": 0.1, "nonlinearity": "tanh", "stable_map": "exp", "timescales": (1.0, 100.0), "bias": True,
        "batch_first": False,
    }  # fmt: skip

    def __init__(
        self, input_size: int, hidden_size: int, *, dt: float = 0.1, nonlinearity: str = "tanh",
        stable_map: str = "exp",
        timescales: tuple[float, float] = (1.0, 100.0), bias: bool = True, batch_first: bool = False,
        device: Any = None, dtype: torch.dtype | None = None,
    ) -> None:  # fmt: skip
        sizes = {"input_size": input_size, "hidden_size": hidden_size}
        super().__init__(sizes, {}, {"nonlinearity": (nonlinearity, NONLINEARITIES)})
        if isinstance(dt, bool) or not isinstance(dt, (int, float)):
            raise TypeError(f"dt should be of type float, got: {type(dt).__name__}")
        if not 0 < dt < float("inf"):
            raise ValueError(f"dt must be positive, got {dt}")
        self.dt, self.stable_map, self.timescales = dt, stable_map, tuple(timescales)
        self.bias, self.batch_first = bias, batch_first

        def parameter(*shape: int) -> Parameter:
            return Parameter(torch.empty(shape, device=device, dtype=dtype))

        self.weight_ih_l0 = parameter(hidden_size, input_size)
        self.weight_hh_l0 = parameter(*(hidden_size,) * (1 if nonlinearity == "identity" else 2))
        self.bias_ih_l0 = parameter(hidden_size) if bias else None
        parametrizations.stable(self, "weight_hh_l0", stable_map, timescales=self.timescales)
        self._reset_projection()

    def reset_parameters(self) -> None:
        """Draws all parameters anew."""
        parametrizations.reset_parameters(self, "weight_hh_l0")
        self._reset_projection()

    def _reset_projection(self) -> None:
        for weight in (self.weight_ih_l0, self.bias_ih_l0):
            if weight is not None:
                init.uniform_(weight, -(self.hidden_size**-0.5), self.hidden_size**-0.5)

    def forward(
        self, input: Tensor | PackedSequence, hx: Tensor | None = None, reset: Tensor | None = None
    ) -> tuple[Tensor | PackedSequence, Tensor]:
        """Runs the layer over a sequence.

        Args:
            input: (T, B, I), (B, T, I) with ``batch_first``, (T, I), or a
                :class:`~torch.nn.utils.rnn.PackedSequence`; of the parameters' dtype. T may be 0.
            hx: h_0, (B, H); without B for (T, I). In the caller's batch order. None is zeros.
            reset: bool, (T, B), (B, T) with ``batch_first``, also when packed, (T,) for (T, I). In the caller's
                batch order. Where true a sequence begins at step t.

        Returns:
            The output, h at the end of each step, like ``input`` with H columns, and h_n, like ``hx``.

        Raises:
            ValueError: a shape is wrong.
            TypeError: a type, dtype or device is wrong.
        """
        args, options = self._call(input, hx, reset)
        h, last = self._operator(*args, **options)
        return self._returned(input, h), self._returned_state(input, (last,) if isinstance(last, Tensor) else last)[0]

    @property
    def _operator(self) -> Callable:
        return linear_scan if self.nonlinearity == "identity" else recurrence

    def _call(self, input, hx, reset) -> tuple[tuple, dict[str, Any]]:
        if hx is not None and not isinstance(hx, Tensor):
            raise TypeError(f"ContinuousRNN: `hx` must be a tensor, got {type(hx).__name__}")
        x, states, batch_sizes, reset = self._time_first(input, None if hx is None else (hx,), reset)
        options = {"batch_sizes": batch_sizes, "reset": reset}
        U, W, b = self.weight_ih_l0, self.weight_hh_l0, self.bias_ih_l0
        if self.nonlinearity == "identity":
            factors, integrals = parametrizations.zero_order_hold(W, self.dt)
            u = F.linear(x, integrals[:, None] * U, None if b is None else integrals * b)
            return (factors, u.to(self._dtype), *states), options
        dt = W.new_full((self.hidden_size,), self.dt)
        weights = {"R": W, "state": states, "weight_ih": U, "bias_ih": b, "params": (dt,)}
        x, weights = autocast.cast(x, weights)
        return ("euler", x), weights | options

    def _zeros(self, x: Tensor, batch: int) -> tuple[Tensor]:
        return (x.new_zeros(batch, self.hidden_size, dtype=self._dtype),)
