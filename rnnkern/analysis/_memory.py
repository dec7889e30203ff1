"""Memory functions of recurrent models, and their sensitivity to perturbed weights."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Generator, Tensor
from torch.nn import Module

from rnnkern.analysis._gains import check_not_negative, check_positive

KINDS = ("heaviside", "impulse", "reversed")


@torch.no_grad()
def memory_function(
    model: Callable[..., Any], kind: str = "heaviside", *, steps: int, inputs: Tensor | None = None, dt: float = 1.0,
    history: int | None = None,
) -> Tensor:  # fmt: skip
    r"""Measures how strongly an input at time 0 still influences the output at time t.

    .. math::
        \rho(t) = \sup_x \frac{1}{|x|} \left| \frac{d}{dt} y_t(u^x) \right|

    - ``"heaviside"``: the input :math:`u^x` is x from time 0 on.
    - ``"impulse"``: the input is x during the first step only, and y replaces its derivative.
    - ``"reversed"``: the input is x before time 0, for ``history`` steps, and 0 from then on.

    For a linear model :math:`\dot h = W h + U x, y = c^\top h`, all three equal :math:`|c^\top e^{W t} U|`. The output
    for an input of zeros is subtracted from y, so biases have no influence. The derivative is the difference over a
    step divided by dt; for ``"impulse"``, y is divided by dt, because the area of the impulse is x dt. Norms are
    Euclidean.

    Args:
        model: a recurrent module or a function. It is called with an input (T, B, I), or (B, T, I) if it has
            ``batch_first``, and returns the output in the same layout with O columns, or a tuple that starts with the
            output. Switch it to evaluation mode if it has dropout.
        kind: ``"heaviside"``, ``"impulse"`` or ``"reversed"``, as above.
        steps: T, the number of values to return.
        inputs: (K, I), the nonzero vectors x over which the maximum is taken. The default is the I unit vectors, with
            the dtype and device of the model's first parameter.
        dt: duration of a step.
        history: for ``"reversed"``, the number of steps before time 0. The default is ``steps``. Memory that reaches
            further back is not measured.

    Returns:
        (T,), the values at the times 0, dt, ..., (T - 1) dt, without gradients.

    Raises:
        ValueError: ``kind`` is unknown, a number is not positive, ``inputs`` has a wrong shape or a zero row, or
            ``inputs`` is required because the model has no ``input_size`` or no parameters.

    Source: Wang, Li and Li 2024, definition 3.1 and appendices F and G.

    >>> rnn = rnnkern.nn.RNN(1, 1, nonlinearity="identity", bias=False)
    >>> with torch.no_grad():
    ...     _ = rnn.weight_hh_l0.fill_(0.5), rnn.weight_ih_l0.fill_(1.0)
    >>> rnnkern.analysis.memory_function(rnn, steps=4)
    tensor([1.0000, 0.5000, 0.2500, 0.1250])
    """
    if kind not in KINDS:
        raise ValueError(f"memory_function: `kind` must be one of {KINDS}, got {kind!r}")
    history = steps if history is None else history
    for name, value in (("steps", steps), ("dt", dt), ("history", history)):
        check_positive("memory_function", name, value)
    x = _unit_inputs(model) if inputs is None else inputs
    if x.dim() != 2 or not len(x) or not x.any(dim=1).all():
        raise ValueError(f"memory_function: `inputs` must be (K, I) with K > 0 and no zero row, got {_told(x)}")
    before = history if kind == "reversed" else 0
    u = x.new_zeros(before + steps, len(x) + 1, x.shape[1])  # the last sequence is all zeros
    shown = {"heaviside": slice(None), "impulse": slice(1), "reversed": slice(before)}[kind]
    u[shown, :-1] = x
    swapped = getattr(model, "batch_first", False)
    found = model(u.transpose(0, 1) if swapped else u)
    y = found[0] if isinstance(found, tuple) else found
    y = y.transpose(0, 1) if swapped else y
    y = y[:, :-1] - y[:, -1:]
    if kind != "impulse":
        y = y.diff(dim=0, prepend=torch.zeros_like(y[:1]))
    return (y[before:].norm(dim=-1) / x.norm(dim=-1)).amax(1) / dt


def _unit_inputs(model: Any) -> Tensor:
    first = next(model.parameters(), None) if isinstance(model, Module) else None
    size = getattr(model, "input_size", None)
    if first is None or size is None:
        raise ValueError("memory_function: `inputs` must be given if the model has no `input_size` or no parameters")
    return torch.eye(size, dtype=first.dtype, device=first.device)


def _told(x: Tensor) -> str:
    return f"{tuple(x.shape)}{', one of them zero' if x.dim() == 2 and len(x) else ''}"


@torch.no_grad()
def perturbation_error(
    model: Module, error: Callable[[Module], Tensor | float], radius: float, *, names: Sequence[str] | None = None,
    samples: int = 10, generator: Generator | None = None,
) -> float:  # fmt: skip
    r"""Estimates the largest error of a model over perturbations of its parameters.

    .. math::
        E(\beta) = \sup_{\|\Delta\| \le \beta} \mathrm{error}(\theta + \Delta)

    The estimate is a lower bound: the maximum over the unperturbed parameters and ``samples`` random perturbations with
    normally distributed entries, scaled to norm :math:`\beta`. Each matrix (each one of a stack) is scaled to spectral
    norm :math:`\beta`; each vector stands for a diagonal and is scaled to largest magnitude :math:`\beta`. For
    parametrized weights, the underlying parameters are perturbed (``parametrizations.weight_hh_l0.original``). The
    model is unchanged afterwards.

    Args:
        model: any module.
        error: function of the model that returns its error, such as the largest difference between its output and a
            target; called without gradients.
        radius: :math:`\beta`; 0 gives the error of the unperturbed model.
        names: names of the parameters to perturb, as in ``model.named_parameters()``. The default is all.
        samples: number of perturbations.
        generator: CPU generator for the perturbations. The default is torch's global generator.

    Returns:
        The largest error; infinity if an error is NaN.

    Raises:
        ValueError: ``radius`` or ``samples`` is negative, or a name is unknown.

    Source: Wang, Li and Li 2024, definition 3.4.

    >>> rnn, x = rnnkern.nn.RNN(1, 4), torch.randn(10, 1, 1)
    >>> y = rnn(x)[0].detach()
    >>> rnnkern.analysis.perturbation_error(rnn, lambda rnn: (rnn(x)[0] - y).abs().max(), 0.0)
    0.0
    """
    parameters = dict(model.named_parameters())
    names = list(parameters) if names is None else names
    unknown = [name for name in names if name not in parameters]
    if unknown:
        raise ValueError(f"perturbation_error: `names` must be among {list(parameters)}, got {unknown[0]!r}")
    for name, value in (("radius", radius), ("samples", samples)):
        check_not_negative("perturbation_error", name, value)
    begun = {name: parameters[name].clone() for name in names}
    largest = _number(error(model))
    try:
        for _ in range(samples):
            for name, value in begun.items():
                parameters[name].copy_(value + radius * _direction(value, generator))
            largest = max(largest, _number(error(model)))
    finally:
        for name, value in begun.items():
            parameters[name].copy_(value)
    return largest


def _direction(like: Tensor, generator: Generator | None) -> Tensor:
    """A random direction of norm 1."""
    drawn = torch.randn(like.shape, generator=generator, dtype=torch.float64)
    if drawn.dim() < 2:
        norm = drawn.abs().amax() if drawn.numel() else drawn.new_ones(())
    else:
        norm = torch.linalg.matrix_norm(drawn, 2, keepdim=True)
    return (drawn / norm).to(like)


def _number(error: Tensor | float) -> float:
    value = float(error)
    return value if value == value else float("inf")
