"""The input projection x W^T + b and its gradients, by whichever of PyTorch's products is faster for them."""

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import forward_ad

LEAST_WORK = 2**22
"""Multiplications below which a call of oneDNN costs more than it spares."""


def project(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """:func:`torch.nn.functional.linear`, (..., I) to (..., O), with the same derivatives.

    Large products of float32 on a CPU go through oneDNN, which PyTorch links but does not use for them: its MKL runs at
    half of oneDNN's speed on AMD's processors and alike on Intel's.
    """
    if _onednn_serves(x, weight):
        return _Projection.apply(x, weight, bias)
    return F.linear(x, weight, bias)


def available() -> bool:
    """Whether this PyTorch has the product."""
    return torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def _onednn_serves(x: Tensor, weight: Tensor) -> bool:
    return (
        not torch.compiler.is_compiling()
        and x.device.type == "cpu"
        and x.dtype == weight.dtype == torch.float32
        and x.numel() * weight.shape[0] >= LEAST_WORK
        and available()
        and torch.backends.mkldnn.enabled
        and not torch.is_autocast_enabled("cpu")
        and not torch._C._are_functorch_transforms_active()
        and forward_ad._current_level < 0
    )


def _product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise.default(x, weight, bias, "none", [], "")


class _Projection(torch.autograd.Function):
    @staticmethod
    def forward(x, weight, bias):
        return _product(x, weight, bias)

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, weight, bias = inputs
        ctx.has_bias = bias is not None
        ctx.save_for_backward(x, weight)

    @staticmethod
    def backward(ctx, du):
        x, weight = ctx.saved_tensors
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad
        rows, columns = x.flatten(0, -2), du.flatten(0, -2)
        dx = dweight = None
        if torch.is_grad_enabled():  # second derivatives: products that autograd knows
            dx = du @ weight if needs_x else None
            dweight = columns.t() @ rows if needs_weight else None
        else:
            dx = _product(du, weight.t()) if needs_x else None
            # The transpose of x^T du: oneDNN is faster with the longer side of the result in rows of its output.
            dweight = _product(rows.t(), columns.t()).t() if needs_weight else None
        return dx, dweight, columns.sum(0) if ctx.has_bias and needs_bias else None
