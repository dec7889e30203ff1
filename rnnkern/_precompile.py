"""Compiles the CUDA kernels of a model ahead of their first use."""

import os
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any

import torch
from torch.nn import Module, RNNCellBase

from rnnkern import _compiler, _extension
from rnnkern.ops import explain
from rnnkern.ops.dispatch import Facts, collecting

ALONE = ("cuda/alone.cuh", "rnnkern::cuda::AloneKernel")
"""A kernel that does nothing. On devices with compute capability 9.0 or later, the driver tells how many clusters of it
can run at once if a block takes all shared memory; the choice of a kernel depends on that."""
FACTS: dict[str, Facts] = {
    "sm_80": (8, 0, 108, 166912, 0, 0),
    "sm_86": (8, 6, 84, 101376, 0, 0),
    "sm_89": (8, 9, 142, 101376, 0, 0),
    "sm_90": (9, 0, 132, 232448, 16, 7),
    "sm_100": (10, 0, 148, 232448, 16, 8),
    "sm_103": (10, 3, 148, 232448, 16, 8),
    "sm_120": (12, 0, 170, 101376, 16, 8),
}
"""Facts of the largest GPU of each architecture, for machines without a GPU."""
SECONDS = 5
"""Seconds between progress lines in a log file; in a terminal, one line is updated continuously."""
BATCHES = tuple(2**power for power in range(13))
"""Batch sizes to compile for, because the batch size decides which kernel a layer uses."""


def precompile(
    model_or_op: Module | Callable, *args: Any, dtype: torch.dtype | None = None,
    device: torch.device | str | None = None, arch: str | None = None, **kwargs: Any,
) -> int:  # fmt: skip
    """Compiles the CUDA kernels that a model or a call would launch, and caches them on disk for later processes.

    Without this call, a kernel is compiled at its first use, which takes up to two seconds. Compiled kernels are stored
    in ``$RNNKERN_CACHE_DIR``, or else in ``$XDG_CACHE_HOME/rnnkern``, or else in ``~/.cache/rnnkern``. Use this
    function when you build a container image, or before you capture a CUDA graph. It needs NVRTC; with ``arch`` it
    needs no GPU.

    Args:
        model_or_op: a module, for whose rnnkern layers the kernels for batches of 1 to 4,096 sequences are compiled, in
            its current training or evaluation mode; or, with arguments, a function of ``rnnkern.ops`` or a module.
        args, kwargs: the arguments of a call, as in :func:`rnnkern.explain`, on any device.
        dtype: dtype of the computation if it is not that of the parameters, for example under autocast.
        device: a CUDA device of this machine, on which the kernels are also loaded. The default is the current device,
            unless ``arch`` is given.
        arch: an architecture instead of a device, such as ``"sm_90"`` for an H100. One of ``sm_80``, ``sm_86``,
            ``sm_89``, ``sm_90``, ``sm_100``, ``sm_103`` and ``sm_120``.

    Returns:
        The number of kernels that were compiled, not counting those that were already in the cache.

    Raises:
        ValueError: ``arch`` is unknown, or both ``arch`` and ``device`` are given.
        RuntimeError: NVRTC, the device or a weight of a layer is missing, or a kernel does not compile.
        TypeError: ``model_or_op`` is neither a module nor an operator.

    >>> layer = rnnkern.nn.LSTM(8, 64)
    >>> rnnkern.precompile(layer, arch="sm_90")  # doctest: +SKIP
    7
    """
    if isinstance(model_or_op, type) or not (isinstance(model_or_op, Module) or hasattr(model_or_op, "_choose")):
        raise TypeError(
            f"precompile: `model_or_op` must be a module or an operator of rnnkern.ops, got {model_or_op!r}"
        )
    index, facts = _target(device, arch)
    with collecting(facts, dtype) as found:
        if args or kwargs or not isinstance(model_or_op, Module):
            explain(model_or_op, *args, **kwargs)
        else:
            _ask_layers(model_or_op)
    if facts[0] >= 9 and found:
        found.add(ALONE)
    name = _compiler.arch_of(facts[:2])
    programs = [_compiler.Program(*program, name) for program in sorted(found)]
    waiting = [program for program in programs if not _compiler.is_compiled(program)]
    _compile(waiting)
    if index is not None:
        for program in programs:
            torch.ops.rnnkern.load_kernel(program.header, program.type, index)
    return len(waiting)


def _target(device: torch.device | str | None, arch: str | None) -> tuple[int | None, Facts]:
    """The index of a device, or None with ``arch``, and the facts of the device."""
    if not _extension.available:
        raise RuntimeError(f"precompile: {_extension.reason}")
    if arch is not None:
        if device is not None:
            raise ValueError("precompile: only one of `device` and `arch` can be given, got both")
        if arch not in FACTS:
            raise ValueError(f"precompile: `arch` must be one of {', '.join(FACTS)}, got {arch!r}")
        if _compiler.nvrtc() is None:
            raise RuntimeError(f"precompile: NVRTC ({_compiler.LIBRARY}) was not found; `pip install 'rnnkern[cuda]'`")
        return None, FACTS[arch]
    found = torch.device("cuda" if device is None else device)
    if found.type != "cuda":
        raise ValueError(f"precompile: `device` must be a CUDA device, got {found}")
    if not torch.cuda.is_available():
        raise RuntimeError("precompile: no CUDA device found; pass an architecture instead, such as arch='sm_90'")
    if why := _extension.cuda_refusal(found):
        raise RuntimeError(f"precompile: {why}")
    index = torch.cuda.current_device() if found.index is None else found.index
    return index, _extension.device_facts(torch.device("cuda", index))


def _ask_layers(model: Module) -> None:
    """Asks every rnnkern layer of a model which kernels it would launch, for each of ``BATCHES``."""
    for module in model.modules():
        if not hasattr(module, "_choose"):
            continue
        like = next(parameter for parameter in module.parameters() if parameter.is_floating_point())
        for batch in BATCHES:
            sizes = (batch,) if isinstance(module, RNNCellBase) else (1, batch)
            for choice in explain(module, like.new_zeros(1).expand(*sizes, module.input_size)):
                if choice.implementation == "unknown":
                    raise RuntimeError(f"precompile: {type(module).__name__}: {choice.reason}")


def _compile(programs: Sequence[_compiler.Program]) -> None:
    """Compiles all programs, using all cores."""
    begun = said = time.monotonic()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        jobs = [pool.submit(_compiler.cubin_of, program) for program in programs]
        for done, job in enumerate(as_completed(jobs), 1):
            job.result()
            now = time.monotonic()
            if sys.stderr.isatty() or now - said > SECONDS or done == len(jobs):
                said = now
                bar = "#" * (30 * done // len(jobs))
                end = "\r" if sys.stderr.isatty() and done < len(jobs) else "\n"
                print(f"rnnkern: compiled {done:3} of {len(jobs)} kernels |{bar:30}| {now - begun:.0f} s",
                      end=end, file=sys.stderr, flush=True)  # fmt: skip
