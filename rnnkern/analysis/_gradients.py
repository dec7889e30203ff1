"""How far gradients reach: the gradient of a loss with respect to the state of every step."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from rnnkern.analysis._layers import Layer, State, check_place, input_of, layers_of, states_of


def gradient_norms(
    module: Module, x: Tensor, loss: Callable[[Tensor], Tensor], hx: Any = None, *, layer: int = -1, direction: int = 0,
) -> Tensor:  # fmt: skip
    r"""Computes the norm of the gradient of a loss with respect to h at every step, through all later steps.

    .. math::
        a_t = \frac{\partial L}{\partial h_t}
            + \Bigl(\frac{\partial h_{t+1}}{\partial h_t}\Bigr)^\top a_{t+1} \quad (+ \text{ the path through } c)

    Where the norms fall towards early steps, gradients vanish, and where they grow, gradients explode; the first term
    is what the output at t itself contributes.

    The cost on a CPU is that of the module's forward and backward passes; on a GPU the layer runs step by step in plain
    PyTorch. The module is read as in evaluation mode: zoneout has its mean, and there is no dropout.

    Args:
        module: an RNN, LSTM or GRU of rnnkern.nn or torch.nn, or another layer of rnnkern.nn with the same attributes;
            float32 or float64.
        x: input (T, B, I), or (B, T, I) if the module has ``batch_first``.
        loss: a function that returns a scalar; it is called once, with the output of the module, (T, B, directions * H)
            or (B, T, directions * H).
        hx: initial state, as the module takes it. None means zeros.
        layer, direction: which h; -1 is the last layer.

    Returns:
        (T, B), :math:`|a_t|` for each sequence, in the dtype of the module; :math:`h_t` is the h after step t.

    Raises:
        ValueError: the module is of another kind, a shape is wrong, ``layer`` or ``direction`` is out of range, or
            ``loss`` returns no scalar that depends on the output.
        TypeError: the module is neither float32 nor float64, or a tensor has another dtype or device.

    Source: Kerg 2022, equations 2.2.8 to 2.2.10.

    >>> rnn = rnnkern.nn.RNN(1, 1, nonlinearity="identity", bias=False)
    >>> with torch.no_grad():
    ...     _ = rnn.weight_hh_l0.fill_(0.5)
    >>> rnnkern.analysis.gradient_norms(rnn, torch.randn(4, 1, 1), lambda output: output[-1].sum()).flatten()
    tensor([0.1250, 0.2500, 0.5000, 1.0000])
    """
    caller = "gradient_norms"
    layers = layers_of(caller, module)
    layer = layer % len(layers) if -len(layers) <= layer < 0 else layer
    check_place(caller, layers, layer, direction)
    x = input_of(caller, module, x).detach()
    states = states_of(caller, layers, hx, x)
    if not x.shape[0]:
        return x.new_zeros(x.shape[:2])
    with torch.no_grad():
        for directions, initial in zip(layers[:layer], states, strict=False):
            x = _output(directions, initial, x)
    tapped, begin = layers[layer][direction], states[layer][direction]

    def gradient(h: Tensor) -> Tensor:
        h = h.detach().requires_grad_()
        with torch.enable_grad():
            y = _output(layers[layer], states[layer], x, direction, h)
            for directions, initial in zip(layers[layer + 1 :], states[layer + 1 :], strict=True):
                y = _output(directions, initial, y)
            value = loss(y.transpose(0, 1) if module.batch_first else y)
        if not isinstance(value, Tensor) or value.numel() != 1 or not value.requires_grad:
            got = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
            constant = ", a constant" if isinstance(value, Tensor) and not value.requires_grad else ""
            raise ValueError(f"{caller}: `loss` must return a scalar that depends on the output, got {got}{constant}")
        return torch.autograd.grad(value, h, materialize_grads=True)[0]

    return tapped.adjoint(x, begin, gradient).norm(dim=-1)


def _output(
    directions: Sequence[Layer], initial: Sequence[State], x: Tensor, known: int = -1, h: Tensor | None = None
) -> Tensor:
    """The output of a layer, (T, B, directions * H); ``h`` is that of its direction ``known``."""
    steps = enumerate(zip(directions, initial, strict=True))
    return torch.cat([h if d == known else each.run(x, state)[0] for d, (each, state) in steps], -1)
