"""A sample of the CUDA kernels that the plans choose compiles for every target, without spills."""

import pytest

from python_tests.gpu.programs import CELLS, chunks, programs, sample, spelled
from python_tests.packaging.machine_code import code_faults, code_of, kernel, needs_compiler, spills


def plain(type: str) -> str:
    name, arguments = spelled(type)
    return f"{name}<{', '.join(arguments)}>" if arguments != [""] else name


def test_kernels_have_names_of_their_own():
    found = list(programs("sm_90"))
    assert len({program.symbol for program in found}) == len({program.type for program in found})


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
            faults += code_faults(code_of(program), kernel(program.type, CELLS), CELLS)
    assert faults == []


@needs_compiler
@pytest.mark.proof
@pytest.mark.parametrize("chunk", [c for arch in ("sm_80", "sm_100", "sm_120") for c in chunks(sample(arch))])
@pytest.mark.drawn
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
