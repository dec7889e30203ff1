"""What the compiler made of the recurrence's kernels."""

from pathlib import Path

import pytest

from python_tests.packaging.machine_code import cubin, dump, needs_compiler
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
    source_of,
    time_loops,
)
from rnnkern.ops.recurrence import KERNEL_CELLS

ROOT = Path(__file__).parents[2]
COMPILED = [
    *(
        ("sm_90", f"{family}_{dtype}.cu")
        for family in ("block", "cluster_forward", "cluster_backward", "grid")
        for dtype in ("bf16", "f32")
    ),
    *(("sm_90", f"cluster_{way}_tf32.cu") for way in ("forward", "backward")),
    ("sm_90", "step.cu"),
    ("sm_80", "block_bf16.cu"),
    ("sm_100", "block_bf16.cu"),
]


@needs_compiler
@pytest.mark.parametrize(("arch", "source"), COMPILED)
def test_machine_code(arch, source):
    """All kernels of the file are there, nothing spills, and their loops over time hold what a step needs."""
    wanted = {key for key in expected(KERNEL_CELLS) if source_of(key) == source}
    code = cubin(f"recurrence/{source}", arch)
    assert report_faults(read_report(dump("-res-usage", code)), KERNEL_CELLS, wanted) == []
    faults, seen = [], set()
    for function in read_functions(dump("-sass", code)):
        seen.add(kernel(function.name, KERNEL_CELLS))
        faults += code_faults(function, KERNEL_CELLS, arch)
    assert faults == []
    assert seen - {None} == wanted


def test_every_kernel_has_a_file():
    sources = {source_of(key) for key in expected(KERNEL_CELLS)}
    assert all((ROOT / "csrc/recurrence" / source).exists() for source in sources)
    assert {source for _, source in COMPILED} == {source for source in sources if "_f16" not in source}


# ---- the readers find faults

