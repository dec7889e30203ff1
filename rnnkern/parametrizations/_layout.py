"""How a weight consists of matrices with orthonormal columns, and how the existing matrix is kept."""

import math
from typing import NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.nn import Module

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
GATES = {nn.LSTM: 4, nn.LSTMCell: 4, nn.GRU: 3, nn.GRUCell: 3}


class Layout(NamedTuple):
    """A weight as matrices (..., n, k) with n >= k: blocks of its rows, transposed if they are wide. The dimensions of
    a convolution's weight after the first are columns."""

    shape: tuple[int, ...]  # of the weight
    blocks: tuple[int, ...]  # (..., M, K), the weight reshaped

    @classmethod
    def of(cls, module: Module, name: str, weight: Tensor, gates: int | None) -> Self:
        """``gates`` is the number of blocks; by default that of the gates of an LSTM or a GRU, or of a convolution's
        groups."""
        convolution = isinstance(module, CONVOLUTIONS) and name == "weight"
        rows, batch = (weight.shape[0], ()) if convolution else (weight.shape[-2], weight.shape[:-2])
        if gates is None:
            gated = (count for kind, count in GATES.items() if isinstance(module, kind))
            of_gates = next(gated, 1) if name.startswith(("weight_ih", "weight_hh")) else 1
            gates = module.groups if convolution else of_gates
        if isinstance(gates, bool) or not isinstance(gates, int) or gates < 1 or rows % gates:
            raise ValueError(f"orthogonal: `gates` must be a positive divisor of the {rows} rows, got {gates!r}")
        columns = math.prod(weight.shape[1:]) if convolution else weight.shape[-1]
        blocks = (*batch, *([gates] if gates > 1 else []), rows // gates, columns)
        return cls(tuple(weight.shape), blocks)

    @property
    def size(self) -> int:
        """n."""
        return max(self.blocks[-2:])

    @property
    def columns(self) -> int:
        """k."""
        return min(self.blocks[-2:])

    @property
    def batch(self) -> tuple[int, ...]:
        return self.blocks[:-2]

    def matrices(self, weight: Tensor) -> Tensor:
        """The matrices (..., n, k) of a weight."""
        V = weight.reshape(self.blocks)
        return V.mT if self.blocks[-2] < self.blocks[-1] else V

    def weight(self, V: Tensor) -> Tensor:
        """The weight with the first k columns of V (..., n, n) or (..., n, k)."""
        V = V[..., : self.columns]
        return (V.mT if self.blocks[-2] < self.blocks[-1] else V).reshape(self.shape).contiguous()


@torch.no_grad()
def orthonormal(function: str, V: Tensor) -> Tensor:
    """V (..., n, k) where its columns are orthonormal up to rounding, otherwise Q of its QR decomposition with a
    positive diagonal of R.

    Raises:
        ValueError: V is not finite.
    """
    if not V.isfinite().all():
        raise ValueError(
            f"{function}: the existing weight must be finite to be kept, got NaN or infinity; "
            "draw a new one with `init`"
        )
    X = V.to(torch.promote_types(V.dtype, torch.float64))
    eye = torch.eye(V.shape[-1], dtype=X.dtype, device=V.device)
    error = (X.mH @ X - eye).abs().sum((-2, -1), keepdim=True) / max(V.shape[-1], 1)
    computed = torch.finfo(torch.promote_types(V.dtype, torch.float32)).eps  # 16-bit weights come from wider ones
    limit = 4 * torch.finfo(V.dtype).eps + 10 * V.shape[-2] ** 0.5 * computed
    return torch.where(error <= limit, V, positive_qr(X).to(V.dtype))


def positive_qr(X: Tensor) -> Tensor:
    """Q of the QR decomposition with a positive diagonal of R."""
    Q, R = torch.linalg.qr(X)
    diagonal = R.diagonal(dim1=-2, dim2=-1)
    return Q * torch.where(diagonal == 0, 1, diagonal.sgn()).unsqueeze(-2)


def complement(V: Tensor) -> Tensor:
    """Orthonormal columns (..., n, n - k) orthogonal to those of V (..., n, k)."""
    return torch.linalg.qr(V.double(), mode="complete")[0][..., V.shape[-1] :].to(V.dtype)


@torch.no_grad()
def reflections(V: Tensor, count: int) -> Tensor:
    """Vectors (..., n, m) in float64 whose product of reflections has min(k, m) of its first columns from V (..., n,
    k), which are orthonormal.

    Each vector maps one column to a basis vector. A column that is already in place needs the identity: pairs of such
    vectors become two equal reflections behind the others, whose product is the identity. A single one becomes the
    reflection of the last axis if k < n, which changes none of the first k columns, and otherwise stays zero: the
    determinant of V then has the wrong sign for m reflections.
    """
    rest, (size, columns) = V.double().clone(), V.shape[-2:]
    found = rest.new_zeros(*V.shape[:-1], count)
    for k in range(min(columns, count)):
        v = rest[..., k].clone()
        v[..., :k] = 0
        tail = v[..., k + 1 :].square().sum(-1)
        first = v[..., k].clone()
        below = -tail / (first + (first.square() + tail).sqrt()).clamp_min(1e-300)  # first - |v| without cancellation
        v[..., k] = torch.where(first > 0, below, first - (first.square() + tail).sqrt())
        length = torch.linalg.vector_norm(v, dim=-1, keepdim=True)
        v = torch.where(length > 1e-12, v / length.clamp_min(1e-300), 0)
        rest -= 2 * v.unsqueeze(-1) * (v.unsqueeze(-2) @ rest)
        found[..., k] = v
    none = ~found.any(-2)
    order = none.to(torch.int8).argsort(dim=-1, stable=True)  # zero vectors last
    found = found.gather(-1, order.unsqueeze(-2).expand_as(found))
    for one in found.view(-1, size, count):
        free = int((~one.any(0)).sum())
        pairs = torch.arange(free - free % 2, device=one.device)
        one[pairs // 2, count - free + pairs] = 1
        if free % 2 and columns < size:
            one[-1, -1] = 1
    return found
