"""The recurrence's CUDA kernels as a function that tests can call: on a GPU, or on the interpreter with CPU tensors."""

import functools
import json
from collections import Counter
from pathlib import Path

import torch

from python_tests.gpu import builder

KERNELS = ("block_f32.cu", "block_bf16.cu", "block_f16.cu", "step.cu")
DRIVERS = ("cuda_plan.cpp", "cuda_forward.cpp", "cuda_backward.cpp")
SOURCES = (
    *builder.INTERPRETER,
    "csrc/interpreter/recurrence.cpp",
    "csrc/common/counters.cpp",
    *(f"csrc/recurrence/{name}" for name in (*KERNELS, *DRIVERS)),
)
SHARED = ("recurrence", "recurrence_backward", "recurrence_plan", "kernel_counts")
OWN = ("set_facts(int major, int minor, int multiprocessors, int shared_bytes) -> ()", "set_seed(int seed) -> ()")


@functools.cache
def interpreted():
    """torch.ops.rnnkern_interpret, with the schemas of torch.ops.rnnkern."""
    torch_folder = Path(torch.__file__).parent
    flags = ["-DTORCH_TARGET_VERSION=0x020b000000000000", "-fvisibility=hidden", "-isystem", f"{torch_folder}/include"]
    library = builder.build("recurrence", SOURCES, flags, [f"-L{torch_folder}/lib", "-ltorch", "-ltorch_cpu"])
    definitions = torch.library.Library("rnnkern_interpret", "DEF")
    for name in SHARED:
        definitions.define(str(getattr(torch.ops.rnnkern, name).default._schema).removeprefix("rnnkern::"))
    for schema in OWN:
        definitions.define(schema)
    torch.ops.load_library(library)
    interpreted.kept = definitions
    return torch.ops.rnnkern_interpret


def counts(operators=None) -> Counter:
    return Counter(json.loads((operators or interpreted()).kernel_counts()))
