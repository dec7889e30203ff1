"""Norms over the units of values in the equations of a cell."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from rnnkern._cells.trace import Gates, Value


def layer_norm(input: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    r"""LayerNorm in the equations of a :func:`rnnkern.cell`: :math:`w (x - \mu) / \sqrt{\sigma^2 + \epsilon} + b`.

    Mean and variance (the biased one) are over the H units of a value, or over all G*H units of ``u``, ``r`` or ``u +
    r``. A cell has at most three norms.

    Args:
        input: a value, or all gates: ``u``, ``r`` or ``u + r``. If a cell has a second product, only values.
        weight, bias: parameters of the cell, (H,) for a value and (G*H,) for gates; layers initialize them to 1 and 0.
            None leaves them out.
        eps: added to the variance.

    Returns:
        The normalized value or gates.

    Raises:
        CellError: where the cell is defined, if it has more norms, or one that kernels cannot compute.
        TypeError: ``input`` is neither a value nor gates.

    Source: Ba, Kiros and Hinton 2016.

    >>> @rnnkern.cell(gates="rzn")
    ... def normalized_gru(u, r, h, *, weight, bias):
    ...     u, r = rnnkern.layer_norm(u), rnnkern.layer_norm(r, weight, bias)
    ...     z = torch.sigmoid(u.z + r.z)
    ...     return (1 - z) * torch.tanh(u.n + torch.sigmoid(u.r + r.r) * r.n) + z * h
    >>> layer = rnnkern.nn.Recurrent(normalized_gru, 8, 16)
    >>> layer(torch.randn(5, 2, 8))[0].shape, layer.weight_l0.shape
    (torch.Size([5, 2, 16]), torch.Size([48]))
    """
    return _norm("layer_norm", input, weight, bias, eps)


def rms_norm(input: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    r"""Root mean square norm in the equations of a :func:`rnnkern.cell`: :math:`w \, x / \sqrt{\mathrm{mean}(x^2) +
    \epsilon} + b`. Arguments, result and limits are those of :func:`layer_norm`.

    Source: Zhang and Sennrich 2019.
    """
    return _norm("rms_norm", input, weight, bias, eps)


def _norm(kind: str, input: Any, weight: Any, bias: Any, eps: float) -> Any:
    if isinstance(input, Gates):
        return input._normalized(kind, weight, bias, eps)
    if isinstance(input, Value):
        return input._tracer.norm(kind, [input], weight, bias, eps)[0]
    if not isinstance(input, Tensor) and not hasattr(input, "_like"):
        raise TypeError(f"{kind}: `input` must be a value of a cell, `u`, `r` or `u + r`, got {type(input).__name__}")
    values = (input,) if isinstance(input, Tensor) else tuple(input)
    results = torch.cat(normalized(kind, eps, *values), -1)
    results = results if weight is None else results * weight
    results = (results if bias is None else results + bias).chunk(len(values), -1)
    return results[0] if isinstance(input, Tensor) else input._like(results)


def normalized(kind: str, eps: float, *values: Tensor) -> Sequence[Tensor]:
    """The values, (B, H) each, normalized together."""
    x = torch.cat(values, -1) if len(values) > 1 else values[0]
    if kind == "layer_norm":
        y = F.layer_norm(x, x.shape[-1:], eps=eps)
    else:
        y = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    return y.chunk(len(values), -1)
