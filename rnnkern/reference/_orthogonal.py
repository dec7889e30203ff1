"""Orthogonal and unitary weights, N x N matrices with any batch dimensions, and layers of N // 2 plane rotations."""

import torch
from torch import Tensor

from rnnkern.reference._recurrence import recurrence

TERMS = 14
"""Number of terms of the Taylor series for a 2-norm of at most 1/2; the remainder is below 1e-17."""
SQUARINGS = 13
"""Maximum number of squarings, which suffices for norms up to 1,000."""


def skew(A: Tensor) -> Tensor:
    """The skew-Hermitian matrix defined by the strict lower triangle of ``A`` and the imaginary part of its
    diagonal."""
    lower = A.tril(-1)
    S = lower - lower.mH
    return S + torch.diag_embed(1j * A.diagonal(dim1=-2, dim2=-1).imag) if A.is_complex() else S


def skew_exp(A: Tensor, *, form: str = "exp") -> Tensor:
    """Same as :func:`rnnkern.ops.skew_exp`: Taylor series of S / 2^s and s squarings, exp(2 X) - 1 = 2 E + E^2."""
    S = skew(A.to(torch.promote_types(A.dtype, torch.float32)))
    if S.shape[-1] == 0:
        return S.to(A.dtype)
    square = S.detach() @ S.detach()
    norm = square.abs().sum(-2, keepdim=True).amax(-1, keepdim=True).sqrt()  # an upper bound of the 2-norm
    squarings = torch.log2(2 * norm).ceil().clamp(0, SQUARINGS)
    S = S * torch.exp2(-squarings)
    E = S / TERMS
    for k in range(TERMS - 1, 0, -1):
        E = (S + S @ E) / k
    for k in range(SQUARINGS):
        E = torch.where(k < squarings, 2 * E + E @ E, E)
    return (E + _identity(E) if form == "exp" else E).to(A.dtype)


def cayley(A: Tensor, scale: Tensor | None = None) -> Tensor:
    """Same as :func:`rnnkern.ops.cayley`: (I + S)^-1 (I - S) diag(scale)."""
    S = skew(A.to(torch.promote_types(A.dtype, torch.float32)))
    eye = _identity(S)
    V = torch.linalg.solve(eye + S, eye - S)
    return (V if scale is None else V * scale.to(V.dtype).unsqueeze(-2)).to(A.dtype)


def schur_weight(P: Tensor, theta: Tensor, gamma: Tensor, T: Tensor) -> Tensor:
    """Same as :func:`rnnkern.ops.schur_weight`: P (Lambda + T) P^T."""
    P_, theta, gamma, T = (x.to(torch.promote_types(x.dtype, torch.float32)) for x in (P, theta, gamma, T))
    pairs = theta.shape[-1]
    cos, sin = gamma[..., :pairs] * torch.cos(theta), gamma[..., :pairs] * torch.sin(theta)
    diagonal = torch.cat([torch.stack([cos, cos], -1).flatten(-2), gamma[..., pairs:]], -1)
    beside = torch.stack([sin, torch.zeros_like(sin)], -1).flatten(-2)[..., : max(T.shape[-1] - 1, 0)]
    Theta = T.tril(-1) + torch.diag_embed(diagonal)
    if pairs:
        Theta = Theta + torch.diag_embed(beside, -1) - torch.diag_embed(beside, 1)
    return (P_ @ Theta @ P_.mT).to(P.dtype)


def householder_product(V: Tensor) -> Tensor:
    """Same as :func:`rnnkern.ops.householder_product`: one reflection after the other."""
    vectors = V.to(torch.promote_types(V.dtype, torch.float32))
    *batch, size, reflections = V.shape
    Q = torch.eye(size, dtype=vectors.dtype, device=V.device).expand(*batch, size, size)
    for k in range(reflections):
        v = vectors[..., k : k + 1]
        none = (v == 0).all(-2, keepdim=True)
        v = torch.where(none, 1, v)
        v = v / v.detach().abs().amax(-2, keepdim=True)  # so that no square over- or underflows
        reflected = Q - (Q @ v) @ v.mH * (2 / (v.mH @ v))
        Q = torch.where(none, Q, reflected)
    return Q.to(V.dtype)


def project_orthogonal(B: Tensor, *, steps: int = 2) -> Tensor:
    """Same as :func:`rnnkern.ops.project_orthogonal`: B <- B (3 I - B^H B) / 2."""
    X = B.to(torch.promote_types(B.dtype, torch.float32))
    for _ in range(steps):
        X = X - X @ ((X.mH @ X - _identity(X)) / 2)
    return X.to(B.dtype)


def _identity(like: Tensor) -> Tensor:
    return torch.eye(like.shape[-1], dtype=like.dtype, device=like.device)


# ---- layers of plane rotations: L layers of N // 2 angles


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
