"""Weights that are products of Householder reflections or plane rotations."""

import math
from typing import Any

import torch
from torch import Tensor

from rnnkern import ops
from rnnkern.parametrizations._initial import check_init, reflection_vectors, skew_entries
from rnnkern.parametrizations._layout import Layout, orthonormal, reflections
from rnnkern.parametrizations._parametrization import Parametrization


class Factored(Parametrization):
    """Base class of parametrizations with one parameter whose shape differs from that of the weight."""

    rotating = (0,)

    def __init__(self, like: Tensor, layout: Layout, *shape: int) -> None:
        super().__init__(like)
        self.layout, self._shape = layout, (*layout.batch, *shape)

    def draw(self) -> Tensor:
        dtype, device = self.place()
        return self.drawn(self._shape, device=device).to(dtype)

    def drawn(self, shape: tuple[int, ...], **options: Any) -> Tensor:
        """An initial value of the parameter, in float64."""
        raise NotImplementedError


class Householder(Factored):
    """Parametrization of a weight H_1 ... H_m by V (..., N, m), registered by :func:`orthogonal`."""

    def __init__(self, like: Tensor, init: str | None, reflections: int | None, layout: Layout) -> None:
        if init is not None:
            check_init("orthogonal", init)
        size = layout.size
        count = layout.columns if reflections is None else reflections
        if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= size:
            raise ValueError(f"orthogonal: `reflections` must be an integer from 1 to N = {size}, got {count!r}")
        super().__init__(like, layout, size, count)
        self.init = init

    def weight(self, V: Tensor) -> Tensor:
        return self.layout.weight(ops.householder_product(V))

    def keep(self, weight: Tensor) -> Tensor:
        V = orthonormal("orthogonal", self.layout.matrices(weight))
        return reflections(V, self._shape[-1]).to(weight.dtype)

    def drawn(self, shape: tuple[int, ...], **options: Any) -> Tensor:
        return reflection_vectors(shape, self.init or "haar", **options)


GIVENS_INITS = ("uniform", "henaff", "cayley", "identity")
STYLES = ("tunable", "butterfly")


def layers_and_style(function: str, size: int, layers: int | None, style: str | None) -> tuple[int, str]:
    """Checks L and the style. The defaults let every entry depend on every other."""
    style = style or STYLES[0]
    if style not in STYLES:
        raise ValueError(f"{function}: `style` must be one of {STYLES}, got {style!r}")
    if style == "butterfly" and (size < 1 or size & (size - 1)):
        raise ValueError(f"{function}: N must be a power of two for the style 'butterfly', got {size}")
    if layers is None:
        layers = size if style == "tunable" else max(size.bit_length() - 1, 1)
    if isinstance(layers, bool) or not isinstance(layers, int) or layers < 1:
        raise ValueError(f"{function}: `layers` must be a positive integer, got {layers!r}")
    return layers, style


class Givens(Factored):
    """Parametrization of a weight F_L ... F_1 by angles (..., L, N // 2), registered by :func:`orthogonal`."""

    def __init__(self, like: Tensor, init: str | None, layers: int | None, style: str | None, layout: Layout) -> None:
        if init not in GIVENS_INITS:
            reason = " (rotations cannot keep the existing matrix)" if init is None else ""
            raise ValueError(
                f"orthogonal: `init` must be one of {GIVENS_INITS} for the map 'givens'{reason}, got {init!r}"
            )
        layers, style = layers_and_style("orthogonal", layout.size, layers, style)
        super().__init__(like, layout, layers, layout.size // 2)
        self.init, self.style = init, style

    def weight(self, angles: Tensor) -> Tensor:
        return self.layout.weight(ops.givens_product(angles, style=self.style, size=self.layout.size))

    def drawn(self, shape: tuple[int, ...], **options: Any) -> Tensor:
        uniform = torch.rand(shape, dtype=torch.float64, **options)
        if self.init == "uniform":
            return math.pi * (2 * uniform - 1)
        angles = torch.zeros_like(uniform)
        angles[..., 0, :] = -skew_entries(uniform[..., 0, :], self.init)
        return angles
