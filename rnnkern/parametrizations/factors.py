"""Weights that are products of simple orthogonal matrices."""

from typing import Any

from torch import Tensor

from rnnkern import ops
from rnnkern.parametrizations.initial import check_init, reflection_vectors
from rnnkern.parametrizations.parametrization import Parametrization


class Factored(Parametrization):
    """By one parameter, of another shape than the weight's."""

    rotating = (0,)

    def __init__(self, like: Tensor, *shape: int) -> None:
        super().__init__()
        self.sizes, self._begun = tuple(like.shape), (like.dtype, like.device)
        self._shape = (*like.shape[:-2], *shape)

    def empty(self, original: Tensor) -> Tensor:
        return original.new_empty(self.sizes)

    def draw(self) -> Tensor:
        dtype, device = self._begun
        for original in self.originals:  # it may have moved
            dtype, device = original.dtype, original.device
        return self.drawn(self._shape, device=device).to(dtype)

    def drawn(self, shape: tuple[int, ...], **options: Any) -> Tensor:
        """A parameter to begin with, in float64."""
        raise NotImplementedError


class Householder(Factored):
    """Of a weight H_1 ... H_m; the parameter is V (..., N, m). See :func:`orthogonal`, which makes one."""

    def __init__(self, like: Tensor, init: str = "henaff", reflections: int | None = None) -> None:
        check_init(init)
        size = like.shape[-1]
        count = size if reflections is None else reflections
        check_count("reflections", count, size)
        super().__init__(like, size, count)
        self.init = init

    def weight(self, V: Tensor) -> Tensor:
        return ops.householder_product(V)

    def drawn(self, shape: tuple[int, ...], **options: Any) -> Tensor:
        return reflection_vectors(shape, self.init, **options)


def check_count(name: str, count: int, size: int) -> None:
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= size:
        raise ValueError(f"orthogonal: `{name}` must be a number from 1 to N = {size}, got {count!r}")
