"""The option ``filter`` of RNN, LSTM and GRU."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from rnnkern.nn import autocast
from rnnkern.nn.filters import Filter
from rnnkern.nn.recurrent import Recurrent, TimeFirst
from rnnkern.ops import recurrence


class Filtered(Recurrent):
    """Between :class:`Recurrent` and a module: its filter, and the states that go on with the filter's."""

    filter: Filter | None = None

    def __init__(self, *args, filter: Filter | None = None, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        if filter is not None and not isinstance(filter, Filter):
            raise TypeError(f"filter must be one of rnnkern.nn.filters, such as Momentum(0.6, 0.6), got {filter!r}")
        self.filter = filter

    @property
    def _plain_states(self) -> int:
        """Of the cell."""
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
        rows, batch, _ = sequence.state[0].shape
        wanted = (rows, batch, getattr(self, self._all_weights[0][0]).shape[0])
        unbatched = isinstance(input, Tensor) and input.dim() == 2
        for name, part in zip(kept, filtered, strict=True):
            shape = wanted[::2] if unbatched else wanted
            if tuple(part.shape) != shape:
                raise RuntimeError(f"Expected {name} of size {shape}, got {list(part.shape)}")
        filtered = tuple(part.unsqueeze(1) if unbatched else part for part in filtered)
        order = None if isinstance(input, Tensor) else input.sorted_indices
        return sequence._replace(state=sequence.state + self.permute_hidden(filtered, order))

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
        """Each direction from a filtered projection of its own, or where that is the same a projection of what is
        filtered."""
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
