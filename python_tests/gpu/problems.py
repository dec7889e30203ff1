"""A second definition of the arguments of CUDA kernels, byte by byte: the structures of csrc/*/cuda/*problem.h in the
layout of a C compiler. Pointers are numbers."""

import ctypes
from typing import Any

Count, Pointer, Bool, Int = ctypes.c_int64, ctypes.c_uint64, ctypes.c_bool, ctypes.c_int32
Float, Unsigned = ctypes.c_float, ctypes.c_uint32


def of(*fields: tuple[str, Any]) -> type[ctypes.Structure]:
    """A structure type. A field name that consists of several words defines one field per word."""
    each = [(name, type) for names, type in fields for name in names.split()]
    return type("Problem", (ctypes.Structure,), {"_fields_": each})


def read(kind: type[ctypes.Structure], parameter: bytes) -> dict[str, Any]:
    """The fields of a kernel's parameter, by name."""
    assert ctypes.sizeof(kind) == len(parameter), "the kernel takes another structure"
    return plain(kind.from_buffer_copy(parameter))


def plain(x: Any) -> Any:
    if isinstance(x, ctypes.Structure):
        return {name: plain(getattr(x, name)) for name, _ in x._fields_}
    return list(x) if isinstance(x, ctypes.Array) else x


class Somewhere:
    """Equals any pointer except null and records it: stands for memory that a driver allocates."""

    def __init__(self) -> None:
        self.pointers: list[int] = []

    def __eq__(self, other: object) -> bool:
        self.pointers.append(other)
        return other != 0

    __hash__ = None

    def one(self) -> int:
        """The single address with which it was compared."""
        (pointer,) = set(self.pointers)
        return pointer


# ---- the recurrence


def eight(*pointers: object) -> list[object]:
    """Pads with null pointers to the largest number of states or parameters of a cell."""
    return [*pointers, *[0] * (8 - len(pointers))]


Rows = of(("count batch hidden", Count), ("offsets lengths reset", Pointer))
Sequence = of(*Rows._fields_, ("heads", Count), ("reverse", Bool))
BlockForward = of(
    ("sequence", Sequence), ("u R bias", Pointer), ("params state", Pointer * 8), ("h", Pointer),
    ("final_state cells", Pointer * 8), ("saved", Pointer),
)  # fmt: skip
BlockBackward = of(
    ("sequence", Sequence), ("rows", Count), ("params cell_state", Pointer * 8), ("h", Pointer),
    ("cells", Pointer * 8), ("saved previous grad_h grad_scale", Pointer), ("scale_step scale_row", Count),
    ("carry dparams", Pointer * 8), ("du dr operand", Pointer), ("first steps", Count), ("R", Pointer),
)  # fmt: skip
ClusterForward = of(("call", BlockForward), ("columns", Count))
GridForward = of(("call", BlockForward), ("members groups sets", Int), ("words", Pointer))
Noise = of(("zoneout", Float * 8), ("below", Unsigned * 8), ("seed", Pointer), ("t", Count), ("mask", Pointer))
StepForward = of(
    ("rows hidden heads", Count), ("u r bias", Pointer), ("params", Pointer * 8), ("reset", Pointer),
    ("state", Pointer * 8), ("previous", Pointer), ("next", Pointer * 8), ("h x", Pointer), ("cells", Pointer * 8),
    ("saved operand", Pointer),
    ("operand_by_head", Bool), ("candidates", Pointer), ("noise", Noise),
)  # fmt: skip
Previous = of(("sequence", Sequence), ("first rows", Count), ("h state previous", Pointer))
Mask = of(("batch hidden", Count), ("below", Unsigned), ("scale", Float), ("seed mask", Pointer))
Drop = of(("sequence", Sequence), ("first rows", Count), ("mask source to", Pointer))
Accumulate = of(("count inner stride", Count), ("source to", Pointer))

# ---- the relevancy recurrence

Memory = of(
    ("slots relevant_size buffer_size", Count),
    ("buffer keys buffer_scores buffer_ids relevant relevant_keys scores ids time", Pointer),
)
Remember = of(
    ("batch hidden slots", Count), ("buffer buffer_scores relevant scores buffer_ids ids", Pointer), ("to", Memory)
)  # fmt: skip
CellForward = of(("rows hidden", Count), ("u r params reset c h now gates cells", Pointer))
AttentionForward = of(
    ("memory", Memory), ("v given", Pointer), ("mix", Float), ("dot", Bool), ("s alpha ids taken", Pointer)
)  # fmt: skip
StepwiseAttentionForward = of(
    *AttentionForward._fields_, ("rows hidden products", Count), ("h key r reset state", Pointer)
)  # fmt: skip
PerSequenceForward = of(
    *AttentionForward._fields_, ("rows", Rows), ("u V W_a U_a params packed last_s last_c h gates cells", Pointer)
)  # fmt: skip
Pack = of(("n", Count), ("transposed", Bool), ("V W_a U_a", Pointer), ("gates", Int), ("to", Pointer))

# ---- the recurrence through layers of rotations

Packing = of(("count vectors size layers", Count), ("columns butterfly", Bool), ("each", Count), ("is_complex", Bool))
Sequences = of(("steps batch reals", Count), ("rows lengths reset", Pointer), ("reverse", Bool))
Turns = of(("packing", Packing), ("cosines sines", Pointer * 3), ("turns", Pointer))
GIVENS = (
    ("packing", Packing), ("sequences", Sequences), ("stages last_stage", Int), ("turns bias u h0", Pointer),
)  # fmt: skip
GivensForward = of(*GIVENS, ("h last", Pointer))
GivensBackward = of(*GIVENS, ("h grad_h grad_last grad_u grad_h0 sums", Pointer), ("on_chip", Bool))
Sums = of(("packing", Packing), ("parts", Count), ("sums", Pointer), ("to", Pointer * 4))
