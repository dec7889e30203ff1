"""Fused recurrent layers for PyTorch."""

from typing import Any

from rnnkern import _extension, analysis, cells, nn, ops, optim, parametrizations
from rnnkern._cell import Cell, cell
from rnnkern._cells.norms import layer_norm, rms_norm
from rnnkern._cells.trace import CellError
from rnnkern._extension import PerformanceWarning
from rnnkern._precompile import precompile
from rnnkern.ops.dispatch import use
from rnnkern.swap import explain, replace, restore

__version__ = "0.1.0"

__all__ = [
    "Cell", "CellError", "PerformanceWarning", "analysis", "build_info", "cell", "cells", "explain", "layer_norm", "nn",
    "ops", "optim", "parametrizations", "precompile", "release_memory", "replace", "restore", "rms_norm", "use",
]  # fmt: skip


def build_info() -> dict[str, Any]:
    """Describes how the installed package was built and which CPU instructions its kernels use on this machine.

    Returns:
        A dict. If the package was installed without its C++ part, every value except ``version`` is None or empty.

        - ``version``: the version of rnnkern.
        - ``commit``: the git commit of the sources, with ``-dirty`` appended if they had uncommitted changes; None
          outside a git checkout.
        - ``compiler``: the C++ compiler and its version.
        - ``built_simd_levels``: the SIMD levels that were compiled, such as ``avx2`` and ``avx512``.
        - ``simd_levels``: the compiled levels that this processor supports.
        - ``simd_level``: the level in use. It is the highest supported one, unless the environment variable
          ``RNNKERN_SIMD`` or ``torch.ops.rnnkern.set_simd_level`` selects another.
        - ``torch``: the PyTorch version that the package was built against.
        - ``openmp``: the OpenMP standard of the compiler, as the date in its ``_OPENMP`` macro.

    >>> rnnkern.build_info()["version"]
    '0.1.0'
    """
    return {"version": __version__, **_extension.build_facts()}


def release_memory() -> int:
    """Returns the CPU memory that rnnkern caches to the operating system.

    rnnkern keeps buffers of 1 MB and more (activations saved for the backward pass, and workspaces) for the next call,
    because the first write to fresh pages takes several times as long as a write to reused ones. Cached and used memory
    together never exceed the peak memory in use. A buffer that has been idle for ten seconds is released at the next
    call that allocates one.

    Returns:
        The number of bytes that were cached and are now released.

    >>> _ = rnnkern.release_memory()
    >>> rnnkern.release_memory()
    0
    """
    return _extension.release_memory()
