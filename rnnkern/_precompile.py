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
from rnnkern.ops.programs import Facts, collecting

ALONE = ("cuda/alone.cuh", "rnnkern::cuda::AloneKernel")
"""What every device from compute capability 9.0 on is asked with how many clusters run at once."""
FACTS: dict[str, Facts] = {
    "sm_80": (8, 0, 108, 166912, 0, 0),
    "sm_86": (8, 6, 84, 101376, 0, 0),
    "sm_89": (8, 9, 142, 101376, 0, 0),
    "sm_90": (9, 0, 132, 232448, 16, 7),
    "sm_100": (10, 0, 148, 232448, 16, 8),
    "sm_103": (10, 3, 148, 232448, 16, 8),
    "sm_120": (12, 0, 170, 101376, 16, 8),
}
"""Of the largest GPU of each architecture, for a machine that has none."""
SECONDS = 5
"""Between lines of progress in a log; a terminal has one line, always up to date."""
BATCHES = tuple(2**power for power in range(13))
"""Batch sizes that are asked about: which kernel serves a layer depends on it."""


def precompile(
    model_or_op: Module | Callable, *args: Any, dtype: torch.dtype | None = None,
    device: torch.device | str | None = None, arch: str | None = None, **kwargs: Any,
) -> int:  # fmt: skip
    """Compiles the CUDA kernels that a model or a call would start, and keeps them for every later process.

    A kernel is compiled when it is first used, which takes up to two seconds, and kept in ``$RNNKERN_CACHE_DIR``, else
    in ``$XDG_CACHE_HOME/rnnkern``, else in ``~/.cache/rnnkern``. This does it ahead of time: while the
    image of a container is built, or before a CUDA graph is captured. It needs NVRTC; with ``arch`` it needs no GPU.

    Args:
        model_or_op: a module, whose recurrent layers of rnnkern are asked for batches of 1 to 4,096 sequences, in
            training or not as they are; or a function of ``rnnkern.ops`` or a module, with arguments.
        args, kwargs: what a call would be given, as for :func:`rnnkern.explain`, on any device.
        dtype: what is computed in, where it is not the parameters' own: under autocast, for one.
        device: a CUDA device of this machine, on which the kernels are loaded too; the current one if neither it nor
            ``arch`` is given.
        arch: an architecture, ``"sm_90"`` for an H100, in place of a device. One of ``sm_80``, ``sm_86``, ``sm_89``,
            ``sm_90``, ``sm_100``, ``sm_103`` and ``sm_120``.

    Returns:
        How many kernels were compiled; those that were compiled already do not count.

    Raises:
        ValueError: ``arch`` is none of these, or both ``arch`` and ``device`` are given.
        RuntimeError: there is no NVRTC, no such device, or a kernel does not compile.
        TypeError: ``model_or_op`` is neither.

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
    """The index of a device, or None, and its facts."""
    if not _extension.available:
        raise RuntimeError(f"precompile: {_extension.reason}")
    if arch is not None:
        if device is not None:
            raise ValueError("precompile: either `device` or `arch`, got both")
        if arch not in FACTS:
            raise ValueError(f"precompile: `arch` must be one of {', '.join(FACTS)}, got {arch!r}")
        if _compiler.nvrtc() is None:
            raise RuntimeError(f"precompile: NVRTC ({_compiler.LIBRARY}) was not found; `pip install 'rnnkern[cuda]'`")
        return None, FACTS[arch]
    found = torch.device("cuda" if device is None else device)
    if found.type != "cuda":
        raise ValueError(f"precompile: `device` must be a CUDA device, got {found}")
    if not torch.cuda.is_available():
        raise RuntimeError("precompile: there is no CUDA device here; `arch` names one, such as arch='sm_90'")
    if why := _extension.cuda_refusal(found):
        raise RuntimeError(f"precompile: {why}")
    index = torch.cuda.current_device() if found.index is None else found.index
    return index, _extension.device_facts(torch.device("cuda", index))


def _ask_layers(model: Module) -> None:
    for module in model.modules():
        if not hasattr(module, "_choose"):
            continue
        like = next(parameter for parameter in module.parameters() if parameter.is_floating_point())
        for batch in BATCHES:
            sizes = (batch,) if isinstance(module, RNNCellBase) else (1, batch)
            explain(module, like.new_zeros(1).expand(*sizes, module.input_size))


def _compile(programs: Sequence[_compiler.Program]) -> None:
    """All of them, on all cores."""
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
