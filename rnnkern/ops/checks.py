"""Checks of operator arguments. Each error names the operator, the argument, the expected value and the actual one."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from rnnkern._torch_private import FakeTensor, is_batched, is_wrapped

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def shape_of(tensor: Tensor) -> tuple[int, ...]:
    return tuple(tensor.shape)


def check_like(op: str, name: str, x: Tensor, other: str, like: Tensor, dtype: torch.dtype | None = None) -> None:
    """Checks that ``x`` is a tensor on the device of ``like``, with the same dtype or, if given, ``dtype``."""
    if not isinstance(x, Tensor):
        raise TypeError(f"{op}: `{name}` must be a tensor, got {type(x).__name__}")
    if x.dtype != (dtype or like.dtype):
        wanted = f"{like.dtype} like" if dtype in (None, like.dtype) else f"{dtype} to go with {like.dtype} of"
        raise TypeError(f"{op}: `{name}` must be of dtype {wanted} `{other}`, got {x.dtype}")
    if x.device != like.device:
        raise TypeError(f"{op}: `{name}` must be on {like.device} like `{other}`, got {x.device}")


def all_like(like: Tensor, tensors: Iterable[Tensor]) -> bool:
    """Whether all would pass :func:`check_like`, in half the time of a check for each."""
    dtype, device = like.dtype, like.device
    return all(isinstance(x, Tensor) and x.dtype == dtype and x.device == device for x in tensors)


def check_shape(op: str, name: str, tensor: Tensor, symbols: str, wanted: tuple[int, ...]) -> None:
    shape = tensor.shape
    if len(shape) != len(wanted) or shape != wanted:
        raise ValueError(f"{op}: `{name}` must be {symbols} = {wanted}, got {shape_of(tensor)}")


def check_dtype(op: str, name: str, x: Tensor, dtypes: tuple[torch.dtype, ...] = FLOATS) -> None:
    if not isinstance(x, Tensor):
        raise TypeError(f"{op}: `{name}` must be a tensor, got {type(x).__name__}")
    if x.dtype not in dtypes:
        raise TypeError(f"{op}: `{name}` must have one of the dtypes {dtypes}, got {x.dtype}")


def check_square(op: str, name: str, x: Tensor, dtypes: tuple[torch.dtype, ...]) -> None:
    check_dtype(op, name, x, dtypes)
    if x.dim() < 2 or x.shape[-1] != x.shape[-2]:
        raise ValueError(f"{op}: `{name}` must be (..., N, N), got {shape_of(x)}")


def check_flags(op: str, **flags: bool) -> None:
    for name, flag in flags.items():
        if not isinstance(flag, bool):
            raise TypeError(f"{op}: `{name}` must be a bool, got {flag!r}")


def check_choice(op: str, name: str, choice: Any, choices: Collection[Any]) -> None:
    if choice not in choices:
        raise ValueError(f"{op}: `{name}` must be one of {choices}, got {choice!r}")


def check_number(op: str, name: str, number: float) -> None:
    if isinstance(number, bool) or not isinstance(number, (int, float)):
        raise TypeError(f"{op}: `{name}` must be a number, got {number!r}")
    if not math.isfinite(number):
        raise ValueError(f"{op}: `{name}` must be finite, got {number}")


def check_group(
    op: str, name: str, group: Sequence[Tensor], wanted: Sequence[str], like: Tensor, of_cell: str = ""
) -> None:
    """Checks a tuple of tensors like ``u``. ``wanted``: their names; ``of_cell``: names the cell that decides them."""
    if not isinstance(group, (tuple, list)):
        raise TypeError(f"{op}: `{name}` must be a tuple of tensors, got {type(group).__name__}")
    if len(group) != len(wanted):
        raise ValueError(f"{op}: `{name}`{of_cell} must be ({', '.join(wanted)}), got {len(group)} tensors")
    for k, tensor in enumerate(group):
        check_like(op, f"{name}[{k}]", tensor, "u", like)


def check_input(
    op: str, name: str, x: Tensor, batch_sizes: Tensor | None, columns: str, dtypes: tuple[torch.dtype, ...] = FLOATS
) -> None:
    """Checks that an input has one of the dtypes and is (T, B, columns), or packed (rows, columns)."""
    check_dtype(op, name, x, dtypes)
    _check_rank(op, name, x, batch_sizes, columns)


def _check_rank(op: str, name: str, x: Tensor, batch_sizes: Tensor | None, columns: str) -> None:
    if x.dim() != (3 if batch_sizes is None else 2):
        packed = f"(sum of batch_sizes, {columns}) when `batch_sizes` is given"
        wanted = f"(T, B, {columns})" if batch_sizes is None else packed
        raise ValueError(f"{op}: `{name}` must be {wanted}, got {shape_of(x)}")


def check_steps(
    op: str, u: Tensor, batch: int, batch_sizes: Tensor | None, reset: Tensor | None, of_rows: str = "u",
    of_batch: str = "state[0]",
) -> int:  # fmt: skip
    """Checks what is given for each step of ``u``, and returns T."""
    steps = u.shape[0] if batch_sizes is None else check_batch_sizes(op, batch_sizes, len(u), batch, of_rows, of_batch)
    if reset is not None:
        check_reset(op, reset, u, steps, batch, of_rows)
    return steps


def readable(x: Tensor) -> bool:
    """Whether values can be read without waiting for a device: not of a tensor that is fake or inside a transform."""
    return x.is_cpu and not torch.compiler.is_compiling() and not isinstance(x, FakeTensor) and not is_wrapped(x)


def check_reset(op: str, reset: Tensor, like: Tensor, steps: int, batch: int, of_like: str = "u") -> None:
    if not isinstance(reset, Tensor) or reset.dtype != torch.bool:
        got = reset.dtype if isinstance(reset, Tensor) else type(reset).__name__
        raise TypeError(f"{op}: `reset` must be a bool tensor, got {got}")
    if reset.device != like.device:
        raise TypeError(f"{op}: `reset` must be on {like.device} like `{of_like}`, got {reset.device}")
    check_shape(op, "reset", reset, "(T, B)", (steps, batch))


def check_rows(
    op: str, name: str, x: Tensor, states: Mapping[str, Tensor | None], batch_sizes: Tensor | None, reset: Tensor | None
) -> None:
    """Checks an input (T, B, C), or packed (rows, C), of an elementwise operator, and its states (B, C). For packed
    rows the first state determines B; without a state ``batch_sizes`` does."""
    _check_rank(op, name, x, batch_sizes, "C")
    (first, initial), *_ = states.items()
    batch, channels = x.shape[1], x.shape[-1]
    if batch_sizes is not None:
        if initial is not None:
            batch = initial.shape[0] if initial.dim() else 0
        else:
            batch = first_batch(batch_sizes) if isinstance(batch_sizes, Tensor) and batch_sizes.dim() == 1 else 0
    for state, given in states.items():
        if given is not None:
            check_shape(op, state, given, "(B, C)", (batch, channels))
    check_steps(op, x, batch, batch_sizes, reset, name, first)


def steps_of(x: Tensor, batch_sizes: Tensor | None) -> int:
    """T, the number of time steps of an input (T, B, ...), or packed."""
    return x.shape[0] if batch_sizes is None else batch_sizes.shape[0]


def first_batch(batch_sizes: Tensor) -> int:
    """The number of sequences."""
    return int(batch_sizes[0]) if batch_sizes.numel() else 0


def runs(batch_sizes: Tensor, device: torch.device) -> Tensor:
    """Where a packed sequence has not ended, (T, B)."""
    return torch.arange(first_batch(batch_sizes), device=device) < batch_sizes.to(device).unsqueeze(1)


def check_batch_sizes(
    op: str, batch_sizes: Tensor, rows: int, batch: int, of_rows: str = "u", of_batch: str = "state[0]"
) -> int:
    """Checks ``batch_sizes`` and returns T. ``of_rows`` and ``of_batch`` name the tensors that determine the number of
    rows and the batch size. Values are checked only if they exist: a fake tensor has only a shape."""
    if not isinstance(batch_sizes, Tensor) or batch_sizes.dtype != torch.int64 or batch_sizes.device.type != "cpu":
        got = (batch_sizes.dtype, batch_sizes.device) if isinstance(batch_sizes, Tensor) else type(batch_sizes).__name__
        raise TypeError(f"{op}: `batch_sizes` must be an int64 tensor on the CPU, got {got}")
    if batch_sizes.dim() != 1:
        raise ValueError(f"{op}: `batch_sizes` must be (T,), got {shape_of(batch_sizes)}")
    if not torch.compiler.is_compiling() and not isinstance(batch_sizes, FakeTensor):
        if is_batched(batch_sizes):
            raise ValueError(f"{op}: `batch_sizes` must not be mapped by torch.vmap, got one for each member")
        sizes = batch_sizes.tolist()
        if any(a < b for a, b in zip([batch, *sizes], sizes, strict=False)):
            raise ValueError(
                f"{op}: `batch_sizes` must not increase and must start with at most B = {batch}, the rows of "
                f"`{of_batch}`, got {sizes}"
            )
        if sizes and sizes[-1] < 0:
            raise ValueError(f"{op}: `batch_sizes` must not be negative, got {sizes}")
        if sum(sizes) != rows:
            raise ValueError(
                f"{op}: `batch_sizes` must sum to the rows of `{of_rows}`, {rows}, got a sum of {sum(sizes)}"
            )
    return batch_sizes.shape[0]
