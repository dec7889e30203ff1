"""Loads the compiled part, rnnkern._C, which registers the operators. Where it is missing or does not fit, `available`
is False and `reason` says why; what has a reference or a Triton kernel works without it."""

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
from rnnkern._torch_private import constant_when_compiled

# The file that belongs to this one, not what a search may find in another installation of rnnkern.
LIBRARY = Path(__file__).with_name("_C.abi3.so")


class PerformanceWarning(UserWarning):
    """rnnkern is many times slower than another installation of it would be: a call runs as plain PyTorch for want of a
    kernel, or no kernel was built at all. Given once per reason; the message says what to do.
    ``with rnnkern.use("reference")`` asks for plain PyTorch and gives none."""


remedies: dict[str, str] = {}
"""What a user can do about a missing kernel, by the reason that an operator has for not taking it."""


def missing(why: str, remedy: str) -> str:
    remedies[why] = remedy
    return why


def _load() -> str | None:
    """Loads rnnkern._C; returns why it cannot, in one sentence, or None."""
    if tuple(map(int, re.findall(r"\d+", torch.__version__)[:2])) < (2, 11):
        return missing(
            f"rnnkern's compiled part needs torch 2.11 or later, and this is torch {torch.__version__}",
            "install torch 2.11 or later",
        )
    if not LIBRARY.exists():
        return missing(
            "rnnkern was installed without its compiled part, because no working C++20 compiler was found or "
            "RNNKERN_CPP=0 was set (`pip install -v` says which)",
            "install a C++20 compiler, such as g++ 12, and then rnnkern again with `pip install -v --force-reinstall "
            "--no-deps .` in its sources",
        )
    try:
        importlib.util.module_from_spec(importlib.util.spec_from_file_location("rnnkern._C", LIBRARY))
    except ImportError as error:
        return missing(
            f"rnnkern's compiled part does not fit this system or torch {torch.__version__}: {error}",
            "install rnnkern again beside it, with `pip install -v --force-reinstall --no-deps .` in its sources",
        )
    return None


reason = _load()
available = reason is None


def allows_tf32() -> bool:
    """Whether PyTorch's own recurrent layers may multiply float32 in TF32 on a GPU, at this moment."""
    return torch.backends.cudnn.rnn.fp32_precision == "tf32"


if available:
    _python = torch.library.Library("rnnkern", "IMPL")  # for as long as it lives
    _python.impl("allows_tf32", allows_tf32, "CompositeExplicitAutograd")
    _python.impl("compile_kernel", _compiler.compile_kernel, "CompositeExplicitAutograd")


@constant_when_compiled  # a search for libraries cannot be traced
def cuda_refusal(device: torch.device) -> str | None:
    """Why the kernels cannot run on a CUDA device, or None. A device that is not here is taken to be one that can."""
    if not torch.cuda.is_available():
        return None
    return _cuda_refusal(torch.version.cuda, torch.cuda.get_device_capability(device))


@functools.cache
def _cuda_refusal(version: str | None, capability: tuple[int, int]) -> str | None:
    wanted, found = _compiler.CUDA_MAJOR, (version or "none").partition(".")[0]
    if found != str(wanted):
        return missing(
            f"rnnkern's CUDA kernels are for a PyTorch that was built with CUDA {wanted}, and this is torch "
            f"{torch.__version__}, built with {f'CUDA {version}' if version else 'no CUDA'}",
            f"install a PyTorch built with CUDA {wanted}",
        )
    if capability < (8, 0):
        has = ".".join(map(str, capability))
        return f"the CUDA kernels need a GPU of compute capability 8.0 or later, and this one has {has}"
    if _compiler.nvrtc() is None and not _compiler.any_compiled():
        return missing(
            f"NVRTC ({_compiler.LIBRARY}), which compiles rnnkern's CUDA kernels at their first use, was not found",
            f"`pip install 'rnnkern[cuda]'`, or nvidia-cuda-nvrtc of version {wanted}",
        )
    return None


def triton_refusal() -> str | None:
    """Why Triton's kernels cannot run on a CUDA device, or None."""
    if reason or importlib.util.find_spec("triton"):
        return reason
    return missing("triton is not installed", "pip install triton")


def device_facts(device: torch.device) -> tuple[int, ...] | None:
    """(major, minor, multiprocessors, bytes of shared memory that a block can have, clusters of 8 such blocks that run
    at once, and of 16), or None without a device."""
    if not torch.cuda.is_available():
        return None
    index = torch.cuda.current_device() if device.index is None else device.index
    return tuple(json.loads(torch.ops.rnnkern.device_facts(index)))


def build_facts() -> dict[str, Any]:
    """What rnnkern.build_info() returns, less the version; the same keys, empty, without the compiled part."""
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
    """What rnnkern.release_memory() returns."""
    return torch.ops.rnnkern.release_memory() if available else 0


def _slower_than_it_could_be() -> str | None:
    """What a user is to know at import: no compiled part, or none for the best that this processor can do."""
    if not available:
        return f"{reason}. Layers and operators work at the speed of a Python loop over time."
    if os.environ.get("RNNKERN_SIMD"):
        return None
    facts = json.loads(torch.ops.rnnkern.build_info())
    best, built = facts["processor_simd_level"], facts["built_simd_levels"]
    if best in built:
        return None
    return (
        f"this processor has {best}, and rnnkern was built for {', '.join(built)}: reinstall it on this machine, "
        "or build it with RNNKERN_SIMD_LEVELS=all, for faster CPU kernels"
    )


if _slow := _slower_than_it_could_be():
    warnings.warn(_slow, PerformanceWarning, stacklevel=2)
