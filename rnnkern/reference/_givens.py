"""Layers of plane rotations: L layers of N // 2 angles, with any batch dimensions."""

import torch
from torch import Tensor

from rnnkern.reference._recurrence import recurrence


def givens_product(
    angles: Tensor, x: Tensor | None = None, *, style: str = "tunable", size: int | None = None,
    phases: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Same as :func:`rnnkern.ops.givens_product`: applies one layer after the other."""
    turns = angles.to(torch.promote_types(angles.dtype, torch.float32))
    # torch.compile does not know dtype.to_complex().
    computed = turns.dtype if phases is None else torch.promote_types(turns.dtype, torch.complex64)
    if x is None:
        size = 2 * angles.shape[-1] if size is None else size
        eye = torch.eye(size, dtype=computed, device=turns.device).expand(*angles.shape[:-2], size, size)
        return givens_layers(turns, eye, style, phases=phases).mT.to(angles.dtype if phases is None else computed)
    rows = x.to(computed)
    if angles.dim() == 2:
        rows = rows.reshape(-1, x.shape[-1])
    return givens_layers(turns, rows, style, phases=phases).reshape(x.shape).to(x.dtype)


def givens_recurrence(
    u: Tensor, angles: Tensor, state: Tensor, modrelu_bias: Tensor, *, phases: Tensor | None = None,
    diagonal_phases: Tensor | None = None, style: str = "tunable", batch_sizes: Tensor | None = None,
    reset: Tensor | None = None, reverse: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Same as :func:`rnnkern.ops.givens_recurrence`, by the product of the layers as a matrix."""
    W = givens_product(angles, style=style, size=u.shape[-1], phases=phases)
    if diagonal_phases is not None:
        W = W * torch.complex(diagonal_phases.cos(), diagonal_phases.sin())
    options = {"batch_sizes": batch_sizes, "reset": reset, "reverse": reverse}
    h, (last,) = recurrence("modrelu", u, W.to(u.dtype), (state,), params=(modrelu_bias,), **options)
    return h, last


def givens_layers(angles: Tensor, x: Tensor, style: str, inverse: bool = False, phases: Tensor | None = None) -> Tensor:
    """Applies the layers to rows x (..., R, N). ``inverse``, without phases, undoes the rotations, starting with the
    last layer."""
    layers = angles.shape[-2]
    for k in reversed(range(layers)) if inverse else range(layers):
        first, second, rest = givens_pairs(x.shape[-1], k, style)
        turn = angles[..., k, None, : len(first)] * (-1 if inverse else 1)
        c, s, a, b = turn.cos(), turn.sin(), x[..., first], x[..., second]
        to_a, to_b = c * a - s * b, s * a + c * b
        if phases is not None:
            phase = phases[..., k, None, : len(first)]
            to_a = to_a * torch.complex(phase.cos(), phase.sin())
        place = torch.tensor([*first, *second, *rest], device=x.device, dtype=torch.long)
        x = torch.cat([to_a, to_b, x[..., rest]], -1)[..., place.argsort()]
    return x


def givens_pairs(size: int, layer: int, style: str) -> tuple[list[int], list[int], list[int]]:
    """The first and the second index of each pair of a layer, and the indices without a partner."""
    if style == "tunable":
        first = list(range(layer % 2, size - 1, 2))
        stride = 1
    else:
        stages = max(size.bit_length() - 1, 1)
        stride = 1 << layer % stages
        first = [i for i in range(size) if not i & stride and i + stride < size]
    second = [i + stride for i in first]
    return first, second, sorted(set(range(size)) - set(first) - set(second))
