"""ContinuousRNN is a layer whose state follows a differential equation between the steps of a sequence."""

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, Never

import torch
from torch import Tensor
from torch.fx import Proxy
from torch.nn.utils.rnn import PackedSequence

from rnnkern import cells, parametrizations
from rnnkern.nn import autocast
from rnnkern.nn.ecosystem import refuse_or_trace
from rnnkern.nn.options import with_options
from rnnkern.nn.recurrent import in_time_order
from rnnkern.nn.single import SingleLayer, check_positive, empty_parameter, uniform_
from rnnkern.ops import linear_scan, recurrence
from rnnkern.ops._recurrence.linear import linear
from rnnkern.ops.checks import runs

NONLINEARITIES, METHODS = ("tanh", "identity"), ("euler", "adams")


@with_options
class ContinuousRNN(SingleLayer):
    r"""Continuous-time recurrent network with a stable recurrent weight.

    .. math::
        \frac{dh}{dt} = \phi(W h + U x + b), \qquad W = g(M)

    Each step of a sequence lasts a time dt, during which x is constant. The module has one layer and one direction. T
    is the number of time steps, B the batch size, I the input size and H the hidden size.

    - :math:`\phi = \tanh`: W (H, H) is symmetric. A step is a forward Euler step, :math:`h_t = h_{t-1} + dt \tanh(W
      h_{t-1} + U x_t + b)`, or one of the second-order method ``"adams"``, or K of them, each of length dt / K.
    - :math:`\phi` the identity: W (H,) is diagonal, which loses no generality, since every symmetric W is diagonal in
      the basis of its eigenvectors. A step is the exact solution for every dt, :math:`h_t = e^{W dt} h_{t-1} + W^{-1}
      (e^{W dt} - 1) (U x_t + b)`, and :func:`rnnkern.ops.linear_scan` computes the sequence.

    Args:
        input_size, hidden_size: I and H.
        dt: duration of a step.
        nonlinearity: :math:`\phi`, ``"tanh"`` or ``"identity"``.
        method: for tanh, ``"euler"``, or ``"adams"``, the two-step Adams-Bashforth method, which also has one product a
            step. Its state is (h, k), k the last derivative; after a reset its first step is 1.5 times as long.
        steps: K, for tanh: the steps of the method in each dt, for which x stays the same.
        stable_map, timescales: the map g that keeps W stable, and the range of time constants for its initialization;
            see :func:`rnnkern.parametrizations.stable`. ``timescales`` have the unit of ``dt``.
        bias: if False, there is no b.
        batch_first: if True, input and output have shape (B, T, features) instead of (T, B, features).
        device, dtype: device and dtype of the parameters.

    Parameters: W is ``weight_hh_l0``, parametrized; U is ``weight_ih_l0`` (H, I) and b is ``bias_ih_l0`` (H,), both
    initialized from :math:`U(-H^{-1/2}, H^{-1/2})`.

    Raises:
        ValueError, TypeError: a size or an option has a wrong value or type.

    Source: Wang, Li and Li 2024, eq. 3 and section 3.4.

    >>> rnn = rnnkern.nn.ContinuousRNN(3, 8, dt=0.1, nonlinearity="identity", stable_map="softplus")
    >>> output, h_n = rnn(torch.randn(30, 4, 3))
    >>> output.shape, h_n.shape, bool((rnn.weight_hh_l0 < 0).all())
    (torch.Size([30, 4, 8]), torch.Size([4, 8]), True)
    """

    _plain: ClassVar = {
        "dt": 0.1, "nonlinearity": "tanh", "method": "euler", "steps": 1, "stable_map": "exp",
        "timescales": (1.0, 100.0), "bias": True, "batch_first": False,
    }  # fmt: skip

    def __init__(
        self, input_size: int, hidden_size: int, *, dt: float = 0.1, nonlinearity: str = "tanh",
        method: str = "euler", steps: int = 1, stable_map: str = "exp",
        timescales: tuple[float, float] = (1.0, 100.0), bias: bool = True, batch_first: bool = False,
        device: Any = None, dtype: torch.dtype | None = None,
    ) -> None:  # fmt: skip
        sizes = {"input_size": input_size, "hidden_size": hidden_size, "steps": steps}
        choices = {"nonlinearity": (nonlinearity, NONLINEARITIES), "method": (method, METHODS)}
        super().__init__(sizes, choices)
        if nonlinearity == "identity" and (method, steps) != ("euler", 1):
            raise ValueError(
                "ContinuousRNN: `method` and `steps` must be 'euler' and 1 with nonlinearity = 'identity', whose step "
                f"is exact, got {method!r} and {steps}"
            )
        check_positive("dt", dt)
        self.dt, self.stable_map, self.timescales = dt, stable_map, tuple(timescales)
        self.bias, self.batch_first = bias, batch_first
        parameter = partial(empty_parameter, device=device, dtype=dtype)
        self.weight_ih_l0 = parameter(hidden_size, input_size)
        self.weight_hh_l0 = parameter(*(hidden_size,) * (1 if nonlinearity == "identity" else 2))
        self.bias_ih_l0 = parameter(hidden_size) if bias else None
        parametrizations.stable(self, "weight_hh_l0", stable_map, timescales=self.timescales)
        uniform_(hidden_size, self.weight_ih_l0, self.bias_ih_l0)

    def reset_parameters(self) -> None:
        """Initializes all parameters again."""
        parametrizations.reset_parameters(self, "weight_hh_l0")
        uniform_(self.hidden_size, self.weight_ih_l0, self.bias_ih_l0)

    def forward(
        self, input: Tensor | PackedSequence, hx: Tensor | tuple[Tensor, Tensor] | None = None,
        reset: Tensor | None = None, gaps: Tensor | None = None, **unknown: Never,
    ) -> tuple[Tensor | PackedSequence, Tensor | tuple[Tensor, Tensor]]:  # fmt: skip
        """Runs the layer over a sequence.

        Args:
            input, reset: as in :meth:`rnnkern.nn.RNN.forward`.
            hx: h_0 of shape (B, H), or (H,) for unbatched input, in the caller's batch order. None means zeros. With
                ``method="adams"`` also (h_0, k_0), which an earlier call returned; without k_0 the first step is one of
                Euler.
            gaps: the duration of each step, in place of ``dt``: shape as that of ``reset``, dtype of the parameters, at
                least 0 and finite. With 0 the state stays the same, to the bit. Not with ``method="adams"``, whose
                formula is for equal steps.

        Returns:
            The output, which is h at the end of each step, shaped like ``input`` with H columns, and h_n, shaped like
            ``hx``; with ``method="adams"`` (h_n, k_n).

        Raises:
            ValueError: a tensor has the wrong shape, a gap on a CPU is negative, infinite or NaN, or the method takes
                no gaps.
            TypeError: an argument has the wrong type, dtype or device.
        """
        if isinstance(input, Proxy) or isinstance(hx, Proxy) or unknown:
            return refuse_or_trace(self, unknown, input, hx, reset, gaps)
        args, options = self._call(input, hx, reset, gaps)
        h, last = self._operator(*args, **options)
        if self.steps > 1:
            h = _last_of_each(h, self.steps, options["batch_sizes"])
        state = self._returned_state(input, (last,) if isinstance(last, Tensor) else last)
        return self._returned(input, h), state if self.method == "adams" else state[0]

    @property
    def _operator(self) -> Callable:
        return linear_scan if self.nonlinearity == "identity" else recurrence

    def _call(self, input, hx, reset, gaps=None) -> tuple[tuple, dict[str, Any]]:
        adams = self.method == "adams"
        state = (hx,) if isinstance(hx, Tensor) else hx
        if state is not None and not (
            isinstance(state, tuple) and len(state) <= 1 + adams and all(isinstance(s, Tensor) for s in state)
        ):
            wanted = "a tensor or a pair of tensors" if adams else "a tensor"
            raise TypeError(f"ContinuousRNN: `hx` must be {wanted}, got {type(hx).__name__}")
        x, states, batch_sizes, reset = self._time_first(input, state, reset)
        options = {"batch_sizes": batch_sizes, "reset": reset}
        U, W, b = self.weight_ih_l0, self.weight_hh_l0, self.bias_ih_l0
        if gaps is not None:
            gaps = self._gaps_of_rows(gaps, input, batch_sizes)
        if self.nonlinearity == "identity":
            factors, integrals = parametrizations.zero_order_hold(W, self.dt if gaps is None else gaps)
            if gaps is None:
                u = linear(x, integrals[:, None] * U, None if b is None else integrals * b)
            else:
                u = integrals * linear(x, U, b)
            return (factors, u.to(self._dtype), *states), options
        if adams and len(states) == 1:
            states = (*states, self._first_derivative(x, *states, batch_sizes))
        if gaps is not None:
            u = linear(x, U, b)
            u = torch.cat([u, (gaps / self.steps).to(u.dtype).expand_as(u)], -1)
            if self.steps > 1:
                u, options = _each_repeated(u, self.steps, **options)
            u, weights = autocast.cast(u, {"R": W, "state": states})
            return (cells.euler_gap, u), weights | options
        if self.steps > 1:
            x, options = _each_repeated(x, self.steps, **options)
        dt = W.new_full((self.hidden_size,), self.dt / self.steps)
        weights = {"R": W, "state": states, "weight_ih": U, "bias_ih": b, "params": (dt,)}
        x, weights = autocast.cast(x, weights)
        return (cells.adams if adams else "euler", x), weights | options

    def _gaps_of_rows(self, gaps: Tensor, input: Tensor | PackedSequence, batch_sizes: Tensor | None) -> Tensor:
        """Gaps in the order of the rows of the input, with time first: (T, B, 1), or packed."""
        if self.method == "adams":
            raise ValueError("ContinuousRNN: `gaps` need method='euler', got method='adams', whose steps are equal")
        if not isinstance(gaps, Tensor) or gaps.dtype != self._dtype:
            told = gaps.dtype if isinstance(gaps, Tensor) else type(gaps).__name__
            raise TypeError(f"ContinuousRNN: `gaps` must be a tensor with dtype {self._dtype}, got {told}")
        gaps = in_time_order(self, "gaps", gaps, input)
        if gaps.device.type == "cpu" and not torch.compiler.is_compiling():
            wrong = gaps[~((gaps >= 0) & (gaps < float("inf")))]
            if wrong.numel():
                raise ValueError(f"ContinuousRNN: `gaps` must be at least 0 and finite, got {wrong[0].item()}")
        return (gaps if batch_sizes is None else gaps[runs(batch_sizes, gaps.device)]).unsqueeze(-1)

    def _first_derivative(self, x: Tensor, h: Tensor, batch_sizes: Tensor | None) -> Tensor:
        """dh/dt at the beginning, with which the first step of Adams' method is one of Euler; zeros for T = 0."""
        if not len(x):
            return torch.zeros_like(h)
        first = x[0] if batch_sizes is None else x[: len(h)]
        return torch.tanh(linear(first, self.weight_ih_l0, self.bias_ih_l0) + linear(h, self.weight_hh_l0))


