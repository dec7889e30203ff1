"""Everything of PyTorch that rnnkern uses although it is private, and may change: check it with each new version.

Everything here was checked against torch 2.11.0 and 2.13.0.

The other private names are attributes that subclasses share with their base classes and cannot leave out:
``RNNBase._all_weights``, ``_flat_weights``, ``_flat_weights_names`` and ``_init_flat_weights`` (``rnnkern.nn``,
``rnnkern.swap``), ``Module._apply``, ``_load_from_state_dict``, ``_parameters`` and ``__prepare_scriptable__``
(``rnnkern.nn``, ``rnnkern.parametrizations``).
"""

from collections.abc import Callable
from contextvars import Context
from typing import TypeVar

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, is_fake
from torch.autograd import forward_ad
from torch.nn import Module
from torch.nn.utils import parametrize

__all__ = [
    "FakeTensor",
    "constant_when_compiled",
    "context_of_backward",
    "in_forward_mode",
    "is_batched",
    "is_fake",
    "is_in_transform",
    "is_wrapped",
    "parametrize_again",
]

F = TypeVar("F", bound=Callable)


def in_forward_mode() -> bool:
    """Whether a block of torch.autograd.forward_ad, or torch.func.jvp, is at work."""
    return forward_ad._current_level >= 0


def is_in_transform() -> bool:
    """Whether a transform of torch.func is at work."""
    return torch._C._are_functorch_transforms_active()


def is_batched(x: Tensor) -> bool:
    """Whether torch.func.vmap maps over the tensor."""
    return torch._C._functorch.is_batchedtensor(x)


def is_wrapped(x: Tensor) -> bool:
    """Whether the tensor is one that a transform of torch.func passes on."""
    return torch._C._functorch.is_functorch_wrapped_tensor(x)


def context_of_backward() -> Context | None:
    """The context of the thread that asked for the backward pass that this thread works on; None outside of one, and
    always in torch 2.11, which keeps none."""
    return torch._C._get_obj_in_tls("context") if torch._C._is_key_in_tls("context") else None


def constant_when_compiled(function: F) -> F:
    """The compiler calls the function while it traces and takes its result for a constant. The public
    ``torch.compiler.assume_constant_result`` would import the compiler."""
    function._dynamo_marked_constant = True
    return function


def parametrize_again(module: Module, names: list[str]) -> None:
    """Gives a module the class that torch.nn.utils.parametrize makes of its own, with a property for each name."""
    parametrize._inject_new_class(module)
    for name in names:
        parametrize._inject_property(module, name)
