"""Compiles CUDA kernels on all cores, before tests and measurements use them.

``python -m perf.gpu_kernels --help``. Kernels that are not compiled here are compiled at their first use.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence

import torch
from torch.nn import Module, ModuleList

import rnnkern
from rnnkern import _compiler, nn

DTYPES = (torch.bfloat16, torch.float32, torch.float16, torch.float64)
SIZES = (32, 64, 128, 256, 512, 768, 1024)
FEW_SIZES = (64, 512)
"""One size for the block kernels and one for the cluster kernels."""


def layers(hidden: int) -> Iterator[Module]:
    """One layer for each cell that most tests and measurements use."""
    yield nn.LSTM(8, hidden)
    yield nn.GRU(8, hidden)
    yield nn.GRU(8, hidden, reset_gate="before")
    yield nn.RNN(8, hidden)
    yield nn.RNN(8, hidden, nonlinearity="modrelu")
    if hidden <= 512:
        yield nn.RelRNN(8, hidden, buffer_size=10, relevant_size=10)
        yield nn.RelLSTM(8, hidden, buffer_size=10, relevant_size=10)


def few() -> Iterator[Module]:
    return (nn.LSTM(8, hidden) for hidden in FEW_SIZES)


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--few", metavar="ARCH", help="a handful for an architecture, such as sm_90, without the cache")
    arch = parser.parse_args(argv).few
    if arch:
        with tempfile.TemporaryDirectory() as folder:
            os.environ["RNNKERN_CACHE_DIR"] = folder
            count = rnnkern.precompile(ModuleList(few()), dtype=torch.bfloat16, arch=arch)
    else:
        model = ModuleList(layer for hidden in SIZES for layer in layers(hidden))
        count = sum(rnnkern.precompile(model, dtype=dtype, device="cuda") for dtype in DTYPES)
    compiler = _compiler.nvrtc()
    print(f"NVRTC {compiler.version}, {compiler.path}")
    print(f"{count} kernels were compiled")


if __name__ == "__main__":
    main(sys.argv[1:])
