"""Layers of plane rotations: the public function, its checks, its choice of implementation and its derivatives."""

import torch
from torch import Tensor

from rnnkern import reference
from rnnkern.ops._orthogonal.orthogonal import without_autocast
from rnnkern.ops.checks import check_choice, check_dtype, check_like, check_shape, shape_of
from rnnkern.ops.differentiable import differentiable
from rnnkern.ops.dispatch import Choice, choose, cpu_refusal, operator
from rnnkern.ops.folds import as_batch
from rnnkern.reference._orthogonal import givens_layers

STYLES = ("tunable", "butterfly")


def _check(angles: Tensor, x: Tensor | None, style: str, size: int | None, phases: Tensor | None) -> int:
    """Checks the arguments and returns N."""
    check_dtype("givens_product", "angles", angles)
    if phases is not None:
        check_like("givens_product", "phases", phases, "angles", angles)
        check_dtype("givens_product", "phases", phases, (torch.float32, torch.float64))
        check_shape("givens_product", "phases", phases, "like `angles`", tuple(angles.shape))
    if angles.dim() < 2:
        raise ValueError(f"givens_product: `angles` must be (..., L, N // 2), got {shape_of(angles)}")
    check_choice("givens_product", "style", style, STYLES)
    pairs, batch = angles.shape[-1], tuple(angles.shape[:-2])
    if x is None:
        if size is not None and (isinstance(size, bool) or not isinstance(size, int) or size // 2 != pairs):
            wanted = f"{2 * pairs} or {2 * pairs + 1} for `angles` (..., L, {pairs})"
            raise ValueError(f"givens_product: `size` must be {wanted}, got {size!r}")
        count = 2 * pairs if size is None else size
    else:
        if phases is None:
            check_like("givens_product", "x", x, "angles", angles)
        else:
            check_dtype("givens_product", "x", x, (torch.promote_types(angles.dtype, torch.complex64),))
        if x.dim() < 1 or x.shape[-1] // 2 != pairs:
            wanted = f"(..., N) with N // 2 = {pairs} as in `angles`"
            raise ValueError(f"givens_product: `x` must be {wanted}, got {shape_of(x)}")
        if batch and (x.dim() != angles.dim() or tuple(x.shape[:-2]) != batch):
            wanted = f"(..., R, N) with the batch of `angles`, {batch}"
            raise ValueError(f"givens_product: `x` must be {wanted}, got {shape_of(x)}")
        count = x.shape[-1]
        if size not in (None, count):
            raise ValueError(f"givens_product: `size` must be N = {count} of `x`, or None, got {size!r}")
    if style == "butterfly" and (count < 1 or count & (count - 1)):
        raise ValueError(f"givens_product: N must be a power of two for the style 'butterfly', got {count}")
    return count


def _choose(angles: Tensor, phases: Tensor | None) -> Choice:
    return choose("givens_product", {"cpu": cpu_refusal(angles) if phases is None else "no kernel supports `phases`"})


@operator(_check, _choose)
@without_autocast
def givens_product(
    angles: Tensor, x: Tensor | None = None, *, style: str = "tunable", size: int | None = None,
    phases: Tensor | None = None,
) -> Tensor:  # fmt: skip
    r"""Applies L layers of plane rotations to vectors, :math:`W x = F_L \cdots F_2 F_1 x`, or returns the orthogonal
    matrix W (EUNN: Jing et al. 2017). With phases W is unitary.

    A layer splits the entries of a vector into pairs and rotates each pair by its own angle:

    .. math::
        x_a \leftarrow e^{i \phi} (x_a \cos\theta - x_b \sin\theta), \qquad
        x_b \leftarrow x_a \sin\theta + x_b \cos\theta

    Without phases :math:`\phi = 0` and everything is real. ``style`` determines the pairs:

    - ``"tunable"`` pairs neighbors: (0, 1), (2, 3), ... in odd layers and (1, 2), (3, 4), ... in even layers. An entry
      without a neighbor is unchanged. N layers reach every rotation.
    - ``"butterfly"`` pairs entries at distance 1, 2, 4, ..., N / 2 in successive layers, and then again from 1, as in a
      fast Fourier transform. After :math:`\log_2 N` layers every entry depends on every other.

    Args:
        angles: (L, N // 2) or (..., L, N // 2), in radians; float32, float64, bfloat16 or float16; the last two are
            computed in float32. A layer with fewer than N // 2 pairs ignores its last angle.
        x: (..., N), with the dtype of ``angles``. If ``angles`` has batch dimensions, (..., R, N) with the same batch
            dimensions and R vectors for each. The cost is O(N L) per vector, and W is not formed. None returns W.
        style: ``"tunable"``, or ``"butterfly"``, for which N must be a power of two.
        size: N, used if ``x`` is None. The default is twice the number of angles per layer; for an odd N you must give
            it.
        phases: :math:`\phi`, shaped like ``angles``, float32 or float64; ``x`` is then complex. No kernel supports
            phases: the reference implementation runs, and it saves the output of each layer for the backward pass.

    Returns:
        A tensor with the shape and dtype of ``x``, or W of shape (..., N, N), for which ``givens_product(angles, x)``
        equals ``x @ W.mT``. Gradients flow to ``angles``, ``phases`` and ``x``, and second derivatives are supported.
        Only the result is saved: the backward pass undoes the rotations.

    Raises:
        ValueError: a shape or ``style`` is wrong.
        TypeError: an argument has the wrong type, dtype or device.

    See also: :func:`rnnkern.reference.givens_product`, the same equations in plain PyTorch.

    >>> angles, x = torch.randn(6, 4), torch.randn(5, 8)
    >>> W = rnnkern.ops.givens_product(angles)
    >>> torch.allclose(rnnkern.ops.givens_product(angles, x), x @ W.T, atol=1e-6)
    True
    >>> torch.allclose(W.T @ W, torch.eye(8), atol=1e-6)
    True
    """
    count = _check(angles, x, style, size, phases)
    if _choose(angles, phases).implementation == "reference":
        return reference.givens_product(angles, x, style=style, size=size, phases=phases)
    turns = angles.to(torch.promote_types(angles.dtype, torch.float32))
    if x is None:
        columns = torch.eye(count, dtype=turns.dtype, device=turns.device).expand(*angles.shape[:-2], count, count)
        return _givens_product(turns, columns, True, style == "butterfly")[0].to(angles.dtype)
    rows = x.to(turns.dtype)
    rows = rows.reshape(-1, count) if angles.dim() == 2 else rows
    return _givens_product(turns, rows, False, style == "butterfly")[0].reshape(x.shape).to(x.dtype)


# ---- derivatives


def _reference_backward(grad, angles, y, columns, butterfly, needs_x):
    """Undoes the rotations of the result and differentiates the layers."""
    style = "butterfly" if butterfly else "tunable"

    def forward(angles, x):
        return givens_layers(angles, x.mT, style).mT if columns else givens_layers(angles, x, style)

    x = givens_layers(angles, y.mT if columns else y, style, inverse=True)
    return torch.func.vjp(forward, angles, x.mT if columns else x)[1](grad)


_givens_product = differentiable(
    "givens_product",
    forward=lambda training, *args: torch.ops.rnnkern.givens_product.default(*args),
    results=1,
    saves=lambda args, outputs: (args[0], outputs[0], *args[2:]),
    kept=(0,),
    gradients=(0, 1),
    optional=(1,),
    reference_backward=_reference_backward,
    leaves=range(3),
    fold=as_batch,
    shapes=lambda angles, x, columns, butterfly: x.new_empty(x.shape),
    backward_shapes=lambda grad, angles, y, columns, butterfly, needs_x: [
        like.new_empty(like.shape) for like in (angles, y)[: 1 + needs_x]
    ],
)
"""Function of (angles, x, columns, butterfly), in float32 or float64. x is (..., R, N), or (..., N, R) with
``columns``."""
