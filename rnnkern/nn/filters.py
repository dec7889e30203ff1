"""Filters of the input projection, each named after the optimizer whose update it is."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from rnnkern.ops import linear_scan, moment_filter


@dataclass(frozen=True)
class Filter:
    """What the ``filter`` option of RNN, LSTM and GRU takes: :class:`Momentum`, :class:`Adam`, :class:`RMSprop` or
    :class:`NAG`."""

    states: ClassVar[tuple[str, ...]] = ()
    """What is carried from step to step, in the order in which a layer returns it."""
    linear: ClassVar[bool] = False
    """Whether it can be applied to the I columns of the input in place of the G*H of the projection."""

    def __post_init__(self) -> None:
        name = type(self).__name__
        for field in fields(self):
            value = getattr(self, field.name)
            number = int if field.type is int else (int, float)
            if isinstance(value, bool) or not isinstance(value, number):
                wanted = "an int" if field.type is int else "a number"
                raise TypeError(f"{name}: `{field.name}` must be {wanted}, got {value!r}")
            if field.name in ("mu", "beta") and not 0 <= value < 1:
                raise ValueError(f"{name}: `{field.name}` must be in [0, 1), got {value}")
            if field.name in ("s", "restart_every") and value <= 0:
                raise ValueError(f"{name}: `{field.name}` must be positive, got {value}")

    def __call__(
        self, u: Tensor, state: Sequence[Tensor], batch_sizes: Tensor | None, reset: Tensor | None, reverse: bool
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """What takes the place of u, like it, and the filter's final state, each (B, G*H). ``state`` is () for zero."""
        before = {f"{name}0": part.to(_wide(u)) for name, part in zip(self.states, state, strict=False)}
        rule = {"mu": getattr(self, "mu", 0.0), "s": self.s, "beta": getattr(self, "beta", None)}
        y, v, q = moment_filter(u, **before, **rule, batch_sizes=batch_sizes, reset=reset, reverse=reverse)
        last = {"v": v, "q": q}
        return y, tuple(last[name] for name in self.states)

    def prologue(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, batch_sizes: Tensor | None, reset: Tensor | None,
        reverse: bool,
    ) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:  # fmt: skip
        """Of a linear filter, from a state of zero: a filtered input and a weight, of which the product is the filtered
        projection, and the final state. The bias is a column beside an input of 1."""
        dtype = x.dtype
        x = x.to(_wide(x))
        if bias is not None:
            x = torch.cat([x, x.new_ones(*x.shape[:-1], 1)], dim=-1)
            weight = torch.cat([weight, bias.unsqueeze(1)], dim=1)
        weight = self.s * weight
        z, last = self._filter_input(x, batch_sizes, reset, reverse)
        with torch.autocast(x.device.type, enabled=False):
            return z.to(dtype), weight, tuple(F.linear(part, weight.to(part.dtype)) for part in last)

    def _filter_input(self, x, batch_sizes, reset, reverse) -> tuple[Tensor, tuple[Tensor, ...]]:
        raise NotImplementedError


@dataclass(frozen=True)
class Momentum(Filter):
    r"""Momentum, :math:`v_t = \mu v_{t-1} + s u_t`, which the cell reads in place of :math:`u_t = W x_t + b_{ih}`.

    Args:
        mu: :math:`\mu`, in [0, 1).
        s: the step size, positive.

    The layer's state goes on with v, (num_layers * directions, B, G*H).

    Raises:
        TypeError: a value is no number.
        ValueError: a value is out of its range.

    Source: Nguyen et al. 2020.

    >>> from rnnkern.nn.filters import Momentum
    >>> lstm = rnnkern.nn.LSTM(10, 20, filter=Momentum(mu=0.6, s=1.0))
    >>> output, (h_n, c_n, v_n) = lstm(torch.randn(4, 3, 10))
    """

    mu: float
    s: float
    states, linear = ("v",), True

    def _filter_input(self, x, batch_sizes, reset, reverse):
        batch = x.shape[1] if batch_sizes is None else int(batch_sizes[0])
        mu, v0 = x.new_full(x.shape[-1:], self.mu), x.new_zeros(batch, x.shape[-1])
        z, last = linear_scan(mu, x, v0, batch_sizes=batch_sizes, reset=reset, reverse=reverse)
        return z, (last,)


@dataclass(frozen=True)
class Adam(Filter):
    r"""Adam without its bias correction: the cell reads :math:`v_t / \sqrt{q_t + \epsilon}`.

    .. math::
        v_t &= \mu v_{t-1} + s u_t \\
        q_t &= \beta q_{t-1} + (1 - \beta) u_t^2

    Args:
        mu: :math:`\mu`, in [0, 1).
        s: the step size, positive.
        beta: :math:`\beta`, in [0, 1).

    :math:`\epsilon = 0.01`; the published cell has 1e-16. The layer's state goes on with v and q, each (num_layers *
    directions, B, G*H).

    Raises:
        TypeError: a value is no number.
        ValueError: a value is out of its range.

    Source: Nguyen et al. 2020.

    >>> from rnnkern.nn.filters import Adam
    >>> output, (h_n, v_n, q_n) = rnnkern.nn.GRU(10, 20, filter=Adam(0.6, 0.6, 0.99))(torch.randn(4, 3, 10))
    """

    mu: float
    s: float
    beta: float
    states = ("v", "q")


