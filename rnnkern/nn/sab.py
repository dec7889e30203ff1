"""Sparse attentive backtracking."""

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn import Parameter, init
from torch.nn.utils.rnn import PackedSequence

from rnnkern.nn import autocast
from rnnkern.nn.attending import Attending, state_like
from rnnkern.nn.options import with_options
from rnnkern.ops import SABMemory, SABState, sab_recurrence
from rnnkern.ops._relevancy.sab import ALIGNMENTS


@with_options
class SABLSTM(Attending):
    r"""An LSTM that attends to a few of its remembered states, with gradients through them and through the last steps.

    .. math::
        \tilde h_t, c_t &= \mathrm{LSTM}(x_t, h_{t-1}, c_{t-1}) \\
        e_j &= w \cdot \tanh([\tilde h_t; m_j]) \quad \text{or} \quad w \cdot \tanh(W [\tilde h_t; m_j]) \\
        a_t &= \sum_j \omega_j m_j, \quad h_t = \tilde h_t + a_t

    over the memories :math:`m_j`: the first h and every ``attend_every``-th since. The weights :math:`\omega` are
    sparse, from the ``top_k`` largest scores, see :func:`rnnkern.ops.sab_recurrence`. The output is
    :math:`[h_t; a_t]`. T steps, B sequences, I inputs, n hidden units.

    Args:
        input_size, hidden_size: I and n.
        top_k: how many memories are attended to, of which the last only sets the threshold once there are more.
        attend_every: every how many steps a state is remembered.
        truncation: every how many steps the gradient through h and c is cut; that through memories never is.
        alignment: ``"separable"``, the first form of :math:`e_j`, which is the published code's, or ``"mlp"``, the
            second, as in the article.
        bias: whether the LSTM has biases.
        batch_first: input and output are (B, T, .).
        device, dtype: of the parameters.

    Parameters: ``weight_ih_l0`` (4n, I), ``weight_hh_l0`` (4n, n) and ``bias_ih_l0`` (4n,), gates in torch.nn's order,
    from :math:`U(-n^{-1/2}, n^{-1/2})`; w ``weight_score_l0``, (2n,) or (n,), from N(0, 0.01^2); W
    ``weight_alignment_l0`` (n, 2n) of the mlp from Glorot's normal distribution.

    Raises:
        ValueError, TypeError: a size or ``alignment`` is wrong.

    Source: Ke et al. 2018.

    >>> layer = rnnkern.nn.SABLSTM(10, 20, top_k=5, attend_every=2)
    >>> output, state = layer(torch.randn(30, 4, 10))
    >>> output.shape, state.memory.shape
    (torch.Size([30, 4, 40]), torch.Size([4, 16, 20]))
    >>> output, state = layer(torch.randn(30, 4, 10), state)  # goes on
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
        super().__init__(sizes, {}, {"alignment": (alignment, tuple(ALIGNMENTS))})
        self.output_size = 2 * hidden_size
        self.bias, self.batch_first = bias, batch_first

        def parameter(*shape: int) -> Parameter:
            return Parameter(torch.empty(shape, device=device, dtype=dtype))

        mlp = alignment == "mlp"
        self.weight_ih_l0 = parameter(4 * hidden_size, input_size)
        self.weight_hh_l0 = parameter(4 * hidden_size, hidden_size)
        self.bias_ih_l0 = parameter(4 * hidden_size) if bias else None
        self.weight_alignment_l0 = parameter(hidden_size, 2 * hidden_size) if mlp else None
        self.weight_score_l0 = parameter(hidden_size if mlp else 2 * hidden_size)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws all parameters anew."""
        for weight in (self.weight_ih_l0, self.weight_hh_l0, self.bias_ih_l0):
            if weight is not None:
                init.uniform_(weight, -(self.hidden_size**-0.5), self.hidden_size**-0.5)
        if self.weight_alignment_l0 is not None:
            init.xavier_normal_(self.weight_alignment_l0)
        init.normal_(self.weight_score_l0, std=0.01)

    def forward(
        self,
        input: Tensor | PackedSequence,
        state: SABState | Sequence[Tensor] | None = None,
        reset: Tensor | None = None,
    ) -> tuple[Tensor | PackedSequence, SABState]:
        """Runs the layer over a sequence.

        Args:
            input: (T, B, I), (B, T, I) with ``batch_first``, (T, I), or a
                :class:`~torch.nn.utils.rnn.PackedSequence`; of the parameters' dtype. T may be 0.
            state: that a former call returned, and the two calls are one; or ``(h0, c0)``, each (B, n). None is zeros.
                In the caller's batch order; without B for (T, I).
            reset: bool, (T, B), (B, T) with ``batch_first``, also when packed, (T,) for (T, I). In the caller's
                batch order. Where true a sequence begins at step t, with nothing remembered but its h of zeros.

        Returns:
            The output, like ``input`` with 2n columns, and the :class:`~rnnkern.ops.SABState`.

        Raises:
            ValueError: a shape is wrong.
            TypeError: a type, dtype or device is wrong.
        """
        return self._run(input, state, reset)

    def attention(
        self,
        input: Tensor | PackedSequence,
        state: SABState | Sequence[Tensor] | None = None,
        reset: Tensor | None = None,
    ) -> SABMemory:
        """What each step attends to, without gradients.

        Args:
            input, state, reset: as :meth:`forward`.

        Returns:
            ``weights``, like ``input`` with ``top_k`` columns, and ``slots``, int32, which memories they are of: 0 for
            the first h, j for that after ``j * attend_every`` steps, -1 for none.
        """
        return self._attended(input, state, reset)

    def _call(self, input, state, reset) -> tuple[tuple, dict[str, Any]]:
        x, state, batch_sizes, reset = self._time_first(input, state, reset)
        attention = (self.weight_alignment_l0, self.weight_score_l0)
        attention = attention[attention[0] is None :]
        x, call = autocast.cast(
            x, {"W": self.weight_ih_l0, "bias": self.bias_ih_l0, "R": self.weight_hh_l0, "attention": attention}
        )
        u = F.linear(x, call["W"], call["bias"])
        options = {name: getattr(self, name) for name in ("top_k", "attend_every", "truncation", "alignment")}
        return (u, call["R"], state_like(state, u), call["attention"]), options | {
            "batch_sizes": batch_sizes,
            "reset": reset,
        }
