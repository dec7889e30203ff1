"""The table of operators with Triton kernels; their kernels in Triton's interpreter, and compiled ahead of time."""

import re

from python_tests.gpu import builder
from python_tests.samples import (
    filter_outputs_and_gradients,
    filter_sample,
    gather_outputs_and_gradients,
    gather_sample,
    scan_outputs_and_gradients,
    scan_sample,
    similarity_outputs_and_gradients,
    similarity_sample,
)
from rnnkern.ops import triton_launch
from rnnkern.ops._relational import similarity_triton
from rnnkern.ops._relevancy import gather_triton
from rnnkern.ops._scan import filter_triton, scan_triton


def attending(*sizes, alignment="additive", **options):
    return gather_sample(*sizes, **options), alignment


OPERATORS = {
    "linear_scan": (scan_triton, scan_sample, scan_outputs_and_gradients),
    "moment_filter": (filter_triton, filter_sample, filter_outputs_and_gradients),
    "similarity": (similarity_triton, similarity_sample, similarity_outputs_and_gradients),
    "gather_attention": (gather_triton, attending, gather_outputs_and_gradients),
}
"""For each operator its kernels, a function that draws a call, and one that computes all results of a call by name.
skew_exp has no options and is compared with eigenvalues instead."""


def check_interpreted(file: str, only: str = "") -> None:
    """Runs the tests of a file that match ``only`` in another process, because importing Triton decides whether its
    functions are compiled or interpreted."""
    arguments = ("-m", "pytest", "-q", "-p", "no:cacheprovider", f"python_tests/gpu/{file}", "-k", only)
    done = builder.run_python(*arguments, TRITON_INTERPRET="1")
    assert done.returncode == 0, done.stdout[-4000:]


def compiled(kernel, arch, constants, kinds, warps):
    """Compiles a kernel whose arguments are constants or have these types, as in a launch; sums are in a fixed
    order."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    names = kernel.arg_names
    signature = {name: "constexpr" if name in constants else kinds[name] for name in names}
    given = {(names.index(name),): value for name, value in constants.items() if name in names}
    aligned = [name for name, kind in signature.items() if str(kind).startswith("*") or name in ("N", "C")]
    multiples = {(names.index(name),): [["tt.divisibility", 16]] for name in aligned}
    source, target = ASTSource(kernel, signature, given, multiples), GPUTarget("cuda", arch, 32)
    made = triton.compile(source, target=target, options={"num_warps": warps} | triton_launch.OPTIONS)
    assert made.asm["cubin"]
    assert not re.search(r"\b(atom|red)\.", made.asm["ptx"])
    return made
