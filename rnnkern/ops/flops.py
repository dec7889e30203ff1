"""FLOPs of the operators, for ``torch.utils.flop_counter.FlopCounterMode``.

The conventions are PyTorch's. A multiply-add of a matrix product counts 2 in every dtype; all else counts 0: gates,
scans, filters, rotations, norms, triangular solves. Attention counts as PyTorch's own, with every slot of a memory,
filled or not. A backward operator counts all that it computes, also what the forward pass computed before. Counts
depend on shapes alone.
"""

from collections.abc import Callable, Sequence
from types import SimpleNamespace

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from rnnkern import _extension
from rnnkern._torch_private import defaults_of
from rnnkern.ops._orthogonal.schemes import SCHEMES
from rnnkern.ops._recurrence.facts import saved_by
from rnnkern.ops.checks import steps_of


def _numel(x: Tensor | Sequence[Tensor] | None) -> int:
    return 0 if x is None else x.numel() if isinstance(x, Tensor) else sum(map(_numel, x))


def _rows(x: Tensor) -> int:
    return x.shape[:-1].numel()


def _attention(pairs: int, key_size: int, value_size: int, backward: bool = False) -> int:
    """Multiply-adds for so many pairs of a query and a slot. The backward pass computes the scores again."""
    return pairs * (3 * key_size + 2 * value_size if backward else key_size + value_size)


def _projection(a: SimpleNamespace) -> int:
    """Elements of weight_hr, the only matrix among the params of a cell."""
    return _numel(a.params) if a.cell == "lstm_projected" else 0


def _recurrence(a: SimpleNamespace) -> int:
    return _rows(a.u) * (_numel(a.R) + _numel(a.weight_ih) + _projection(a))


def _recurrence_backward(a: SimpleNamespace) -> int:
    again = bool(saved_by(a.cell)) and len(a.saved) < len(a.state)  # gates that were not saved
    products = (1 + a.needs_R + again) * _numel(a.R) + (1 + a.needs_params) * _projection(a)
    products += (a.needs_u + a.needs_weight_ih + again) * _numel(a.weight_ih)
    return _rows(a.h) * products


def _recurrence_pair_backward(a: SimpleNamespace) -> int:
    a.h, a.needs_params = a.h[0], True
    of_h = _rows(a.h) * a.weight_ih[1].numel() if a.stacked and not a.needs_u else 0  # of the first layer, always
    return _recurrence_backward(a) + of_h


def _relevancy(a: SimpleNamespace, backward: bool = False) -> int:
    R, W_a, U_a, _ = a.weights
    rows = a.h if backward else a.u
    slots = min(a.buffer_size, a.state[-7].shape[1] + steps_of(rows, a.batch_sizes)) + a.state[-4].shape[1]
    products = (1 + backward) * R.numel() + (1 + 2 * backward) * (W_a.numel() + U_a.numel())
    return _rows(rows) * (products + _attention(slots, len(U_a), len(U_a), backward))


def _sab(a: SimpleNamespace, backward: bool = False) -> int:
    *mlp, w = a.attention
    (batch, hidden), rows = a.state[0].shape, _rows(a.u)
    slots = 1 + (a.steps + steps_of(a.u, a.batch_sizes)) // a.attend_every
    products = rows * a.R.numel() + (rows + batch * slots) * _numel(mlp) // 2  # half of its columns read the memories
    return (1 + 2 * backward) * products + _attention(rows * slots, len(w) if mlp else hidden, hidden, backward)


def _similarity_backward(a: SimpleNamespace) -> int:
    of_scores = a.x.numel() if a.y is None else 2 * a.x.numel()
    return a.x.shape[1] * (of_scores + (0 if a.grad_product is None else 2 * _numel(a.values)))


def _skew_exp(a: SimpleNamespace, backward: bool = False) -> int:
    """The products of the longest polynomial. How many squarings follow depends on values."""
    products = len(SCHEMES[str(a.A.dtype).removeprefix("torch.")][-1][2])
    if backward:
        again = products if a.kept.shape[-3] == 0 else 0
        products = 2 * products - 1 + again
    return products * a.A.numel() * a.A.shape[-1]


FORMULAS: dict[str, Callable[[SimpleNamespace], int]] = {
    "recurrence": _recurrence,
    "recurrence_backward": _recurrence_backward,
    "recurrence_tangent": lambda a: len(a.tangents[0]) * _rows(a.h) * (a.R.numel() + _projection(a)),
    "recurrence_pair": _recurrence,
    "linear": lambda a: _rows(a.x) * a.weight.numel(),
    "recurrence_pair_backward": _recurrence_pair_backward,
    "relevancy_recurrence": _relevancy,
    "relevancy_recurrence_backward": lambda a: _relevancy(a, backward=True),
    "sab_recurrence": _sab,
    "sab_recurrence_backward": lambda a: _sab(a, backward=True),
    "gather_attention": lambda a: _attention(a.idx.numel(), *a.q.shape[2:] * 2),
    "gather_attention_backward": lambda a: _attention(a.idx.numel(), *a.q.shape[2:] * 2, backward=True),
    "similarity": lambda a: a.x.shape[1] * (a.x.numel() + _numel(a.values)),
    "similarity_backward": _similarity_backward,
    "skew_exp": _skew_exp,
    "skew_exp_backward": lambda a: _skew_exp(a, backward=True),
    "schur_weight": lambda a: 2 * a.P.numel() * a.P.shape[-1],
    "schur_weight_backward": lambda a: 4 * a.P.numel() * a.P.shape[-1],
    "householder_product": lambda a: a.V.numel() * sum(a.V.shape[-2:]),
    "householder_product_backward": lambda a: 2 * a.V.numel() * sum(a.V.shape[-2:]),
    **{
        f"{name}{ending}": lambda a: 0
        for name in ("givens_product", "givens_recurrence", "linear_scan", "moment_filter")
        for ending in ("", "_backward")
    },
}
"""Multiply-adds of each operator as a function of its arguments, by their names in the schema."""


def _register(name: str, formula: Callable[[SimpleNamespace], int]) -> None:
    operator = getattr(torch.ops.rnnkern, name)

    @register_flop_formula(operator, get_raw=True)
    def flops(*args, out_val=None):
        defaults = defaults_of(operator)  # not before: looking up all schemas would slow down the import
        return 2 * formula(SimpleNamespace(**defaults | dict(zip(defaults, args, strict=False))))


if _extension.available:
    for named in FORMULAS.items():
        _register(*named)
