"""How far gradients reach: their norms at every step, and the lengths of the paths that attention opens."""

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


def dependency_depth(ids: Tensor) -> Tensor:
    r"""Returns, for each event of an attending recurrence, the length of the shortest gradient path from the last step.

    Event i is the state :math:`h_i`. A path from :math:`s_b` to :math:`h_a` exists if step b attends to event a, or if
    a = b; a path from :math:`h_{b+1}` to :math:`s_b` goes through the recurrent weight. The depth of an event is the
    smallest number of recurrent weights on a path from :math:`s_{T-1}` to it: 0 if the last step attends to it, and T -
    1 - i if only recurrence connects the two. For a linear recurrence whose steps attend to at most :math:`\kappa`
    events with equal weights, the gradient of :math:`s_{T-1}` with respect to an event of depth d is at least
    :math:`\lambda^d / \kappa^{d+1}` in norm, where :math:`\lambda` is a positive eigenvalue of the recurrent weight,
    which is normal. T is the number of time steps, B the batch size and K the number of slots.

    Args:
        ids: (T, B, K) int64, the events that each step attends to, -1 for an empty slot, as
            :meth:`rnnkern.nn.RelRNN.attention` returns them for a sequence that starts with an empty memory and is not
            reset.

    Returns:
        (T, B) int64.

    Raises:
        ValueError: ``ids`` has a wrong shape, or a step attends to a later event.
        TypeError: ``ids`` is not int64.

    Source: Kerg 2022, section 4.4 and appendix B.1.4.

    >>> ids = torch.tensor([[0, -1], [0, 1], [2, 1], [3, 1]]).unsqueeze(1)
    >>> dependency_depth(ids).flatten().tolist()
    [1, 0, 1, 0]
    """
    if ids.dtype != torch.int64:
        raise TypeError(f"dependency_depth: `ids` must be int64, got {ids.dtype}")
    if ids.dim() != 3:
        raise ValueError(f"dependency_depth: `ids` must be (T, B, K), got {tuple(ids.shape)}")
    steps, batch, _ = ids.shape
    if bool((ids > torch.arange(steps, device=ids.device)[:, None, None]).any()):
        raise ValueError("dependency_depth: `ids` must be at most the step that attends to them")
    depth = ids.new_full((batch, steps + 1), steps)  # the last column takes the empty slots
    for step in reversed(range(steps)):
        now = depth.new_zeros(batch) if step == steps - 1 else depth[:, step + 1] + 1
        members = torch.cat([ids[step], ids.new_full((batch, 1), step)], 1)
        members = torch.where(members < 0, steps, members)
        depth.scatter_reduce_(1, members, now.unsqueeze(1).expand_as(members), "amin")
    return depth[:, :steps].T


def _output(
    directions: Sequence[Layer], initial: Sequence[State], x: Tensor, known: int = -1, h: Tensor | None = None
) -> Tensor:
    """The output of a layer, (T, B, directions * H); ``h`` is that of its direction ``known``."""
    steps = enumerate(zip(directions, initial, strict=True))
    return torch.cat([h if d == known else each.run(x, state)[0] for d, (each, state) in steps], -1)