TANH = {"gates": 1, "states": 1, "params": 0, "saved": 0, "first_gates": 1, "joint": True, "resident": True}
MANGLED = "_ZN7rnnkern6device5entryINS_18BlockForwardKernelINS_4TanhENS0_8bfloat16ELi32EEEEEvNT_7ProblemE"
REPORT = f"""
Resource usage:
 Common:
  GLOBAL:0
 Function {MANGLED}:
  REG:86 STACK:0 SHARED:0 LOCAL:0 CONSTANT[0]:736 TEXTURE:0 SURFACE:0 SAMPLER:0
 Function _ZN7rnnkern6device5entryINS_16AccumulateKernelIfEEEEvNT_7ProblemE:
  REG:20 STACK:0 SHARED:0 LOCAL:0 CONSTANT[0]:568 TEXTURE:0 SURFACE:0 SAMPLER:0
"""
CODE = f"""
        code for sm_90
                Function : {MANGLED}
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


def faults_of(code: str) -> list[str]:
    (function,) = read_functions(code.splitlines())
    return code_faults(function, {"tanh": TANH})


def repeated(code: str, part: str, times: int) -> str:
    (line,) = [line for line in code.splitlines() if part in line]
    return code.replace(line, "\n".join([line] * times))


def test_names():
    cells = ["tanh", "gru", "gru_reset_before"]
    assert kernel(MANGLED, cells) == Kernel("Block", False, "tanh", "bfloat16", 32)
    step = "_ZN7rnnkern6device5entryINS_18StepBackwardKernelINS_14GruResetBeforeEdLb0EEEEEvNT_7ProblemE"
    assert kernel(step, cells) == Kernel("Step", True, "gru_reset_before", "double")
    assert kernel(step.replace("Lb0", "Lb1"), cells) == Kernel("Step", True, "gru_reset_before", "double", noisy=True)
    assert kernel("_ZN7rnnkern6device5entryINS_16AccumulateKernelIfEEEEvNT_7ProblemE", cells) is None
    assert kernel(MANGLED.replace("18Block", "20Cluster"), cells) == Kernel("Cluster", False, "tanh", "bfloat16", 32)
    rounded = MANGLED.replace("18Block", "20Cluster").replace("bfloat16", "tfloat32")
    assert kernel(rounded, cells) == Kernel("Cluster", False, "tanh", "tfloat32", 32)
    facts = {"tanh": {"gates": 1, "resident": True}, "gru": {"gates": 3, "resident": True}}
    assert len(expected(facts)) == 2 * 2 * (3 * 3 + 3 + 2 * 4) + 2 * (6 + 6 + 6 + 3) + 2 * (5 + 5 + 3 + 3)


def test_report_is_read():
    report = read_report(REPORT.splitlines())
    assert report[MANGLED] == Resources(86, 0, 0)
    faults = report_faults(report, {"tanh": TANH}, expected({"tanh": TANH}))
    assert len(faults) == 2 * (3 * 3 + 3 + 2 * 4) + 2 * (6 + 6 + 6 + 3) - 1
    assert all(fault.startswith("missing: ") for fault in faults)


@pytest.mark.parametrize(("sound", "broken"), [("STACK:0", "STACK:8"), ("LOCAL:0", "LOCAL:8")])
@pytest.mark.parametrize("registers", ["REG:86 ", "REG:20 "])
def test_report_with_a_stack_frame(sound, broken, registers):
    before, after = REPORT.split(registers)
    report = read_report((before + registers + after.replace(sound, broken, 1)).splitlines())
    faults = [
        fault
        for fault in report_faults(report, {"tanh": TANH}, expected({"tanh": TANH}))
        if not fault.startswith("missing")
    ]
    assert len(faults) == 1
    assert "8" in faults[0]


def test_code_is_read():
    assert faults_of(CODE) == []
    (function,) = read_functions(CODE.splitlines())
    (loop,) = time_loops(function.code)
    assert (loop[0][0], loop[-1][0]) == (0x30, 0xB0)
    assert bounds(kernel(MANGLED, ["tanh"]), TANH) == Bounds(1, 9, 2, 1, 0)


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
    """Of the loop of the tanh cell at H = 256, with so many instructions of a kind, and what is rare behind the end."""
    kinds = {"BAR.SYNC": 1, "LDSM.16": 2, "HMMA.16816": 4, "STAS.128": 1, "LDG.E.U16": 4} | {
        kind.replace("_", "."): times for kind, times in changed.items()
    }
    lines = ["LDC R1, c[0x0][0x28]", *(f"{kind} R0, R1" for kind, times in kinds.items() for _ in range(times))]
    lines += ["@P0 BRA 0x{:x}", "BRA 0x10", "LDG.E R2, [R4]", "UCGABAR_WAIT", "BAR.SYNC 0x0", "EXIT"]
    lines += ["SYNCS.PHASECHK R0", "BRA 0x20", "BRA 0x{:x}"]
    name = MANGLED.replace("18Block", "20Cluster").replace("Li32", "Li256")
    numbered = [f"        /*{16 * k:04x}*/   {line.format(16 * (len(lines) - 2))} ;" for k, line in enumerate(lines)]
    return "\n".join([f"                Function : {name}", *numbered])


def test_code_of_a_cluster_is_read():
    assert faults_of(cluster_code()) == []
    (function,) = read_functions(cluster_code().splitlines())
    assert len(time_loops(function.code, "STAS")) == 1
    assert code_faults(function, {"tanh": TANH}, "sm_80")[0].endswith("not a trap")
    function.code = [(0, "BPT.TRAP 0x1")]
    assert code_faults(function, {"tanh": TANH}, "sm_80") == []


def test_code_of_a_cluster_in_tf32_is_read():
    """Fragments are half as deep, and eight lanes have two words to send."""
    code = cluster_code(LDSM_16=4, HMMA_16816=8, STAS_128=2)
    assert faults_of(code.replace("bfloat16", "tfloat32")) == []
    assert len(faults_of(cluster_code().replace("bfloat16", "tfloat32"))) == 3
    assert len(faults_of(code)) == 2


@pytest.mark.parametrize(
    ("kind", "times", "fault"),
    [("BAR_SYNC", 2, "BAR 2 times"), ("LDSM_16", 1, "LDSM 1 times"), ("HMMA_16816", 8, "HMMA 8 times"),
     ("LDG_E_U16", 5, "LDG 5 times"), ("STAS_128", 0, "0 time loops"), ("LDL", 1, "LDL 1 times")],
)  # fmt: skip
def test_code_of_a_cluster_with_a_fault(kind, times, fault):
    (found,) = faults_of(cluster_code(**{kind: times}))
    assert fault in found


def grid_code(**changed: int) -> str:
    """Of the loop of the tanh cell, with so many instructions of a kind, and one that waits for words within it."""
    kinds = {"LDG.E.U16": 2, "BAR.SYNC": 1, "HMMA.16816": 4} | {
        kind.replace("_", "."): times for kind, times in changed.items()
    }
    lines = ["LDC R1, c[0x0][0x28]", *(f"{kind} R0, R1" for kind, times in kinds.items() for _ in range(times))]
    wait = 16 * len(lines)
    lines += ["LDG.E.128.STRONG.SYS R4, [R2]", f"BRA 0x{wait:x}", "BRA 0x10", "EXIT"]
    name = MANGLED.replace("18Block", "17Grid").replace("Li32E", "")
    numbered = [f"        /*{16 * k:04x}*/   {line} ;" for k, line in enumerate(lines)]
    return "\n".join([f"                Function : {name}", *numbered])


@pytest.mark.parametrize(
    ("changed", "fault"),
    [({}, None), ({"BAR_SYNC": 2}, "BAR 2 times"), ({"HMMA_16816": 0, "FFMA": 4}, "HMMA 0 times"),
     ({"LDG_E_U16": 5}, "LDG 6 times"), ({"LDG_E_U16": 0}, "no time loop"), ({"STL": 1}, "STL 1 times")],
)  # fmt: skip
def test_code_of_a_grid_is_read(changed, fault):
    found = faults_of(grid_code(**changed))
    assert len(found) == bool(fault)
    assert not fault or fault in found[0]
