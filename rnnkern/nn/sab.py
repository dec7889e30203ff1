"""SABLSTM is an LSTM that attends to a few of its past states (sparse attentive backtracking)."""

from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar, Never

import torch
from torch import Tensor
from torch.nn import init
from torch.nn.utils.rnn import PackedSequence

from rnnkern.nn import autocast
from rnnkern.nn.options import with_options
from rnnkern.nn.single import Attending, empty_parameter, state_like, uniform_, without_layers
from rnnkern.ops import SABState, sab_recurrence
from rnnkern.ops._recurrence.linear import linear
from rnnkern.ops._relevancy.sab import ALIGNMENTS
from rnnkern.reference import SABMemory


@with_options
class SABLSTM(Attending):
    r"""LSTM with sparse attentive backtracking: it attends to a few of its stored past states, and gradients flow
    through these and through the last steps.

    .. math::
        \tilde h_t, c_t &= \mathrm{LSTM}(x_t, h_{t-1}, c_{t-1}) \\
        e_j &= w \cdot \tanh([\tilde h_t; m_j]) \quad \text{or} \quad w \cdot \tanh(W [\tilde h_t; m_j]) \\
        a_t &= \sum_j \omega_j m_j, \quad h_t = \tilde h_t + a_t

    where the memories :math:`m_j` are the first h and every ``attend_every``-th h since. The weights :math:`\omega` are
    sparse and come from the ``top_k`` largest scores, see :func:`rnnkern.ops.sab_recurrence`. The output is
    :math:`[h_t; a_t]`. T is the number of time steps, B the batch size, I the input size and H the hidden size.

    Args:
        input_size, hidden_size: I and H.
        top_k: number of memories that a step attends to. Once more memories exist, the k-th largest score only sets the
            threshold, and at most ``top_k`` - 1 weights are nonzero.
        attend_every: number of steps between stored states.
        truncation: number of steps after which the gradient through h and c is cut. The gradient through memories is
            never cut.
        alignment: ``"separable"``, the first form of :math:`e_j`, as in the published code, or ``"mlp"``, the second
            form, as in the paper.
        bias: if False, the LSTM has no bias.
        batch_first: if True, input and output have shape (B, T, features) instead of (T, B, features).
        device, dtype: device and dtype of the parameters.

    Parameters: ``weight_ih_l0`` (4H, I), ``weight_hh_l0`` (4H, H) and ``bias_ih_l0`` (4H,), with gates in torch.nn's
    order, are initialized from :math:`U(-H^{-1/2}, H^{-1/2})`. w is ``weight_score_l0``, (2H,) for ``"separable"`` and
    (H,) for ``"mlp"``, initialized from N(0, 0.01^2). W is ``weight_alignment_l0`` (H, 2H), for ``"mlp"`` only,
    initialized from Glorot's normal distribution.

    Raises:
        ValueError, TypeError: a size or ``alignment`` has a wrong value or type.

    Source: Ke et al. 2018.

    >>> layer = rnnkern.nn.SABLSTM(10, 20, top_k=5, attend_every=2)
    >>> output, state = layer(torch.randn(30, 4, 10))
    >>> output.shape, state.memory.shape
    (torch.Size([30, 4, 40]), torch.Size([4, 16, 20]))
    >>> output, state = layer(torch.randn(30, 4, 10), state)  # continues the sequence
    >>> weights, slots = layer.attention(torch.randn(30, 4, 10))
    >>> weights.shape
    torch.Size([30, 4, 5])
    """

    _operator, _states = staticmethod(sab_recurrence), 2
    _plain: ClassVar = {
        "top_k": 5, "attend_every": 1, "truncation": 10, "alignment": "separable", "bias": True, "batch_first": False,
    }  # fmt: skip

    def __init__(
        self, input_size: int, hidden_size: int, *, top_k: int = 5, attend_every: int = 1, truncation: int = 10,
        alignment: str = "separable", bias: bool = True, batch_first: bool = False, device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:  # fmt: skip
        sizes = {"input_size": input_size, "hidden_size": hidden_size}
        sizes |= {"top_k": top_k, "attend_every": attend_every, "truncation": truncation}
        super().__init__(sizes, {"alignment": (alignment, tuple(ALIGNMENTS))})
        self.output_size = 2 * hidden_size
        self.bias, self.batch_first = bias, batch_first
        parameter = partial(empty_parameter, device=device, dtype=dtype)
        mlp = alignment == "mlp"
        self.weight_ih_l0 = parameter(4 * hidden_size, input_size)
        self.weight_hh_l0 = parameter(4 * hidden_size, hidden_size)
        self.bias_ih_l0 = parameter(4 * hidden_size) if bias else None
        self.weight_alignment_l0 = parameter(hidden_size, 2 * hidden_size) if mlp else None
        self.weight_score_l0 = parameter(hidden_size if mlp else 2 * hidden_size)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initializes all parameters again."""
        uniform_(self.hidden_size, self.weight_ih_l0, self.weight_hh_l0, self.bias_ih_l0)
        if self.weight_alignment_l0 is not None:
            init.xavier_normal_(self.weight_alignment_l0)
        init.normal_(self.weight_score_l0, std=0.01)

    def forward(
        self, input: Tensor | PackedSequence, hx: SABState | Sequence[Tensor] | Tensor | None = None,
        reset: Tensor | None = None, **unknown: Never,
    ) -> tuple[Tensor | PackedSequence, SABState]:  # fmt: skip
        """Runs the layer over a sequence.

        Args:
            input, reset: as in :meth:`rnnkern.nn.RNN.forward`. After a reset, the state of zeros is the only memory.
            hx: a state that an earlier call returned, which continues that sequence; or ``(h_0, c_0)``, each (1, B, H)
                as in torch.nn or (B, H). None means zeros. In the caller's batch order; without B for unbatched input.

        Returns:
            The output, shaped like ``input`` with 2H columns, and the :class:`~rnnkern.ops.SABState`.

        Raises:
            ValueError: a tensor has the wrong shape.
            TypeError: an argument has the wrong type, dtype or device.
        """
        return self._run(input, hx, reset, unknown)

    def attention(
        self, input: Tensor | PackedSequence, hx: SABState | Sequence[Tensor] | Tensor | None = None,
        reset: Tensor | None = None,
    ) -> SABMemory:  # fmt: skip
        """Returns the attention weights of each step, without gradients.

        Args:
            input, hx, reset: as in :meth:`forward`.

        Returns:
            ``weights`` and ``slots``, both shaped like ``input`` with ``top_k`` columns. A slot, int32, is the memory
            that the weight belongs to. 0 is the first h, j is the h after ``j * attend_every`` steps, and -1 means
            none.
        """
        return self._attended(input, hx, reset)

    def _call(self, input, hx, reset) -> tuple[tuple, dict[str, Any]]:
        x, state, batch_sizes, reset = self._time_first(input, without_layers(hx, input), reset)
        attention = (self.weight_alignment_l0, self.weight_score_l0)
        attention = attention[attention[0] is None :]
        call = {"W": self.weight_ih_l0, "bias": self.bias_ih_l0, "R": self.weight_hh_l0, "attention": attention}
        x, call = autocast.cast(x, call)
        u = linear(x, call["W"], call["bias"])
        options = {name: getattr(self, name) for name in ("top_k", "attend_every", "truncation", "alignment")}
        options |= {"batch_sizes": batch_sizes, "reset": reset}
        return (u, call["R"], state_like(state, u), call["attention"]), options
