"""Machine code of the recurrence's kernels, and of those with rotations."""

import pytest

from python_tests.gpu.programs import CELLS, chunks, compiled
from python_tests.packaging.machine_code import function, needs_compiler, spills
from python_tests.packaging.sass import (
    Bounds,
    Kernel,
    Resources,
    bounds,
    code_faults,
    expected,
    kernel,
    read_functions,
    read_report,
    report_faults,
    time_loops,
)


def has_code_read(program):
    """Whether the machine code is read: for kernels without a loop over time the compiler's report suffices, and
    float16 has the templates of bfloat16."""
    key = kernel(program.type, CELLS)
    return key and key.family != "Step" and key.storage != "float16"


@needs_compiler
@pytest.mark.proof
@pytest.mark.parametrize("chunk", chunks(p for p in compiled("sm_90") if not p.header.startswith("relevancy/")))
def test_machine_code(chunk):
    """Kernels compile without spills, and their time loops contain the instructions that a step needs."""
    faults = spills(chunk)
    for program in chunk:
        if has_code_read(program):
            faults += code_faults(function(program), kernel(program.type, CELLS), CELLS)
    assert faults == []


# ---- the parsers find problems

TANH = {"gates": 1, "states": 1, "params": 0, "saved": 0, "first_gates": 1, "joint": True, "resident": True}
KEY = Kernel("Block", False, "tanh", "bfloat16", 32)
REPORT = """
Resource usage:
 Common:
  GLOBAL:0
 Function BlockForwardKernel_Tanh_bfloat16_32:
  REG:86 STACK:0 SHARED:0 LOCAL:0 CONSTANT[0]:736 TEXTURE:0 SURFACE:0 SAMPLER:0
 Function AccumulateKernel_float:
  REG:20 STACK:0 SHARED:0 LOCAL:0 CONSTANT[0]:568 TEXTURE:0 SURFACE:0 SAMPLER:0
"""
CODE = """
        code for sm_90
                Function : BlockForwardKernel_Tanh_bfloat16_32
        .headerflags    @"EF_CUDA_SM90 EF_CUDA_VIRTUAL_SM(EF_CUDA_SM90)"
        /*0000*/                   LDC R1, c[0x0][0x28] ;                        /* 0x00000a00ff017b82 */
                                                                                 /* 0x000fe20000000800 */
        /*0010*/              @!P1 LDG.E.U16 R9, desc[UR6][R4.64] ;              /* 0x0000000604091981 */
        /*0020*/                   BAR.SYNC.DEFER_BLOCKING 0x0 ;                 /* 0x0000000000007b1d */
        /*0030*/                   LDSM.16.M88.4 R20, [R92] ;                    /* 0x000000005c14783b */
        /*0040*/                   HMMA.16816.F32.BF16 R24, R56, R20.reuse, RZ ; /* 0x000000143818723c */
        /*0050*/                   HMMA.16816.F32.BF16 R68, R52, R22, RZ ;       /* 0x000000163444723c */
        /*0060*/               @P0 LDG.E.U16 R8, desc[UR6][R4.64] ;              /* 0x0000000604080981 */
        /*0070*/              @!P2 BRA 0x90 ;                                    /* 0x000000000008a947 */
        /*0080*/                   CALL.REL.NOINC 0xd0 ;                         /* 0x0000000000107944 */
        /*0090*/                   STS.U16 [R64], R86 ;                          /* 0x0000005640007388 */
        /*00a0*/                   BAR.SYNC.DEFER_BLOCKING 0x0 ;                 /* 0x0000000000007b1d */
        /*00b0*/              @!P5 BRA 0x30 ;                                    /* 0xfffffffc00dcd947 */
        /*00c0*/                   EXIT ;                                        /* 0x000000000000794d */
        /*00d0*/                   MUFU.RCP R0, R0 ;                             /* 0x0000000000007308 */
        /*00e0*/                   RET.REL.NODEC R20 0x0 ;                       /* 0xfffffffc14c47950 */
        /*00f0*/                   BRA 0xf0;                                     /* 0xfffffffc00fc7947 */
"""


def faults_of(code: str, key: Kernel = KEY) -> list[str]:
    (function,) = read_functions(code.splitlines())
    return code_faults(function, key, {"tanh": TANH})


