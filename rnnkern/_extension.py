"""Loads the compiled extension, rnnkern._C, which registers the operators.

If it is missing or incompatible, `available` is False and `reason` says why; operators with a reference or a Triton
kernel work without it.
"""

import functools
import importlib.util
import json
import os
import re
import warnings
from pathlib import Path
from typing import Any

import torch

from rnnkern import _compiler
from rnnkern._torch_private import constant_when_compiled, precision_of_products

# The library next to this file: a search could find that of another installation of rnnkern.
LIBRARY = Path(__file__).with_name("_C.abi3.so")
REINSTALL = "`pip install -v --force-reinstall --no-deps .` in its source folder"


class PerformanceWarning(UserWarning):
    """Warns that rnnkern is much slower than it could be: a call runs in plain PyTorch because a kernel is missing, or
    the installation has no kernels at all. It is issued once per reason, and the message says how to fix the cause.
    Inside ``with rnnkern.use("reference")``, which requests plain PyTorch, there is no warning."""


remedies: dict[str, str] = {}
"""How a user can fix a missing kernel, by the reason that operators give for not using it."""


def missing(why: str, remedy: str) -> str:
    """Registers how to fix a missing kernel, and returns the reason."""
    remedies[why] = remedy
    return why


def _load() -> str | None:
    """Loads rnnkern._C. Returns None, or one sentence that says why loading failed."""
    if tuple(map(int, re.findall(r"\d+", torch.__version__)[:2])) < (2, 11):
        return missing(
            f"rnnkern's compiled extension needs torch 2.11 or later, got torch {torch.__version__}",
            "install torch 2.11 or later",
        )
    if not LIBRARY.exists():
        return missing(
            "rnnkern was installed without its compiled extension, because no working C++20 compiler was found or "
            "RNNKERN_CPP=0 was set (`pip install -v` shows which)",
            f"install a C++20 compiler, such as g++ 12, and reinstall rnnkern with {REINSTALL}",
        )
    try:
        importlib.util.module_from_spec(importlib.util.spec_from_file_location("rnnkern._C", LIBRARY))
    except ImportError as error:
        return missing(
            f"rnnkern's compiled extension does not work with this system or torch {torch.__version__}: {error}",
            f"reinstall rnnkern with {REINSTALL}",
        )
    if os.environ.get("RNNKERN_SIMD"):
        return None  # a level that cannot be used raises an error at the first use
    facts = json.loads(torch.ops.rnnkern.build_info())
    if not facts["simd_levels"]:
        built = ", ".join(facts["built_simd_levels"])
        return missing(
            f"rnnkern's compiled extension was built for the SIMD levels {built}, and this processor supports only "
            f"{facts['processor_simd_level']}",
            f"build it again on this machine with {REINSTALL}, or once for every machine with RNNKERN_SIMD_LEVELS=all",
        )
    return None


reason = _load()
available = reason is None


def allows_tf32() -> bool:
    """Whether PyTorch's recurrent layers may currently use TF32 for float32 products on a GPU."""
    return torch.backends.cudnn.rnn.fp32_precision == "tf32"


@constant_when_compiled
def bfloat16_parts() -> int:
    """The number of bfloat16 parts into which PyTorch's current setting allows a CPU to split the float32 factors of
    products; 0: none, products are exact."""
    return {"tf32": 2, "bf16": 1}.get(precision_of_products(), 0)


def in_tiles() -> bool:
    """Whether kernels use the tiles of AMX."""
    return available and build_facts()["simd_level"] == "amx"


if available:
    _python = torch.library.Library("rnnkern", "IMPL")  # registrations last as long as this object
    _python.impl("allows_tf32", allows_tf32, "CompositeExplicitAutograd")
    _python.impl("compile_kernel", _compiler.compile_kernel, "CompositeExplicitAutograd")


@constant_when_compiled  # torch.compile cannot trace the search for libraries
def cuda_refusal(device: torch.device) -> str | None:
    """Why the kernels cannot run on a CUDA device, or None. An absent device is assumed to be supported."""
    if not torch.cuda.is_available():
        return None
    return _cuda_refusal(torch.version.cuda, torch.cuda.get_device_capability(device))


@functools.cache
def _cuda_refusal(version: str | None, capability: tuple[int, int]) -> str | None:
    wanted, found = _compiler.CUDA_MAJOR, (version or "none").partition(".")[0]
    if found != str(wanted):
        return missing(
            f"rnnkern's CUDA kernels need a PyTorch built with CUDA {wanted}, got torch "
            f"{torch.__version__} built {f'with CUDA {version}' if version else 'without CUDA'}",
            f"install a PyTorch built with CUDA {wanted}",
        )
    if capability < (8, 0):
        has = ".".join(map(str, capability))
        return f"the CUDA kernels need a GPU with compute capability 8.0 or later, got {has}"
    if _compiler.nvrtc() is None and not _compiler.any_compiled():
        return missing(
            f"NVRTC ({_compiler.LIBRARY}), which compiles rnnkern's CUDA kernels at their first use, was not found",
            f"`pip install 'rnnkern[cuda]'`, or nvidia-cuda-nvrtc of version {wanted}",
        )
    return None


def triton_refusal() -> str | None:
    """Why the Triton kernels cannot run on a CUDA device, or None."""
    if reason or importlib.util.find_spec("triton"):
        return reason
    return missing("triton is not installed", "pip install triton")


def device_facts(device: torch.device) -> tuple[int, ...] | None:
    """(major, minor, number of multiprocessors, maximum bytes of shared memory per block, number of clusters of 8 such
    blocks that can run at once, the same for clusters of 16), or None without a device."""
    if not torch.cuda.is_available():
        return None
    index = torch.cuda.current_device() if device.index is None else device.index
    return tuple(json.loads(torch.ops.rnnkern.device_facts(index)))


def build_facts() -> dict[str, Any]:
    """The result of rnnkern.build_info() without the version; the same keys with empty values without the extension."""
    facts = json.loads(torch.ops.rnnkern.build_info()) if available else {}
    return {
        "commit": facts.get("commit"),
        "compiler": facts.get("cxx"),
        "built_simd_levels": facts.get("built_simd_levels", []),
        "simd_levels": facts.get("simd_levels", []),
        "simd_level": facts.get("simd_level"),
        "torch": facts.get("torch"),
        "openmp": facts.get("openmp"),
    }


def release_memory() -> int:
    """Implements rnnkern.release_memory()."""
    return torch.ops.rnnkern.release_memory() if available else 0


def _slower_than_it_could_be() -> str | None:
    """The warning at import, or None: no compiled extension, or none for the best SIMD level of this processor."""
    if not available:
        return f"{reason}. Layers and operators run as slowly as a Python loop over time."
    if os.environ.get("RNNKERN_SIMD"):
        return None
    facts = json.loads(torch.ops.rnnkern.build_info())
    best, built = facts["processor_simd_level"], facts["built_simd_levels"]
    if best in built:
        return None
    return (
        f"this processor supports {best}, but rnnkern was built for {', '.join(built)}: reinstall it on this machine, "
        "or build it with RNNKERN_SIMD_LEVELS=all, for faster CPU kernels"
    )


if _slow := _slower_than_it_could_be():
    warnings.warn(_slow, PerformanceWarning, stacklevel=2)
