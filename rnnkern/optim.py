"""What an optimiser is to be told of a model's parametrized weights."""

from typing import Any

from torch.nn import Module

from rnnkern.parametrizations.parametrization import Parametrization, parametrizations
from rnnkern.parametrizations.schur import Schur


def param_groups(
    model: Module, lr: float, orthogonal_lr: float | None = None, weight_decay: float = 0.0, t_decay: float = 0.0
) -> list[dict[str, Any]]:
    """Parameter groups for any optimiser of torch.optim; those that would be empty are left out.

    Args:
        model: any.
        lr: learning rate of all but orthogonal weights; theta, gamma and T of a Schur form, and p of singular values,
            are among the others.
        orthogonal_lr: that of the parameters behind orthogonal weights, skew-symmetric A and C, vectors of reflections
            and angles; a tenth of ``lr`` if not given. They get no weight decay, which would pull the weight to its
            base.
        weight_decay: of the others, but for T.
        t_decay: weight decay of T of Schur forms: optimisers that add it to the gradient add ``t_decay * T``.

    Returns:
        Up to three dicts with ``params``, ``lr`` and ``weight_decay``: the others, A and the like, T. Every parameter
        of the model stands in one of them.

    Raises:
        TypeError: ``model`` is no module.
        ValueError: a rate or a decay is negative.

    >>> model = torch.nn.ModuleList([rnnkern.nn.NonNormalRNN(3, 8), torch.nn.Linear(8, 2)])
    >>> optimiser = torch.optim.RMSprop(rnnkern.optim.param_groups(model, 5e-4, 1e-6, t_decay=1e-6))
    >>> [(len(group["params"]), group["lr"], group["weight_decay"]) for group in optimiser.param_groups]
    [(6, 0.0005, 0.0), (1, 1e-06, 0.0), (1, 0.0005, 1e-06)]
    """
    if not isinstance(model, Module):
        raise TypeError(f"param_groups: `model` must be a torch.nn.Module, got {type(model).__name__}")
    orthogonal_lr = lr / 10 if orthogonal_lr is None else orthogonal_lr
    given = {"lr": lr, "orthogonal_lr": orthogonal_lr, "weight_decay": weight_decay, "t_decay": t_decay}
    for name, value in given.items():
        if not value >= 0:
            raise ValueError(f"param_groups: `{name}` must not be negative, got {value}")
    found = parametrizations(model, Parametrization)
    rotating = {id(p.originals[k]) for p in found for k in p.rotating}
    strict = {id(p.originals[3]) for p in found if isinstance(p, Schur)}
    kinds = [(lr, weight_decay), (orthogonal_lr, 0.0), (lr, t_decay)]
    groups = [{"params": [], "lr": rate, "weight_decay": decay} for rate, decay in kinds]
    for p in model.parameters():
        groups[1 if id(p) in rotating else 2 if id(p) in strict else 0]["params"].append(p)
    return [group for group in groups if group["params"]]
