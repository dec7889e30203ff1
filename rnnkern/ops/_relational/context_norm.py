"""Context normalization in the fast form of PyTorch, for modules and for calls that no kernel of similarity serves."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from rnnkern.reference._relational import context_norm as plain


def context_norm(
    x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, *, norm: str | None = "unbiased",
    eps: float = 1e-8, segments: Sequence[int] | None = None, lengths: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Same arguments and result as the reference's, without checks. Of n objects, the variance over n - 1 is n /
    (n - 1) times that of an instance norm, whose weight and eps are therefore smaller."""
    dtype, wide = x.dtype, torch.promote_types(x.dtype, torch.float32)
    x, weight, bias = (None if y is None else y.to(wide) for y in (x, weight, bias))
    sizes = list(segments or x.shape[1:2])
    if norm is None or lengths is not None or min(sizes) < 2 or x.shape[0] == 0:
        options = {"norm": norm, "eps": eps, "segments": segments, "lengths": lengths}
        return plain(x, weight, bias, **options).to(dtype)
    parts = []
    for n, part in zip(sizes, x.split(sizes, 1), strict=True):
        less = (n - 1) / n if norm == "unbiased" else 1.0
        normal = F.instance_norm(part.mT, eps=less * eps).mT
        parts.append(less**0.5 * normal)
    z = torch.cat(parts, 1) if len(parts) > 1 else parts[0]
    return (z if weight is None else torch.addcmul(bias, z, weight)).to(dtype)
