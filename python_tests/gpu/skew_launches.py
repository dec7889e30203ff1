"""Records, without a GPU, what skew_exp launches there: calls of its kernels and of PyTorch operators."""

import types
from contextlib import contextmanager

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from rnnkern.ops._orthogonal import triton as orthogonal_triton

KERNELS = ("small_forward", "small_backward", "product")


def facts(x):
    """Properties of an argument; for a tensor everything except its values."""
    if isinstance(x, Tensor):
        return ("tensor", tuple(x.shape), x.dtype)
    return tuple(map(facts, x)) if isinstance(x, list | tuple) else repr(x)


class Recorder(TorchDispatchMode):
    """Records operator calls and rejects tensors of other devices."""

    def __init__(self, device: str):
        super().__init__()
        self.launches, self.device = [], device

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        result = function(*args, **kwargs)
        name = function.overloadpacket.__name__
        for x in tree_leaves((args, kwargs, result)):
            if isinstance(x, Tensor) and x.device.type != self.device:
                raise AssertionError(f"{name} has a tensor on {x.device}")
        self.launches.append((str(function), facts(args), facts(list(kwargs.values()))))
        return result


class Kernel:
    """Replaces a kernel and records its grid and arguments."""

    def __init__(self, name: str, recorder: Recorder):
        self.name, self.recorder = name, recorder

    def __getitem__(self, grid):
        def launch(*args, **constants):
            self.recorder.launches.append((self.name, grid, facts(args), facts(sorted(constants.items()))))

        return launch


@contextmanager
def recording(monkeypatch, device: str):
    recorder = Recorder(device)
    kernels = {name: Kernel(name, recorder) for name in KERNELS}
    with monkeypatch.context() as patch, recorder:
        patch.setattr(orthogonal_triton, "kernels", lambda: types.SimpleNamespace(**kernels))
        yield recorder


def forward_and_backward(A: Tensor, upstream: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(V, the gradient, the plan)."""
    V, kept, plan = orthogonal_triton.forward(A, False, True)
    return V, orthogonal_triton.backward(upstream, A, kept, plan), plan
