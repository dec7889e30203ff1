"""Triton kernels over a table of operators: in Triton's interpreter, compiled for three architectures, and on a GPU."""

import pytest
import torch
from torch.utils._pytree import tree_map

import rnnkern
from python_tests.gpu.graphs import captured
from python_tests.gpu.triton_calls import OPERATORS, check_interpreted, compiled
from python_tests.samples import FILTER_OPTIONS, SCAN_OPTIONS, gather_sample
from python_tests.samples.agreement import wide
from python_tests.tiers import quick_where
from rnnkern import _extension, ops
from rnnkern.ops import triton_launch
from rnnkern.ops._relational import similarity_triton
from rnnkern.ops._relevancy import gather_triton
from rnnkern.ops._scan import filter_triton, scan_triton
from rnnkern.ops._scan.moment_filter import EVERY
from rnnkern.testing import as_reals

pytest.importorskip("triton")
pytestmark = pytest.mark.skipif(not _extension.available, reason=f"no compiled part: {_extension.reason}")
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
F32, F64, BF16, C64 = torch.float32, torch.float64, torch.bfloat16, torch.complex64


# ---- in the interpreter


INTERPRETED = [
    "gather_attention", "linear_scan and not test_linear_scan", "moment_filter", "similarity", "test_linear_scan",
]  # fmt: skip


@pytest.mark.parametrize("only", quick_where(lambda only: only in INTERPRETED[:2], INTERPRETED))
def test_the_interpreter_finds_the_references_answers(only):
    check_interpreted("interpreted.py", only)


# ---- which call they run


@pytest.mark.parametrize("name", [*OPERATORS, "skew_exp"])
def test_the_operator_of_a_gpu_is_this_one(name):
    for operator in (name, f"{name}_backward"):
        assert torch._C._dispatch_has_kernel_for_dispatch_key(f"rnnkern::{operator}", "CUDA")
    assert triton_launch.refusal(torch.device("cuda")) is None


def test_only_a_few_objects_fit_into_a_program():
    assert similarity_triton.refusal(128) is None
    assert similarity_triton.refusal(129) == "more than 128 objects, here 129, do not fit into a program's registers"


@pytest.mark.parametrize(("columns", "steps", "chunks"), [
    (64 * 1024, 4096, 1), (16 * 128, 4096, 64), (1, 1 << 20, 1024), (128, 8, 1), (1, 0, 1), (40, 17, 2),
])  # fmt: skip
def test_few_columns_are_cut_in_time(columns, steps, chunks):
    plan = scan_triton.plan(columns, steps, 4)
    assert plan.chunks == chunks
    assert plan.length * plan.chunks >= steps
    assert plan.length * (plan.chunks - 1) < max(steps, 1)


# ---- compiled ahead of time

NAMES = {F32: "fp32", F64: "fp64", BF16: "bf16"}


class Kinds(dict):
    """Types of arguments; of all others a pointer."""

    def __init__(self, dtype, **others):
        super().__init__({"offsets": "*i64", "reset": "*u8", "cuts": "*i8", "idx": "*i32"} | others)
        self.pointer = f"*{NAMES[dtype]}"

    def __missing__(self, name):
        return self.pointer


def absent(constants):
    """None for what a packed call or one with resets has."""
    return constants | {x: None for x, flag in (("offsets", "PACKED"), ("reset", "RESET")) if not constants[flag]}


def compile_linear_scan(dtype, arch, *flags, names=("scan", "summarise", "carry", "backward"), **options):
    constants = dict.fromkeys(("COMPLEX", "PACKED", "RESET", "PER_STEP", "FLIP"), False)
    constants |= dict.fromkeys(("HAS_H0", "HAS_X", "HAS_INITIAL", "HAS_GRAD", "HAS_LAST", "NEEDS_A", "SEQUENCE"), True)
    constants |= {"BLOCK": scan_triton.plan(4096, 100, dtype.itemsize).block, "STAGES": scan_triton.STAGES}
    constants |= {"BACKWARD": True} | dict.fromkeys(flags, True) | options
    kinds = Kinds(dtype, **dict.fromkeys(("T", "N", "C", "length", "chunks"), "i32"))
    if dtype.itemsize < 4:
        kinds |= dict.fromkeys(("products", "ends", "begins"), "*fp32")
    return [compiled(getattr(scan_triton.kernels(), x), arch, absent(constants), kinds, 4) for x in names]


