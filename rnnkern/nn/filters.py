"""Filters for the input projection. Each applies the update rule of the optimizer it is named after (Nguyen et al.
2020)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from rnnkern.nn import autocast
from rnnkern.nn.recurrent import RecurrentBase, TimeFirst
from rnnkern.ops import linear_scan, moment_filter, recurrence


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

    def prologue(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, batch_sizes: Tensor | None, reset: Tensor | None,
        reverse: bool,
    ) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:  # fmt: skip
        """From a state of zeros: a filtered input and a weight whose product is the filtered projection, and the final
        state. The bias is one more column, for an input of 1."""
        dtype = x.dtype
        x = x.to(_wide(x))
        if bias is not None:
            x = torch.cat([x, x.new_ones(*x.shape[:-1], 1)], dim=-1)
            weight = torch.cat([weight, bias.unsqueeze(1)], dim=1)
        weight = self.s * weight
        options = {"batch_sizes": batch_sizes, "reset": reset, "reverse": reverse}
        if isinstance(self, NAG):
            factors = _restarting(self.restart_every, x, **options)
            before = torch.where(factors == 0, x, _step_before(x, batch_sizes, reverse))
            return (x + factors * (x - before)).to(dtype), weight, ()
        z, last = linear_scan(x.new_full(x.shape[-1:], self.mu), x, _zeros(x, batch_sizes), **options)
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


def _step_before(x: Tensor, batch_sizes: Tensor | None, reverse: bool) -> Tensor:
    """For each row, x one step earlier in processing order; the value at the start of a sequence is arbitrary."""
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
    """Nesterov's (k - 1) / (k + 2), shaped like ``u``; k counts 1, 2, ..., ``every`` repeatedly from the start of each
    sequence or episode."""
    steps, batch = u.shape[:2] if batch_sizes is None else (len(batch_sizes), int(batch_sizes[0]))
    t = torch.arange(steps, device=u.device).unsqueeze(1)
    alive = torch.ones(steps, batch, dtype=torch.bool, device=u.device)
    if batch_sizes is not None:
        alive = torch.arange(batch, device=u.device) < batch_sizes.to(u.device).unsqueeze(1)
    done = alive.sum(0) - 1 - t if reverse else t.expand(steps, batch)  # number of earlier steps of the sequence
    if reset is not None:
        begun = torch.where(reset, done, 0)
        done = done - (begun.flip(0).cummax(0).values.flip(0) if reverse else begun.cummax(0).values)
    k = done % every + 1
    factors = (k - 1).to(u.dtype) / (k + 2)
    return (factors if batch_sizes is None else factors[alive]).unsqueeze(-1).expand_as(u)


class Filtered(RecurrentBase):
    """Mixin that adds the option ``filter`` to :class:`RecurrentBase`."""

    filter: Filter | None = None

    def __init__(self, *args, filter: Filter | None = None, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        if not (filter is None or isinstance(filter, Filter)):
            raise TypeError(f"filter must be a filter of rnnkern.nn.filters, got {filter!r}")
        self.filter = filter

    @property
    def _plain_states(self) -> int:
        """Number of state tensors of the cell."""
        return 2 if self.mode == "LSTM" else 1

    def _check(self, input, hx, reset) -> TimeFirst:
        kept = self.filter.states if self.filter else ()
        plain, filtered = self._plain_states, None
        if kept and isinstance(hx, tuple):
            if len(hx) not in (plain, plain + len(kept)):
                raise ValueError(f"hx must have {plain} or {plain + len(kept)} tensors, got {len(hx)}")
            filtered, hx = hx[plain:] or None, hx[:plain] if plain > 1 else hx[0]
        sequence = super()._check(input, hx, reset)
        if filtered is None:
            return sequence
        rows, batch = len(sequence.state), len(sequence.state[0][0])
        wanted = (rows, batch, getattr(self, self._all_weights[0][0]).shape[0])
        unbatched = isinstance(input, Tensor) and input.dim() == 2
        for name, part in zip(kept, filtered, strict=True):
            shape = wanted[::2] if unbatched else wanted
            if tuple(part.shape) != shape:
                raise RuntimeError(f"Expected {name} of size {shape}, got {list(part.shape)}")
        filtered = tuple(part.unsqueeze(1) if unbatched else part for part in filtered)
        order = None if isinstance(input, Tensor) else input.sorted_indices
        filtered = zip(*(part.unbind(0) for part in self.permute_hidden(filtered, order)), strict=True)
        return sequence._replace(state=[row + more for row, more in zip(sequence.state, filtered, strict=True)])

    def permute_hidden(self, hx, permutation):
        if not isinstance(hx, tuple) or not self.filter:
            return super().permute_hidden(hx, permutation)
        return hx if permutation is None else tuple(part.index_select(1, permutation) for part in hx)

    def _calls(self, sequence: TimeFirst) -> list[list[dict[str, Any]]]:
        calls = super()._calls(sequence)
        if self.filter:
            for call in (call for at_once in calls for call in at_once):
                state, plain = call["state"], self._plain_states
                call |= {"state": state[:plain], "filtered": state[plain:]}
        return calls

    def _layer(self, x, calls, one, both) -> Sequence[Any]:
        """Runs each direction on its own filtered projection; a linear filter from a state of zeros filters the input
        instead."""
        if not self.filter:
            return super()._layer(x, calls, one, both)
        results = []
        for k, call in enumerate(calls):
            W, b, state = call["weight_ih"], call["bias_ih"], call["filtered"]
            rest = {name: call[name] for name in call.keys() - {"weight_ih", "bias_ih", "filtered"}}
            options = {name: rest[name] for name in ("batch_sizes", "reset")} | {"reverse": k == 1}
            if self.filter.linear and not state:
                u, weight, kept = self.filter.prologue(x, W, b, **options)
                rest |= {"weight_ih": weight}
            else:
                filtered = partial(self._filtered, **options)
                u, kept = filtered(x, W, b, *state)
                rest |= {"save_u": autocast.recomputed(lambda *inputs, f=filtered: f(*inputs)[0], x, W, b, *state)}
            u, rest = autocast.cast(u, rest)
            found = one(self._cell, u, **rest, reverse=k == 1)
            results.append((found[0], (*found[1], *kept)) if one is recurrence else found)
        return results

    def _filtered(self, x, W, b, *state, **options) -> tuple[Tensor, tuple[Tensor, ...]]:
        return self.filter(F.linear(x, W, b), state, **options)

    def _stacks(self) -> bool:
        return not self.filter and super()._stacks()

    def _step(self, input, hx):
        return None if self.filter else super()._step(input, hx)

    def extra_repr(self) -> str:
        return super().extra_repr() + (f", filter={self.filter}" if self.filter else "")
