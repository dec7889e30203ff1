"""Attention to chosen states: the public function, its checks, its choice of implementation and its derivatives."""

import torch
from torch import Tensor

from rnnkern import reference
from rnnkern._torch_private import FakeTensor, is_wrapped
from rnnkern.ops._relevancy import gather_triton  # noqa: F401  (registers kernels)
from rnnkern.ops.checks import check_like, check_shape, shape_of
from rnnkern.ops.differentiable import differentiable
from rnnkern.ops.dispatch import Choice, choose, cpu_refusal, operator
from rnnkern.ops.folds import in_first_dimension
from rnnkern.ops.triton_launch import refusal as triton_refusal
from rnnkern.reference._gather_attention import ALIGNMENTS

OP = "gather_attention"
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def _check(q: Tensor, u: Tensor, h: Tensor, idx: Tensor, v: Tensor, alignment: str) -> None:
    if alignment not in ALIGNMENTS:
        raise ValueError(f"{OP}: `alignment` must be one of {ALIGNMENTS}, got {alignment!r}")
    check_like(OP, "q", q, "q", q)
    if q.dtype not in DTYPES:
        raise TypeError(f"{OP}: `q` must be of a dtype of {DTYPES}, got {q.dtype}")
    for name, x in (("u", u), ("h", h), ("v", v)):
        check_like(OP, name, x, "q", q)
    if not isinstance(idx, Tensor) or idx.dtype not in (torch.int32, torch.int64):
        raise TypeError(
            f"{OP}: `idx` must be an int32 or int64 tensor, got {getattr(idx, 'dtype', type(idx).__name__)}"
        )
    if idx.device != q.device:
        raise TypeError(f"{OP}: `idx` must be on {q.device} like `q`, got {idx.device}")
    if q.dim() != 3 or q.shape[-1] == 0:
        raise ValueError(f"{OP}: `q` must be (B, T, n) with n of at least 1, got {shape_of(q)}")
    batch, steps, hidden = q.shape
    if u.dim() != 3 or u.shape[0] != batch or u.shape[2] != hidden:
        raise ValueError(f"{OP}: `u` must be (B, M, n) = ({batch}, M, {hidden}), got {shape_of(u)}")
    memories = u.shape[1]
    check_shape(OP, "h", h, "(B, M, n)", (batch, memories, hidden))
    if idx.dim() != 3 or tuple(idx.shape[:2]) != (batch, steps):
        raise ValueError(f"{OP}: `idx` must be (B, T, kappa) = ({batch}, {steps}, kappa), got {shape_of(idx)}")
    if v.dim() not in (1, 2) or v.shape[-1] != hidden or (v.dim() == 2 and (v.shape[0] == 0 or batch % v.shape[0])):
        raise ValueError(
            f"{OP}: `v` must be (n,) = ({hidden},) or (G, n) with G that divides B = {batch}, got {shape_of(v)}"
        )
    if _readable(idx) and idx.numel() and (most := int(idx.max())) >= memories:
        raise ValueError(f"{OP}: `idx` must name memories below M = {memories}, got {most}")


def _readable(x: Tensor) -> bool:
    """Whether values are there, and cost no wait."""
    if x.device.type != "cpu" or torch.compiler.is_compiling() or isinstance(x, FakeTensor):
        return False
    return not is_wrapped(x)


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
    r"""Attention of each query to the memories that a list names, with all queries known in advance (Bahdanau et al.
    2015, A.1.2, over a list; inside a recurrence: Kerg 2022, ch. 4, and :func:`rnnkern.ops.relevancy_recurrence`).

    .. math::
        e_j = v \cdot \tanh(q_t + u_j), \quad \alpha = \mathrm{softmax}(e), \quad
        \mathrm{out}_t = \sum_j \alpha_j h_j

    over the :math:`j` in ``idx[b, t]``. What is causal, windowed or dense is said by ``idx`` alone. One that is named
    twice counts twice. B samples, T queries and M memories of each, kappa places in a list, n units.

    Args:
        q: (B, T, n), queries; float32 or float64, or bfloat16 or float16, for which all is computed in float32.
        u: (B, M, n), the memories' keys.
        h: (B, M, n), the memories' values.
        idx: (B, T, kappa) int32 or int64, which memories each query attends to, in any order; -1 for none. A list
            without any gives zeros. Values from M on are an error where the tensor is on a CPU and can be read; in
            compiled code, under ``torch.vmap`` and on other devices, where reading them would wait for the device, they
            are taken as -1, and so is any negative value everywhere.
        v: (n,), or (G, n) with G that divides B: one for every B / G samples in a row, as of heads in the batch.
        alignment: ``"additive"`` as above, or ``"dot"``: :math:`e_j = v \cdot (q_t \odot u_j)`.
        return_weights: return also alpha.

    Returns:
        (B, T, n), of the dtype of ``q``; with ``return_weights`` also alpha, (B, T, kappa), 0 where there is no member,
        through which no gradient flows. Gradients flow to ``q``, ``u``, ``h`` and ``v``. Beside the
        arguments one number per query is kept for them, the log-sum-exp of its scores; alpha is computed again.

    Raises:
        ValueError: a size, a rank, a choice or an index is wrong, or :func:`rnnkern.use` forces an implementation that
            cannot serve the call.
        TypeError: an argument's type, dtype or device is wrong.

    Equations: docs, "Attention to chosen states"; :func:`rnnkern.reference.gather_attention`.

    >>> q, u, h = torch.randn(1, 2, 4), torch.randn(1, 3, 4), torch.randn(1, 3, 4)
    >>> idx = torch.tensor([[[2, -1], [-1, -1]]], dtype=torch.int32)
    >>> out = gather_attention(q, u, h, idx, torch.randn(4))
    >>> torch.equal(out[0, 0], h[0, 2]), out[0, 1].tolist()
    (True, [0.0, 0.0, 0.0, 0.0])
    """
    _check(q, u, h, idx, v, alignment)
    if idx.dtype == torch.int64:
        idx = idx.clamp(min=-1).int()  # which holds any number of memories that a tensor has room for
    arithmetic = torch.promote_types(q.dtype, torch.float32)
    dtype, (q, u, h, v) = q.dtype, (x.to(arithmetic) for x in (q, u, h, v))
    if _choose(q).implementation == "reference":
        out, weights = reference.gather_attention(q, u, h, idx, v, alignment=alignment, return_weights=True)
    else:
        v = v.reshape(-1, v.shape[-1])
        results = _gather_attention(q, u, h, idx, v, alignment == "dot", return_weights)
        out, weights = results[0], results[-1] if return_weights else None
    return (out.to(dtype), weights.to(dtype)) if return_weights else out.to(dtype)


# ---- derivatives: of (q, u, h, idx, v, dot, weights), with v as (G, n)


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