def compile_moment_filter(dtype, arch, *missing):
    for name in ("forward", "backward"):
        kernel = getattr(filter_triton.kernels(), name)
        constants = {key: key not in missing for key in kernel.arg_names if key.isupper() and key not in "TNC"}
        constants |= {"MU": 0.6, "S": 0.7, "BETA": 0.9, "EPS": 0.01, "EVERY": EVERY, "BLOCK": filter_triton.BLOCK}
        kinds = Kinds(torch.promote_types(dtype, F32), **dict.fromkeys(("T", "N", "C"), "i32"))
        kinds |= dict.fromkeys(("u", "y", "grad_y", "grad_u"), f"*{NAMES[dtype]}")
        compiled(kernel, arch, absent(constants), kinds, 2)


def compile_similarity(dtype, arch, objects):
    block_t, block_d, warps = similarity_triton.blocks(objects)
    flags = ("PACKED", "TWO", "HAS_WEIGHT", "HAS_VALUES", "HAS_LENGTHS", "HAS_R", "HAS_S", "HAS_P", "SCORES")
    constants = dict.fromkeys(flags, True) | {
        "SCALE": 1.0, "EPS": 1e-8, "CORRECTION": 1, "MASK": "causal", "TINY": torch.finfo(dtype).tiny,
        "BLOCK_T": block_t, "BLOCK_D": block_d,
    }  # fmt: skip
    kinds = Kinds(dtype, **dict.fromkeys(("T", "d", "e", "segments", "share"), "i32"), lengths="*i64", starts="*i32")
    for name in ("forward", "backward"):
        compiled(getattr(similarity_triton.kernels(), name), arch, constants, kinds, warps)


def compile_gather_attention(dtype, arch, hidden, slots):
    block_k, block_n = gather_triton._blocks(hidden, slots)
    constants = {
        "DOT": False, "ROWS": gather_triton.ROWS, "PIECE": gather_triton.PIECE, "BLOCK_K": block_k, "BLOCK_N": block_n,
        "BLOCK_P": gather_triton._blocks(hidden, gather_triton.PIECE)[0],
    }  # fmt: skip
    kinds = Kinds(dtype, **dict.fromkeys(("T", "M", "K", "n", "share", "memories"), "i32"))
    kinds |= dict.fromkeys(("order", "begins", "pieces", "firsts", "spares", "memory_of"), "*i64")
    for name in ("forward", "weigh", "backward_queries", "backward_memories", "add_pieces"):
        compiled(getattr(gather_triton.kernels(), name), arch, constants, kinds, 4)


LINEAR_SCANS = [
    (F32, ()), (BF16, ("PER_STEP",)), (F32, ("COMPLEX", "PACKED", "RESET", "FLIP")),
    (F64, ("COMPLEX", "PER_STEP", "PACKED", "RESET")),
]  # fmt: skip
COMPILED = [
    *((compile_linear_scan, dtype, arch, *flags) for dtype, flags in LINEAR_SCANS for arch in (80, 90, 100)),
    (compile_moment_filter, F32, 90, "PACKED"),
    (compile_moment_filter, BF16, 80, "SQUARES"),
    (compile_moment_filter, F64, 100, "SQUARES", "RESET", "FLIP"),
    *((compile_similarity, F32, arch, 9) for arch in (80, 90, 100)),
    (compile_similarity, F64, 90, 9),
    *((compile_similarity, F32, 90, objects) for objects in (64, 128)),
    *((compile_gather_attention, F32, arch, 128, 20) for arch in (80, 90, 100)),
    *((compile_gather_attention, F64, arch, 40, 3) for arch in (80, 90, 100)),
    (compile_gather_attention, F32, 90, 3000, 20),
]
QUICK = [
    (compile_linear_scan, F32, 90), (compile_moment_filter, F32, 90, "PACKED"),
    (compile_gather_attention, F32, 90, 128, 20),
]  # fmt: skip


@pytest.mark.parametrize(
    "case", [x if x in QUICK else pytest.param(x, marks=pytest.mark.proof) for x in COMPILED],
    ids=lambda case: "-".join([case[0].__name__, *map(str, case[1:])]),
)  # fmt: skip
def test_kernels_compile_ahead_of_time(case):
    compile_kernels, *rest = case
    compile_kernels(*rest)


