"""The base class of the recurrent layers puts the parameters and checks of torch.nn around calls of the operator."""

from collections.abc import Sequence
from functools import partial
from itertools import chain
from typing import Any, ClassVar, NamedTuple, Never

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx import Proxy
from torch.nn import Module, Parameter, RNNBase, init
from torch.nn.utils.parametrize import is_parametrized, type_before_parametrizations
from torch.nn.utils.rnn import PackedSequence

from rnnkern.nn import autocast
from rnnkern.nn.ecosystem import Unquantized, refuse_or_trace, said_per_layer, shown, spelled
from rnnkern.nn.filters import Filter
from rnnkern.nn.stream import LayerByLayer, Packed, Streaming
from rnnkern.ops import Choice, recurrence
from rnnkern.ops._recurrence.pair import both
from rnnkern.ops._recurrence.recurrence import choose_kernel, step
from rnnkern.ops.checks import runs


class TimeFirst(NamedTuple):
    """The input of a forward pass with time first: T steps, B sequences in the order of the packed rows."""

    x: Tensor  # (T, B, I), or packed (sum of batch_sizes, I)
    state: Sequence[tuple[Tensor, ...]]  # for each layer and direction its initial state, of tensors (B, H)
    batch_sizes: Tensor | None  # (T,) int64 on the CPU
    reset: Tensor | None  # (T, B) bool, False beyond a sequence's own end


def in_time_order(module: Module, name: str, values: Tensor, input: Tensor | PackedSequence) -> Tensor:
    """The argument ``values``, one for each step and sequence, as (T, B) in the order of the packed rows."""
    layer, packed = type_before_parametrizations(module).__name__, isinstance(input, PackedSequence)
    device = input.data.device if packed else input.device
    if values.device != device:
        raise TypeError(f"{layer}: `{name}` must be on {device} like the input, got {values.device}")
    wanted = (len(input.batch_sizes), int(input.batch_sizes[0])) if packed else tuple(input.shape[:-1])
    wanted = wanted[::-1] if packed and module.batch_first else wanted
    if tuple(values.shape) != wanted:
        symbols = "(T,)" if len(wanted) == 1 else "(B, T)" if module.batch_first else "(T, B)"
        raise ValueError(f"{layer}: `{name}` must be {symbols} = {wanted}, got {tuple(values.shape)}")
    if len(wanted) == 1:
        return values.unsqueeze(1)
    values = values.transpose(0, 1) if module.batch_first else values
    return values.index_select(1, input.sorted_indices) if packed and input.sorted_indices is not None else values


def reset_in_order(module: Module, reset: Tensor, input: Tensor | PackedSequence) -> Tensor:
    """The argument ``reset`` as (T, B), in the order of the packed rows and False beyond the end of a sequence."""
    if not isinstance(reset, Tensor) or reset.dtype != torch.bool:
        got = reset.dtype if isinstance(reset, Tensor) else type(reset).__name__
        raise TypeError(f"{type_before_parametrizations(module).__name__}: `reset` must be a bool tensor, got {got}")
    reset = in_time_order(module, "reset", reset, input)
    return reset & runs(input.batch_sizes, reset.device) if isinstance(input, PackedSequence) else reset


def reset_of_directions(reset: Tensor | None, bidirectional: bool) -> list[Tensor | None]:
    """The mask that each direction needs, from a (T, B) ``reset``."""
    if reset is None or not bidirectional:
        return [reset, reset]
    # In the reverse direction, step t takes its state from t+1, so it is zeroed where an episode starts at t+1.
    return [reset, F.pad(reset, (0, 0, 0, 1))[1:]]


