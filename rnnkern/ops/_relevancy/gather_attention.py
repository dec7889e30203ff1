"""Attention to listed memories: the public function, its checks, its choice of implementation and its derivatives."""

import torch
from torch import Tensor

from rnnkern import reference
from rnnkern.ops._relevancy import gather_triton  # noqa: F401  (registers kernels)
from rnnkern.ops.checks import check_choice, check_dtype, check_flags, check_like, check_shape, readable, shape_of
from rnnkern.ops.differentiable import differentiable
from rnnkern.ops.dispatch import Choice, choose, cpu_refusal, operator
from rnnkern.ops.folds import in_first_dimension
from rnnkern.ops.triton_launch import refusal as triton_refusal
from rnnkern.reference._relevancy import ALIGNMENTS

OP = "gather_attention"


def _check(q: Tensor, u: Tensor, h: Tensor, idx: Tensor, v: Tensor, alignment: str, return_weights: bool) -> None:
    check_choice(OP, "alignment", alignment, ALIGNMENTS)
    check_flags(OP, return_weights=return_weights)
    check_dtype(OP, "q", q)
    for name, x in (("u", u), ("h", h), ("v", v)):
        check_like(OP, name, x, "q", q)
    if not isinstance(idx, Tensor) or idx.dtype not in (torch.int32, torch.int64):
        raise TypeError(
            f"{OP}: `idx` must be an int32 or int64 tensor, got {getattr(idx, 'dtype', type(idx).__name__)}"
        )
    if idx.device != q.device:
        raise TypeError(f"{OP}: `idx` must be on {q.device} like `q`, got {idx.device}")
    if q.dim() != 3 or q.shape[-1] == 0:
        raise ValueError(f"{OP}: `q` must be (B, T, H) with H of at least 1, got {shape_of(q)}")
    batch, steps, hidden = q.shape
    if u.dim() != 3 or u.shape[0] != batch or u.shape[2] != hidden:
        raise ValueError(f"{OP}: `u` must be (B, M, H) = ({batch}, M, {hidden}), got {shape_of(u)}")
    memories = u.shape[1]
    check_shape(OP, "h", h, "(B, M, H)", (batch, memories, hidden))
    if idx.dim() != 3 or tuple(idx.shape[:2]) != (batch, steps):
        raise ValueError(f"{OP}: `idx` must be (B, T, kappa) = ({batch}, {steps}, kappa), got {shape_of(idx)}")
    if v.dim() not in (1, 2) or v.shape[-1] != hidden or (v.dim() == 2 and (v.shape[0] == 0 or batch % v.shape[0])):
        raise ValueError(
            f"{OP}: `v` must be (H,) = ({hidden},) or (G, H) with G that divides B = {batch}, got {shape_of(v)}"
        )
    if readable(idx) and idx.numel() and (most := int(idx.max())) >= memories:
        raise ValueError(f"{OP}: `idx` must be less than the number of memories M = {memories}, got {most}")


def _choose(q: Tensor) -> Choice:
    return choose(OP, {"cpu": cpu_refusal(q), "triton": triton_refusal(q.device)})


