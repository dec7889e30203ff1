"""Optimizer utilities for constrained weights, and an optimizer for unitary weights."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer

from rnnkern import ops
from rnnkern.parametrizations._orthogonal import PROJECT
from rnnkern.parametrizations._parametrization import Parametrization, parametrizations
from rnnkern.parametrizations._schur import Schur


def param_groups(
    model: Module,
    lr: float,
    orthogonal_lr: float | None = None,
    weight_decay: float | None = None,
    triangular_weight_decay: float | None = None,
) -> list[dict[str, Any]]:
    """Returns parameter groups for any torch.optim optimizer, with suitable rates for constrained weights.

    Args:
        model: any module.
        lr: learning rate of all parameters except those of orthogonal weights. It also applies to theta, gamma and T of
            a Schur form, and to p of singular values.
        orthogonal_lr: learning rate of the parameters behind orthogonal weights: skew-symmetric A and C, vectors of
            reflections, and angles. The default is ``lr`` / 10. These parameters get no weight decay, because it would
            pull the weight towards its base.
        weight_decay: weight decay of all other parameters except T. The default is that of the optimizer, such as 0.01
            for AdamW.
        triangular_weight_decay: weight decay of T of Schur forms. The default is ``weight_decay``.

    Returns:
        Up to three dicts with ``params``, ``lr`` and, unless the optimizer's own applies, ``weight_decay``. The first
        has the unconstrained parameters, the second those of orthogonal weights, and the third T. Empty groups are
        omitted. Every parameter of the model is in exactly one group.

    Raises:
        TypeError: ``model`` is not a module.
        ValueError: a rate or a decay is negative.

    >>> model = torch.nn.ModuleList([rnnkern.nn.NonNormalRNN(3, 8), torch.nn.Linear(8, 2)])
    >>> optimizer = torch.optim.AdamW(rnnkern.optim.param_groups(model, 5e-4, 1e-6, triangular_weight_decay=1e-6))
    >>> [(len(group["params"]), group["lr"], group["weight_decay"]) for group in optimizer.param_groups]
    [(6, 0.0005, 0.01), (1, 1e-06, 0.0), (1, 0.0005, 1e-06)]
    """
    if not isinstance(model, Module):
        raise TypeError(f"param_groups: `model` must be a torch.nn.Module, got {type(model).__name__}")
    orthogonal_lr = lr / 10 if orthogonal_lr is None else orthogonal_lr
    strict_decay = weight_decay if triangular_weight_decay is None else triangular_weight_decay
    given = {
        "lr": lr,
        "orthogonal_lr": orthogonal_lr,
        "weight_decay": weight_decay,
        "triangular_weight_decay": triangular_weight_decay,
    }
    for name, value in given.items():
        if value is not None and not value >= 0:
            raise ValueError(f"param_groups: `{name}` must not be negative, got {value}")
    found = parametrizations(model, Parametrization)
    rotating = {id(p.originals[k]) for p in found for k in p.rotating}
    strict = {id(p.originals[3]) for p in found if isinstance(p, Schur)}
    kinds = [(lr, weight_decay), (orthogonal_lr, 0.0), (lr, strict_decay)]
    groups = [{"params": [], "lr": rate} | ({} if decay is None else {"weight_decay": decay}) for rate, decay in kinds]
    for p in model.parameters():
        groups[1 if id(p) in rotating else 2 if id(p) in strict else 0]["params"].append(p)
    return [group for group in groups if group["params"]]


class CayleySGD(Optimizer):
    r"""Gradient descent on unitary or orthogonal matrices by the multiplicative step of full-capacity uRNN.

    .. math::
        W \leftarrow \left(I + \tfrac \lambda 2 A\right)^{-1} \left(I - \tfrac \lambda 2 A\right) W, \qquad
        A = G W^H - W G^H

    G is the gradient and :math:`\lambda` the learning rate. A is skew-Hermitian, so the factor that multiplies W is
    unitary. The step is computed as an increment of W, and every 64th step is followed by a Newton-Schulz step
    (:func:`rnnkern.ops.project_orthogonal`), so rounding errors do not accumulate. A step costs one linear solve and
    three products of N x N matrices. Use another optimizer for all other parameters of the model.

    With ``alpha``, the entries of A are normalized as in RMSprop: they are divided by :math:`\sqrt{v} + \epsilon` with
    :math:`v \leftarrow \alpha v + (1 - \alpha) |A|^2`. v is symmetric, so A stays skew-Hermitian. The step size then
    does not depend on the scale of the gradient, and learning rates of other optimizers work.

    Args:
        params: orthogonal or unitary parameters (..., N, N), or groups of them.
        lr: learning rate :math:`\lambda`.
        alpha: smoothing constant, in [0, 1); None disables the normalization.
        eps: :math:`\epsilon`.

    Raises:
        TypeError: the dtype of a parameter is not float32, float64, complex64 or complex128.
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
                raise TypeError(f"CayleySGD: parameters must be real or complex with 32 or 64 bits, got {p.dtype}")
            if p.dim() < 2 or p.shape[-1] != p.shape[-2]:
                raise ValueError(f"CayleySGD: parameters must be (..., N, N), got {tuple(p.shape)}")

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Updates every parameter that has a gradient.

        Args:
            closure: function that reevaluates the model and returns the loss; optional.

        Returns:
            The result of ``closure``, or None.
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
