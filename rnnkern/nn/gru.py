"""Gated recurrent units: GRU replaces that of torch.nn, and the new gate of GORU has an orthogonal recurrent weight."""

from typing import Any, ClassVar, Literal, Unpack

import torch
from torch.nn.utils import parametrize

from rnnkern import cells, parametrizations
from rnnkern.nn.filters import Filter
from rnnkern.nn.options import StepOptions, with_options
from rnnkern.nn.recurrent import RecurrentBase


@with_options
class GRU(RecurrentBase, torch.nn.GRU):
    r"""Gated recurrent unit (GRU); a drop-in replacement for :class:`torch.nn.GRU`.

    .. math::
        r &= \sigma(W_r x_t + b_{ir} + R_r h_{t-1} + b_{hr}) \\
        z &= \sigma(W_z x_t + b_{iz} + R_z h_{t-1} + b_{hz}) \\
        n &= \tanh(W_n x_t + b_{in} + r (R_n h_{t-1} + b_{hn})) & \text{reset after} \\
        n &= \tanh(W_n x_t + b_{in} + R_n (r h_{t-1}) + b_{hn}) & \text{reset before} \\
        h_t &= (1 - z) n + z h_{t-1}

    With ``layer_norm``, LayerNorm is applied to each of the two products over its 3*H values before the bias is added:
    :math:`\mathrm{LN}(W x_t) + b_{ih}` and :math:`\mathrm{LN}(R h_{t-1}) + b_{hh}`.

    Arguments, parameters, initial values, shapes and errors are those of :class:`torch.nn.GRU`. The options below and
    ``reset``, an argument of :meth:`forward`, are additional. T is the number of time steps, B the batch size, I the
    input size, H the hidden size, K the number of heads, each with D = H / K units.

    Args:
        input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, device, dtype: as in torch.nn.
        reset_gate: ``"after"`` applies the reset gate after the product with R, as torch.nn and cuDNN do; ``"before"``
            applies it before the product, as in the paper.
        activation, gate: activation functions of the new gate, and of the reset and update gates; names of
            :data:`rnnkern.cells.ACTIVATIONS` such as ``"hardtanh"`` and ``"hardsigmoid"``. Functions other than tanh
            and sigmoid are compiled at their first use (:func:`rnnkern.cell`).
        num_heads: K. With K > 1, R is block-diagonal and ``weight_hh_l{k}`` has shape (K, 3*D, D). Unit k*D+d of the
            layer is unit d of head k.
        layer_norm: if True, applies LayerNorm to Wx and Rh. The gains ``weight_ln_ih_l{k}`` and ``weight_ln_hh_l{k}``
            (3*H,) are initialized to 1; eps is 1e-5.
        zoneout, recurrent_dropout, filter: as in :class:`RNN`.
        save_gates: True saves the gates for the backward pass: 5 H floats per sequence and step in total. False saves H
            floats and recomputes the gates, which costs one more product with R and one with W. With ``layer_norm`` the
            figures are 10 H and H. None means True on a CPU and False on a GPU. You can change the attribute at any
            time.

    Raises:
        ValueError, TypeError: ``reset_gate`` is not one of the two; ``num_heads`` does not divide ``hidden_size``; a
            rate is not in [0, 1); or ``layer_norm`` is combined with ``num_heads``, a filter or
            ``reset_gate="before"``.
        As torch.nn: for every other wrong argument.

    Source: Cho et al. 2014 (reset before); Chung et al. 2014 and torch.nn (reset after); ``layer_norm``: Ba et al.
    2016.

    >>> gru = GRU(10, 20, bidirectional=True, reset_gate="before")
    >>> output, h_n = gru(torch.randn(5, 3, 10))
    >>> output.shape, h_n.shape
    (torch.Size([5, 3, 40]), torch.Size([2, 3, 20]))
    >>> gru = GRU(10, 20, layer_norm=True)
    >>> gru(torch.randn(5, 3, 10))[0].shape, gru.weight_ln_hh_l0.shape
    (torch.Size([5, 3, 20]), torch.Size([60]))
    """

    reset_gate: Literal["after", "before"] = "after"
    activation: str = "tanh"
    gate: str = "sigmoid"
    _plain: ClassVar = RecurrentBase._plain | {"reset_gate": "after", "activation": "tanh", "gate": "sigmoid"}

    def __init__(
        self, input_size: int, hidden_size: int, num_layers: int = 1, bias: bool = True, batch_first: bool = False,
        dropout: float = 0.0, bidirectional: bool = False, device: Any = None, dtype: torch.dtype | None = None, *,
        reset_gate: Literal["after", "before"] = "after", activation: str = "tanh", gate: str = "sigmoid",
        layer_norm: bool = False, filter: Filter | None = None, **options: Unpack[StepOptions],
    ) -> None:  # fmt: skip
        super().__init__(
            input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, device=device, dtype=dtype,
            layer_norm=layer_norm, filter=filter, **options,
        )  # fmt: skip
        if reset_gate not in ("after", "before"):
            raise ValueError(f"reset_gate must be 'after' or 'before', got {reset_gate!r}")
        if reset_gate == "before" and self.layer_norm:
            raise ValueError("layer_norm must be False with reset_gate = 'before', got True")
        self.reset_gate = reset_gate
        self.activation, self.gate = activation, gate
        if (activation, gate) != ("tanh", "sigmoid"):
            if reset_gate == "before" or self.layer_norm:
                raise ValueError(
                    "activation and gate must be 'tanh' and 'sigmoid' with reset_gate = 'before' or layer_norm, got "
                    f"{activation!r} and {gate!r}"
                )
            cells.gru(activation, gate)  # raises if there is no such function

    @property
    def _cell(self) -> str:
        if self.layer_norm:
            return cells.gru_layer_norm.name
        if (self.activation, self.gate) != ("tanh", "sigmoid"):
            return cells.gru(self.activation, self.gate).name
        return "gru" if self.reset_gate == "after" else "gru_reset_before"


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
        init: str = "henaff", base: str = "static", rebase_every: int = 1, **options: Unpack[StepOptions],
    ) -> None:  # fmt: skip
        super().__init__(
            input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, device=device, dtype=dtype,
            **options,
        )  # fmt: skip
        self._add_parameters({"modrelu_bias": hidden_size})
        for names in self._all_weights:
            parametrizations.orthogonal_gate(self, names[1], init=init, base=base, rebase_every=rebase_every)

    def reset_parameters(self) -> None:
        super().reset_parameters()
        for names in self._all_weights:
            if parametrize.is_parametrized(self, names[1]):
                parametrizations.reset_parameters(self, names[1])
