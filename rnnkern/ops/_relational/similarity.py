"""Similarity of a few objects: the public function, its checks, its choice of implementation and its derivatives."""

from collections.abc import Sequence

import torch
from torch import Tensor

from rnnkern import reference
from rnnkern.ops._relational import similarity_triton
from rnnkern.ops._relational.context_norm import context_norm
from rnnkern.ops.checks import check_choice, check_dtype, check_flags, check_like, check_number, check_shape, readable
from rnnkern.ops.differentiable import differentiable
from rnnkern.ops.dispatch import Choice, choose, cpu_refusal, operator
from rnnkern.ops.folds import in_first_dimension
from rnnkern.ops.triton_launch import refusal as triton_refusal
from rnnkern.reference._relational import MASKS, NORMS

OP = "similarity"


def _check(x, y, weight, bias, norm, eps, segments, lengths, mask, scale, values, packed, return_scores) -> None:
    check_dtype(OP, "x", x)
    if x.dim() != 3 or 0 in x.shape[1:]:
        raise ValueError(f"{OP}: `x` must be (B, T, d) with T and d of at least 1, got {tuple(x.shape)}")
    batch, objects, features = x.shape
    check_flags(OP, packed=packed, return_scores=return_scores)
    if y is not None:
        check_like(OP, "y", y, "x", x)
        check_shape(OP, "y", y, "(B, T, d)", (batch, objects, features))
    check_choice(OP, "mask", mask, MASKS)
    if packed and mask == "full":
        raise ValueError(f"{OP}: `packed` must be False for `mask` 'full', which has no triangle, got True")
    check_number(OP, "scale", scale)
    check_norm(OP, x, weight, bias, norm, eps, segments, lengths)
    if values is not None:
        check_like(OP, "values", values, "x", x)
        if values.dim() != 3 or tuple(values.shape[:2]) != (batch, objects) or values.shape[2] == 0:
            wanted = f"(B, T, e) = ({batch}, {objects}, e) with e of at least 1"
            raise ValueError(f"{OP}: `values` must be {wanted}, got {tuple(values.shape)}")


def check_norm(op: str, x: Tensor, weight, bias, norm, eps, segments, lengths) -> None:
    """Checks the arguments of the normalization; ``x`` is (B, T, d)."""
    batch, objects, features = x.shape
    check_choice(op, "norm", norm, NORMS)
    check_eps(op, eps)
    if (weight is None) != (bias is None):
        there, absent = ("bias", "weight") if weight is None else ("weight", "bias")
        raise ValueError(f"{op}: `{absent}` must be given where `{there}` is, got None")
    if weight is not None:
        if norm is None:
            raise ValueError(f"{op}: `weight` and `bias` must be None for `norm` None, which leaves x as it is")
        for name, given in (("weight", weight), ("bias", bias)):
            check_like(op, name, given, "x", x)
            check_shape(op, name, given, "(d,)", (features,))
    if segments is not None:
        check_segments(op, segments)
        if sum(segments) != objects:
            raise ValueError(f"{op}: `segments` must sum to T = {objects}, got {tuple(segments)}")
    if lengths is not None:
        if not isinstance(lengths, Tensor) or lengths.dtype != torch.int64:
            got = lengths.dtype if isinstance(lengths, Tensor) else type(lengths).__name__
            raise TypeError(f"{op}: `lengths` must be an int64 tensor, got {got}")
        if lengths.device != x.device:
            raise TypeError(f"{op}: `lengths` must be on {x.device} like `x`, got {lengths.device}")
        check_shape(op, "lengths", lengths, "(B,)", (batch,))
        if readable(lengths) and batch:
            least, most = lengths.aminmax()
            if least < 0 or most > objects:
                raise ValueError(f"{op}: `lengths` must be in [0, {objects}], got {int(least)} to {int(most)}")


def check_eps(op: str, eps: float) -> None:
    check_number(op, "eps", eps)
    if eps < 0:
        raise ValueError(f"{op}: `eps` must not be negative, got {eps}")


def check_segments(op: str, segments: Sequence[int]) -> None:
    if not isinstance(segments, (tuple, list)) or any(isinstance(n, bool) or not isinstance(n, int) for n in segments):
        raise TypeError(f"{op}: `segments` must be a tuple of ints, got {segments!r}")
    if not segments or min(segments) < 1:
        raise ValueError(f"{op}: `segments` must be at least 1 each, got {tuple(segments)}")