def repeated(code: str, part: str, times: int) -> str:
    (line,) = [line for line in code.splitlines() if part in line]
    return code.replace(line, "\n".join([line] * times))


@pytest.mark.parametrize(
    ("type", "key"),
    [
        ("rnnkern::BlockForwardKernel<rnnkern::Tanh, rnnkern::device::bfloat16, 32>", KEY),
        (
            "rnnkern::ClusterBackwardKernel<rnnkern::GruResetBefore, rnnkern::device::tfloat32, 256>",
            Kernel("Cluster", True, "gru_reset_before", "tfloat32", 256),
        ),
        ("rnnkern::GridForwardKernel<rnnkern::Tanh, float>", Kernel("Grid", False, "tanh", "float")),
        ("rnnkern::StepBackwardKernel<rnnkern::Gru, double, false>", Kernel("Step", True, "gru", "double")),
        ("rnnkern::StepBackwardKernel<rnnkern::Gru, double, true>", Kernel("Step", True, "gru", "double", noisy=True)),
        (
            "rnnkern::NormalisedStepForwardKernel<rnnkern::Gru, float, false>",
            Kernel("Step", False, "gru", "float"),
        ),
        ("rnnkern::AccumulateKernel<float>", None),
        ("rnnkern::givens::ForwardKernel<float, 2, 8>", None),
        ("rnnkern::relevancy::ClusterForwardKernel<rnnkern::Tanh, 256, 8, 8>", None),
    ],
)
def test_names(type, key):
    assert kernel(type, ["tanh", "gru", "gru_reset_before"]) == key


def test_number_of_kernels():
    facts = {"tanh": {"gates": 1, "resident": True}, "gru": {"gates": 3, "resident": True}}
    assert len(expected(facts)) == 2 * 2 * (3 * 3 + 3 + 2 * 4) + 2 * (6 + 6 + 6 + 3) + 2 * (5 + 5 + 3 + 3)


def test_report_is_read():
    report = read_report(REPORT.splitlines())
    assert report == {
        "BlockForwardKernel_Tanh_bfloat16_32": Resources(86, 0, 0),
        "AccumulateKernel_float": Resources(20, 0, 0),
    }
    assert [fault for name, used in report.items() for fault in report_faults(name, used)] == []


@pytest.mark.parametrize(("sound", "broken"), [("STACK:0", "STACK:8"), ("LOCAL:0", "LOCAL:8")])
@pytest.mark.parametrize("registers", ["REG:86 ", "REG:20 "])
def test_report_with_a_stack_frame(sound, broken, registers):
    before, after = REPORT.split(registers)
    report = read_report((before + registers + after.replace(sound, broken, 1)).splitlines())
    (fault,) = [fault for name, used in report.items() for fault in report_faults(name, used)]
    assert "8" in fault


def test_code_is_read():
    assert faults_of(CODE) == []
    (function,) = read_functions(CODE.splitlines())
    (loop,) = time_loops(function.code)
    assert (loop[0][0], loop[-1][0]) == (0x30, 0xB0)
    assert bounds(KEY, TANH) == Bounds(1, 9, 2, 1, 0)


@pytest.mark.parametrize(
    ("code", "fault"),
    [
        (CODE.replace("LDC R1, c[0x0][0x28]", "STL [R1], R0        "), "STL 1 times"),
        (CODE.replace("STS.U16 [R64], R86", "LDL.LU R86, [R1]  "), "LDL 1 times"),
        (repeated(CODE, "@P0 LDG", 10), "LDG 10 times"),
        (CODE.replace("STS.U16 [R64], R86", "LDS.128 R8, [R64] "), "LDS 1 times"),
        (repeated(CODE, "LDSM", 2), "LDSM 2 times"),
        (CODE.replace("STS.U16 [R64], R86", "BAR.SYNC 0x0      "), "BAR 2 times"),
        (CODE.replace("HMMA.16816.F32.BF16", "FFMA"), "HMMA 0 times"),
        (CODE.replace("@!P5 BRA 0x30", "@!P5 BRA 0xc0"), "0 time loops"),
        (CODE.replace("MUFU.RCP R0, R0", "I2F.U64.RP R0, R4.64"), "CALL.REL"),
    ],
)
def test_code_with_a_fault(code, fault):
    (found,) = faults_of(code)
    assert fault in found