class RecurrentBase(Streaming, Unquantized, RNNBase):
    """Mixin of the recurrent layers; list it before the torch.nn class. A subclass names its ``_cell``."""

    num_heads: int = 1
    zoneout: float | tuple[float, ...] = 0.0
    recurrent_dropout: float = 0.0
    save_gates: bool | None = None
    """Can be changed at any time."""
    filter: Filter | None = None
    layer_norm: bool = False
    _plain: ClassVar[dict[str, Any]] = {
        "num_heads": 1, "zoneout": 0.0, "recurrent_dropout": 0.0, "save_gates": None, "filter": None,
        "layer_norm": False,
    }  # fmt: skip
    """The options with their defaults, for printing."""
    _cell: str  # name of a cell of rnnkern.ops.recurrence

    def __init__(
        self, *args, num_heads: int = 1, zoneout: float | tuple[float, ...] = 0.0, recurrent_dropout: float = 0.0,
        save_gates: bool | None = None, filter: Filter | None = None, layer_norm: bool = False, **kwargs,
    ) -> None:  # fmt: skip
        super().__init__(*args, **kwargs)
        if not (save_gates is None or isinstance(save_gates, bool)):
            raise TypeError(f"save_gates should be of type bool or None, got: {type(save_gates).__name__}")
        self.save_gates = save_gates
        self.zoneout = self._rates("zoneout", zoneout, self._states)
        self.recurrent_dropout = self._rates("recurrent_dropout", recurrent_dropout)
        if not isinstance(num_heads, int) or isinstance(num_heads, bool):
            raise TypeError(f"num_heads should be of type int, got: {type(num_heads).__name__}")
        if num_heads < 1 or self.hidden_size % num_heads:
            raise ValueError(f"num_heads must be positive and divide hidden_size = {self.hidden_size}, got {num_heads}")
        if num_heads > 1 and self.proj_size > 0:
            raise ValueError(f"num_heads must be 1 with proj_size = {self.proj_size} > 0, got {num_heads}")
        self.num_heads = num_heads
        if num_heads > 1:  # (G*H, H) becomes (K, G*D, D) with values already drawn
            d = self.hidden_size // num_heads
            for _, name, *_ in self._all_weights:
                heads = getattr(self, name).detach()[:, :d].reshape(num_heads, -1, d)
                setattr(self, name, Parameter(heads.clone(memory_format=torch.contiguous_format)))
        if not (filter is None or isinstance(filter, Filter)):
            raise TypeError(f"filter must be a filter of rnnkern.nn.filters, got {filter!r}")
        if not isinstance(layer_norm, bool):
            raise TypeError(f"layer_norm should be of type bool, got: {type(layer_norm).__name__}")
        self.filter, self.layer_norm = filter, layer_norm
        if layer_norm:
            for name, plain in (("num_heads", 1), ("proj_size", 0)):
                if getattr(self, name) != plain:
                    raise ValueError(f"layer_norm must be False with {name} = {getattr(self, name)}, got True")
            if filter:
                raise ValueError(f"layer_norm must be False with a filter, got {filter}")
            gates, of_c = getattr(self, self._all_weights[0][0]).shape[0], ("weight_ln_c", "bias_ln_c")
            sizes = {"weight_ln_ih": gates, "weight_ln_hh": gates}
            self._add_parameters(sizes | (dict.fromkeys(of_c, self.hidden_size) if self.mode == "LSTM" else {}))

    @property
    def _states(self) -> int:
        """Number of state tensors of the cell."""
        return 2 if self.mode == "LSTM" else 1

    def _add_parameters(self, sizes: dict[str, int]) -> None:
        """Adds vectors to each layer and direction, with their initial values."""
        for names in self._all_weights:
            for kind, size in sizes.items():
                names.append(names[0].replace("weight_ih", kind))
                setattr(self, names[-1], Parameter(getattr(self, names[0]).new_empty(size)))
        self._reset_added()

    def _reset_added(self) -> None:
        for name, parameter in self.named_parameters():
            if name.startswith("modrelu_bias"):
                init.uniform_(parameter, -0.01, 0.01)
            elif name.startswith(("weight_ln", "bias_ln")):
                init.constant_(parameter, float(name.startswith("weight")))

    def reset_parameters(self) -> None:
        """Initializes all parameters again."""
        super().reset_parameters()
        self._reset_added()

    def _rates(self, name: str, given, most: int = 1):
        """A checked rate: one number, or a tuple with one number for each of at most ``most`` states."""
        rates = given if isinstance(given, (tuple, list)) and most > 1 else (given,)
        if any(isinstance(rate, bool) or not isinstance(rate, (int, float)) for rate in rates):
            raise TypeError(f"{name} should be of type float, got: {type(given).__name__}")
        if len(rates) not in (1, most) or not all(0 <= rate < 1 for rate in rates):
            pair = f", or {most} such numbers, one for each state" if most > 1 else ""
            raise ValueError(f"{name} must be in [0, 1){pair}, got {given}")
        return tuple(given) if rates is given else given

    def forward(
        self, input: Tensor | PackedSequence, hx: Tensor | tuple[Tensor, ...] | None = None,
        reset: Tensor | None = None, **unknown: Never,
    ) -> tuple[Tensor | PackedSequence, Tensor | tuple[Tensor, ...]]:  # fmt: skip
        """Runs the layers over a sequence.

        Args:
            input: tensor of shape (T, B, I), or (B, T, I) with ``batch_first``, or (T, I) without a batch, or a
                :class:`~torch.nn.utils.rnn.PackedSequence`. It has the dtype of the parameters. T may be 0.
            hx: h_0, or for an LSTM the tuple (h_0, c_0), each (num_layers * directions, B, H), without B for unbatched
                input; h_0 has ``proj_size`` columns if that is set. In the caller's batch order. None means zeros. With
                a filter you may append the filter's states to the tuple, each (num_layers * directions, B, G*H).
            reset: bool mask of shape (T, B), or (B, T) with ``batch_first``, also for packed input, or (T,) for
                unbatched input; in the caller's batch order. True starts a new episode at step t: no state is carried
                from t-1 to t, nor from t to t-1 in the reverse direction.

        Returns:
            The output, shaped like ``input`` with directions * H columns, and h_n or (h_n, c_n), shaped like ``hx``.
            With a filter the second result is a tuple to which the filter's states are appended.

        Raises:
            TypeError: ``reset`` is not a bool tensor or is on another device.
            ValueError: ``reset`` has the wrong shape.
            As torch.nn: for every other wrong argument.
        """
        if hx is not None and reset is None and not torch.is_grad_enabled() and not unknown:
            stepped = self._step(input, hx)
            if stepped is not None:
                return stepped
        if isinstance(input, Proxy) or isinstance(hx, Proxy) or unknown:
            return refuse_or_trace(self, unknown, input, hx, reset)
        sequence = self._check(input, hx, reset)
        x, finals = sequence.x, []
        for calls in self._calls(sequence):
            if finals:
                x = F.dropout(x, self.dropout, self.training)
            for call in calls:
                if self.training:
                    call |= self._noise(sequence)
            results = self._layer(x, calls, recurrence, partial(both, stacked=not self.bidirectional))
            if self.bidirectional:
                outputs, final = zip(*results, strict=True)
                x = torch.cat(outputs, dim=-1)
            else:
                x, *final = results if len(calls) > 1 else results[0]
            finals += final
        unbatched = isinstance(input, Tensor) and input.dim() == 2
        joined = torch.cat if unbatched else torch.stack  # no views, which could not be detached in place
        hidden = tuple(joined(states) for states in zip(*finals, strict=True))
        packed, given = sequence.batch_sizes is not None, sequence.state[0][0].dtype
        x, hidden = autocast.cast_results(self, packed, given, x, hidden)
        hidden = hidden if len(hidden) > 1 else hidden[0]
        if isinstance(input, PackedSequence):
            _, batch_sizes, order, inverse = input
            return PackedSequence(x, batch_sizes, order, inverse), self.permute_hidden(hidden, inverse)
        if unbatched:
            return x.squeeze(1), hidden
        return x.transpose(0, 1) if self.batch_first else x, hidden

    def _step(self, input, hx):
        """Fast path for one step of one layer without derivatives, where overhead dominates the time of the kernel.
        Returns None for any other call and for wrong arguments, which the regular path reports."""
        if type(input) is not Tensor or torch.compiler.is_compiling() or torch.is_autocast_enabled("cpu"):
            return None
        if len(self._all_weights) > 1 or self.zoneout or self.recurrent_dropout or self._projects:
            return None
        named = self._parameters.get  # None for a parametrized or missing weight
        weights = [named(name) for name in self._all_weights[0]]
        if len(weights) == 2:
            weights += [None, None]
        elif len(weights) != 4 or weights[2] is None or weights[3] is None:
            return None
        weight_ih, R, bias_ih, bias = weights
        if weight_ih is None or R is None:
            return None
        lstm = self.mode == "LSTM"
        state = hx if lstm else (hx,)
        shape = input.shape
        if len(shape) != 3 or shape[0] != 1 or shape[2] != self.input_size or (self.batch_first and shape[1] != 1):
            return None
        for s in state:
            if type(s) is not Tensor or s.shape != (1, shape[1], self.hidden_size) or s.dtype != input.dtype:
                return None
        if input.dtype != R.dtype or len(state) != 1 + lstm:
            return None
        stepped = step(self._cell, input, R, state, bias, weight_ih, bias_ih)
        if stepped is None:
            return None
        return (stepped[0], tuple(stepped[1:])) if lstm else tuple(stepped)

    def _engine(self, x: Tensor) -> LayerByLayer | Packed:
        """What computes the steps of a stream, for an input like ``x``, (1, B, I)."""
        calls = list(chain(*self._calls(self._check(x.transpose(0, 1) if self.batch_first else x, None, None))))
        packs = not self._projects and all(isinstance(call["R"], Tensor) for call in calls)
        if packs and choose_kernel("recurrence", self._cell, x).implementation == "cpu":
            return Packed(self, x, calls)
        return LayerByLayer(self, x, calls)

    @torch.no_grad()
    def _choose(self, input: Tensor | PackedSequence, hx: Any = None, reset: Tensor | None = None) -> list[Choice]:
        """The :class:`Choice` of each layer and direction, in order, for :func:`rnnkern.ops.explain`. Runs no
        recurrence."""
        sequence = self._check(input, hx, reset)
        choices = []
        for calls in self._calls(sequence):
            x = sequence.x.new_zeros(1).expand(*sequence.x.shape[:-1], calls[0]["weight_ih"].shape[1])
            two = partial(both._choose, stacked=not self.bidirectional)
            choices += self._layer(x, calls, recurrence._choose, two)
        return said_per_layer(choices, self.bidirectional)

    def _check(self, input, hx, reset) -> TimeFirst:
        """Does what torch.nn's forward does before its kernel, with the checks of torch.nn."""
        batch_sizes = order = None
        plain, filtered, of_filter = self._states, (), self.filter.states if self.filter else ()
        if of_filter and isinstance(hx, tuple):
            if len(hx) not in (plain, plain + len(of_filter)):
                raise ValueError(f"hx must have {plain} or {plain + len(of_filter)} tensors, got {len(hx)}")
            filtered, hx = hx[plain:], hx[:plain] if plain > 1 else hx[0]
        unbatched = isinstance(input, Tensor) and input.dim() == 2
        if isinstance(input, PackedSequence):
            x, batch_sizes, order, _ = input
            batch = int(batch_sizes[0])
        else:
            given = () if hx is None else tuple(hx[:plain]) if plain > 1 else (hx,)
            if input.dim() not in (2, 3) or any(s.dim() != input.dim() for s in given):
                super().forward(input, hx)  # raises
            x = input
            if unbatched:
                x = input.unsqueeze(0 if self.batch_first else 1)
                hx = hx if hx is None else tuple(s.unsqueeze(1) for s in given) if plain > 1 else hx.unsqueeze(1)
            batch = x.shape[0 if self.batch_first else 1]
        if hx is None:
            self.check_input(x, batch_sizes)
            # One for all tensors of a state, because nothing writes to them, and one for each layer and direction,
            # because TorchScript makes one list of equal states, which the operator that gets it first empties.
            count = len(self._all_weights)
            zeros = x.new_zeros(count, batch, self.hidden_size).unbind(0)
            h0s = x.new_zeros(count, batch, self.proj_size).unbind(0) if self.proj_size else zeros
            state = [(h0, *[c0] * (plain - 1)) for h0, c0 in zip(h0s, zeros, strict=True)]
        else:
            self.check_forward_args(x, hx, batch_sizes)
            hx = self.permute_hidden(hx, order)
            state = list(zip(*(s.unbind(0) for s in (hx if plain > 1 else (hx,))), strict=True))
        if filtered:
            wanted = (len(state), batch, getattr(self, self._all_weights[0][0]).shape[0])
            wanted = wanted[::2] if unbatched else wanted
            for name, part in zip(of_filter, filtered, strict=True):
                if tuple(part.shape) != wanted:
                    raise RuntimeError(f"Expected {name} of size {wanted}, got {list(part.shape)}")
            filtered = tuple(part.unsqueeze(1) if unbatched else part for part in filtered)
            of_rows = zip(*(part.unbind(0) for part in self.permute_hidden(filtered, order)), strict=True)
            state = [row + more for row, more in zip(state, of_rows, strict=True)]
        if batch_sizes is None and self.batch_first:
            x = x.transpose(0, 1)
        if reset is not None:
            reset = reset_in_order(self, reset, input)
        return TimeFirst(x, state, batch_sizes, reset)

    def permute_hidden(self, hx: Any, permutation: Tensor | None) -> Any:
        if permutation is None:
            return hx
        if isinstance(hx, Tensor):
            return hx.index_select(1, permutation)
        return tuple(part.index_select(1, permutation) for part in hx)

    def _calls(self, sequence: TimeFirst) -> list[list[dict[str, Any]]]:
        """Arguments of the operator except cell, input and direction, grouped by what one call computes: both
        directions of a layer, two stacked layers with nothing between them, or one layer."""
        _, states, batch_sizes, reset = sequence
        masks = reset_of_directions(reset, self.bidirectional)
        options = {}
        if self.zoneout or self.recurrent_dropout:
            options = {"zoneout": self.zoneout, "dropout": self.recurrent_dropout}
        if self.save_gates is not None:
            options["save_gates"] = self.save_gates
        directions = 2 if self.bidirectional else 1
        calls = []
        for k, names in enumerate(self._all_weights):
            weight_ih, weight_hh, *rest = [self._weight(name, sequence) for name in names]
            bias_ih, bias_hh = rest[:2] if self.bias else (None, None)
            params, state = tuple(rest[2:] if self.bias else rest), states[k][: self._states]
            if self.layer_norm:
                params, bias_ih, bias_hh = self._params_of_norms(params, bias_ih, bias_hh), None, None
            call = {"weight_ih": weight_ih, "bias_ih": bias_ih, "R": weight_hh, "bias": bias_hh, "params": params}
            call |= {"state": state, "batch_sizes": batch_sizes, "reset": masks[k % directions], **options}
            if self.filter:
                call["filtered"] = states[k][self._states :]
            calls.append(call)
        at_once = 2 if self.bidirectional or self._stacks() else 1
        return [calls[k : k + at_once] for k in range(0, len(calls), at_once)]

    @staticmethod
    def _params_of_norms(
        params: Sequence[Tensor], bias_ih: Tensor | None, bias_hh: Tensor | None
    ) -> tuple[Tensor, ...]:
        """The params of a cell with layer norm, whose biases of W x and of R h follow the norms."""
        of_input, of_state, *rest = params
        if bias_ih is None or bias_hh is None:
            bias_ih = bias_hh = torch.zeros_like(of_input)
        return of_input, bias_ih, of_state, bias_hh, *rest

    def _weight(self, name: str, sequence: TimeFirst) -> Any:
        """The value of a weight for a call; subclasses may return something other than the matrix."""
        return getattr(self, name)

    def _noise(self, sequence: TimeFirst) -> dict[str, Tensor]:
        """Seeds and masks that a call in training draws from torch's generator."""
        if not self.zoneout and not self.recurrent_dropout:
            return {}
        return {"seed": torch.randint(-(2**63), 2**63 - 1, (), device=sequence.x.device)}

    def _stacks(self) -> bool:
        """Whether the output of a layer is the input of the next without anything between, such as dropout."""
        return not (self._projects or (self.dropout and self.training))

    @property
    def _projects(self) -> bool:
        """Whether :meth:`_projected` replaces the operator's projection of the input."""
        return self.filter is not None

    def _projected(self, x: Tensor, call: dict, reverse: bool) -> tuple[Tensor, dict[str, Any], tuple[Tensor, ...]]:
        """The operator's input and its other arguments for one direction, and the final state of a filter."""
        assert self.filter is not None
        return self.filter.project(x, call, reverse)

    def _layer(self, x, calls, one, both) -> Sequence[Any]:
        """The results of ``both``, one call for two recurrences, or a list of the results of ``one`` for each."""
        if self._projects:
            results = []
            for call, reverse in zip(calls, (False, True), strict=False):
                u, call, kept = self._projected(x, call, reverse)
                u, call = autocast.cast(u, call)
                found = one(self._cell, u, **call, reverse=reverse)
                results.append((found[0], (*found[1], *kept)) if one is recurrence else found)
            return results
        x, *calls = autocast.cast(x, *calls)
        return both(self._cell, x, *calls) if len(calls) > 1 else [one(self._cell, x, **calls[0])]

    # torch.nn keeps a list of its weights for cuDNN and reads the dtype from the first. Kernels here read each
    # parameter in place, so no list can go stale, and a parametrized weight is computed once per forward pass.

    @property
    def _flat_weights(self) -> list[Tensor | None]:
        first, *rest = self._flat_weights_names
        if is_parametrized(self, first):  # the parameter behind it tells the dtype
            found = self.parametrizations[first]
            weight = found.original if found.is_tensor else found.original0
        else:
            weight = getattr(self, first, None)
        return [weight] + [None] * len(rest)

    @_flat_weights.setter
    def _flat_weights(self, weights: list[Tensor | None]) -> None:
        pass

    def flatten_parameters(self) -> None:
        """Does nothing, because the kernels need no contiguous buffer of weights. Kept for compatibility with
        torch.nn."""

    def __prepare_scriptable__(self):
        raise NotImplementedError(f"{type(self).__name__}: torch.jit.script is not supported; use torch.export")

    def _get_name(self) -> str:
        return spelled(self)

    def extra_repr(self) -> str:
        return super().extra_repr() + shown(self, self._plain)