def _choose(x: Tensor) -> Choice:
    too_many = similarity_triton.refusal(x.shape[1])
    return choose(OP, {"cpu": cpu_refusal(x), "triton": triton_refusal(x.device) or too_many})


@operator(_check, _choose)
def similarity(
    x: Tensor,
    y: Tensor | None = None,
    *,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    norm: str | None = "unbiased",
    eps: float = 1e-8,
    segments: Sequence[int] | None = None,
    lengths: Tensor | None = None,
    mask: str = "causal",
    scale: float = 1.0,
    values: Tensor | None = None,
    packed: bool = False,
    return_scores: bool = False,
) -> Tensor | tuple[Tensor, ...]:
    r"""Compares a few objects with one another: normalizes each feature over the objects of a sample, takes the
    products of all pairs, and a softmax of each row (Kerg et al. 2022; the normalization: Webb et al. 2020).

    .. math::
        z = \gamma \frac{x - \mu}{\sqrt{\mathrm{var} + \epsilon}} + \beta, \quad
        S = \mathrm{scale} \cdot Z Z^\top, \quad R = \mathrm{softmax}(S)

    The mean and the variance of a feature are over the objects of a segment, and the softmax of row i is over its
    members. B is the batch size, T the number of objects and d the number of features.

    Args:
        x: (B, T, d), objects; float32 or float64, or bfloat16 or float16, which are computed in float32.
        y: (B, T, d), objects of a second branch: then :math:`S = \mathrm{scale} \cdot Z_x Z_y^\top`. None means x.
        weight, bias: (d,) each, :math:`\gamma` and :math:`\beta` of both branches; None means 1 and 0.
        norm: ``"unbiased"``, the variance over n - 1 of n objects as in the published code, ``"biased"``, over n, or
            None: z = x. A segment of one object has z = bias.
        eps: :math:`\epsilon`, not negative. A feature that differs by less than its root counts as equal, so it decides
            what "similar" means.
        segments: numbers of consecutive objects that are normalized together; they sum to T. None means one segment.
        lengths: (B,) int64: objects of a sample from there on are neither read nor compared. Values outside [0, T]
            raise an error on a CPU where they are readable; elsewhere they are clamped.
        mask: the members of row i: ``"causal"``, columns j <= i; ``"strict"``, j < i; ``"full"``, all. A row without
            members is 0.
        scale: factor of S.
        values: (B, T, e), also returns R values.
        packed: if True, R and S have a row per sample, that of all members j <= i (or j < i) row by row,
            (B, T (T + 1) / 2) or for ``"strict"`` (B, T (T - 1) / 2). Not for ``"full"``.
        return_scores: if True, also returns S, 0 where R has no member.

    Returns:
        R, (B, T, T) or packed; with ``return_scores`` or ``values`` a tuple of R, S if requested, and the product
        (B, T, e) if requested. Gradients flow from all of them to ``x``, ``y``, ``weight``, ``bias`` and ``values``,
        and second derivatives are supported. Besides the arguments, only R is saved for the backward pass.

    Raises:
        ValueError: a size, a rank, a choice or a value is wrong, or :func:`rnnkern.use` forces an implementation that
            cannot serve the call.
        TypeError: an argument has the wrong type, dtype or device.
        NotImplementedError: forward-mode AD (``torch.func.jvp``) is not supported.

    On a GPU, more than 128 objects are compared in plain PyTorch. See also: :func:`rnnkern.reference.similarity`, the
    same equations in plain PyTorch.

    >>> x = torch.tensor([[[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]]])  # the third object equals the first
    >>> similarity(10 * x, norm=None)[0].round(decimals=3).tolist()
    [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.5, 0.0, 0.5]]
    """
    _check(x, y, weight, bias, norm, eps, segments, lengths, mask, scale, values, packed, return_scores)
    dtype, objects = x.dtype, x.shape[1]
    implementation = _choose(x).implementation
    if dtype not in (torch.float32, torch.float64):
        x, y, weight, bias, values = (None if t is None else t.float() for t in (x, y, weight, bias, values))
    if implementation == "reference":
        of_norm = {"norm": norm, "eps": float(eps), "segments": segments, "lengths": lengths}
        z_x, z_y = (None if t is None else context_norm(t, weight, bias, **of_norm) for t in (x, y))
        found = reference.similarity(
            z_x, z_y, norm=None, lengths=lengths, mask=mask, scale=scale, values=values, packed=packed,
            return_scores=return_scores,
        )  # fmt: skip
        found = found if isinstance(found, tuple) else (found,)
    else:
        sizes = (objects,) if segments is None else tuple(segments)
        found = _similarity(
            x, y, weight, bias, values, lengths, sizes, norm or "none", float(eps), mask, float(scale), packed,
            return_scores,
        )  # fmt: skip
    if found[0].dtype != dtype:
        found = tuple(t.to(dtype) for t in found)
    return found if len(found) > 1 else found[0]