@dataclass(frozen=True)
class RMSprop(Filter):
    r"""RMSprop: the cell reads :math:`s u_t / \sqrt{q_t + \epsilon}`, :math:`q_t = \beta q_{t-1} + (1 - \beta) u_t^2`.

    Args:
        s: the step size, positive.
        beta: :math:`\beta`, in [0, 1).

    :math:`\epsilon = 0.01`; the published cell has 1e-16. The layer's state goes on with q, (num_layers * directions,
    B, G*H).

    Raises:
        TypeError: a value is no number.
        ValueError: a value is out of its range.

    Source: Nguyen et al. 2020.

    >>> from rnnkern.nn.filters import RMSprop
    >>> output, (h_n, q_n) = rnnkern.nn.RNN(10, 20, filter=RMSprop(0.6, beta=0.9))(torch.randn(4, 3, 10))
    """

    s: float
    beta: float
    states = ("q",)


@dataclass(frozen=True)
class NAG(Filter):
    r"""Nesterov's accelerated gradient with scheduled restarts: the cell reads an extrapolation of :math:`y_t = s u_t`.

    .. math::
        y_t + \frac{k - 1}{k + 2} (y_t - y_{t-1}), \qquad k = 1, 2, \dots, \text{restart\_every}, 1, \dots

    Args:
        s: the step size, positive.
        restart_every: the steps after which k begins again; also with each episode and each call.

    Nothing is carried from call to call.

    Raises:
        TypeError: ``s`` is no number or ``restart_every`` no int.
        ValueError: a value is not positive.

    Source: Nguyen et al. 2020; their code extrapolates R h too.

    >>> from rnnkern.nn.filters import NAG
    >>> output, h_n = rnnkern.nn.RNN(10, 20, filter=NAG(0.6, restart_every=10))(torch.randn(4, 3, 10))
    """

    s: float
    restart_every: int
    linear = True

    def _filter_input(self, x, batch_sizes, reset, reverse):
        factors = _restarting(self.restart_every, x, batch_sizes, reset, reverse)
        before = torch.where(factors == 0, x, _step_before(x, batch_sizes, reverse))
        return x + factors * (x - before), ()


def _wide(x: Tensor) -> torch.dtype:
    """16 bits have no 1 - beta."""
    return torch.float32 if x.dtype in (torch.bfloat16, torch.float16) else x.dtype


def _step_before(x: Tensor, batch_sizes: Tensor | None, reverse: bool) -> Tensor:
    """Each row's x one step earlier in processing order; where a sequence begins, any."""
    if batch_sizes is None:
        return torch.cat([x[1:], x[-1:]] if reverse else [x[:1], x[:-1]])
    sizes = batch_sizes.to(x.device)
    row, begins = torch.arange(len(x), device=x.device), torch.cat([sizes.new_zeros(1), sizes.cumsum(0)])
    step = torch.repeat_interleave(sizes, output_size=len(x))
    if reverse:
        later = row + sizes[step]
        return x[torch.where(later < begins[(step + 2).clamp(max=len(sizes))], later, row)]
    return x[torch.where(step > 0, row - sizes[step - 1], row)]


def _restarting(every: int, u: Tensor, batch_sizes: Tensor | None, reset: Tensor | None, reverse: bool) -> Tensor:
    """Nesterov's (k - 1) / (k + 2), like ``u``, k = 1, 2, ... ``every``, 1 and so on from where a sequence, or an
    episode, begins."""
    steps, batch = u.shape[:2] if batch_sizes is None else (len(batch_sizes), int(batch_sizes[0]))
    t = torch.arange(steps, device=u.device).unsqueeze(1)
    alive = torch.ones(steps, batch, dtype=torch.bool, device=u.device)
    if batch_sizes is not None:
        alive = torch.arange(batch, device=u.device) < batch_sizes.to(u.device).unsqueeze(1)
    done = alive.sum(0) - 1 - t if reverse else t.expand(steps, batch)  # steps of the sequence before this one
    if reset is not None:
        begun = torch.where(reset, done, 0)
        done = done - (begun.flip(0).cummax(0).values.flip(0) if reverse else begun.cummax(0).values)
    k = done % every + 1
    factors = ((k - 1) / (k + 2)).to(u.dtype)
    return (factors if batch_sizes is None else factors[alive]).unsqueeze(-1).expand_as(u)
