"""Writes a recurrence of H complex units as one of 2 H real units, which alternate real and imaginary parts.

Its cell is complex_modrelu.

Each real unit holds one part of a complex number but needs both parts of the pre-activation. So every gate appears
twice: once with the unit's own part and once with the other part.
"""

import torch
from torch import Tensor


def columns_in_parts(x: Tensor) -> Tensor:
    """(..., H) as the columns of both gates, (..., 4*H)."""
    parts = torch.view_as_real(x.resolve_conj())
    return torch.cat([parts.flatten(-2), parts.flip(-1).flatten(-2)], -1)


def rows_in_parts(R: Tensor) -> Tensor:
    """(..., H, H) as the rows of both gates, (..., 4*H, 2*H)."""
    of_real, of_imag = torch.stack([R.real, -R.imag], -1), torch.stack([R.imag, R.real], -1)
    part, other = torch.stack([of_real, of_imag], -3), torch.stack([of_imag, of_real], -3)
    return torch.stack([part, other], -5).flatten(-5, -3).flatten(-2)


def state_in_parts(h: Tensor) -> Tensor:
    """(B, H) as (B, 2*H)."""
    return torch.view_as_real(h.resolve_conj()).flatten(-2)


def of_parts(h: Tensor) -> Tensor:
    """(..., 2*H) as (..., H)."""
    return torch.view_as_complex(h.unflatten(-1, (h.shape[-1] // 2, 2)))
