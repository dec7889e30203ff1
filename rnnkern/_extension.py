"""Loads the compiled part, rnnkern._C, which registers the operators. Where it is missing or does not fit, `available`
is False and `reason` says why; what has a reference or a Triton kernel works without it."""

import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import torch

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
