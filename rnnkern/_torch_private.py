"""All private functions of PyTorch that rnnkern uses. They may change, so check them with each new version.

This module was checked with torch 2.11.0 and 2.13.0.

The other private names in use are attributes that subclasses inherit from their base classes and cannot avoid:
``RNNBase._all_weights``, ``_flat_weights``, ``_flat_weights_names`` and ``_init_flat_weights`` (``rnnkern.nn``,
``rnnkern.swap``), ``Module._apply``, ``_forward_hooks``, ``_forward_pre_hooks``, ``_load_from_state_dict``,
``_parameters`` and ``__prepare_scriptable__`` (``rnnkern.nn``, ``rnnkern.parametrizations``).
"""

import functools
from collections.abc import Callable
from contextvars import Context
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch._compile import _disable_dynamo as disable_when_called
from torch._functorch.utils import unwrap_dead_wrappers
from torch._ops import OpOverloadPacket
from torch._subclasses.fake_tensor import FakeTensor, is_fake
from torch.autograd import forward_ad
from torch.nn import Module
from torch.nn.utils import parametrize

__all__ = [
    "FakeTensor", "address_of", "constant_when_compiled", "context_of_backward", "defaults_of", "disable_when_called",
    "has_onednn",
    "in_forward_mode", "is_batched", "is_fake", "is_in_transform", "is_wrapped", "lay_out", "lazy_clone", "onednn",
    "parametrize_again", "precision_of_products", "unwrap_dead_wrappers", "without_autograd",
]  # fmt: skip

F = TypeVar("F", bound=Callable)


def in_forward_mode() -> bool:
    """Whether forward-mode AD (torch.autograd.forward_ad or torch.func.jvp) is active."""
    return forward_ad._current_level >= 0


def precision_of_products() -> str:
    """``torch.backends.mkldnn.matmul.fp32_precision``, four times as fast."""
    return torch._C._get_fp32_precision_getter("mkldnn", "matmul")


def is_in_transform() -> bool:
    """Whether a transform of torch.func is active."""
    return torch._C._are_functorch_transforms_active()


def is_batched(x: Tensor, anywhere: bool = False) -> bool:
    """Whether the innermost transform of torch.func, or with ``anywhere`` any of them, is a vmap that maps over the
    tensor. While torch.compile traces, only the innermost one is visible."""
    functorch = torch._C._functorch
    while anywhere and not torch.compiler.is_compiling() and functorch.is_gradtrackingtensor(x):
        x = functorch.get_unwrapped(x)
    return functorch.is_batchedtensor(x)


def is_wrapped(x: Tensor) -> bool:
    """Whether the tensor is a wrapper that a transform of torch.func created."""
    return torch._C._functorch.is_functorch_wrapped_tensor(x)


def context_of_backward() -> Context | None:
    """The context of the thread that started the backward pass that this thread runs. None outside of a backward pass,
    and always None with torch 2.11, which does not store it."""
    return torch._C._get_obj_in_tls("context") if torch._C._is_key_in_tls("context") else None


lazy_clone = torch._lazy_clone
"""A copy that shares the memory of the original until one of the two is written."""


def address_of(x: Tensor) -> int:
    """Where the memory of a tensor begins. ``data_ptr`` counts as writing, so it would give a lazy copy its own."""
    return torch._C._data_address(x)


def defaults_of(operator: OpOverloadPacket) -> dict[str, Any]:
    """The arguments of an operator with one overload, in order, with their defaults; None where there is none."""
    return {argument.name: argument.default_value for argument in operator.default._schema.arguments}


without_autograd = torch._C._AutoDispatchBelowAutograd
"""Context manager in which calls of operators skip autograd, and so what ``torch.library.register_autograd`` runs at
each call even if no gradient is needed."""


def constant_when_compiled(function: F) -> F:
    """Decorator: torch.compile calls the function while tracing and treats its result as a constant. The public
    ``torch.compiler.assume_constant_result`` would import torch.compile's modules."""
    function._dynamo_marked_constant = True
    return function


def parametrize_again(module: Module, names: list[str]) -> None:
    """Gives a module the class that torch.nn.utils.parametrize derives from its own, with a property for each name."""
    parametrize._inject_new_class(module)
    for name in names:
        parametrize._inject_property(module, name)


def has_onednn(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether PyTorch offers oneDNN's products for the dtype and the device."""
    return (
        device.type == "cpu"
        and dtype == torch.float32
        and torch.backends.mkldnn.is_available()
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    )


def onednn(a: Tensor, b: Tensor) -> Callable[[], Tensor]:
    """oneDNN's product of ``a`` with the transpose of ``b``."""
    return functools.partial(torch.ops.mkldnn._linear_pointwise.default, a, b, None, "none", [], "")


def lay_out(b: Tensor, rows: int) -> Tensor:
    """The transpose of ``b``, packed by oneDNN for products with this number of rows."""
    return torch.ops.mkldnn._reorder_linear_weight(b.t().contiguous(), rows) if has_onednn(b.dtype, b.device) else b.t()
