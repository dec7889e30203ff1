"""The parametrizations: how each is registered, the plain equation of its weight, and what it promises."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn import Module

from rnnkern import parametrizations, reference

F64 = torch.float64
C128 = torch.complex128


class Row(NamedTuple):
    """A parametrization of ``rnnkern.parametrizations`` with its arguments."""

    function: str
    options: dict[str, Any]
    formula: Callable[..., Tensor]
    """The weight from the registered object, which has the constants, and the parameters. Of a weight with M != K the
    square matrix, whose first columns are the weight."""
    off: Callable[[Tensor], Tensor] | None
    """How far a weight is from what is promised: 0 but for rounding, whatever the parameters are. None: no promise."""
    shape: tuple[int, ...] = (6, 6)
    field: str = "real"
    assignable: bool = True
    """Whether a weight that satisfies the promise may be assigned."""


# ---- what is promised


def from_unitary(W: Tensor) -> Tensor:
    """max |W^H W - I| of the columns, or of the rows of a wide matrix, in float64."""
    W = W.detach().to(C128 if W.is_complex() else F64)
    W = W.mH if W.shape[-2] < W.shape[-1] else W
    return (W.mH @ W - torch.eye(W.shape[-1])).abs().max()


def of_last_rows(W: Tensor) -> Tensor:
    return from_unitary(W[..., -W.shape[-1] :, :])


def beyond_margin(margin: float) -> Callable[[Tensor], Tensor]:
    """How far singular values are outside of 1 - margin and 1 + margin."""
    return lambda W: ((torch.linalg.svdvals(W.detach().double()) - 1).abs() - margin).relu().max()


def beyond(low: float, high: float) -> Callable[[Tensor], Tensor]:
    """How far eigenvalues are outside of a range, compared with the weight; a vector contains eigenvalues."""

    def off(W: Tensor) -> Tensor:
        W = W.detach().double()
        eigenvalues = W if W.dim() == 1 else torch.linalg.eigvalsh(W)
        return torch.maximum(low - eigenvalues, eigenvalues - high).relu().max() / W.abs().max().clamp_min(1)

    return off


# ---- plain equations


def skew(A: Tensor) -> Tensor:
    """The skew-symmetric matrix of a strict lower triangle, which may lack columns."""
    L = F.pad(A, (0, A.shape[-2] - A.shape[-1])).tril(-1)
    return L - L.mT


def skew_hermitian(A: Tensor) -> Tensor:
    """S_ij = A_ij + i A_ji below the diagonal, S_ii = i A_ii."""
    L = torch.complex(A.tril(-1), A.triu(1).mT)
    return L - L.mH + 1j * torch.diag_embed(A.diagonal(dim1=-2, dim2=-1))


def cayley(S: Tensor) -> Tensor:
    eye = torch.eye(S.shape[-1], dtype=S.dtype)
    return torch.linalg.solve(eye + S, eye - S)


def cayley_rotated(p: Module, A: Tensor) -> Tensor:
    return p.base @ cayley(skew(A))


def rotated(p: Module, A: Tensor) -> Tensor:
    return p.base @ torch.matrix_exp(skew(A))


def scaled_cayley(p: Module, A: Tensor) -> Tensor:
    D = torch.ones(A.shape[-2], dtype=A.dtype)
    D[: A.shape[-2] // 2] = -1
    return cayley_rotated(p, A) * D


def gate(p: Module, A: Tensor, rows: Tensor) -> Tensor:
    return torch.cat([rows, rotated(p, A)], -2)


def schur(p: Module, A: Tensor, theta: Tensor, gamma: Tensor, T: Tensor) -> Tensor:
    return reference.schur_weight(rotated(p, A), theta, gamma, T)


def margin(p: Module, A: Tensor, C: Tensor, q: Tensor) -> Tensor:
    s = 1 + 2 * p.margin * (1 / (1 + torch.exp(-q)) - 0.5)
    return p.base_u @ torch.matrix_exp(skew(A)) @ torch.diag_embed(s) @ (p.base_v @ torch.matrix_exp(skew(C))).mT


RATES = {
    "exp": lambda m: -m.exp(),
    "softplus": lambda m: -(1 + m.exp()).log(),
    "inverse": lambda m: -1 / (m * m + 0.5),
    "direct": lambda m: 1 * m,
}


def stable_diagonal(p: Module, m: Tensor) -> Tensor:
    g = RATES[p.stable_map](m)
    return g if p.dt is None else torch.exp(p.dt * g)


def stable_matrix(p: Module, A: Tensor, m: Tensor) -> Tensor:
    V = rotated(p, A)
    return V @ torch.diag_embed(stable_diagonal(p, m)) @ V.mT


def direct_matrix(p: Module, M: Tensor) -> Tensor:
    return M if p.dt is None else torch.matrix_exp(p.dt * M)


def fourier(p: Module, phases: Tensor, vectors: Tensor) -> Tensor:
    """D3 R2 F^-1 D2 Pi R1 F D1."""
    v, eye = torch.view_as_complex(vectors), torch.eye(phases.shape[-1], dtype=C128)
    D1, D2, D3 = torch.diag_embed(torch.exp(1j * phases)).unbind(-3)
    v = v.unsqueeze(-1)
    R1, R2 = (eye - 2 * v @ v.mH / v.abs().square().sum(-2, keepdim=True)).unbind(-3)
    k = torch.arange(len(eye), dtype=F64)
    F = torch.exp(-2j * torch.pi * torch.outer(k, k) / len(eye)) / len(eye) ** 0.5
    return D3 @ R2 @ F.mH @ D2 @ eye[p.order] @ R1 @ F @ D1


def complex_givens(p: Module, angles: Tensor, phases: Tensor, first: Tensor) -> Tensor:
    product = reference.givens_product(angles, phases=phases, style=p.style)
    return product * torch.exp(1j * first).unsqueeze(-2)


def complex_rotated(p: Module, A: Tensor, phases: Tensor | None = None) -> Tensor:
    S = skew_hermitian(A)
    V = torch.matrix_exp(S) if phases is None else cayley(S) * torch.exp(1j * phases).unsqueeze(-2)
    return torch.view_as_complex(p.base) @ V


# ---- the table


def orthogonal(formula: Callable[..., Tensor], *shape: int, assignable: bool = True, **options: Any) -> Row:
    return Row("orthogonal", options, formula, from_unitary, shape or (6, 6), assignable=assignable)


def unitary(formula: Callable[..., Tensor], *shape: int, **options: Any) -> Row:
    assignable = formula is complex_rotated
    return Row("unitary", options, formula, from_unitary, shape or (4, 4), "complex", assignable)


def householder(*shape: int, **options: Any) -> Row:
    options = {"orthogonal_map": "householder"} | options
    return orthogonal(lambda p, V: reference.householder_product(V), *shape, assignable=False, **options)


def givens(*shape: int, **options: Any) -> Row:
    def formula(p: Module, angles: Tensor) -> Tensor:
        return reference.givens_product(angles, style=p.style, size=p.layout.size)

    return orthogonal(formula, *shape, assignable=False, orthogonal_map="givens", init="uniform", **options)


def stable(stable_map: str, dt: float | None, *shape: int) -> Row:
    formula = stable_diagonal if len(shape) == 1 else direct_matrix if stable_map == "direct" else stable_matrix
    off = None if stable_map == "direct" else beyond(-torch.inf, 0) if dt is None else beyond(0, 1)
    assignable = formula is not direct_matrix or dt is None
    return Row("stable", {"stable_map": stable_map, "dt": dt}, formula, off, shape, assignable=assignable)


DYNAMIC = {"base": "dynamic", "rebase_every": 3}

ROWS = {
    "exp": orthogonal(rotated, init="haar"),
    "exp-dynamic": orthogonal(rotated, **DYNAMIC),
    "exp-tall": orthogonal(rotated, 7, 4),
    "exp-heads-wide": orthogonal(rotated, 2, 3, 5, init="henaff"),
    "cayley": orthogonal(cayley_rotated, orthogonal_map="cayley"),
    "cayley-wide-dynamic": orthogonal(cayley_rotated, 4, 7, orthogonal_map="cayley", init="cayley", **DYNAMIC),
    "scaled_cayley-dynamic": orthogonal(scaled_cayley, orthogonal_map="scaled_cayley", **DYNAMIC),
    "scaled_cayley-tall": orthogonal(scaled_cayley, 7, 4, orthogonal_map="scaled_cayley"),
    "householder": householder(),
    "householder-4": householder(reflections=4),
    "householder-wide": householder(4, 7, init="henaff"),
    "givens": givens(5, 5, layers=4),
    "givens-tall": givens(7, 4),
    "givens-butterfly": givens(8, 8, style="butterfly"),
    "orthogonal_gate": Row("orthogonal_gate", {}, gate, of_last_rows, (18, 6)),
    "orthogonal_gate-dynamic": Row("orthogonal_gate", DYNAMIC, gate, of_last_rows, (18, 6)),
    "schur": Row("schur", {}, schur, None, (7, 7)),
    "schur-heads-dynamic": Row("schur", {"init": "haar"} | DYNAMIC, schur, None, (2, 4, 4)),
    "spectral_margin": Row("spectral_margin", {"margin": 0.2}, margin, beyond_margin(0.2)),
    "spectral_margin-heads": Row("spectral_margin", {"margin": 1, "init": "haar"}, margin, beyond_margin(1), (2, 4, 4)),
    "spectral_margin-0": Row("spectral_margin", {"margin": 0}, margin, from_unitary),
    **{f"stable-{name}-1-{dt}": stable(name, dt, 5) for name in RATES for dt in (None, 0.3)},
    **{f"stable-{name}-2-{dt}": stable(name, dt, 4, 4) for name in RATES for dt in (None, 0.3)},
    "stable-heads": stable("exp", None, 2, 3, 3),
    "unitary-fourier": unitary(fourier, 5, 5, unitary_map="fourier", init="uniform"),
    "unitary-givens": unitary(complex_givens, unitary_map="givens", init="uniform"),
    "unitary-butterfly-heads": unitary(
        complex_givens, 2, 4, 4, unitary_map="givens", init="uniform", style="butterfly", layers=5
    ),
    "unitary-exp": unitary(complex_rotated, unitary_map="exp"),
    "unitary-scaled_cayley-dynamic": unitary(complex_rotated, unitary_map="scaled_cayley", init="haar", **DYNAMIC),
}
"""By name."""


class Weight(Module):
    """Has nothing but a weight, which it returns."""

    def forward(self) -> Tensor:
        return self.weight


def registered(name: str, dtype: torch.dtype = F64, device: str = "cpu", **changed: Any) -> Module:
    """A module whose ``weight`` has the parametrization ``name``, with ``changed`` options."""
    row, module = ROWS[name], Weight()
    dtype = dtype.to_complex() if row.field == "complex" else dtype
    module.weight = torch.nn.Parameter(torch.randn(row.shape, dtype=dtype, device=device))
    return getattr(parametrizations, row.function)(module, "weight", **row.options | changed)


def originals(module: Module) -> list[Tensor]:
    """The parameters behind the weight."""
    return module.parametrizations.weight[0].originals


@torch.no_grad()
def moved(module: Module, scale: float = 0.5) -> Module:
    """Moves the parameters of a weight at random."""
    for p in originals(module):
        p.add_(scale * torch.randn(p.shape))
    return module


def plain(name: str, module: Module, *parameters: Tensor) -> Tensor:
    """The weight by its equation, in plain PyTorch, from the module's parameters or from others."""
    row = ROWS[name]
    W = row.formula(module.parametrizations.weight[0], *(parameters or originals(module)))
    if len(row.shape) == 1:
        return W
    W = W[..., : min(row.shape[-2:])]
    return W.mT if row.shape[-2] < row.shape[-1] else W
