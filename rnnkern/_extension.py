"""Loads the compiled part, rnnkern._C, which registers the operators. Where it is missing or does not fit, `available`
is False and `reason` says why; what has a reference or a Triton kernel works without it."""

import functools
import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import torch

from rnnkern._torch_private import constant_when_compiled

# The file that belongs to this one, not what a search may find in another installation of rnnkern.
LIBRARY = Path(__file__).with_name("_C.abi3.so")


def _load() -> str | None:
    """Loads rnnkern._C; returns why it cannot, in one sentence, or None."""
    if tuple(map(int, re.findall(r"\d+", torch.__version__)[:2])) < (2, 11):
        return f"rnnkern's compiled part needs torch 2.11 or later, and this is torch {torch.__version__}"
    if not LIBRARY.exists():
        return (
            "rnnkern was installed without its compiled part, because no working C++20 compiler was found or "
            "RNNKERN_CPP=0 was set (`pip install -v` says which)"
        )
    try:
        importlib.util.module_from_spec(importlib.util.spec_from_file_location("rnnkern._C", LIBRARY))
    except ImportError as error:
        return f"rnnkern's compiled part does not fit this system or torch {torch.__version__}: {error}"
    return None


reason = _load()
available = reason is None


def allows_tf32() -> bool:
    """Whether PyTorch's own recurrent layers may multiply float32 in TF32 on a GPU, at this moment."""
    return torch.backends.cudnn.rnn.fp32_precision == "tf32"


if available:
    _settings = torch.library.Library("rnnkern", "IMPL")  # for as long as it lives
    _settings.impl("allows_tf32", allows_tf32, "CompositeExplicitAutograd")


@constant_when_compiled  # an operator that returns a string cannot be traced
def cuda_refusal(device: torch.device) -> str | None:
    """Why the kernels cannot run on a CUDA device, or None. A device that is not here is taken to be one that can."""
    archs = _cuda_archs()
    if not archs:
        return "rnnkern was built without CUDA"
    if not torch.cuda.is_available():
        return None
    return _uncovered(archs, torch.cuda.get_device_capability(device))


@functools.cache
def _uncovered(archs: tuple[str, ...], capability: tuple[int, int]) -> str | None:
    """Code runs on later devices of its major version, PTX on all later ones."""
    for arch in archs:
        number, _, ptx = arch.partition("+")
        built = tuple(map(int, number.split(".")))
        if built <= capability and (ptx or built[0] == capability[0]):
            return None
    return f"rnnkern was built for {', '.join(archs)}, and the device has capability {'.'.join(map(str, capability))}"


def device_facts(device: torch.device) -> tuple[int, ...] | None:
    """(major, minor, multiprocessors, bytes of shared memory that a block can have, clusters of 8 such blocks that run
    at once, and of 16), or None without a device."""
    if not torch.cuda.is_available():
        return None
    index = torch.cuda.current_device() if device.index is None else device.index
    return tuple(json.loads(torch.ops.rnnkern.device_facts(index)))


@functools.cache
def _cuda_archs() -> tuple[str, ...]:
    return tuple(build_facts()["cuda_archs"])


def build_facts() -> dict[str, Any]:
    """What rnnkern.build_info() returns, less the version; the same keys, empty, without the compiled part."""
    facts = json.loads(torch.ops.rnnkern.build_info()) if available else {}
    return {
        "commit": facts.get("commit"),
        "compilers": {name: facts[name] for name in ("cxx", "nvcc") if facts.get(name)},
        "cuda_archs": facts.get("cuda_archs", []),
        "simd_levels": facts.get("simd_levels", []),
        "simd_level": facts.get("simd_level"),
        "torch": facts.get("torch"),
        "openmp": facts.get("openmp"),
    }


def release_memory() -> int:
    """What rnnkern.release_memory() returns."""
    return torch.ops.rnnkern.release_memory() if available else 0
