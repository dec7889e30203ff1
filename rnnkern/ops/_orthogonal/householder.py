"""Products of Householder reflections: the public function, its kernels by ATen's operators, and its derivatives."""

import torch
from torch import Tensor

from rnnkern import _extension, reference
from rnnkern.ops._orthogonal.orthogonal import DTYPES, without_autocast
from rnnkern.ops.checks import check_dtype, shape_of
from rnnkern.ops.differentiable import differentiable
from rnnkern.ops.dispatch import Choice, choose, cpu_refusal, operator
from rnnkern.ops.folds import as_batch


def _check(V: Tensor) -> None:
    check_dtype("householder_product", "V", V, DTYPES)
    if V.dim() < 2 or V.shape[-1] > V.shape[-2]:
        raise ValueError(f"householder_product: `V` must be (..., N, m) with m <= N, got {shape_of(V)}")


def _choose(V: Tensor) -> Choice:
    cuda = _extension.reason if V.device.type == "cuda" else f"the tensors are on {V.device}"
    return choose("householder_product", {"cpu": cpu_refusal(V), "cuda": cuda})


@operator(_check, _choose)
@without_autocast
def householder_product(V: Tensor) -> Tensor:
    r"""Computes the product of Householder reflections :math:`H_1 H_2 \cdots H_m`, :math:`H_k = I - 2 v_k v_k^H /
    (v_k^H v_k)`. It is orthogonal with determinant :math:`(-1)^m`, and unitary for complex vectors (oRNN: Mhammedi et
    al. 2017).

    It is computed as :math:`I - U S^{-1} U^H` (compact WY form: Schreiber and Van Loan 1989; S: Joffrain et al. 2006,
    eq. 3). U holds the normalized vectors, and S is upper triangular: the strict upper triangle of :math:`U^H U` and
    half of its diagonal.

    Args:
        V: (..., N, m), the m <= N vectors, whose lengths do not matter; float32, float64, complex64 or complex128, or
            bfloat16 or float16, which are computed in float32 and rounded once. A zero vector stands for the identity,
            and its gradient is zero.

    Returns:
        (..., N, N), with the dtype of ``V``. The backward pass costs four matrix products and one triangular solve (of
        N x N matrices if m = N). Second derivatives are supported.

    Raises:
        ValueError: ``V`` is not a matrix or a batch of matrices, or has more columns than rows.
        TypeError: ``V`` is not a tensor or has an unsupported dtype.

    See also: :func:`rnnkern.reference.householder_product`, the same equations in plain PyTorch.

    >>> Q = rnnkern.ops.householder_product(torch.randn(8, 3))
    >>> torch.allclose(Q.T @ Q, torch.eye(8), atol=1e-6), torch.linalg.det(Q).round().item()
    (True, -1.0)
    """
    _check(V)
    if _choose(V).implementation == "reference":
        return reference.householder_product(V)
    return _householder_product(V.to(torch.promote_types(V.dtype, torch.float32)))[0].to(V.dtype)


# ---- kernels


def forward(V: Tensor, training: bool) -> list[Tensor]:
    """[Q], and when training also W = S^-1 U^H (..., m, N), S (..., m, m) and the lengths of the vectors (..., 1,
    m)."""
    *batch, size, _ = V.shape
    if V.numel() == 0:
        identity = torch.eye(size, dtype=V.dtype, device=V.device).expand(*batch, size, size).contiguous()
        return [identity, *[x.zero_() for x in _kept_shapes(V)]] if training else [identity]
    U, norm = _normalised(V)
    G = U.mH @ U
    half = G.diagonal(dim1=-2, dim2=-1).real / 2  # the rounded values, not 1/2: the product is then orthogonal
    S = torch.triu(G, 1) + torch.diag_embed(torch.where(half == 0, 0.5, half)).to(V.dtype)
    W = torch.linalg.solve_triangular(S, U.mH, upper=True)
    Q = (U @ W).neg_()
    Q.diagonal(dim1=-2, dim2=-1).add_(1)
    return [Q, W.contiguous(), S, norm] if training else [Q]


def _normalised(V: Tensor) -> tuple[Tensor, Tensor]:
    """The normalized vectors and their lengths; for a zero vector, zeros and 1."""
    largest = V.abs().amax(-2, keepdim=True)
    scale = torch.where(largest == 0, 1, largest)  # keeps the squares from overflow and underflow
    length = torch.linalg.vector_norm(V / scale, dim=-2, keepdim=True)
    length = torch.where(largest == 0, 1, length)
    return V / scale / length, scale * length


def backward(grad: Tensor, V: Tensor, W: Tensor, S: Tensor, norm: Tensor) -> Tensor:
    """The gradient with respect to V.

    It differentiates Q = I - U W, S W = U^H and the strict upper triangle of S = U^H U. The vectors in U have constant
    length, so the component of the gradient along U is removed.
    """
    if V.numel() == 0:
        return torch.empty_like(V, memory_format=torch.contiguous_format)
    U, _ = _normalised(V)
    Z = torch.linalg.solve_triangular(S.mH, U.mH @ -grad, upper=False)  # gradient with respect to U^H through W
    upper = torch.triu(Z @ -W.mH, 1)  # gradient with respect to S
    U_bar = U @ (upper + upper.mH) + Z.mH - grad @ W.mH
    along = (U.conj() * U_bar).real.sum(-2, keepdim=True)
    return ((U_bar - U * along) / norm).contiguous()


# ---- derivatives


def _kept_shapes(V):
    *batch, size, reflections = V.shape
    square = V.new_empty(*batch, reflections, reflections)
    return V.new_empty(*batch, reflections, size), square, V.new_empty(*batch, 1, reflections, dtype=V.dtype.to_real())


def _forward_shapes(V, training):
    Q = V.new_empty(*V.shape[:-2], V.shape[-2], V.shape[-2])
    return [Q, *_kept_shapes(V)] if training else [Q]


def _reference_backward(grad, V, W, S, norm):
    return torch.func.vjp(reference.householder_product, V)[1](grad)


_householder_product = differentiable(
    "householder_product",
    forward=lambda training, V: torch.ops.rnnkern.householder_product.default(V, training),
    results=1,
    saves=lambda args, outputs: (*args, *outputs[1:]),
    gradients=(0,),
    reference_backward=_reference_backward,
    leaves=(0, 1),
    fold=as_batch,
    shapes=_forward_shapes,
    backward_shapes=lambda grad, V, W, S, norm: V.new_empty(V.shape),
)

if _extension.available:
    torch.library.impl("rnnkern::householder_product", "CPU")(forward)
    torch.library.impl("rnnkern::householder_product", "CUDA")(forward)
    torch.library.impl("rnnkern::householder_product_backward", "CPU")(backward)
    torch.library.impl("rnnkern::householder_product_backward", "CUDA")(backward)
