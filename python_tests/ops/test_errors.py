"""Errors name the operator, the argument and what came, over the table of operators.

Each tensor and each flag follows the same rules; then comes what only some operators refuse. Errors of the recurrence
are in test_checks.py."""

import math

import pytest
import torch
from torch import Tensor

from python_tests.samples.operators import F32, F64, OPERATORS, draw
from rnnkern import ops, reference
from rnnkern.ops import SABState

CHANGES = {
    "no tensor": (lambda x: [1.0], TypeError, "a tensor, got list"),
    "int64": (lambda x: x.long(), TypeError, "got torch.int64"),
    "another precision": (lambda x: x.double(), TypeError, "got torch.float64"),
    "another device": (lambda x: x.to("meta"), TypeError, "on cpu like `.*`, got meta"),
    "a dimension less": (lambda x: x[0], ValueError, r"got \("),
    "a column less": (lambda x: x[..., 1:], ValueError, r"got \("),
}
OF_THE_FIRST = ("no tensor", "int64", "a dimension less")
"""What the first tensor is refused for, x of linear_scan. Otherwise the others have to fit it."""
FREE = {("givens_product", "x"): ("a dimension less", "a column less")}


def argument_of(call, key):
    """The name of the argument that a tensor is, or is a part of."""
    for name, x in call.arguments().items():
        if x is call.tensors[key]:
            return name
        for k, part in enumerate(x if isinstance(x, tuple) else ()):
            if part is call.tensors[key]:
                return rf"{name}\[{k}\]"
    raise KeyError(key)


@pytest.mark.parametrize("what", CHANGES)
@pytest.mark.parametrize("name", OPERATORS)
def test_each_tensor_is_checked(name, what):
    call = draw(name, dtype=F32)
    change, error, said = CHANGES[what]
    first = "x" if name == "linear_scan" else next(iter(call.tensors))
    for key, x in call.tensors.items():
        if (key == first and what not in OF_THE_FIRST) or what in FREE.get((name, key), ()):
            continue
        with pytest.raises(error, match=f"{name}: .*`{argument_of(call, key)}` must .*{said}"):
            getattr(ops, name)(**call.with_tensors({key: change(x)}).arguments())


FLAGS = [
    (name, key) for name in OPERATORS for key in ("reverse", "packed", "return_scores") if key in draw(name).options
]
FLAGS += [("linear_scan", "return_sequence"), ("gather_attention", "return_weights")]
FLAGS += [("relevancy_recurrence", "return_memory"), ("sab_recurrence", "return_memory")]
NUMBERS = [(name, key) for name in OPERATORS for key, x in draw(name).options.items() if isinstance(x, float)]


@pytest.mark.parametrize(("name", "key"), FLAGS)
def test_each_flag_is_checked(name, key):
    with pytest.raises(TypeError, match=f"{name}: `{key}` must be a bool, got 1"):
        getattr(ops, name)(**draw(name).arguments() | {key: 1})


@pytest.mark.parametrize(("name", "key"), NUMBERS)
def test_each_number_is_checked(name, key):
    for value, error, said in (("1", TypeError, "a number, got '1'"), (math.nan, ValueError, "finite, got nan")):
        with pytest.raises(error, match=f"{name}: `{key}` must be {said}"):
            getattr(ops, name)(**draw(name).arguments() | {key: value})


SEQUENCES = (
    "linear_scan",
    "moment_filter",
    "givens_recurrence",
    "relevancy_recurrence",
    "sab_recurrence",
    "recurrence",
)
LAYOUTS = [
    ("reset", lambda x: x.float(), TypeError, "`reset` must be a bool tensor, got torch.float32"),
    ("reset", lambda x: x.to("meta"), TypeError, "`reset` must be on cpu like `.`, got meta"),
    ("reset", lambda x: x[1:], ValueError, r"`reset` must be \(T, B\) = .*, got \("),
    ("batch_sizes", lambda x: x.tolist(), TypeError, "`batch_sizes` must be an int64 tensor on the CPU, got list"),
    ("batch_sizes", lambda x: x.int(), TypeError, "`batch_sizes` must be an int64 tensor on the CPU, got .*int32"),
    ("batch_sizes", lambda x: x.flip(0), ValueError, "`batch_sizes` must not increase"),
    ("batch_sizes", lambda x: x + x[0], ValueError, "`batch_sizes` must not increase and .* at most B = .*the rows of"),
    (
        "batch_sizes",
        lambda x: x.clamp_max(1),
        ValueError,
        "`batch_sizes` must sum to the rows of `.`, .*, got a sum of",
    ),
    ("batch_sizes", lambda x: None, ValueError, r"`.` must be \(T, B, .*\), got"),
]