# ---- derivatives with respect to (x, y, weight, bias, values); weight and bias (d,), or (G, d) for G groups of samples


def _backward_arguments(grads, saved, needs):
    """Names the gradients, of which those of outputs that were not requested are missing."""
    *rest, scores = saved
    grad_R, *others = grads
    grad_scores = others.pop(0) if scores else None
    grad_product = others.pop(0) if rest[4] is not None else None
    return grad_R, grad_scores, grad_product, *rest


def _reference_backward(
    grad_R, grad_scores, grad_product, x, y, weight, bias, values, lengths, R, segments, norm, eps, mask, scale, packed
):  # fmt: skip
    given = {"x": x, "y": y, "weight": weight, "bias": bias, "values": values}
    leaves = {name: t for name, t in given.items() if t is not None}

    def forward(leaves):
        named = {name: leaves.get(name) for name in given}
        for name in ("weight", "bias"):
            if (rows := named[name]) is not None and rows.dim() == 2:  # a row per sample
                named[name] = rows.repeat_interleave(x.shape[0] // rows.shape[0], 0).unsqueeze(1)
        return reference.similarity(
            named.pop("x"), **named, norm=None if norm == "none" else norm, eps=eps, segments=segments, lengths=lengths,
            mask=mask, scale=scale, packed=packed, return_scores=True,
        )  # fmt: skip

    outputs, pull = torch.func.vjp(forward, leaves)
    grads = (grad_R, grad_scores, *(() if values is None else (grad_product,)))
    (found,) = pull(tuple(torch.zeros_like(t) if g is None else g for t, g in zip(outputs, grads, strict=True)))
    return [found[name] if name in found else x.new_empty(0) for name in given]


def _over_samples(function, info, dims, args):
    """The rule for torch.vmap: samples of all members are those of one call, in which a weight and a bias (d,) of each
    member are rows. No other floating-point tensor of a member has one dimension."""

    def as_row(x, dim):
        if not isinstance(x, Tensor) or x.dim() - (dim is not None) != 1 or not x.is_floating_point():
            return x, dim
        return (x.unsqueeze(0), None) if dim is None else (x.movedim(dim, 0).unsqueeze(1), 0)

    rows, row_dims = zip(*map(as_row, args, dims), strict=True)
    results, result_dims = in_first_dimension(function, info, row_dims, rows)
    of_weights = (2, 3) if len(results) == 5 and any(a is not b for a, b in zip(rows, args, strict=True)) else ()
    return tuple(x.squeeze(1) if k in of_weights else x for k, x in enumerate(results)), result_dims


def _shapes(x, y, weight, bias, values, lengths, segments, norm, eps, mask, scale, packed, scores):
    batch, objects, _ = x.shape
    pairs = (batch, objects * (objects + (1 if mask == "causal" else -1)) // 2) if packed else (batch, objects, objects)
    product = [] if values is None else [x.new_empty(values.shape)]
    return [x.new_empty(pairs) for _ in range(1 + scores)] + product


def _backward_shapes(grad_R, grad_scores, grad_product, x, y, weight, bias, values, *rest):
    return [x.new_empty(0 if t is None else t.shape) for t in (x, y, weight, bias, values)]


_similarity = differentiable(
    "similarity",
    forward=lambda training, *args: torch.ops.rnnkern.similarity.default(*args),
    results=3,
    saves=lambda args, outputs: (*args[:6], outputs[0], *args[6:]),
    kept=(0,),
    gradients=range(5),
    reference_backward=_reference_backward,
    leaves=range(8),
    fold=_over_samples,
    backward_arguments=_backward_arguments,
    shapes=_shapes,
    backward_shapes=_backward_shapes,
)
