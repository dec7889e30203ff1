"""Fused recurrent layers for PyTorch."""

from typing import Any

from rnnkern import _extension, analysis, cells, nn, ops, optim, parametrizations
from rnnkern._cell import Cell, cell
from rnnkern._cells.trace import CellError
from rnnkern._extension import PerformanceWarning
from rnnkern._precompile import precompile
from rnnkern.ops import use
from rnnkern.swap import explain, replace, restore

__version__ = "0.1.0"

__all__ = [
    "Cell",
    "CellError",
    "PerformanceWarning",
    "analysis",
    "build_info",
    "cell",
    "cells",
    "explain",
    "nn",
    "ops",
    "optim",
    "parametrizations",
    "precompile",
    "release_memory",
    "replace",
    "restore",
    "use",
]


def build_info() -> dict[str, Any]:
    """How the installed package was built, and what its CPU kernels use on this machine.

    Returns:
        A dict. Without the compiled part all but the version are None or empty.

        - ``version``: of rnnkern.
        - ``commit``: of the sources, with ``-dirty`` if they had changes; None if they were not a git checkout.
        - ``compiler``: the version of the C++ compiler.
        - ``built_simd_levels``: those that were compiled.
        - ``simd_levels``: those of them that this processor has.
        - ``simd_level``: the one in use, the highest unless the environment variable ``RNNKERN_SIMD`` or
          ``torch.ops.rnnkern.set_simd_level`` names another.
        - ``torch``: the version built against.
        - ``openmp``: the date of the OpenMP standard, as the compiler has it.

    >>> rnnkern.build_info()["version"]
    '0.1.0'
    """
    return {"version": __version__, **_extension.build_facts()}


def release_memory() -> int:
    """Gives the memory that rnnkern keeps on the CPU back to the system.

    What a forward saves for its backward and the room that a call needs, from 1 MB a piece, are kept for the next call:
    fresh pages cost several times what it costs to write them. Together, idle memory and memory in use are never
    more than the most that was in use at once. What is idle for ten seconds goes at the next such call.

    Returns:
        How much was idle, in bytes.

    >>> _ = rnnkern.release_memory()
    >>> rnnkern.release_memory()
    0
    """
    return _extension.release_memory()
