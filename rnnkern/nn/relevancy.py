"""RelRNN, RelLSTM, MemRNN and MemLSTM attend to their own past states, all of them or a bounded set."""

from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar, Never, Unpack

import torch
from torch import Tensor
from torch.nn import init
from torch.nn.utils import parametrize
from torch.nn.utils.rnn import PackedSequence, pad_packed_sequence

from rnnkern import parametrizations
from rnnkern.nn import autocast
from rnnkern.nn.options import MemoryOptions, RelevancyOptions, with_options
from rnnkern.nn.single import Attending, empty_parameter, state_like, uniform_, without_layers
from rnnkern.ops import RelevancyState, relevancy_recurrence
from rnnkern.ops._recurrence.linear import linear
from rnnkern.ops._relevancy.relevancy import CHOICES
from rnnkern.reference import RelevancyMemory
from rnnkern.reference._relevancy import RELEVANCY_CELLS

NONLINEARITIES = tuple(cell for cell in RELEVANCY_CELLS if cell != "lstm")
MORE = {"alignment": ("scaled_dot",), "relevance": ("learned",)}
"""Choices of the layers that the operator serves under other names."""
UNLIMITED = 2**30
"""More steps than any sequence has, so that the buffer holds every state so far."""


class Relevancy(Attending):
    """Base class of RelRNN, RelLSTM, MemRNN and MemLSTM. A subclass sets ``_cell`` and ``_gates``."""

    _gates, _states, _operator = 1, 1, staticmethod(relevancy_recurrence)
    _plain: ClassVar = {
        "buffer_size": UNLIMITED, "relevant_size": 0, "nonlinearity": "tanh", "combine": "half", "bias": True,
        "alignment": "additive", "num_heads": 1, "relevance": "attention", "output": "h", "batch_first": False,
    }  # fmt: skip

    def __init__(
        self, input_size: int, hidden_size: int, *, buffer_size: int = 10, relevant_size: int = 10,
        combine: str = "half", alignment: str = "additive", num_heads: int = 1, relevance: str = "attention",
        output: str = "h", bias: bool = True,
        batch_first: bool = False, device: Any = None, dtype: torch.dtype | None = None,
    ) -> None:  # fmt: skip
        sizes = {"input_size": input_size, "hidden_size": hidden_size, "buffer_size": buffer_size}
        chosen = {"combine": combine, "alignment": alignment, "relevance": relevance, "output": output}
        sizes |= {"relevant_size": relevant_size, "num_heads": num_heads}
        choices = {name: (choice, CHOICES[name] + MORE.get(name, ())) for name, choice in chosen.items()}
        super().__init__(sizes, choices, {"relevant_size": 0})
        if hidden_size % num_heads:
            raise ValueError(f"num_heads must divide hidden_size = {hidden_size}, got {num_heads}")
        self.bias, self.batch_first = bias, batch_first
        parameter = partial(empty_parameter, device=device, dtype=dtype)
        rows, size = self._gates * hidden_size, self._state_size
        self.weight_ih_l0, self.weight_hh_l0 = parameter(rows, input_size), parameter(rows, size)
        self.weight_query_l0, self.weight_key_l0 = (parameter(hidden_size, n) for n in (size, hidden_size))
        self.weight_score_l0 = None if alignment == "scaled_dot" else parameter(hidden_size)
        self.weight_screen_l0 = parameter(input_size) if relevance == "learned" else None
        self.bias_ih_l0 = parameter(rows) if bias else None
        self.modrelu_bias_l0 = parameter(hidden_size) if self._cell == "modrelu" else None
        self.reset_parameters()

    @property
    def _cell(self) -> str:  # name of a cell of rnnkern.ops.relevancy_recurrence
        raise NotImplementedError

    @property
    def _state_size(self) -> int:
        return (2 if self.combine == "concat" else 1) * self.hidden_size

    def _state_shape(self, batch: int | None) -> tuple[int, ...]:
        return (self._state_size,) if batch is None else (batch, self._state_size)

    def reset_parameters(self) -> None:
        """Initializes all parameters again."""
        uniform_(self.hidden_size, self.weight_query_l0, self.weight_key_l0)
        for vector in (self.weight_score_l0, self.weight_screen_l0):
            if vector is not None:
                init.xavier_normal_(vector.unsqueeze(0))
        self._reset_cell()

    @torch.no_grad()
    def _reset_cell(self) -> None:
        init.xavier_normal_(self.weight_ih_l0)
        if parametrize.is_parametrized(self, "weight_hh_l0"):
            parametrizations.reset_parameters(self, "weight_hh_l0")
        else:
            gates = self.weight_hh_l0.unflatten(0, (self._gates, self.hidden_size))
            for part in gates.split(self.hidden_size, dim=-1):
                part.copy_(parametrizations.orthogonal_matrix(part))
        if self.bias_ih_l0 is not None:
            init.zeros_(self.bias_ih_l0)

    def forward(
        self, input: Tensor | PackedSequence, hx: RelevancyState | Sequence[Tensor] | Tensor | None = None,
        reset: Tensor | None = None, **unknown: Never,
    ) -> tuple[Tensor | PackedSequence, RelevancyState]:  # fmt: skip
        """Runs the layer over a sequence.

        Args:
            input, reset: as in :meth:`rnnkern.nn.RNN.forward`. A reset zeroes s and c and empties the memory.
            hx: a state that an earlier call returned, which continues that sequence; or s_0, or for an LSTM the tuple
                ``(s_0, c_0)``, each (1, B, H) as in torch.nn or (B, H), with an empty memory. None means zeros. In the
                caller's batch order; without B for unbatched input. s_0 has 2H columns with ``combine="concat"``.

        Returns:
            The output, shaped like ``input`` with H columns (2H for s with ``combine="concat"``), and the
            :class:`~rnnkern.ops.RelevancyState`.

        Raises:
            ValueError: a tensor has the wrong shape.
            TypeError: an argument has the wrong type, dtype or device.
        """
        return self._run(input, hx, reset, unknown)

    def attention(
        self, input: Tensor | PackedSequence, hx: RelevancyState | Sequence[Tensor] | Tensor | None = None,
        reset: Tensor | None = None,
    ) -> RelevancyMemory:  # fmt: skip
        """Returns the attention weights of each step, without gradients.

        Args:
            input, hx, reset: as in :meth:`forward`.

        Returns:
            ``weights`` and ``ids``, both shaped like ``input`` with K columns, one for each slot of the buffer and then
            of the relevant set. A weight is alpha, averaged over the heads, and 0 for an empty slot. An id, int64, is
            the step that created the event in the slot, and -1 for an empty slot. For packed input both are packed.
        """
        return self._attended(input, hx, reset)

    def attention_map(
        self, input: Tensor | PackedSequence, hx: RelevancyState | Sequence[Tensor] | Tensor | None = None,
        reset: Tensor | None = None, sparse: bool = False,
    ) -> Tensor:  # fmt: skip
        """Returns how much each step attends to each event of this call, as a matrix for plots, without gradients.

        Args:
            input: (T, B, I), (B, T, I) with ``batch_first``, or (T, I).
            hx, reset: as in :meth:`forward`. Events before this call are left out.
            sparse: if True, returns a sparse COO tensor with at most K = ``buffer_size`` + ``relevant_size`` values per
                step.

        Returns:
            Tensor of shape (T, B, T), or (B, T, T) with ``batch_first``, or (T, T) for unbatched input. Element (t, b,
            j) is alpha of step t for event j, and 0 if the step does not attend to it.

        Raises:
            TypeError: ``input`` is packed. Pad it instead.

        >>> layer = rnnkern.nn.RelRNN(3, 8, buffer_size=4, relevant_size=2)
        >>> alpha = layer.attention_map(torch.randn(20, 1, 3))[:, 0]
        >>> alpha.shape, torch.allclose(alpha.sum(-1), torch.ones(20))
        (torch.Size([20, 20]), True)
        """
        if isinstance(input, PackedSequence):
            raise TypeError(f"{type(self).__name__}.attention_map: `input` must be padded, got a PackedSequence")
        weights, ids = self.attention(input, hx, reset)
        if isinstance(hx, RelevancyState):
            ids = ids - (hx.time[:, None, None] if self.batch_first and input.dim() == 3 else hx.time.unsqueeze(-1))
        there = ids >= 0
        size = (*ids.shape[:-1], ids.shape[1 if self.batch_first and input.dim() == 3 else 0])
        if not sparse:
            return weights.new_zeros(size).scatter_add_(-1, ids.clamp(min=0), weights * there)
        *at, slot = there.nonzero(as_tuple=True)
        indices = torch.stack([*at, ids[*at, slot]])
        return torch.sparse_coo_tensor(indices, weights[*at, slot], size, check_invariants=False).coalesce()

    def _call(self, input, hx, reset) -> tuple[tuple, dict[str, Any]]:
        x, state, batch_sizes, reset = self._time_first(input, without_layers(hx, input), reset)
        v = self.weight_score_l0
        if v is None:  # scaled dot product
            v = torch.full_like(self.weight_key_l0[0], (self.hidden_size // self.num_heads) ** -0.5)
        attention = (self.weight_query_l0, self.weight_key_l0, v.view(self.num_heads, -1) if self.num_heads > 1 else v)
        bias = () if self.modrelu_bias_l0 is None else (self.modrelu_bias_l0,)
        call = {"W": self.weight_ih_l0, "bias": self.bias_ih_l0, "R": self.weight_hh_l0}
        x, call = autocast.cast(x, call | {"attention": attention, "params": bias})
        u = linear(x, call["W"], call["bias"])
        sizes = {"buffer_size": self.buffer_size, "relevant_size": self.relevant_size}
        options = {name: getattr(self, name) for name in CHOICES}
        if self.alignment == "scaled_dot":
            options["alignment"] = "dot"
        if self.weight_screen_l0 is not None:
            scores = linear(x, self.weight_screen_l0.to(x.dtype).unsqueeze(0)).squeeze(-1)
            if batch_sizes is not None:
                scores, _ = pad_packed_sequence(PackedSequence(scores, batch_sizes))
            options["relevance"] = scores.to(u.dtype)
        rest = {"params": call["params"], "batch_sizes": batch_sizes, "reset": reset}
        return (self._cell, u, call["R"], state_like(state, u), call["attention"]), sizes | options | rest


@with_options
class RelRNN(Relevancy):
    r"""RelRNN: an Elman network that attends to its last states and to the most relevant earlier ones.

    .. math::
        h_t &= \phi(U x_t + b + V s_{t-1}) \\
        e_j &= v \cdot \tanh(W_a s_{t-1} + U_a m_j), \quad \alpha = \mathrm{softmax}(e) \\
        s_t &= (h_t + \sum_j \alpha_j m_j) / 2

    where :math:`m_j` are the members of the buffer (the last states including :math:`h_t`) and of the relevant set.
    :func:`rnnkern.ops.relevancy_recurrence` describes how states enter the relevant set. 2H + K + 1 floats per sequence
    and step are saved for the backward pass, where K = ``buffer_size`` + ``relevant_size``. T is the number of time
    steps, B the batch size, I the input size and H the hidden size.

    Args:
        input_size, hidden_size: I and H.
        buffer_size: number of last states in the buffer, at least 1.
        relevant_size: number of earlier states in the relevant set; 0 for none.
        nonlinearity: :math:`\phi`, ``"tanh"``, ``"relu"`` or ``"modrelu"``, which has the bias ``modrelu_bias_l0``
            (H,).
        combine: ``"half"`` as above, or ``"sum"``, which omits the factor 1/2 as in the thesis and does not generalize
            to longer sequences than those in training; or ``"concat"``: :math:`s_t = [h_t, \sum_j \alpha_j m_j]`.
        alignment: ``"additive"`` as above, or ``"dot"``: :math:`e_j = v \cdot (W_a s_{t-1} \odot U_a m_j)`; or
            ``"scaled_dot"``: :math:`e_j = (W_a s_{t-1}) \cdot (U_a m_j) / \sqrt{H}`, without v.
        num_heads: number of heads N. Each computes e, a softmax and the sum over the :math:`m_j` from its own H/N units
            of queries, keys and :math:`m_j`; the sums are concatenated. The scaled dot product divides by
            :math:`\sqrt{H/N}`.
        relevance: how states of the relevant set are selected: by the ``"attention"`` they received, ``"random"``, or
            ``"fifo"``, the last ones that left the buffer; or ``"learned"``, by the score :math:`w \cdot x_t`, which
            is trained by a straight-through estimate: the gradient of adding to every :math:`e_j` the score of its
            state.
        output: which state the layer returns as output, ``"h"`` or ``"s"``.
        bias: if False, there is no b.
        batch_first: if True, input and output have shape (B, T, features) instead of (T, B, features).
        device, dtype: device and dtype of the parameters.

    Parameters and their initialization:

    - U: ``weight_ih_l0`` (H, I), Glorot's normal distribution
    - b: ``bias_ih_l0`` (H,), zeros
    - V: ``weight_hh_l0`` (H, H), orthogonal as in Henaff et al. 2016; you can register any parametrization on it. With
      ``combine="concat"`` it is (H, 2H), and both halves are orthogonal
    - :math:`W_a` and :math:`U_a`: ``weight_query_l0`` (H, H), or (H, 2H) with ``combine="concat"``, and
      ``weight_key_l0`` (H, H), :math:`U(-H^{-1/2}, H^{-1/2})`
    - v: ``weight_score_l0`` (H,), Glorot's normal distribution
    - w: ``weight_screen_l0`` (I,), Glorot's normal distribution, with ``relevance="learned"``
    - bias of modReLU: U(-0.01, 0.01)

    Raises:
        ValueError, TypeError: a size or an option has a wrong value or type.

    Source: Kerg et al. 2020; Kerg 2022, ch. 4, algorithm 1.

    >>> layer = rnnkern.nn.RelRNN(10, 20, buffer_size=5, relevant_size=3)
    >>> output, state = layer(torch.randn(30, 4, 10))
    >>> output.shape, state.ids.shape
    (torch.Size([30, 4, 20]), torch.Size([4, 3]))
    >>> output, state = layer(torch.randn(30, 4, 10), state)  # continues the sequence
    >>> weights, ids = layer.attention(torch.randn(30, 4, 10))
    >>> weights.shape
    torch.Size([30, 4, 8])
    """

    def __init__(
        self, input_size: int, hidden_size: int, *, nonlinearity: str = "tanh", **options: Unpack[RelevancyOptions]
    ) -> None:
        if nonlinearity not in NONLINEARITIES:
            raise ValueError(f"nonlinearity must be one of {NONLINEARITIES}, got {nonlinearity!r}")
        self.nonlinearity = nonlinearity
        super().__init__(input_size, hidden_size, **options)

    @property
    def _cell(self) -> str:
        return self.nonlinearity

    @torch.no_grad()
    def _reset_cell(self) -> None:
        super()._reset_cell()
        if self.modrelu_bias_l0 is not None:
            init.uniform_(self.modrelu_bias_l0, -0.01, 0.01)


@with_options
class RelLSTM(Relevancy):
    r"""RelLSTM: an LSTM whose gates read a state that attends to the layer's own past.

    .. math::
        i, f, g, o &= U x_t + b + V s_{t-1} \\
        c_t &= \sigma(f) c_{t-1} + \sigma(i) \tanh(g) \\
        h_t &= \sigma(o) \tanh(c_t)

    where :math:`s_t` is computed from :math:`h_t` as in :class:`RelRNN`. Attention reads h, not c. 7H + K + 1 floats
    per sequence and step are saved for the backward pass.

    Args:
        input_size, hidden_size, buffer_size, relevant_size, combine, alignment, num_heads, relevance, output, bias,
            batch_first, device, dtype: as in :class:`RelRNN`.

    Parameters have the names and the initialization of RelRNN, with these differences: U is ``weight_ih_l0`` (4H, I); V
    is ``weight_hh_l0`` (4H, H), orthogonal for each gate; b is ``bias_ih_l0`` (4H,), 1 for the forget gate and 0
    otherwise. Gates are in torch.nn's order.

    Raises:
        ValueError, TypeError: a size or an option has a wrong value or type.

    Source: Kerg et al. 2020; Kerg 2022, ch. 4.

    >>> layer = rnnkern.nn.RelLSTM(10, 20)
    >>> output, state = layer(torch.randn(30, 4, 10))
    >>> state.s.shape, state.c.shape
    (torch.Size([4, 20]), torch.Size([4, 20]))
    """

    _cell, _gates, _states = "lstm", 4, 2

    @torch.no_grad()
    def _reset_cell(self) -> None:
        super()._reset_cell()
        if self.bias_ih_l0 is not None:
            init.ones_(self.bias_ih_l0[self.hidden_size : 2 * self.hidden_size])


@with_options
class MemRNN(RelRNN):
    """MemRNN: a :class:`RelRNN` that attends to all of its past states (Kerg et al. 2020, after Ke et al. 2018).

    Computation is quadratic in T; memory for the backward pass is linear in T.

    Args:
        input_size, hidden_size, nonlinearity, combine, alignment, num_heads, output, bias, batch_first, device, dtype:
            as in :class:`RelRNN`.

    >>> layer = rnnkern.nn.MemRNN(10, 20)
    >>> output, state = layer(torch.randn(30, 4, 10))
    >>> state.buffer.shape
    torch.Size([4, 30, 20])
    """

    def __init__(
        self, input_size: int, hidden_size: int, *, nonlinearity: str = "tanh", **options: Unpack[MemoryOptions]
    ) -> None:
        super().__init__(
            input_size, hidden_size, nonlinearity=nonlinearity, buffer_size=UNLIMITED, relevant_size=0, **options
        )


@with_options
class MemLSTM(RelLSTM):
    """MemLSTM: a :class:`RelLSTM` that attends to all of its past states.

    Args:
        input_size, hidden_size, combine, alignment, num_heads, output, bias, batch_first, device, dtype: as in
            :class:`RelRNN`.

    >>> layer = rnnkern.nn.MemLSTM(10, 20, batch_first=True)
    >>> layer(torch.randn(4, 30, 10))[0].shape
    torch.Size([4, 30, 20])
    """

    def __init__(self, input_size: int, hidden_size: int, **options: Unpack[MemoryOptions]) -> None:
        super().__init__(input_size, hidden_size, buffer_size=UNLIMITED, relevant_size=0, **options)
