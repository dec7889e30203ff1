"""Checks of the arguments of the recurrence, for real and for fake tensors."""

from collections.abc import Sequence

import torch
from torch import Tensor

from rnnkern.ops._recurrence.autograd import Rates, Recomputed
from rnnkern.ops.checks import (
    FLOATS,
    all_like,
    check_batch_sizes,
    check_flags,
    check_input,
    check_like,
    check_reset,
    check_shape,
    readable,
)
from rnnkern.reference import CELLS
from rnnkern.reference._recurrence import OWN_CELLS, cell_of

LEAST_RATE = 2.0**-32
"""Least rate of zoneout and dropout. A smaller rate cannot be resolved by 32 random bits and counts as 0."""

OF_EQUAL_STEPS = ("adams", "heavy_ball", "heavy_ball_tanh")
"""Cells of :mod:`rnnkern.cells`, named with a hash behind, whose states must not be mixed with the previous ones: one
holds the previous derivative or a momentum, and the mean would be a step of another method."""

COMPLEX = {"modrelu": "complex_modrelu"}
"""For each cell with complex numbers, the real cell that computes their real and imaginary parts."""


def check(cell, u, R, state, bias, params, batch_sizes, reset, reverse, grad_scale, save_gates, save_u=False,
          weight_ih=None, bias_ih=None, keep=None, zoneout=0.0, steps=None) -> None:  # fmt: skip
    """Raises the errors that :func:`recurrence` documents. No other function of this package checks arguments."""
    cell = getattr(cell, "name", cell)  # a cell made by rnnkern.cell
    if not isinstance(cell, str) or (cell not in CELLS and cell not in OWN_CELLS):
        raise ValueError(f"recurrence: `cell` must be one of {sorted(CELLS)}, or what rnnkern.cell made, got {cell!r}")
    _, gates, states, names, _, recurrent, *_ = cell_of(cell)
    dtypes = (*FLOATS, torch.complex64, torch.complex128) if cell in COMPLEX else FLOATS
    check_input("recurrence", "u", u, batch_sizes, "G*H", dtypes)
    for name, group, wanted in (
        ("state", state, ("h0", "c0", *(f"state{k}" for k in range(2, states)))[:states]),
        ("params", params, names),
    ):
        if not isinstance(group, (tuple, list)):
            raise TypeError(f"recurrence: `{name}` must be a tuple of tensors, got {type(group).__name__}")
        if len(group) != len(wanted):
            raise ValueError(
                f"recurrence: `{name}` of the cell {cell!r} must be ({', '.join(wanted)}), "
                f"{len(wanted)} tensors, got {len(group)}"
            )
    real = ("u.real", u.real) if u.is_complex() else ("u", u)
    optional = [x for x in (bias, weight_ih, bias_ih, grad_scale) if x is not None]
    if u.is_complex() or not all_like(u, (R, *state, *params, *optional)):
        for name, tensor in (("R", R), ("bias", bias), ("weight_ih", weight_ih), ("bias_ih", bias_ih)):
            if tensor is not None or name == "R":
                check_like("recurrence", name, tensor, "u", u)
        if grad_scale is not None:
            check_like("recurrence", "grad_scale", grad_scale, *real)
        for name, group, like in (("state", state, ("u", u)), ("params", params, real)):
            for k, tensor in enumerate(group):
                check_like("recurrence", f"{name}[{k}]", tensor, *like)
    gates_flag, u_flag = save_gates is not None and save_gates, isinstance(save_u, Recomputed) or save_u
    check_flags("recurrence", reverse=reverse, save_gates=gates_flag, save_u=u_flag)

    hidden = _check_projection(cell, gates, u, weight_ih, bias_ih)
    width = _check_params(cell, names, params, hidden)
    if R.dim() == 3:
        heads = R.shape[0]
        if cell == "lstm_projected" or cell_of(cell).normalised:
            raise ValueError(f"recurrence: `R` of the cell {cell!r} must be dense, got heads {tuple(R.shape)}")
        if heads == 0 or hidden % heads:
            raise ValueError(f"recurrence: `R` has {heads} heads, which must divide H = {hidden}, got {tuple(R.shape)}")
        d = hidden // heads
        check_shape("recurrence", "R", R, "(K, G*D, D)", (heads, recurrent * d, d))
    else:
        check_shape("recurrence", "R", R, "(G*H, H)" if width == hidden else "(G*H, P)", (recurrent * hidden, width))
    if bias is not None:
        check_shape("recurrence", "bias", bias, "(G*H,)", (recurrent * hidden,))

    if state[0].dim() != 2:
        raise ValueError(f"recurrence: `state[0]` must be (B, H), got {tuple(state[0].shape)}")
    batch = state[0].shape[0] if batch_sizes is not None else u.shape[1]
    for k, s in enumerate(state):
        columns = width if k == 0 else hidden
        check_shape("recurrence", f"state[{k}]", s, "(B, H)" if columns == hidden else "(B, P)", (batch, columns))
    if steps is None:
        steps = u.shape[0]
    else:
        _check_steps(steps, u, batch_sizes)
    if batch_sizes is not None:
        steps = check_batch_sizes("recurrence", batch_sizes, u.shape[0], batch)
    if reset is not None:
        check_reset("recurrence", reset, u, steps, batch)
    if grad_scale is not None and tuple(grad_scale.shape) not in ((steps,), (steps, batch)):
        raise ValueError(
            f"recurrence: `grad_scale` must be (T,) = ({steps},) or (T, B) = ({steps}, {batch}), "
            f"got {tuple(grad_scale.shape)}"
        )
    if keep is not None:
        _check_keep(cell, keep, zoneout, real, steps, batch)


