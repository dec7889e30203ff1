"""References whose products are computed from rounded factors."""

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

FIRST_OPERAND = {torch.ops.aten.mm.default: 0, torch.ops.aten.bmm.default: 0, torch.ops.aten.addmm.default: 1}


def to_tf32(x: Tensor) -> Tensor:
    """Rounded to 11 bits, ties away from zero, as tensor cores do."""
    return (x.view(torch.int32) + 0x1000 & ~0x1FFF).view(torch.float32)


def to_bfloat16(x: Tensor, parts: int) -> Tensor:
    """The sum of the first parts of x: x rounded to bfloat16, and what remains rounded."""
    total = torch.zeros_like(x)
    for _ in range(parts):
        total = total + (x - total).bfloat16().float()
    return total


class RoundedProducts(TorchDispatchMode):
    """Rounds both operands of every float32 product; sums are float32."""

    def __init__(self, rounding):
        super().__init__()
        self.rounding = rounding

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if (first := FIRST_OPERAND.get(function)) is not None and args[first].dtype == torch.float32:
            args = (*args[:first], *map(self.rounding, args[first:]))
        return function(*args, **(kwargs or {}))
