"""Gated orthogonal recurrent unit."""

from typing import Any

import torch
from torch.nn.utils import parametrize

from rnnkern import parametrizations
from rnnkern.nn.options import with_options
from rnnkern.nn.recurrent import RecurrentBase


@with_options
class GORU(RecurrentBase, torch.nn.GRU):
    r"""Gated orthogonal recurrent unit: a GRU whose new gate uses modReLU and an orthogonal recurrent weight.

    .. math::
        r &= \sigma(W_r x_t + b_{ir} + R_r h_{t-1} + b_{hr}) \\
        z &= \sigma(W_z x_t + b_{iz} + R_z h_{t-1} + b_{hz}) \\
        n &= \mathrm{modrelu}(W_n x_t + b_{in} + r (B \exp(A) \, h_{t-1} + b_{hn}); b) \\
        h_t &= (1 - z) n + z h_{t-1}

    Shapes, input, output and errors are those of :class:`rnnkern.nn.GRU`. ``weight_hh_l{k}`` (3*H, H) is parametrized
    by :func:`rnnkern.parametrizations.orthogonal_gate`, which computes it once per optimizer step.
    :func:`rnnkern.optim.param_groups` gives A a tenth of the learning rate.

    Args:
        input_size, hidden_size, num_layers: I, H and the number of layers.
        init: initialization of the orthogonal rows: ``"henaff"``, ``"cayley"``, ``"haar"`` or ``"identity"``.
        base, rebase_every: ``"static"`` keeps B fixed. ``"dynamic"`` sets B <- B exp(A) and A <- 0 after every
            ``rebase_every`` optimizer steps.
        bias, batch_first, dropout, bidirectional, device, dtype: as in torch.nn.GRU.
        num_heads, zoneout, recurrent_dropout, save_gates: as in :class:`rnnkern.nn.GRU`.

    b is ``modrelu_bias_l{k}`` (H,), initialized from U(-0.01, 0.01). All other free parameters are initialized as in
    torch.nn.

    Raises:
        ValueError, TypeError: as for GRU, or ``init``, ``base`` or ``rebase_every`` has a wrong value.

    Source: Jing et al. 2019.

    >>> goru = rnnkern.nn.GORU(10, 20)
    >>> output, h_n = goru(torch.randn(4, 3, 10))
    >>> Q = goru.weight_hh_l0[40:]
    >>> output.shape, torch.allclose(Q.T @ Q, torch.eye(20), atol=1e-6)
    (torch.Size([4, 3, 20]), True)
    """

    _cell = "goru"

    def __init__(
        self, input_size: int, hidden_size: int, num_layers: int = 1, bias: bool = True, batch_first: bool = False,
        dropout: float = 0.0, bidirectional: bool = False, device: Any = None, dtype: torch.dtype | None = None, *,
        init: str = "henaff", base: str = "static", rebase_every: int = 1, num_heads: int = 1, zoneout: float = 0.0,
        recurrent_dropout: float = 0.0, save_gates: bool | None = None,
    ) -> None:  # fmt: skip
        super().__init__(
            input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, device=device, dtype=dtype,
            num_heads=num_heads, zoneout=zoneout, recurrent_dropout=recurrent_dropout, save_gates=save_gates,
        )  # fmt: skip
        self._add_modrelu_biases()
        for names in self._all_weights:
            parametrizations.orthogonal_gate(self, names[1], init=init, base=base, rebase_every=rebase_every)

    def reset_parameters(self) -> None:
        super().reset_parameters()
        self._reset_modrelu_biases()
        for names in self._all_weights:
            if parametrize.is_parametrized(self, names[1]):
                parametrizations.reset_parameters(self, names[1])
