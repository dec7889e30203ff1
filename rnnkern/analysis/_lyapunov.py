"""Lyapunov exponents of recurrent layers, and the dimension of their attractors."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Generator, Tensor
from torch.nn import Module

from rnnkern.analysis._layers import Layer, State, check_place, input_or_zeros, layers_of, states_of
from rnnkern.ops import recurrence_tangent

STEPS = 64
"""Number of steps per call of the operator, unless ``every`` is larger."""
SPREAD = {torch.float64: 10.0, torch.float32: 4.0}
"""Largest product of k and the difference between the largest and the least local rate. The least exponent loses its
digits where the product nears ln(1 / eps), 36 and 16."""
GROWTH = 40.0
"""Largest product of k and the magnitude of a rate: tangents grow or shrink by e^40 at most, far from the range of
float32."""


class Spectrum(NamedTuple):
    """The result of :func:`lyapunov_spectrum`."""

    exponents: Tensor
    """(B, S), float64: in nats per step."""
    log_r: Tensor
    """(blocks, B, S), float64: growth of the tangents in each block of steps, in nats."""
    lost: Tensor
    """(B, S), int64: how often a tangent was linearly dependent on the previous ones."""
    every: int
    """Number of steps between two orthonormalizations; if it was chosen by the function, the last choice."""
    state: tuple[Tensor, ...]
    """Tensors (B, H): the final state of the layer."""
    tangents: tuple[Tensor, ...]
    """Tensors (S, B, H): the final tangents, orthonormal over all tensors of the state."""


@torch.no_grad()
def lyapunov_spectrum(
    module: Module, x: Tensor | None = None, hx: Any = None, *, steps: int | None = None, batch: int = 1,
    count: int | None = None, every: int | str = "auto", warmup: int = 0, layer: int = 0, direction: int = 0,
    tangents: Sequence[Tensor] | None = None,
) -> Spectrum:  # fmt: skip
    r"""Computes Lyapunov exponents of a recurrent layer: the mean rates at which perturbations of its state grow.

    With :math:`J_t` the Jacobian of step t along the trajectory, S orthonormal tangents Q are propagated and
    orthonormalized,

    .. math::
        J_t Q_{t-1} = Q_t R_t, \qquad \lambda_s = \frac{1}{T} \sum_t \ln (R_t)_{ss}

    for each sequence. A positive :math:`\lambda_1` means chaos: small perturbations grow until they are as large as the
    states. If all exponents are negative, the layer forgets its initial state, and :math:`-1 / \lambda_1` is the number
    of steps over which perturbations fall by a factor e. Exponents near 0 belong to directions that are kept. Over a
    finite number of steps they are finite-time exponents of each sequence.

    Runs in blocks of 64 steps, so that memory does not grow with T beyond the input and a row of ``log_r`` for each
    block. Modules are read as in evaluation mode: zoneout has its mean, and there is no dropout.

    Args:
        module: an RNN, LSTM or GRU of rnnkern.nn or torch.nn, or another layer of rnnkern.nn with the same attributes;
            float32 or float64. In float64 also small exponents of a wide spectrum are accurate.
        x: input (T, B, I), or (B, T, I) if the module has ``batch_first``. None for the autonomous network, whose input
            is zero.
        hx: initial state, as the module takes it. None means zeros.
        steps, batch: T and B of the autonomous network; only without ``x``. Give different initial states ``hx`` to its
            sequences.
        count: S, the number of exponents. The default is n, the size of the state: H, or 2H for an LSTM. The largest
            exponents need no others.
        every: k, the number of steps between two orthonormalizations. The s-th exponent loses its digits where
            :math:`k (\lambda_1 - \lambda_s)` nears 36 in float64 and 16 in float32. ``"auto"`` adapts k to the spread
            of the exponents in each block, from 1 to 64.
        warmup: number of the first steps, of the T, that are not included in the means: the state converges to the
            attractor, and the tangents to its directions.
        layer, direction: which layer and direction, given its input. The spectrum of a stack is the union of those of
            its layers, and that of a bidirectional layer the union of those of its directions. For layers above a
            bidirectional one, the outputs below are held for all steps.
        tangents: initial tangents, tensors (S, B, H) like the state, orthonormal over all tensors of the state; those
            of an earlier result continue it. The default is a random orthonormal set, always the same.

    Returns:
        A :class:`Spectrum`. Exponents are in the order of the orthonormalization, which is decreasing in the limit of
        many steps. -inf belongs to directions that a step annihilates, which ``lost`` counts: H of them in an LSTM at
        c = 0, where h and c change together. Row k of ``log_r`` is the sum over a block of m steps, the least
        multiple of ``every`` that is at least 64 (64 for ``"auto"``); the last block may be shorter.

    A filter of the input projection (:mod:`rnnkern.nn.filters`) runs, but its own state is not perturbed. It is linear
    in this state, which does not depend on h: for Momentum and Adam it would add :math:`\ln \mu`, for Adam and RMSprop
    :math:`\ln \beta`, once per unit and gate.

    Raises:
        ValueError: the module is of another kind; neither or both of ``x`` and ``steps`` are given; there is no step
            after ``warmup``; ``count``, ``every``, ``layer`` or ``direction`` is out of range; a tensor has the wrong
            shape; or ``tangents`` are not orthonormal.
        TypeError: the module is neither float32 nor float64, or a tensor has another dtype or device.

    Source: Benettin, Galgani, Giorgilli and Strelcyn 1980; for recurrent networks Engelken, Wolf and Abbott 2023 and
    Vogt et al. 2022.

    >>> rnn = rnnkern.nn.RNN(1, 3, nonlinearity="identity", bias=False)
    >>> with torch.no_grad():
    ...     _ = rnn.weight_hh_l0.copy_(torch.diag(torch.tensor([2.0, 1.0, 0.5])))
    >>> unit_vectors = (torch.eye(3).unsqueeze(1),)
    >>> lyapunov_spectrum(rnn, steps=100, tangents=unit_vectors).exponents  # logarithms of 2, 1 and 1/2
    tensor([[ 0.6931,  0.0000, -0.6931]], dtype=torch.float64)
    """
    caller = "lyapunov_spectrum"
    layers = layers_of(caller, module)
    check_place(caller, layers, layer, direction)
    target, below = layers[layer][direction], layers[:layer]
    x = input_or_zeros(caller, module, x, steps, batch)
    if not 0 <= warmup < x.shape[0]:
        raise ValueError(f"{caller}: `warmup` must be in [0, T) = [0, {x.shape[0]}), got {warmup}")
    if every != "auto" and (isinstance(every, bool) or not isinstance(every, int) or every < 1):
        raise ValueError(f'{caller}: `every` must be a positive int or "auto", got {every!r}')
    states = states_of(caller, layers, hx, x)
    moving = _first_tangents(target, x, count, tangents)
    if below and len(layers[0]) > 1:  # a reverse direction begins at the last step
        for directions, initial in zip(below, states, strict=False):
            x = torch.cat([each.run(x, state)[0] for each, state in zip(directions, initial, strict=True)], -1)
        below = []
    passed = [directions[0] for directions in states[:layer]]
    run = _Run(target, states[layer][direction], moving, every)
    reverse = target.weights["reverse"]
    for start, stop in _blocks(x.shape[0], warmup, every):
        block = x[x.shape[0] - stop : x.shape[0] - start] if reverse else x[start:stop]
        for k, (each,) in enumerate(below):
            block, passed[k] = each.run(block, passed[k])
        run.advance(block)
        if stop <= warmup:
            run.rows.clear()
            run.lost.zero_()
    log_r = torch.stack(run.rows)
    exponents = log_r.sum(0) / (x.shape[0] - warmup)
    return Spectrum(exponents, log_r, run.lost, run.every, run.state.cell, run.tangents)


def _blocks(steps: int, warmup: int, every: int | str) -> Iterator[tuple[int, int]]:
    """First and last step of each block, in processing order; a new one begins after the warmup."""
    size = STEPS if every == "auto" else -(-STEPS // every) * every
    for first, last in ((0, warmup), (warmup, steps)):
        for start in range(first, last, size):
            yield start, min(start + size, last)


class _Run:
    """The state and tangents of a layer while blocks of steps pass."""

    def __init__(self, layer: Layer, state: State, tangents: tuple[Tensor, ...], every: int | str) -> None:
        self.layer, self.state, self.tangents = layer, state, tangents
        self.adapts, self.every = every == "auto", 1 if every == "auto" else every
        self.rows: list[Tensor] = []
        self.lost = tangents[0].new_zeros(*tangents[0].shape[1::-1], dtype=torch.int64)

    def advance(self, x: Tensor) -> None:
        call, kept = self.layer.projected(x, self.state.kept)
        while True:
            found = recurrence_tangent(**call, state=self.state.cell, tangents=self.tangents, every=self.every)
            row = found.log_r.sum(0)
            rates = row / x.shape[0]
            if not self.adapts or self.every == 1 or _fits(self.every, rates, x.dtype):
                break
            self.every //= 2  # and again from the same state
        self.state, self.tangents = State(found.state, kept), found.tangents
        self.rows.append(row)
        self.lost += found.lost
        while self.adapts and self.every < STEPS and _fits(2 * self.every, rates, x.dtype):
            self.every *= 2


def _fits(every: int, rates: Tensor, dtype: torch.dtype) -> bool:
    """Whether tangents with these rates (B, S) stay independent and in range over ``every`` steps."""
    if not rates.numel():
        return True
    spread, size = (rates.amax(-1) - rates.amin(-1)).max(), rates.abs().max()
    return bool((every * spread <= SPREAD[dtype]) & (every * size <= GROWTH))


def _first_tangents(
    layer: Layer, x: Tensor, count: int | None, tangents: Sequence[Tensor] | None
) -> tuple[Tensor, ...]:
    widths, batch = layer.widths, x.shape[1]
    n = sum(widths)
    if tangents is None:
        count = n if count is None else count
        if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= n:
            raise ValueError(f"lyapunov_spectrum: `count` must be in [1, n] = [1, {n}], got {count}")
        drawn = torch.randn(n, count, dtype=torch.float64, generator=Generator().manual_seed(0))
        found = torch.linalg.qr(drawn).Q.T.unsqueeze(1).to(x)
        return tuple(part.expand(-1, batch, -1).contiguous() for part in found.split(widths, -1))
    tangents = tuple(tangents)
    count = tangents[0].shape[0] if count is None else count
    wanted, got = [(count, batch, width) for width in widths], [tuple(part.shape) for part in tangents]
    if got != wanted or not 1 <= count <= n:
        raise ValueError(f"lyapunov_spectrum: `tangents` must have the shapes (S, B, H) = {wanted}, got {got}")
    rows = torch.cat(tangents, -1).transpose(0, 1).double()
    if (rows @ rows.mT - torch.eye(count, dtype=rows.dtype, device=rows.device)).abs().gt(1e-3).any():
        raise ValueError("lyapunov_spectrum: `tangents` must be orthonormal for each sequence, got others")
    return tuple(part.to(x) for part in tangents)


def kaplan_yorke(exponents: Tensor | Spectrum, n: int | None = None) -> Tensor:
    r"""Computes the Kaplan-Yorke dimension of an attractor from its Lyapunov exponents.

    .. math::
        D = j + \frac{\sum_{i \le j} \lambda_i}{|\lambda_{j+1}|}

    for exponents in decreasing order, with j the largest number whose sum :math:`\sum_{i \le j} \lambda_i` is not
    negative. D is 0 if :math:`\lambda_1 < 0`, and n if no sum is negative.

    Args:
        exponents: (..., S) in any order, or a :class:`Spectrum`.
        n: the size of the state, for a tensor; S = n needs no other exponents. The default is that of the Spectrum, and
            unknown for a tensor.

    Returns:
        (...), float64.

    Raises:
        ValueError: there are no exponents; or no sum is negative and S < n, or n is unknown: then D needs more of them.

    Source: Kaplan and Yorke 1979; Frederickson et al. 1983.

    >>> rnnkern.analysis.kaplan_yorke(torch.tensor([0.5, 0.0, -1.0]))
    tensor(2.5000, dtype=torch.float64)
    """
    if isinstance(exponents, Spectrum):
        n = sum(part.shape[-1] for part in exponents.tangents)
        exponents = exponents.exponents
    S = exponents.shape[-1] if exponents.dim() else 0
    if not S:
        raise ValueError(f"kaplan_yorke: `exponents` must be (..., S) with S > 0, got {tuple(exponents.shape)}")
    rates = exponents.double().sort(-1, descending=True).values
    sums = rates.cumsum(-1)
    j = (sums >= 0).sum(-1, keepdim=True)  # sums of decreasing numbers change sign once
    if n != S and (j == S).any():
        raise ValueError(
            f"kaplan_yorke: the sum of `exponents` must be negative unless there are n = {'?' if n is None else n} of "
            f"them, got {S} with the sum {sums[..., -1].max():.4g}"
        )
    sums, rates = (torch.nn.functional.pad(x, pad) for x, pad in ((sums, (1, 0)), (rates, (0, 1))))
    inside = rates.gather(-1, j)  # of exponent j + 1; 0 beyond the last
    ratio = torch.where(j == S, 0, sums.gather(-1, j) / torch.where(j == S, 1, inside.abs()))
    return (j + ratio).squeeze(-1)
