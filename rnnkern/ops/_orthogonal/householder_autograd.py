"""The kernels of householder_product, which are ATen's products and triangular solutions, and its derivatives: an
autograd.Function around the forward, one around the backward, and the reference around that."""

import torch
from torch import Tensor

from rnnkern import _extension, reference
from rnnkern.ops.transforms import applied, needs_derivatives, no_forward_mode, transformed

_operators = torch.ops.rnnkern


def householder_product(V: Tensor) -> Tensor:
    """Of float32, float64, complex64 or complex128."""
    if needs_derivatives(V):
        return _apply(V)[0]
    return _operators.householder_product.default(V, False)[0]


# ---- kernels


def forward(V: Tensor, training: bool) -> list[Tensor]:
    """[Q, and when training: W = S^-1 U^H (..., m, N), S (..., m, m), the lengths of the vectors (..., 1, m)]."""
    *batch, size, _ = V.shape
    Q = torch.eye(size, dtype=V.dtype, device=V.device).expand(*batch, size, size)
    if V.numel() == 0:
        kept = [x.zero_() for x in _kept_shapes(V)] if training else []
        return [Q.contiguous(), *kept]
    U, norm = _normalised(V)
    G = U.mH @ U
    half = G.diagonal(dim1=-2, dim2=-1).real / 2  # as it was rounded, so that what the product is to be is orthogonal
    S = torch.triu(G, 1) + torch.diag_embed(torch.where(half == 0, 0.5, half)).to(V.dtype)
    W = torch.linalg.solve_triangular(S, U.mH, upper=True)
    Q = torch.baddbmm(*(x.reshape(-1, *x.shape[-2:]) for x in (Q, U, W)), alpha=-1).reshape(Q.shape)
    return [Q, W.contiguous(), S, norm] if training else [Q]


def _normalised(V: Tensor) -> tuple[Tensor, Tensor]:
    """The vectors at length 1, and the lengths; of a vector of zeros zeros, and 1."""
    largest = V.abs().amax(-2, keepdim=True)
    scale = torch.where(largest == 0, 1, largest)  # no square leaves the range of the dtype
    length = torch.linalg.vector_norm(V / scale, dim=-2, keepdim=True)
    length = torch.where(largest == 0, 1, length)
    return V / scale / length, scale * length


def backward(grad: Tensor, V: Tensor, W: Tensor, S: Tensor, norm: Tensor) -> Tensor:
    """The gradient of V.

    Through Q = I - U W, S W = U^H and the strict upper triangle of S = U^H U; the lengths of U are constant, and what
    points along U is taken out.
    """
    if V.numel() == 0:
        return torch.empty_like(V, memory_format=torch.contiguous_format)
    U, _ = _normalised(V)
    Z = torch.linalg.solve_triangular(S.mH, U.mH @ -grad, upper=False)  # the gradient of U^H through W
    upper = torch.triu(Z @ -W.mH, 1)  # of S
    U_bar = U @ (upper + upper.mH) + Z.mH - grad @ W.mH
    along = (U.conj() * U_bar).real.sum(-2, keepdim=True)
    return ((U_bar - U * along) / norm).contiguous()


# ---- derivatives


class HouseholderProduct(torch.autograd.Function):
    @staticmethod
    def forward(V):
        return tuple(_operators.householder_product.default(V, True))

    @staticmethod
    def setup_context(ctx, inputs, output):
        _, *kept = output
        ctx.mark_non_differentiable(*kept)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*inputs, *kept)

    @staticmethod
    def backward(ctx, grad, *_):
        if grad is None:
            return None
        backward = HouseholderProductBackward.apply if transformed() else HouseholderProductBackward.forward
        return backward(grad, *ctx.saved_tensors)

    @staticmethod
    def vmap(info, dims, V):
        results = HouseholderProduct.apply(V.movedim(dims[0], 0))
        return results, (0,) * len(results)


_apply = applied(HouseholderProduct, "householder_product")


class HouseholderProductBackward(torch.autograd.Function):
    """The backward for torch.func's transforms, which do not take the operator's register_autograd."""

    @staticmethod
    def forward(grad, V, W, S, norm):
        return _operators.householder_product_backward.default(grad, V, W, S, norm)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs[:2])

    @staticmethod
    def backward(ctx, grad):
        return *_differentiate_backward(*ctx.saved_tensors, grad), None, None, None

    @staticmethod
    def vmap(info, dims, *args):
        args = [
            x.expand(info.batch_size, *x.shape) if dim is None else x.movedim(dim, 0)
            for x, dim in zip(args, dims, strict=True)
        ]
        return HouseholderProductBackward.apply(*args), 0

    jvp = no_forward_mode("householder_product")


def _differentiate_backward(upstream: Tensor, V: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    """The vector-Jacobian product of the backward, which is the reference's gradient."""

    def backward(upstream, V):
        return torch.func.vjp(reference.householder_product, V)[1](upstream)[0]

    return torch.func.vjp(backward, upstream, V)[1](grad)


def _kept_shapes(V):
    *batch, size, reflections = V.shape
    square = V.new_empty(*batch, reflections, reflections)
    return V.new_empty(*batch, reflections, size), square, V.new_empty(*batch, 1, reflections, dtype=V.dtype.to_real())


def _forward_shapes(V, training):
    Q = V.new_empty(*V.shape[:-2], V.shape[-2], V.shape[-2])
    return [Q, *_kept_shapes(V)] if training else [Q]


def _backward_shapes(grad, V, W, S, norm):
    return V.new_empty(V.shape)


if _extension.available:
    torch.library.impl("rnnkern::householder_product", "CPU")(forward)
    torch.library.impl("rnnkern::householder_product", "CUDA")(forward)
    torch.library.impl("rnnkern::householder_product_backward", "CPU")(backward)
    torch.library.impl("rnnkern::householder_product_backward", "CUDA")(backward)
    torch.library.register_fake("rnnkern::householder_product", _forward_shapes)
    torch.library.register_fake("rnnkern::householder_product_backward", _backward_shapes)
    torch.library.register_autograd(
        "rnnkern::householder_product_backward",
        HouseholderProductBackward.backward,
        setup_context=HouseholderProductBackward.setup_context,
    )