@operator(_check, _choose)
def gather_attention(
    q: Tensor,
    u: Tensor,
    h: Tensor,
    idx: Tensor,
    v: Tensor,
    *,
    alignment: str = "additive",
    return_weights: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    r"""Attends from each query to the memories in its list, with all queries known in advance (Bahdanau et al. 2015,
    A.1.2, restricted to a list). For attention inside a recurrence see :func:`rnnkern.ops.relevancy_recurrence` (Kerg
    2022, ch. 4).

    .. math::
        e_j = v \cdot \tanh(q_t + u_j), \quad \alpha = \mathrm{softmax}(e), \quad
        \mathrm{out}_t = \sum_j \alpha_j h_j

    where :math:`j` runs over ``idx[b, t]``. ``idx`` alone makes the attention causal, windowed or dense. A memory that
    occurs twice in a list counts twice. B is the batch size, T the number of queries, M the number of memories, kappa
    the length of a list and H the number of units.

    Args:
        q: (B, T, H), queries; float32 or float64, or bfloat16 or float16, which are computed in float32.
        u: (B, M, H), the memories' keys.
        h: (B, M, H), the memories' values.
        idx: (B, T, kappa), int32 or int64: the memories that each query attends to, in any order. Negative values mark
            empty places; a list without any memory gives zeros. Values of M or more raise an error if the tensor is on
            a CPU and readable. In compiled code, under ``torch.vmap`` and on other devices, where the check would
            synchronize with the device, they count as empty.
        v: (H,), or (G, H) where G divides B: each row of v serves B / G consecutive samples, for example if heads are
            part of the batch.
        alignment: ``"additive"`` as above, or ``"dot"``: :math:`e_j = v \cdot (q_t \odot u_j)`.
        return_weights: if True, also returns alpha.

    Returns:
        (B, T, H), with the dtype of ``q``; with ``return_weights`` also alpha, (B, T, kappa), 0 for empty places; no
        gradient flows through alpha. Gradients flow to ``q``, ``u``, ``h`` and ``v``. In addition to the arguments, one
        number per query is saved for the backward pass, the log-sum-exp of its scores; alpha is recomputed.

    Raises:
        ValueError: a size, a rank, a choice or an index is wrong, or :func:`rnnkern.use` forces an implementation that
            cannot serve the call.
        TypeError: an argument has the wrong type, dtype or device.

    See also: :func:`rnnkern.reference.gather_attention`, the same equations in plain PyTorch.

    >>> q, u, h = torch.randn(1, 2, 4), torch.randn(1, 3, 4), torch.randn(1, 3, 4)
    >>> idx = torch.tensor([[[2, -1], [-1, -1]]], dtype=torch.int32)
    >>> out = gather_attention(q, u, h, idx, torch.randn(4))
    >>> torch.equal(out[0, 0], h[0, 2]), out[0, 1].tolist()
    (True, [0.0, 0.0, 0.0, 0.0])
    """
    _check(q, u, h, idx, v, alignment, return_weights)
    if idx.dtype == torch.int64:
        idx = idx.clamp(min=-1).int()  # int32 suffices for any number of memories that fits in a tensor
    arithmetic = torch.promote_types(q.dtype, torch.float32)
    dtype, (q, u, h, v) = q.dtype, (x.to(arithmetic) for x in (q, u, h, v))
    if _choose(q).implementation == "reference":
        out, weights = reference.gather_attention(q, u, h, idx, v, alignment=alignment, return_weights=True)
    else:
        v = v.reshape(-1, v.shape[-1])
        results = _gather_attention(q, u, h, idx, v, alignment == "dot", return_weights)
        out, weights = results[0], results[-1] if return_weights else None
    return (out.to(dtype), weights.to(dtype)) if return_weights else out.to(dtype)


# ---- derivatives with respect to (q, u, h, idx, v, dot, weights), with v as (G, H)


def _reference_backward(grad, q, u, h, idx, v, lse, dot):
    def attention(q, u, h, v):
        return reference.gather_attention(q, u, h, idx, v, alignment="dot" if dot else "additive")

    return torch.func.vjp(attention, q, u, h, v)[1](grad)


def _shapes(q, u, h, idx, v, dot, training, weights):
    lse = [q.new_empty(q.shape[:2])] if training else []
    return [q.new_empty(q.shape), *lse, *([q.new_empty(idx.shape)] if weights else [])]


_gather_attention = differentiable(
    "gather_attention",
    forward=lambda training, *args: torch.ops.rnnkern.gather_attention.default(*args[:6], training, args[6]),
    results=1,
    saves=lambda args, outputs: (*args[:5], outputs[1], args[5]),
    gradients=(0, 1, 2, 4),
    reference_backward=_reference_backward,
    leaves=(0, 1, 2, 3, 5),
    fold=in_first_dimension,
    shapes=_shapes,
    backward_shapes=lambda grad, q, u, h, idx, v, lse, dot: [x.new_empty(x.shape) for x in (q, u, h, v)],
)
