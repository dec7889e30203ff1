"""Filters of the input projection apply the update rules of the optimizers that they are named after.

Source: Nguyen et al. 2020.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from rnnkern.nn import autocast
from rnnkern.ops import linear_scan, moment_filter
from rnnkern.ops._recurrence.linear import linear
from rnnkern.ops.checks import runs


class FilteredInput(NamedTuple):
    """What a linear filter carries from step to step where it filters the input, of I columns, or I + 1 with a bias."""

    last: Tensor  # (B, columns): Momentum's filtered input of the last step, or NAG's input
    steps: Tensor  # (B,) int64: the number of steps since the sequence began


@dataclass(frozen=True)
class Filter:
    """Base class of the filters. A filter transforms the input projection u before the recurrence reads it."""

    states: ClassVar[tuple[str, ...]] = ()
    """Number of tensors carried from step to step: the running moments v and q."""
    linear: ClassVar[bool] = False
    """Whether the filter is linear, so that it can filter the I columns of x instead of the G*H columns of u."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value, wanted = getattr(self, field.name), int if field.type is int else (int, float)
            if isinstance(value, bool) or not isinstance(value, wanted):
                of = "an int" if wanted is int else "a number"
                raise TypeError(f"{type(self).__name__}: `{field.name}` must be {of}, got {value!r}")
            least, most = {"s": (math.ulp(0.0), math.inf), "restart_every": (1, math.inf)}.get(field.name, (0, 1))
            if not least <= value < most:
                limits = {"s": "positive", "restart_every": "at least 1"}.get(field.name, "in [0, 1)")
                raise ValueError(f"{type(self).__name__}: `{field.name}` must be {limits}, got {value!r}")

    def __call__(
        self, u: Tensor, state: Sequence[Tensor], batch_sizes: Tensor | None, reset: Tensor | None, reverse: bool
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """The filtered u and the final state of the filter, each (B, G*H). An empty ``state`` means zeros."""
        kept = [name in self.states for name in ("v", "q")]
        before = [part.to(_wide(u)) for part in state]
        if state and kept == [False, True]:
            before = [torch.zeros_like(before[0]), *before]
        y, last = moment_filter(
            u, before or None, mu=self.mu, s=self.s, beta=self.beta, batch_sizes=batch_sizes,
            reset=reset, reverse=reverse,
        )  # fmt: skip
        return y, tuple(part for part, keep in zip(last, kept, strict=False) if keep)

    def project(self, x: Tensor, call: dict, reverse: bool) -> tuple[Tensor, dict[str, Any], tuple[Tensor, ...]]:
        """The operator's input and its other arguments for one direction, and the final state of the filter. A linear
        filter from a state of zeros filters the input instead of the projection; its state may also be a
        :class:`FilteredInput`, and then the final state is one too."""
        W, b, state = (call.pop(name) for name in ("weight_ih", "bias_ih", "filtered"))
        options = {"batch_sizes": call["batch_sizes"], "reset": call["reset"], "reverse": reverse}
        if self.linear and (not state or isinstance(state, FilteredInput)):
            x, W, kept = self._prologue(x, W, b, state or None, **options)
            return x, call | {"weight_ih": W}, kept

        def filtered(x: Tensor, W: Tensor, b: Tensor | None, *state: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
            return self(linear(x, W, b), state, **options)

        u, kept = filtered(x, W, b, *state)
        save_u = autocast.recomputed(lambda *inputs: filtered(*inputs)[0], x, W, b, *state)
        return u, call | {"save_u": save_u}, kept

    def first_input(self, h: Tensor, weight: Tensor, bias: Tensor | None) -> FilteredInput:
        """The state of zeros of a linear filter, for as many sequences as ``h`` (B, H) has."""
        columns = weight.shape[1] + (bias is not None)
        return FilteredInput(h.new_zeros(len(h), columns, dtype=_wide(h)), h.new_zeros(len(h), dtype=torch.int64))

    def moments(self, state: tuple[Tensor, ...], weight: Tensor, bias: Tensor | None) -> tuple[Tensor, ...]:
        """A final state as ``forward`` returns it."""
        if not isinstance(state, FilteredInput):
            return state
        if not self.states:
            return ()
        weight = self.s * (weight if bias is None else torch.cat([weight, bias.unsqueeze(1)], dim=1))
        return (F.linear(state.last, weight.to(state.last.dtype)),)

    def _prologue(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, begun: FilteredInput | None,
        batch_sizes: Tensor | None, reset: Tensor | None, reverse: bool,
    ) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:  # fmt: skip
        """From a state of zeros or ``begun``: a filtered input and a weight whose product is the filtered projection,
        and the final state. The bias is one more column, for an input of 1."""
        dtype = x.dtype
        x = x.to(_wide(x))
        if bias is not None:
            x = torch.cat([x, x.new_ones(*x.shape[:-1], 1)], dim=-1)
            weight = torch.cat([weight, bias.unsqueeze(1)], dim=1)
        weight = self.s * weight
        options = {"batch_sizes": batch_sizes, "reset": reset, "reverse": reverse}
        if isinstance(self, NAG):
            factors = _restarting(self.restart_every, x, begun, **options)
            before = torch.where(factors == 0, x, _step_before(x, begun, batch_sizes, reverse))
            kept = FilteredInput(torch.cat([begun.last[None], x])[-1], begun.steps + len(x)) if begun else ()
            return (x + factors * (x - before)).to(dtype), weight, kept
        first = begun.last if begun else _zeros(x, batch_sizes)
        z, last = linear_scan(x.new_full(x.shape[-1:], self.mu), x, first, **options)
        if begun:
            return z.to(dtype), weight, begun._replace(last=last)
        with torch.autocast(x.device.type, enabled=False):
            return z.to(dtype), weight, (F.linear(last, weight.to(last.dtype)),)


@dataclass(frozen=True)
class Momentum(Filter):
    r"""Momentum: replaces :math:`u_t` by :math:`v_t = \mu v_{t-1} + s u_t`.

    Args:
        mu: in [0, 1).
        s: positive.

    The paper's MomentumRNN and MomentumLSTM are RNN and LSTM with this filter: with mu = s = 0.6 for pixel-by-pixel
    MNIST, and with mu = 0.6 and s = 1 for permuted MNIST.

    Source: Nguyen et al. 2020.

    >>> lstm = rnnkern.nn.LSTM(10, 20, filter=rnnkern.nn.filters.Momentum(0.6, 0.6))
    >>> output, (h_n, c_n, v_n) = lstm(torch.randn(4, 3, 10))
    >>> output.shape, v_n.shape
    (torch.Size([4, 3, 20]), torch.Size([1, 3, 80]))
    """

    states, linear = ("v",), True
    mu: float
    s: float
    beta: ClassVar[None] = None


@dataclass(frozen=True)
class Adam(Filter):
    r"""Adam: replaces :math:`u_t` by :math:`v_t / \sqrt{q_t + \epsilon}`, with v as in :class:`Momentum` and :math:`q_t
    = \beta q_{t-1} + (1 - \beta) u_t^2`.

    Args:
        mu, beta: in [0, 1).
        s: positive.

    Source: Nguyen et al. 2020.
    """

    states = ("v", "q")
    mu: float
    s: float
    beta: float


@dataclass(frozen=True)
class RMSprop(Filter):
    r"""RMSprop: replaces :math:`u_t` by :math:`s u_t / \sqrt{q_t + \epsilon}`, with q as in :class:`Adam`.

    Args:
        s: positive.
        beta: in [0, 1).

    Source: Nguyen et al. 2020.
    """

    states = ("q",)
    mu: ClassVar[float] = 0.0
    s: float
    beta: float


@dataclass(frozen=True)
class NAG(Filter):
    r"""Nesterov's accelerated gradient with restarts: replaces :math:`u_t` by :math:`y_t + \frac{k-1}{k+2} (y_t -
    y_{t-1})`, where :math:`y_t = s u_t` and k counts 1, 2, ..., ``restart_every`` and then starts again at 1.

    Args:
        s: positive.
        restart_every: number of steps between restarts, at least 1.

    Source: Nguyen et al. 2020.
    """

    linear = True
    s: float
    restart_every: int


def _wide(x: Tensor) -> torch.dtype:
    """float32 for 16-bit inputs, whose precision does not resolve 1 - beta."""
    return torch.float32 if x.dtype in (torch.bfloat16, torch.float16) else x.dtype


def _zeros(x: Tensor, batch_sizes: Tensor | None) -> Tensor:
    batch = x.shape[1] if batch_sizes is None else int(batch_sizes[0])
    return x.new_zeros(batch, x.shape[-1])


def _step_before(x: Tensor, begun: FilteredInput | None, batch_sizes: Tensor | None, reverse: bool) -> Tensor:
    """For each row, x one step earlier in processing order; the value at the start of a sequence is arbitrary."""
    if batch_sizes is None:
        first = begun.last[None] if begun else x[:1]
        return torch.cat([x[1:], x[-1:]] if reverse else [first[: len(x)], x[:-1]])
    sizes = batch_sizes.to(x.device)
    row, begins = torch.arange(len(x), device=x.device), torch.cat([sizes.new_zeros(1), sizes.cumsum(0)])
    step = torch.repeat_interleave(sizes, output_size=len(x))
    if reverse:
        later = row + sizes[step]
        return x[torch.where(later < begins[(step + 2).clamp(max=len(sizes))], later, row)]
    return x[torch.where(step > 0, row - sizes[step - 1], row)]


def _restarting(
    every: int, u: Tensor, begun: FilteredInput | None, batch_sizes: Tensor | None, reset: Tensor | None, reverse: bool
) -> Tensor:
    """Nesterov's (k - 1) / (k + 2), shaped like ``u``; k counts 1, 2, ..., ``every`` repeatedly from the start of each
    sequence or episode."""
    steps, batch = u.shape[:2] if batch_sizes is None else (len(batch_sizes), int(batch_sizes[0]))
    t = torch.arange(steps, device=u.device).unsqueeze(1)
    alive = torch.ones(steps, batch, dtype=torch.bool, device=u.device)
    if batch_sizes is not None:
        alive = runs(batch_sizes, u.device)
    done = alive.sum(0) - 1 - t if reverse else t.expand(steps, batch)  # number of earlier steps of the sequence
    if reset is not None:
        first = torch.where(reset, done, 0)
        done = done - (first.flip(0).cummax(0).values.flip(0) if reverse else first.cummax(0).values)
    k = (done + begun.steps if begun else done) % every + 1
    factors = (k - 1).to(u.dtype) / (k + 2)
    return (factors if batch_sizes is None else factors[alive]).unsqueeze(-1).expand_as(u)
