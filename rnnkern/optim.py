"""Optimizer utilities for constrained weights, and an optimizer for unitary weights."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer

from rnnkern import ops
from rnnkern.parametrizations._parametrization import Parametrization, parametrizations
from rnnkern.parametrizations._schur import Schur


def param_groups(
    model: Module,
    lr: float,
    orthogonal_lr: float | None = None,
    weight_decay: float = 0.0,
    triangular_weight_decay: float = 0.0,
) -> list[dict[str, Any]]:
    """Parameter groups for any optimizer of torch.optim; those that would be empty are left out.

    Args:
        model: any.
        lr: learning rate of all but orthogonal weights; theta, gamma and T of a Schur form, and p of singular values,
            are among the others.
        orthogonal_lr: that of the parameters behind orthogonal weights, skew-symmetric A and C, vectors of reflections
            and angles; a tenth of ``lr`` if not given. They get no weight decay, which would pull the weight to its
            base.
        weight_decay: of the others, but for T.
        triangular_weight_decay: weight decay of T of Schur forms: optimizers that add it to the gradient add
            ``triangular_weight_decay * T``.

    Returns:
        Up to three dicts with ``params``, ``lr`` and ``weight_decay``: the others, A and the like, T. Every parameter
        of the model stands in one of them.

    Raises:
        TypeError: ``model`` is no module.
        ValueError: a rate or a decay is negative.

    >>> model = torch.nn.ModuleList([rnnkern.nn.NonNormalRNN(3, 8), torch.nn.Linear(8, 2)])
    >>> optimizer = torch.optim.RMSprop(rnnkern.optim.param_groups(model, 5e-4, 1e-6, triangular_weight_decay=1e-6))
    >>> [(len(group["params"]), group["lr"], group["weight_decay"]) for group in optimizer.param_groups]
    [(6, 0.0005, 0.0), (1, 1e-06, 0.0), (1, 0.0005, 1e-06)]
    """
    if not isinstance(model, Module):
        raise TypeError(f"param_groups: `model` must be a torch.nn.Module, got {type(model).__name__}")
    orthogonal_lr = lr / 10 if orthogonal_lr is None else orthogonal_lr
    given = {
        "lr": lr,
        "orthogonal_lr": orthogonal_lr,
        "weight_decay": weight_decay,
        "triangular_weight_decay": triangular_weight_decay,
    }
    for name, value in given.items():
        if not value >= 0:
            raise ValueError(f"param_groups: `{name}` must not be negative, got {value}")
    found = parametrizations(model, Parametrization)
    rotating = {id(p.originals[k]) for p in found for k in p.rotating}
    strict = {id(p.originals[3]) for p in found if isinstance(p, Schur)}
    kinds = [(lr, weight_decay), (orthogonal_lr, 0.0), (lr, triangular_weight_decay)]
    groups = [{"params": [], "lr": rate, "weight_decay": decay} for rate, decay in kinds]
    for p in model.parameters():
        groups[1 if id(p) in rotating else 2 if id(p) in strict else 0]["params"].append(p)
    return [group for group in groups if group["params"]]


PROJECT = 64
"""After so many steps one of Newton and Schulz removes what rounding has added up."""


class CayleySGD(Optimizer):
    r"""Gradient descent on the unitary, or real the orthogonal, matrices: full-capacity uRNN's multiplicative step.

    .. math::
        W \leftarrow \left(I + \tfrac \lambda 2 A\right)^{-1} \left(I - \tfrac \lambda 2 A\right) W, \qquad
        A = G W^H - W G^H

    G is the gradient, :math:`\lambda` the learning rate. A is skew-Hermitian, so that what multiplies W is unitary. It
    is applied as what it adds to W, and after every 64th step a step of Newton and Schulz's iteration follows
    (:func:`rnnkern.ops.project_orthogonal`), so that rounding does not add up. One linear system and three products
    of N x N matrices per step. All other parameters of a model are another optimizer's.

    With ``alpha`` the entries of A are divided as RMSprop divides a gradient's, by
    :math:`\sqrt{v} + \epsilon` with :math:`v \leftarrow \alpha v + (1 - \alpha) |A|^2`: v is symmetric, so that A stays
    skew-Hermitian. Steps then have a size that the gradient's does not change, and the rates of other optimizers serve.

    Args:
        params: parameters (..., N, N), orthogonal or unitary, or groups of them.
        lr: :math:`\lambda`.
        alpha: the smoothing, in [0, 1); None for A as it is.
        eps: :math:`\epsilon`.

    Raises:
        TypeError: a parameter is not of float32, float64, complex64 or complex128.
        ValueError: a parameter is not a batch of square matrices, ``lr`` or ``eps`` is negative, or ``alpha`` is not in
            [0, 1).

    Source: Wisdom et al. 2016, eqs. 9-11.

    >>> rnn = rnnkern.nn.UnitaryRNN(3, 8, unitary_map="free")
    >>> optimizer = rnnkern.optim.CayleySGD([rnn.weight_hh_l0], lr=1e-3)
    >>> rnn(torch.randn(5, 2, 3))[0].sum().backward()
    >>> optimizer.step()
    >>> W = rnn.weight_hh_l0
    >>> torch.allclose(W.mH @ W, torch.eye(8, dtype=torch.complex64), atol=1e-6)
    True
    """

    def __init__(
        self, params: Iterable[Tensor] | Iterable[dict[str, Any]], lr: float, alpha: float | None = None,
        eps: float = 1e-8,
    ) -> None:  # fmt: skip
        for name, value in {"lr": lr, "eps": eps}.items():
            if not value >= 0:
                raise ValueError(f"CayleySGD: `{name}` must not be negative, got {value}")
        if alpha is not None and not 0 <= alpha < 1:
            raise ValueError(f"CayleySGD: `alpha` must be in [0, 1) or None, got {alpha}")
        super().__init__(params, {"lr": lr, "alpha": alpha, "eps": eps})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        super().add_param_group(param_group)
        for p in self.param_groups[-1]["params"]:
            if p.dtype not in (torch.float32, torch.float64, torch.complex64, torch.complex128):
                raise TypeError(f"CayleySGD: a parameter must be of 32 or 64 bits, real or complex, got {p.dtype}")
            if p.dim() < 2 or p.shape[-1] != p.shape[-2]:
                raise ValueError(f"CayleySGD: a parameter must be (..., N, N), got {tuple(p.shape)}")

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Moves every parameter that has a gradient.

        Args:
            closure: evaluates the model again and returns the loss.

        Returns:
            What the closure does, or None.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for W in group["params"]:
                if W.grad is not None:
                    self._move(W, W.grad, group["lr"], group["alpha"], group["eps"])
        return loss

    def _move(self, W: Tensor, G: Tensor, rate: float, alpha: float | None, eps: float) -> None:
        state = self.state[W]
        state["step"] = state.get("step", 0) + 1
        A = G @ W.mH
        A = A - A.mH
        if alpha is not None:
            squares = A.abs().square()
            average = state.setdefault("square_avg", torch.zeros_like(squares))
            A = A / (average.lerp_(squares, 1 - alpha).sqrt() + eps)
        eye = torch.eye(W.shape[-1], dtype=W.dtype, device=W.device)
        W.sub_(torch.linalg.solve(eye + rate / 2 * A, rate * A @ W))
        if state["step"] % PROJECT == 0:
            W.copy_(ops.project_orthogonal(W, steps=1))
