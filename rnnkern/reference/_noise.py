"""Zoneout and recurrent dropout, whose random draws are functions of a seed and a position.

The backward pass and every device can thus draw the same values: Philox4x32-10 (Salmon et al. 2011, "Parallel random
numbers: as easy as 1, 2, 3")."""

from collections.abc import Sequence

import torch
from torch import Tensor

WORD = 0xFFFFFFFF
DROPOUT = 2
"""The random stream for dropout. Zoneout of the k-th state tensor uses the k-th of the other streams."""


def zoneout_stream(k: int) -> int:
    return k + (k >= DROPOUT)


def philox(counter: tuple[Tensor, ...], key: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
    """Four random words from a counter of four words and a key of two; int64 tensors that hold 32 bits each."""
    x0, x1, x2, x3 = counter
    k0, k1 = key
    for _ in range(10):
        a, b = 0xD2511F53 * x0, 0xCD9E8D57 * x2  # overflow of the upper bits is harmless
        x0, x1, x2, x3 = (b >> 32 & WORD) ^ x1 ^ k0, b & WORD, (a >> 32 & WORD) ^ x3 ^ k1, a & WORD
        k0, k1 = k0 + 0x9E3779B9 & WORD, k1 + 0xBB67AE85 & WORD
    return x0, x1, x2, x3


def hits(seed: Tensor, rate: float, stream: int, t: int, like: Tensor) -> Tensor:
    """A mask (B, H) that is True with probability ``rate``. One call of Philox draws for unit n of each quarter of the
    units, rounded up."""
    batch, units = like.shape
    quarter = -(-units // 4)
    n = torch.arange(quarter, device=seed.device).expand(batch, quarter)
    b = torch.arange(batch, device=seed.device).unsqueeze(1).expand(batch, quarter)
    counter = (n, b, torch.full_like(n, t), torch.full_like(n, stream))
    words = philox(counter, (seed & WORD, seed >> 32 & WORD))
    return torch.cat(words, dim=-1)[:, :units] < int(rate * 2**32)


def zoned(seed: Tensor | None, rate: float, t: int, k: int, old: Tensor, new: Tensor) -> Tensor:
    """Zoneout of state k (0: h, 1: c) at step t (Krueger et al. 2017, eq. 3): each unit keeps its old value with
    probability ``rate``; without a seed, the mean of both values."""
    if rate == 0:
        return new
    if seed is None:
        return rate * old + (1 - rate) * new
    return torch.where(hits(seed, rate, zoneout_stream(k), t, new), old, new)


def mixed(keep: Tensor, old: Tensor, new: Tensor) -> Tensor:
    """``keep * old + (1 - keep) * new``, and exactly one of the two where ``keep`` is 1 or 0, also if the other is not
    finite."""
    mean = keep * old + (1 - keep) * new
    return torch.where(keep == 0, new, torch.where(keep == 1, old, mean))


def of_step(keep: Tensor, t: int, n: int) -> Tensor:
    """The elements for n sequences at step t of a tensor (T,) or (T, B) of constants, to multiply (n, H)."""
    return (keep[t] if keep.dim() == 1 else keep[t, :n, None]).detach()


def state_after(
    old: tuple[Tensor, ...], new: tuple[Tensor, ...], zoneout: float | Sequence[float], seed: Tensor | None,
    keep: Tensor | None, t: int,
) -> tuple[Tensor, ...]:  # fmt: skip
    """The state after step t, mixed with the old one by ``keep`` or by zoneout, one rate or one for each tensor."""
    if keep is not None:
        weight = of_step(keep, t, len(new[0]))
        return tuple(mixed(weight, *pair) for pair in zip(old, new, strict=True))
    rates = (zoneout,) * len(new) if isinstance(zoneout, (int, float)) else zoneout
    return tuple(zoned(seed, rate, t, k, *pair) for k, (rate, *pair) in enumerate(zip(rates, old, new, strict=True)))


def dropout_mask(seed: Tensor, rate: float, h: Tensor) -> Tensor:
    """Recurrent dropout (Gal and Ghahramani 2016): a mask (B, P) that multiplies h in all products with R, the same at
    all steps."""
    return hits(seed, rate, DROPOUT, 0, h).logical_not().to(h.dtype) * (1 / (1 - rate))