def cluster_code(**changed: int) -> str:
    """Machine code of a time loop of the tanh cell at H = 256, with the given numbers of instructions, and with rare
    code after the end."""
    kinds = {"BAR.SYNC": 1, "LDSM.16": 2, "HMMA.16816": 4, "STAS.128": 1, "LDG.E.U16": 4} | {
        kind.replace("_", "."): times for kind, times in changed.items()
    }
    lines = ["LDC R1, c[0x0][0x28]", *(f"{kind} R0, R1" for kind, times in kinds.items() for _ in range(times))]
    lines += ["@P0 BRA 0x{:x}", "BRA 0x10", "LDG.E R2, [R4]", "UCGABAR_WAIT", "BAR.SYNC 0x0", "EXIT"]
    lines += ["SYNCS.PHASECHK R0", "BRA 0x20", "BRA 0x{:x}"]
    numbered = [f"        /*{16 * k:04x}*/   {line.format(16 * (len(lines) - 2))} ;" for k, line in enumerate(lines)]
    return "\n".join(["                Function : kernel", *numbered])


CLUSTER = KEY._replace(family="Cluster", head_size=256)


def test_code_of_a_cluster_is_read():
    assert faults_of(cluster_code(), CLUSTER) == []
    (function,) = read_functions(cluster_code().splitlines())
    assert len(time_loops(function.code, "STAS")) == 1


def test_code_of_a_cluster_in_tf32_is_read():
    """Fragments have half as many columns, and eight lanes send two words."""
    code, rounded = cluster_code(LDSM_16=4, HMMA_16816=8, STAS_128=2), CLUSTER._replace(storage="tfloat32")
    assert faults_of(code, rounded) == []
    assert len(faults_of(cluster_code(), rounded)) == 3
    assert len(faults_of(code, CLUSTER)) == 2


@pytest.mark.parametrize(
    ("kind", "times", "fault"),
    [("BAR_SYNC", 2, "BAR 2 times"), ("LDSM_16", 1, "LDSM 1 times"), ("HMMA_16816", 8, "HMMA 8 times"),
     ("LDG_E_U16", 5, "LDG 5 times"), ("STAS_128", 0, "0 time loops"), ("LDL", 1, "LDL 1 times")],
)  # fmt: skip
def test_code_of_a_cluster_with_a_fault(kind, times, fault):
    (found,) = faults_of(cluster_code(**{kind: times}), CLUSTER)
    assert fault in found


def grid_code(wide: str = "LDG.E.128.STRONG.GPU", **changed: int) -> str:
    """Machine code of a time loop of the tanh cell, with the given numbers of instructions, and with an inner loop that
    waits for words."""
    kinds = {"LDG.E.U16": 2, "BAR.SYNC": 1, "HMMA.16816": 4} | {
        kind.replace("_", "."): times for kind, times in changed.items()
    }
    lines = ["LDC R1, c[0x0][0x28]", *(f"{kind} R0, R1" for kind, times in kinds.items() for _ in range(times))]
    wait = 16 * len(lines)
    lines += [f"{wide} R4, [R2]", f"BRA 0x{wait:x}", "BRA 0x10", "EXIT"]
    numbered = [f"        /*{16 * k:04x}*/   {line} ;" for k, line in enumerate(lines)]
    return "\n".join(["                Function : kernel", *numbered])


@pytest.mark.parametrize(
    ("changed", "fault"),
    [({}, None), ({"BAR_SYNC": 2}, "BAR 2 times"), ({"HMMA_16816": 0, "FFMA": 4}, "HMMA 0 times"),
     ({"LDG_E_U16": 5}, "LDG 6 times"), ({"LDG_E_U16": 0}, "no time loop"), ({"STL": 1}, "STL 1 times"),
     ({"wide": "LDG.E.STRONG.GPU"}, "1 words in parts")],
)  # fmt: skip
def test_code_of_a_grid_is_read(changed, fault):
    found = faults_of(grid_code(**changed), KEY._replace(family="Grid", head_size=None))
    assert len(found) == bool(fault)
    assert not fault or fault in found[0]
