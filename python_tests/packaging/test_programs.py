"""The plans choose exactly the kernels of a list, and all of them compile."""

import itertools

import pytest

from python_tests.gpu.programs import CELLS, chunks, programs, sample, spelled
from python_tests.packaging import test_sass_relevancy
from python_tests.packaging.machine_code import function, needs_compiler, spills
from python_tests.packaging.sass import code_faults, expected, kernel

TENSORS = ("float", "bfloat16", "float16", "double")
EXACT = ("float", "double")
OTHERS = {
    "cuda::AloneKernel",
    *(f"{name}Kernel<{S}>" for name in ("Accumulate", "Mask", "Drop") for S in TENSORS),
    *(f"PreviousKernel<{S}, {S}>" for S in TENSORS),
    *(
        f"StepProjected{way}Kernel<{S}, {noisy}>"
        for way, S, noisy in itertools.product(("", "Backward"), TENSORS, ("false", "true"))
    ),
    "relevancy::HistoryKernel",
    *(
        f"relevancy::{name}Kernel<{S}>"
        for name in ("StepwiseAttentionForward", "StepwiseAttentionBackward", "Remember", "Leave")
        for S in EXACT
    ),
    *(
        f"relevancy::Cell{way}Kernel<{cell}, {S}>"
        for way, cell, S in itertools.product(("Forward", "Backward"), test_sass_relevancy.CELLS, EXACT)
    ),
    "relevancy::PackKernel<128, float>",
    *(f"relevancy::PackKernel<{P}, {S}>" for P in (128, 256) for S in ("bfloat16", "float16")),
    *(f"givens::{name}Kernel<{S}>" for name in ("Turn", "Sum") for S in EXACT),
    *(
        f"givens::{way}Kernel<{S}, {parts}, {each}>"
        for way, parts, each in itertools.product(("Forward", "Backward"), (1, 2), (2, 4, 8, 16, 32))
        for S in EXACT
        if S == "float" or parts * each <= 16
    ),
}
"""Kernels without a loop over time, or with rotations."""


def plain(type: str) -> str:
    name, arguments = spelled(type)
    return f"{name}<{', '.join(arguments)}>" if arguments != [""] else name


def test_every_kernel_is_planned():
    """Kernels of relevancy_recurrence that keep weights on chip are listed in test_sass_relevancy.py."""
    found = {program.type for program in programs("sm_90")}
    cells = {type: kernel(type, CELLS) for type in found}
    assert set(cells.values()) - {None} == expected(CELLS)
    others = {type for type in found if not cells[type] and not test_sass_relevancy.kernel(type)}
    assert {plain(type) for type in others} == OTHERS
    assert len({program.symbol for program in programs("sm_90")}) == len(found)


def test_no_cluster_before_compute_capability_9():
    assert not [program for program in programs("sm_80") if "cluster" in program.header or "alone" in program.header]
    assert [program for program in programs("sm_120") if "cluster" in program.header]


def has_code_read(program):
    """Whether the machine code is read: of bfloat16 block kernels for targets other than sm_90, for which test_sass.py
    reads it."""
    key = kernel(program.type, CELLS)
    return key and key.family == "Block" and key.storage == "bfloat16" and program.arch in ("sm_80", "sm_100")


SPILLING = {("sm_120", "givens_BackwardKernel_float_1_32: 72 bytes of stack, 0 local")}
"""Known spills: the compiler for sm_120 runs out of registers with 32 entries per thread."""


def check(chunk):
    faults = [fault for p in chunk for fault in spills([p]) if (p.arch, fault) not in SPILLING]
    for program in chunk:
        if has_code_read(program):
            faults += code_faults(function(program), kernel(program.type, CELLS), CELLS)
    assert faults == []


@needs_compiler
@pytest.mark.proof
@pytest.mark.parametrize("chunk", [c for arch in ("sm_80", "sm_100", "sm_120") for c in chunks(sample(arch))])
def test_a_sample_for_other_targets(chunk):
    """A program of every template and dtype compiles without spills. test_sass.py tests sm_90."""
    check(chunk)


QUICK = {
    "sm_80": ["BlockForwardKernel<Tanh, bfloat16, 32>"],
    "sm_90": [
        "ClusterForwardKernel<Relu, float, 256>", "GridForwardKernel<Tanh, bfloat16>",
        "StepBackwardKernel<Lstm, double, true>", "relevancy::PerSequenceForwardKernel<Tanh, 64, float>",
        "givens::ForwardKernel<float, 2, 2>", "cuda::AloneKernel",
    ],
    "sm_120": ["StepForwardKernel<Gru, float16, false>"],
}  # fmt: skip
"""One program of every family."""


@needs_compiler
def test_some_of_every_family():
    chosen = [program for arch, types in QUICK.items() for program in programs(arch) if plain(program.type) in types]
    assert len(chosen) == sum(map(len, QUICK.values()))
    check(chosen)