def _each_repeated(
    x: Tensor, steps: int, batch_sizes: Tensor | None, reset: Tensor | None
) -> tuple[Tensor, dict[str, Any]]:
    """Repeats each step of a sequence, (T, B, I) or packed, so many times; only the first can have a reset."""
    if reset is not None:
        reset = torch.stack([reset, *[torch.zeros_like(reset)] * (steps - 1)], 1).flatten(0, 1)
    if batch_sizes is None:
        return x.repeat_interleave(steps, 0), {"batch_sizes": None, "reset": reset}
    sizes = batch_sizes.repeat_interleave(steps)
    begins, shifts = (batch_sizes.cumsum(0) - batch_sizes).repeat_interleave(steps), sizes.cumsum(0) - sizes
    rows = torch.arange(len(x) * steps) + (begins - shifts).repeat_interleave(sizes)
    return x.index_select(0, rows.to(x.device)), {"batch_sizes": sizes, "reset": reset}


def _last_of_each(h: Tensor, steps: int, batch_sizes: Tensor | None) -> Tensor:
    """The results of the last of the repetitions of :func:`_each_repeated`."""
    if batch_sizes is None:
        return h[steps - 1 :: steps]
    last = (torch.arange(len(batch_sizes)) % steps == steps - 1).repeat_interleave(batch_sizes)
    return h.index_select(0, last.nonzero().squeeze(1).to(h.device))