@pytest.mark.parametrize(("key", "change", "error", "said"), LAYOUTS)
@pytest.mark.parametrize("name", SEQUENCES)
def test_packed_sequences_and_resets_are_checked(name, key, change, error, said):
    options = {"relevancy_recurrence": {"reset": 0.5}, "sab_recurrence": {"resets": True}}.get(name, {"reset": True})
    arguments = draw(name, 4, 3, 4, packed=True, dtype=F32, **options).arguments()
    with pytest.raises(error, match=f"{name}: {said}"):
        getattr(ops, name)(**arguments | {key: change(arguments[key])})


# ---- what only some refuse


def zeros(*sizes: int, dtype: torch.dtype = F32) -> Tensor:
    return torch.zeros(sizes, dtype=dtype)


REFUSED = {
    "linear_scan": [
        (ValueError, {"a": zeros(2, 3, 4)}, r"`a` must be \(C,\) = \(4,\) or broadcast to .* got \(2, 3, 4\)"),
        (TypeError, {"a": zeros(4, dtype=torch.complex128)}, "`a` must be of dtype .* like `x`, got torch.complex128"),
    ],
    "moment_filter": [
        (TypeError, {"u": zeros(5, 3, 4).half(), "state": (zeros(3, 4).half(),) * 2},
         r"`state\[0\]` must be .*float32 to go with torch.float16"),
        (ValueError, {"beta": 1.5}, r"`beta` must be in \[0, 1\], got 1.5"),
        (ValueError, {"eps": 0.0}, "`eps` must be positive, got 0.0"),
        (TypeError, {"beta": None}, r"`state` must be \(v\), a tuple of tensors, got 2 items"),
        (TypeError, {"state": zeros(3, 4)}, r"`state` must be \(v, q\), a tuple of tensors, got Tensor"),
    ],
    "givens_product": [
        (ValueError, {"style": "fft"}, "`style` must be one of .*, got 'fft'"),
        (ValueError, {"size": 8, "x": None}, "`size` must be 6 or 7 .*, got 8"),
        (ValueError, {"size": 6}, "`size` must be N = 7 of `x`, or None, got 6"),
        (ValueError, {"style": "butterfly"}, "N must be a power of two .*, got 7"),
        (ValueError, {"x": zeros(4, 5)}, r"`x` must be .* N // 2 = 3 .*, got \(4, 5\)"),
        (ValueError, {"angles": zeros(4, 2, 3)}, r"`x` must be \(..., R, N\) with the batch of `angles`, \(4,\), got"),
    ],
    "givens_recurrence": [
        (TypeError, {"u": zeros(5, 3, 4).half()}, "`u` must have one of the dtypes .* got torch.float16"),
        (ValueError, {"style": "fft"}, "`style` must be one of .*, got 'fft'"),
        (ValueError, {"u": zeros(5, 3, 3), "state": zeros(3, 3), "modrelu_bias": zeros(3), "angles": zeros(3, 1),
                      "style": "butterfly"}, "N must be a power of two for the style 'butterfly', got 3"),
        (TypeError, {"phases": zeros(3, 2)}, "`phases` must be None for a real `u`, got a `u` of dtype torch.float32"),
        (ValueError, {"u": zeros(5, 3, 4) + 0j, "state": zeros(3, 4) + 0j, "phases": zeros(2, 2)},
         r"`phases` must be like `angles` = \(3, 2\), got \(2, 2\)"),
        (ValueError, {"u": zeros(5, 3, 4) + 0j, "state": zeros(3, 4) + 0j, "diagonal_phases": zeros(2)},
         r"`diagonal_phases` must be \(N,\) = \(4,\), got \(2,\)"),
    ],
    "gather_attention": [
        (TypeError, {"idx": zeros(2, 5, 4, dtype=torch.short)}, "`idx` must be an int32 or .* got torch.int16"),
        (TypeError, {"idx": None}, "`idx` must be an int32 or int64 tensor, got NoneType"),
        (TypeError, {"idx": torch.zeros(2, 5, 4, dtype=torch.int32, device="meta")}, "`idx` must be on cpu like `q`"),
        (ValueError, {"idx": zeros(2, 4, 6, dtype=torch.int32)}, r"`idx` must be \(B, T, kappa\) = \(2, 5, kappa\)"),
        (ValueError, {"idx": 7 + zeros(2, 5, 4, dtype=torch.int64)}, "`idx` must be less than .* M = 7, got 7"),
        (ValueError, {"q": zeros(2, 5, 0)}, r"`q` must be .* H of at least 1, got \(2, 5, 0\)"),
        (ValueError, {"h": zeros(2, 6, 9)}, r"`h` must be \(B, M, H\) = \(2, 7, 9\), got \(2, 6, 9\)"),
        (ValueError, {"v": zeros(3, 9)}, r"`v` .* G that divides B = 2, got \(3, 9\)"),
        (ValueError, {"alignment": "cosine"}, "`alignment` must be one of .* got 'cosine'"),
    ],
    "similarity": [
        (ValueError, {"x": zeros(3, 0, 10)}, r"`x` must be .* T and d of at least 1, got \(3, 0, 10\)"),
        (ValueError, {"y": zeros(3, 5, 10)}, r"`y` must be \(B, T, d\) = \(3, 6, 10\), got \(3, 5, 10\)"),
        (ValueError, {"bias": None}, "`bias` must be given where `weight` is, got None"),
        (ValueError, {"norm": None}, "`weight` and `bias` must be None for `norm`"),
        (ValueError, {"norm": "layer"}, "`norm` must be one of .* got 'layer'"),
        (TypeError, {"eps": None}, "`eps` must be a number, got None"),
        (ValueError, {"eps": -1.0}, "`eps` must not be negative, got -1.0"),
        (ValueError, {"eps": math.inf}, "`eps` must be finite, got inf"),
        (TypeError, {"segments": 3}, "`segments` must be a tuple of ints, got 3"),
        (TypeError, {"segments": (1.0, 5)}, "`segments` must be a tuple of ints"),
        (ValueError, {"segments": (0, 6)}, r"`segments` must be at least 1 each, got \(0, 6\)"),
        (ValueError, {"segments": (2, 2)}, r"`segments` must sum to T = 6, got \(2, 2\)"),
        (TypeError, {"lengths": zeros(3)}, "`lengths` must be an int64 tensor, got torch.float32"),
        (ValueError, {"lengths": torch.ones(2).long()}, r"`lengths` must be \(B,\) = \(3,\), got \(2,\)"),
        (ValueError, {"lengths": torch.tensor([1, 7, 1])}, r"`lengths` must be in \[0, 6\], got 1 to 7"),
        (ValueError, {"lengths": torch.tensor([-1, 1, 1])}, r"`lengths` must be in \[0, 6\], got -1 to 1"),
        (ValueError, {"mask": "past"}, "`mask` must be one of .* got 'past'"),
        (ValueError, {"values": zeros(3, 5, 2)}, r"`values` must be \(B, T, e\) = \(3, 6, e\) .* got \(3, 5, 2\)"),
        (ValueError, {"packed": True, "mask": "full"}, "`packed` must be False for `mask` 'full'"),
    ],
    "skew_exp": [(ValueError, {"form": "log"}, "`form` must be one of .* got 'log'")],
    "cayley": [
        (ValueError, {"scale": zeros(2)}, r"`scale` must be \(N,\) = \(9,\) .* got \(2,\)"),
        (TypeError, {"scale": zeros(9, dtype=F64)}, "`scale` must be of dtype torch.float32"),
    ],
    "project_orthogonal": [(ValueError, {"steps": -1}, "`steps` must be a non-negative integer")],
    "schur_weight": [(TypeError, {"P": zeros(5, 5) + 0j}, "got torch.complex64")],
    "householder_product": [(ValueError, {"V": zeros(2, 3, 4)}, r"`V` must be \(..., N, m\) .* got \(2, 3, 4\)")],
    "sab_recurrence": [
        (ValueError, {"u": zeros(12, 3, 7)}, r"a positive multiple of 4, got \(12, 3, 7\)"),
        (ValueError, {"state": (zeros(3, 5),)}, r"`state` must be \(h0, c0\), got 1 tensors"),
        (ValueError, {"state": SABState(zeros(3, 5), zeros(3, 5), zeros(3, 1, 5), torch.zeros(3).long(), 4)},
         r"`state.memory` must be \(B, 1 \+ steps // attend_every, H\) = \(3, 5, 5\), got \(3, 1, 5\)"),
        (ValueError, {"alignment": "mlp"}, r"`attention_weights` must be \(W, w\), got 1 tensors"),
        (ValueError, {"alignment": "dot"}, "`alignment` must be one of .* got 'dot'"),
        (ValueError, {"top_k": 0}, "`top_k` must be a positive integer, got 0"),
        (ValueError, {"attend_every": 1.0}, "`attend_every` must be a positive integer, got 1.0"),
        (ValueError, {"truncation": True}, "`truncation` must be a positive integer, got True"),
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "error", "changed", "said"), [(name, *row) for name, rows in REFUSED.items() for row in rows], ids=str
)
def test_what_an_operator_refuses(name, error, changed, said):
    with pytest.raises(error, match=f"{name}: .*{said}"):
        getattr(ops, name)(**draw(name, dtype=F32).arguments() | changed)


def test_a_state_whose_time_is_beyond_its_memory_is_refused():
    """It would address a slot outside the memory or the buffer."""
    sab = draw("sab_recurrence", 3)
    state = reference.begin_sab(*sab.arguments()["state"])._replace(time=torch.tensor([0, 9, 0]))
    with pytest.raises(RuntimeError, match="more memories than there are slots"):
        ops.sab_recurrence(**sab.arguments() | {"state": state})
    relevancy = draw("relevancy_recurrence", 2, 1, 3, buffer_size=9, carried=2).arguments()
    for time in (-1, 4):
        state = relevancy["state"]._replace(time=torch.tensor([time]))
        with pytest.raises(RuntimeError, match=r"`state\.time` must be as"):
            ops.relevancy_recurrence(**relevancy | {"state": state})