def _check_steps(steps, u: Tensor, batch_sizes: Tensor | None) -> None:
    if isinstance(steps, bool) or not isinstance(steps, int):
        raise TypeError(f"recurrence: `steps` must be an int, got {type(steps).__name__}")
    if steps < 1:
        raise ValueError(f"recurrence: `steps` must be at least 1, got {steps}")
    if batch_sizes is not None:
        raise ValueError("recurrence: `batch_sizes` must be None with `steps`, got a tensor")
    if u.shape[0] != 1:
        raise ValueError(f"recurrence: `u` must be (1, B, G*H) with `steps`, got {tuple(u.shape)}")


def _check_keep(cell: str, keep: Tensor, zoneout, like: tuple[str, Tensor], steps: int, batch: int) -> None:
    if cell.rpartition("-")[0] in OF_EQUAL_STEPS or cell_of(cell).normalised:
        why = "has norms" if cell_of(cell).normalised else "is a method for steps of equal length"
        raise ValueError(f"recurrence: `keep` must be None for the cell {cell!r}, which {why}, got a tensor")
    if zoneout != 0 and any(zoneout if isinstance(zoneout, (tuple, list)) else (zoneout,)):
        raise ValueError(
            f"recurrence: `keep` and `zoneout` exclude each other: `zoneout` must be 0 with `keep`, got {zoneout!r}"
        )
    check_like("recurrence", "keep", keep, *like)
    if tuple(keep.shape) not in ((steps,), (steps, batch)):
        raise ValueError(
            f"recurrence: `keep` must be (T,) = ({steps},) or (T, B) = ({steps}, {batch}), got {tuple(keep.shape)}"
        )
    if keep.requires_grad:
        raise ValueError("recurrence: `keep` is a constant and must not require a gradient; pass keep.detach()")
    if readable(keep):
        wrong = keep[~((keep >= 0) & (keep <= 1))]
        if wrong.numel():
            raise ValueError(f"recurrence: `keep` must be in [0, 1], got {wrong[0].item()}")


def noise(zoneout, dropout, seed, states: int, u: Tensor) -> tuple[Rates, Tensor | None]:
    """Returns the rates in the form that the operator takes, and the seed if anything is drawn from it."""
    if zoneout == 0 and dropout == 0 and seed is None:
        return (), None
    rates = (zoneout,) * states if isinstance(zoneout, (int, float)) else zoneout
    if not isinstance(rates, (tuple, list)) or len(rates) != states:
        raise ValueError(f"recurrence: `zoneout` must be a float or {states} floats, one per state, got {zoneout!r}")
    for name, rate in (*(("zoneout", rate) for rate in rates), ("dropout", dropout)):
        if isinstance(rate, bool) or not isinstance(rate, (int, float)):
            raise TypeError(f"recurrence: `{name}` must be a float, got {type(rate).__name__}")
        if not 0 <= rate < 1:
            raise ValueError(f"recurrence: `{name}` must be in [0, 1), got {rate}")
        if rate and u.is_complex():
            raise ValueError(f"recurrence: `{name}` must be 0 for a complex `u`, got {rate}")
    if seed is not None:
        if not isinstance(seed, Tensor) or seed.dtype != torch.int64:
            got = seed.dtype if isinstance(seed, Tensor) else type(seed).__name__
            raise TypeError(f"recurrence: `seed` must be an int64 tensor, got {got}")
        if seed.device != u.device:
            raise TypeError(f"recurrence: `seed` must be on {u.device} like `u`, got {seed.device}")
        if seed.numel() != 1:
            raise ValueError(f"recurrence: `seed` must have one element, got {tuple(seed.shape)}")
    rates = tuple(float(rate) if rate >= LEAST_RATE else 0.0 for rate in (*rates, dropout if seed is not None else 0))
    return (rates, seed) if any(rates) else ((), None)


def _check_projection(cell: str, gates: int, u: Tensor, weight_ih: Tensor | None, bias_ih: Tensor | None) -> int:
    """Checks u and the input weights, and returns H."""
    rows = u.shape[-1] if weight_ih is None else weight_ih.shape[0] if weight_ih.dim() == 2 else 0
    if rows % gates or rows == 0:
        wanted = f"G*H, a positive multiple of G = {gates} for the cell {cell!r}"
        if weight_ih is None:
            raise ValueError(f"recurrence: the last size of `u` must be {wanted}, got {tuple(u.shape)}")
        raise ValueError(f"recurrence: `weight_ih` must be (G*H, I), G*H {wanted[5:]}, got {tuple(weight_ih.shape)}")
    if weight_ih is not None:
        check_shape("recurrence", "weight_ih", weight_ih, "(G*H, I)", (rows, u.shape[-1]))
    if bias_ih is not None:
        if weight_ih is None:
            raise ValueError("recurrence: `weight_ih` must be given together with `bias_ih`, got None")
        check_shape("recurrence", "bias_ih", bias_ih, "(G*H,)", (rows,))
    return rows // gates


def _check_params(cell: str, names: Sequence[str], params: Sequence[Tensor], hidden: int) -> int:
    """Checks the params and returns the number of columns of h."""
    if cell == "lstm_projected":
        (weight,) = params
        if weight.dim() != 2 or weight.shape[0] == 0 or weight.shape[1] != hidden:
            raise ValueError(
                f"recurrence: `params[0]` (weight_hr) must be (P, H) = (P, {hidden}), got {tuple(weight.shape)}"
            )
        return weight.shape[0]
    rows = cell_of(cell).rows or (1,) * len(names)
    for k, (name, n) in enumerate(zip(names, rows, strict=True)):
        symbols = "H" if n == 1 else f"{n}*H"
        check_shape("recurrence", f"params[{k}]", params[k], f"({symbols},), the cell's {name},", (n * hidden,))
    return hidden