@pytest.mark.parametrize("dtype", quick_where(lambda dtype: dtype == F32, [F32, BF16]))
@pytest.mark.parametrize("name", ["scan", "summarise", "backward"])
def test_steps_of_a_scan_are_read_ahead(name, dtype):
    for options, ahead in (({}, True), ({"STAGES": 1}, False)):
        (made,) = compile_linear_scan(dtype, 90, "PER_STEP", names=[name], **options)
        assert ("cp.async" in made.asm["ptx"]) == ahead


# ---- on a GPU

BOUNDS = {F32: 1e-5, C64: 1e-5, F64: 1e-13, BF16: 1e-2}
CALLS = [
    *(("linear_scan", sizes, {"dtype": dtype} | options) for sizes in ((300, 3, 40), (50, 64, 1024), (5000, 1, 3))
      for dtype in (F32, F64, C64) for options in SCAN_OPTIONS.values()),
    *(("moment_filter", sizes, {"dtype": dtype} | options) for sizes in ((300, 3, 40), (50, 64, 1024))
      for dtype in (F32, F64, BF16) for options in FILTER_OPTIONS.values()),
    *(("similarity", (33, objects, 100), {"dtype": dtype, "packed": True}) for objects in (1, 9, 17, 64, 128)
      for dtype in (F32, F64)),
    *(("gather_attention", sizes, {"dtype": dtype}) for sizes in ((2, 5, 7, 4, 9), (3, 300, 40, 20, 128),
      (2, 500, 3, 2, 33)) for dtype in (F32, F64)),
]  # fmt: skip


def apply(f, call):
    return tree_map(lambda x: f(x) if isinstance(x, torch.Tensor) else x, call)


def check_on_gpu(name, sizes, options):
    _, draw, results = OPERATORS[name]
    call = draw(*sizes, **options)
    there = apply(torch.Tensor.cuda, call)
    if name in ("linear_scan", "moment_filter"):  # lengths stay on the CPU
        there.kwargs["batch_sizes"] = call.kwargs["batch_sizes"]
    operator = getattr(ops, name)
    wanted = results(operator, apply(lambda x: wide(x) if x.is_floating_point() or x.is_complex() else x, call))
    with rnnkern.use("triton"):
        found, again = (results(operator, there) for _ in range(2))
    for what, x in found.items():
        error, truth = as_reals(x).cpu().double() - as_reals(wanted[what]).double(), as_reals(wanted[what]).norm()
        bound = BOUNDS[options["dtype"]] * truth
        if name == "similarity":
            bound = 10 * BOUNDS[options["dtype"]] * max(truth.item(), 1.0)
        assert error.norm() <= bound, what
        assert torch.equal(x, again[what])


@needs_gpu
@pytest.mark.parametrize(("name", "sizes"), [
    ("linear_scan", (20, 3, 40)), ("moment_filter", (20, 3, 40)), ("similarity", (5, 9, 128)),
    ("gather_attention", (2, 5, 7, 4, 9)),
])  # fmt: skip
def test_the_first_call_on_a_gpu(name, sizes):
    check_on_gpu(name, sizes, {"dtype": F32})


@pytest.mark.proof
@needs_gpu
@pytest.mark.parametrize(("name", "sizes", "options"), CALLS, ids=str)
def test_on_a_gpu(name, sizes, options):
    check_on_gpu(name, sizes, options)


@pytest.mark.proof
@needs_gpu
@pytest.mark.parametrize("dtype", [F32, F64])
@pytest.mark.parametrize("name", ["similarity", "gather_attention"])
def test_in_a_cuda_graph(name, dtype):
    if name == "similarity":
        leaves, call = [torch.randn(33, 17, 100, dtype=dtype)], lambda x: ops.similarity(x, packed=True)
    else:
        q, u, h, idx, v = (x.cuda() for x in gather_sample(3, 300, 40, 20, 128, dtype=dtype))
        leaves, call = [q, u, h, v], lambda q, u, h, v: ops.gather_attention(q, u, h, idx, v)
    leaves = [x.cuda().requires_grad_() for x in leaves]

    def step():
        out = call(*leaves)
        return out.detach(), *torch.autograd.grad(out, leaves, torch.ones_like(out))

    found = step()
    graph, results = captured(step)
    graph.replay()
    for a, b, c in zip(results, found, step(), strict=True):
        assert torch.equal(a, b)
        assert torch.equal(b, c)
