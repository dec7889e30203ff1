"""The projection of a layer's input or output outside the recurrence kernels."""

import torch
import torch.nn.functional as F
from torch import Tensor

from rnnkern import _extension
from rnnkern.ops.differentiable import applied, needs_derivatives, transformed
from rnnkern.ops.dispatch import autocasts, forced

_operators = torch.ops.rnnkern
_DTYPES = (torch.float32, torch.float64)
_PLAIN = (Tensor, torch.nn.Parameter)  # other subclasses, such as quantized weights, replace F.linear


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """:func:`torch.nn.functional.linear`, in which the bits of a row depend on that row alone.

    A layer that is called over a whole sequence has to return the same bits as one that is called step by step. The
    recurrence kernels do, but in the products of PyTorch the order of additions depends on the number of rows.

    The kernel computes float32 and float64 on a CPU in eager mode. F.linear computes everything else: on a GPU, in
    other dtypes, under autocast, torch.compile, the transforms of torch.func, forward mode, torch.jit.trace and
    ``rnnkern.use("reference")``, where PyTorch may round float32 factors to bfloat16, and for subclasses of tensors.
    """
    if torch.compiler.is_compiling() or not _has_kernel(x, weight, bias):
        return F.linear(x, weight, bias)
    if needs_derivatives(x, weight, bias):
        return _apply(x, weight, bias)
    return _operators.linear.default(x, weight, bias)


def _has_kernel(x: Tensor, *weights: Tensor | None) -> bool:
    dtype = x.dtype
    if not x.is_cpu or dtype not in _DTYPES or not _extension.available or autocasts("cpu"):
        return False
    for y in (x, *weights):
        if y is not None and (type(y) not in _PLAIN or y.dtype is not dtype or y.layout is not torch.strided):
            return False
    if transformed() or torch.jit.is_tracing() or forced() == "reference":
        return False
    return _extension.bfloat16_parts() == 0


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(x, weight, bias):
        return _operators.linear.default(x, weight, bias)

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, weight, _ = inputs
        needs_x, needs_weight, _ = ctx.needs_input_grad
        ctx.save_for_backward(x if needs_weight else None, weight if needs_x else None)

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad
        rows = _rows(grad)
        return (
            grad @ weight if needs_x else None,
            rows.mT @ _rows(x) if needs_weight else None,
            rows.sum(0) if needs_bias else None,
        )


def _rows(x: Tensor) -> Tensor:
    return x if x.dim() == 2 else torch.atleast_2d(x).flatten(0, -2)


_apply = applied(_Linear, "linear")

if _extension.available:
    torch.library.register_fake("rnnkern::linear", lambda x, weight, bias: x.new_empty(*x.shape[:-1], weight.shape[0]))
