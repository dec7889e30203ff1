"""Tests without a GPU: the kernels that run on the interpreter also compile with NVRTC, for every architecture."""

import json

import pytest

from python_tests.gpu import kernels
from rnnkern import _compiler, _extension

CLUSTERS = ("ClusterIds", "ClusterBarrier", "MbarrierPhases", "StoreAsync")
"""Features that GPUs before compute capability 9.0 lack."""


@pytest.mark.skipif(not _extension.available, reason=f"no compiled part: {_extension.reason}")
@pytest.mark.skipif(_compiler.nvrtc() is None, reason="no NVRTC")
@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100"])
def test_primitives_compile_for_hardware(arch):
    programs = json.loads(kernels.operators().programs())
    assert len(programs) > 20
    for header, kernel in programs:
        if arch == "sm_80" and any(f"::{name}" in kernel for name in CLUSTERS):
            continue
        assert _compiler.compile_now(_compiler.Program(header, kernel, arch)), kernel
