"""The recurrence rejects wrong arguments before it computes anything, over a table of calls that are spoilt.

Tensors are real and fake; messages name the argument, the expected value and the actual one."""

import re

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from rnnkern import cells
from rnnkern.ops import explain, recurrence
from rnnkern.reference._recurrence import cell_of

T, B, H, K = 3, 2, 4, 2  # packed: lengths 3 and 1, so 4 rows


def zeros(*sizes, **options):
    return torch.zeros(*sizes, **options)


def good(cell="lstm", packed=False):
    _, gates, states, params, _, _, rows, _ = cell_of(cell)
    width = H - 1 if cell == "lstm_projected" else H
    arguments = {
        "cell": cell,
        "u": zeros(4 if packed else T, gates * H) if packed else zeros(T, B, gates * H),
        "R": zeros(gates * H, width),
        "state": (zeros(B, width), zeros(B, H))[:states],
        "bias": zeros(gates * H),
        "params": (zeros(width, H),) if width < H else tuple(zeros(n * H) for n in rows or [1] * len(params)),
        "reset": zeros(T, B, dtype=torch.bool),
        "grad_scale": torch.ones(T, B),
    }
    return {**arguments, "batch_sizes": torch.tensor([2, 1, 1])} if packed else arguments


PACKED = {"packed": True}
MODRELU = {"cell": "modrelu"}
PROJECTED = {"cell": "lstm_projected"}
NORMALISED = {"cell": cells.lstm_layer_norm.name}
SHAPE, KIND = ValueError, TypeError
F64 = {"dtype": torch.float64}
META = {"device": "meta"}
MULTIPLE = "the last size of `u` must be G*H, a positive multiple of G = 4 for the cell 'lstm', got "
PACKED_U = "`u` must be (sum of batch_sizes, G*H) when `batch_sizes` is given, got "
F32 = " must be of dtype torch.float32 like `u`, got torch."
ONE_PARAM = "`params` of the cell 'modrelu' must be (modrelu_bias), 1 tensors, got "
INT64 = "`batch_sizes` must be an int64 tensor on the CPU, got "
SCALES = "`grad_scale` must be (T,) = (3,) or (T, B) = (3, 2), got "

