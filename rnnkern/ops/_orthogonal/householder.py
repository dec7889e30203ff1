"""Products of Householder reflections: the public function, its checks and its choice of implementation."""

import torch
from torch import Tensor

from rnnkern import _extension, reference
from rnnkern.ops._orthogonal import householder_autograd
from rnnkern.ops._orthogonal.orthogonal import DTYPES, cpu_refusal, without_autocast
from rnnkern.ops.checks import check_dtype, shape_of
from rnnkern.ops.dispatch import Choice, choose


@without_autocast
def householder_product(V: Tensor) -> Tensor:
    r"""The product of Householder reflections :math:`H_1 H_2 \cdots H_m`, :math:`H_k = I - 2 v_k v_k^H / (v_k^H v_k)`,
    orthogonal with determinant :math:`(-1)^m`, and unitary for complex vectors (oRNN: Mhammedi et al. 2017).

    It is :math:`I - U S^{-1} U^H` (compact WY: Schreiber and Van Loan 1989; S by Joffrain et al. 2006, eq. 3), with U
    the vectors at length 1 and S upper triangular: the strict upper triangle of :math:`U^H U` and half of its diagonal.

    Args:
        V: (..., N, m), m <= N vectors of which only the directions count; float32, float64, complex64 or complex128, or
            bfloat16 or float16, for which all is computed in float32 and rounded once. A vector of zeros reflects
            nothing, and its gradient is zero.

    Returns:
        (..., N, N), of the dtype of ``V``. Its gradient costs four products and a triangular solution, where m = N of N
        x N matrices; gradients of gradients are there too.

    Raises:
        ValueError: ``V`` is no matrix or batch of matrices, or has more columns than rows.
        TypeError: ``V`` is no tensor, or of another dtype.

    Equations: docs, "Orthogonal weights"; :func:`rnnkern.reference.householder_product`.

    >>> Q = rnnkern.ops.householder_product(torch.randn(8, 3))
    >>> torch.allclose(Q.T @ Q, torch.eye(8), atol=1e-6), torch.linalg.det(Q).round().item()
    (True, -1.0)
    """
    _check(V)
    if _choose(V).implementation == "reference":
        return reference.householder_product(V)
    return householder_autograd.householder_product(V.to(torch.promote_types(V.dtype, torch.float32))).to(V.dtype)


def _check(V: Tensor) -> None:
    check_dtype("householder_product", "V", V, DTYPES)
    if V.dim() < 2 or V.shape[-1] > V.shape[-2]:
        raise ValueError(f"householder_product: `V` must be (..., N, m) with m <= N, got {shape_of(V)}")


def _choose(V: Tensor) -> Choice:
    cuda = _extension.reason if V.device.type == "cuda" else f"the tensors are on {V.device}"
    return choose("householder_product", {"cpu": cpu_refusal(V), "cuda": cuda})


def _choose_checked(V: Tensor) -> Choice:
    _check(V)
    return _choose(V)


householder_product._choose = _choose_checked