# A valid call, the change that makes it invalid, the error, and its message, where "..." stands for any text.
REFUSED = [
    # the cell
    ({}, {"cell": "elman"}, SHAPE, "`cell` must be one of ['complex_modrelu', ... rnnkern.cell made, got 'elman'"),
    # u
    ({}, {"u": zeros(T, B, 4 * H) + 0j}, KIND, "`u` must have one of the dtypes ..., got torch.complex64"),
    (PACKED, {"u": zeros(4, 1, 4 * H)}, SHAPE, PACKED_U + "(4, 1, 16)"),
    ({}, {"u": zeros(T, B, 4 * H + 1)}, SHAPE, MULTIPLE + "(3, 2, 17)"),
    ({}, {"u": zeros(T, B, 0)}, SHAPE, MULTIPLE + "(3, 2, 0)"),
    # R
    ({}, {"R": zeros(H, 4 * H)}, SHAPE, "`R` must be (G*H, H) = (16, 4), got (4, 16)"),
    ({}, {"R": zeros(K, 4 * H // K, H)}, SHAPE, "`R` must be (K, G*D, D) = (2, 8, 2), got (2, 8, 4)"),
    ({}, {"R": zeros(3, 8, 2)}, SHAPE, "`R` has 3 heads, which must divide H = 4, got (3, 8, 2)"),
    ({}, {"R": zeros(0, 8, 2)}, SHAPE, "`R` has 0 heads, which must divide H = 4, got (0, 8, 2)"),
    (PROJECTED, {"R": zeros(K, 4 * H // K, H // K)}, SHAPE,
     "`R` of the cell 'lstm_projected' must be dense, got heads (2, 8, 2)"),
    (PROJECTED, {"R": zeros(4 * H, H)}, SHAPE, "`R` must be (G*H, P) = (16, 3), got (16, 4)"),
    (NORMALISED, {"R": zeros(K, 4 * H // K, H // K)}, SHAPE,
     "`R` of the cell 'lstm_layer_norm-...' must be dense, got heads (2, 8, 2)"),
    # state
    ({}, {"state": zeros(2, B, H)}, KIND, "`state` must be a tuple of tensors, got ...Tensor"),
    ({}, {"state": iter((zeros(B, H),))}, KIND, "`state` must be a tuple of tensors, got tuple_iterator"),
    ({}, {"state": (zeros(B, H),)}, SHAPE, "`state` of the cell 'lstm' must be (h0, c0), 2 tensors, got 1"),
    ({}, {"state": (zeros(B + 1, H), zeros(B, H))}, SHAPE, "`state[0]` must be (B, H) = (2, 4), got (3, 4)"),
    ({}, {"state": (zeros(B, H), zeros(H, B))}, SHAPE, "`state[1]` must be (B, H) = (2, 4), got (4, 2)"),
    (PROJECTED, {"state": (zeros(B, H), zeros(B, H))}, SHAPE, "`state[0]` must be (B, P) = (2, 3), got (2, 4)"),
    # bias
    # params
    (MODRELU, {"params": zeros(1, H)}, KIND, "`params` must be a tuple of tensors, got ...Tensor"),
    (MODRELU, {"params": ()}, SHAPE, ONE_PARAM + "0"),
    (MODRELU, {"params": (zeros(H), zeros(H))}, SHAPE, ONE_PARAM + "2"),
    ({}, {"params": (zeros(H),)}, SHAPE, "`params` of the cell 'lstm' must be (), 0 tensors, got 1"),
    (MODRELU, {"params": (0.1,)}, KIND, "`params[0]` must be a tensor, got float"),
    (MODRELU, {"params": (zeros(H + 1),)}, SHAPE, "`params[0]` must be (H,), ... modrelu_bias, = (4,), got (5,)"),
    (PROJECTED, {"params": (zeros(H),)}, SHAPE, "`params[0]` (weight_hr) must be (P, H) = (P, 4), got (4,)"),
    (PROJECTED, {"params": (zeros(0, H),)}, SHAPE, "`params[0]` (weight_hr) must be (P, H) = (P, 4), got (0, 4)"),
    (PROJECTED, {"params": (zeros(H, H - 1),)}, SHAPE, "`params[0]` (weight_hr) must be (P, H) = (P, 4), got (4, 3)"),
    (NORMALISED, {"params": (zeros(4 * H),)}, SHAPE,
     "`params` of the cell 'lstm_layer_norm-...' must be (weight_ln_ih, ..., bias_ln_c), 5 tensors, got 1"),
    (NORMALISED, {"params": (zeros(H),) * 5}, SHAPE,
     "`params[0]` must be (4*H,), the cell's weight_ln_ih, = (16,), got (4,)"),
    # batch_sizes
    (PACKED, {"batch_sizes": zeros(3, dtype=torch.int64, **META)}, KIND,
     INT64 + "(torch.int64, device(type='meta'))"),
    (PACKED, {"batch_sizes": torch.tensor([[2], [1], [1]])}, SHAPE, "`batch_sizes` must be (T,), got (3, 1)"),
    # reset
    ({}, {"reset": True}, KIND, "`reset` must be a bool tensor, got bool"),
    # grad_scale
    ({}, {"grad_scale": 0.5}, KIND, "`grad_scale` must be a tensor, got float"),
    ({}, {"grad_scale": zeros(T, **F64)}, KIND, "`grad_scale`" + F32 + "float64"),
    ({}, {"grad_scale": zeros(B)}, SHAPE, SCALES + "(2,)"),
    ({}, {"grad_scale": zeros(T, 1)}, SHAPE, SCALES + "(3, 1)"),
    # flags
    ({}, {"reverse": None}, KIND, "`reverse` must be a bool, got None"),
    ({}, {"save_gates": "yes"}, KIND, "`save_gates` must be a bool, got 'yes'"),
    ({}, {"save_u": None}, KIND, "`save_u` must be a bool, got None"),
]  # fmt: skip

GROWS = "`batch_sizes` must not increase and must start with at most B = 2, the rows of `state[0]`, got "
# Wrong lengths; fake tensors have no values to check.
REFUSED_VALUES = [
    ([1, 2, 1], GROWS + "[1, 2, 1]"),
    ([3, 1, 0], GROWS + "[3, 1, 0]"),
    ([2, 2, -1], "`batch_sizes` must not be negative, got [2, 2, -1]"),
    ([2, 1, 0], "`batch_sizes` must sum to the rows of `u`, 4, got a sum of 3"),
    ([], "`batch_sizes` must sum to the rows of `u`, 4, got a sum of 0"),
]
VALUES = [
    (PACKED, {"batch_sizes": torch.tensor(sizes, dtype=torch.int64), "reset": None, "grad_scale": None}, SHAPE, message)
    for sizes, message in REFUSED_VALUES
]


def name_of(row):
    base, change, _, message = row
    return "-".join([*map(str, base.values()), *change, message.split("must")[-1][-40:]])


def spoil(base, change):
    arguments = {**good(**base), **change}
    positional = [arguments.pop(name) for name in ("cell", "u", "R", "state")]
    return positional, arguments


def pattern(message):
    return "^recurrence: " + ".*".join(map(re.escape, message.split("..."))) + "$"


class Operators(TorchDispatchMode):
    """Records the operators that run."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        self.seen.append(operator)
        return operator(*args, **(kwargs or {}))


@pytest.mark.parametrize("base", [{}, PACKED, MODRELU, PROJECTED, NORMALISED, {"cell": "euler"}], ids=str)
def test_what_the_table_spoils_is_good(base):
    args, kwargs = spoil(base, {})
    with Operators() as operators:
        recurrence(*args, **kwargs)
    assert operators.seen
    with FakeTensorMode(allow_non_fake_inputs=False) as mode:
        args, kwargs = fake(mode, args), {name: fake(mode, x) for name, x in kwargs.items()}
        if base not in (PACKED, PROJECTED, NORMALISED):  # the others are only explained
            recurrence(*args, **kwargs)
        explain(recurrence, *args, **kwargs)


FLOAT8 = zeros(T, B, 4 * H).to(torch.float8_e4m3fn)
REFUSED_KINDS = [
    ({}, {"cell": ["lstm"]}, (TypeError, ValueError), "`cell` must be ..., got ['lstm']"),
    ({}, {**{k: x.to(FLOAT8.dtype) for k, x in good().items() if k in ("R", "bias", "grad_scale")}, "u": FLOAT8,
          "state": (zeros(B, H).to(FLOAT8.dtype),) * 2}, KIND, "`u` must ..., got torch.float8_e4m3fn"),
]  # fmt: skip


@pytest.mark.parametrize("row", [*REFUSED, *VALUES, *REFUSED_KINDS], ids=name_of)
def test_refused_before_anything_is_computed(row):
    base, change, error, message = row
    args, kwargs = spoil(base, change)
    with Operators() as operators, pytest.raises(error, match=pattern(message)):
        recurrence(*args, **kwargs)
    assert operators.seen == []
    args, kwargs = spoil(base, change)
    with pytest.raises(error, match=pattern(message)):
        explain(recurrence, *args, **kwargs)


def fake(mode, x):
    if isinstance(x, (tuple, list)):
        return type(x)(fake(mode, y) for y in x)
    return mode.from_tensor(x) if isinstance(x, torch.Tensor) else x


@pytest.mark.parametrize("row", REFUSED, ids=name_of)
def test_refused_on_fake_tensors_too(row):
    base, change, error, message = row
    args, kwargs = spoil(base, change)
    with FakeTensorMode() as mode:
        args, kwargs = fake(mode, args), {name: fake(mode, x) for name, x in kwargs.items()}
        with pytest.raises(error, match=pattern(message)):
            recurrence(*args, **kwargs)


def raw(base, change):
    a = {"training": False, "save_gates": False, "reverse": False, "batch_sizes": None, **good(**base), **change}
    names = ("cell", "u", "R", "state", "bias", "params", "batch_sizes", "reset", "reverse", "training", "save_gates")
    return torch.ops.rnnkern.recurrence.default(*(a[name] for name in names))


# Arguments that the kernel itself must reject, because it would read or write out of bounds, besides those of
# test_unsafe_arguments.py.
UNSAFE = [
    ({}, {"cell": "elman"}, "the cell `elman` has no kernel"),
    ({}, {"R": zeros(3, 8, 2)}, "`R` does not fit"),
    ({}, {"R": zeros(0, 8, 2)}, "`R` does not fit"),
    ({}, {"state": ()}, "wrong number of tensors in `state`"),
    ({}, {"state": (zeros(B * H), zeros(B, H))}, "must be (B, H)"),
    ({}, {"bias": zeros(5 * H)}, "`bias` must have 16 elements, got 20"),
    (MODRELU, {"params": ()}, "wrong number of tensors in `state` or `params`"),
    (MODRELU, {"params": (zeros(1),)}, "`params` must have 4 elements, got 1"),
    (PACKED, {"batch_sizes": torch.tensor([3, 1, 0])}, "`batch_sizes` must not increase from B = 2"),
    (PACKED, {"batch_sizes": torch.tensor([2, 2, -1])}, "`batch_sizes` must not increase"),
    (PACKED, {"batch_sizes": torch.tensor([[2, 1], [1, 0], [0, 0]])}, "`batch_sizes`"),
]


@pytest.mark.parametrize("row", UNSAFE, ids=lambda row: "-".join([*row[1], row[2]]))
def test_the_kernel_refuses_unsafe_arguments(row):
    base, change, message = row
    raw(base, {})
    with pytest.raises(RuntimeError, match=re.escape(message)):
        raw(base, change)
