"""Both variants of the cluster kernels' wait compile and differ as intended."""

import json
import subprocess

import pytest
import torch

from perf import wait_scope
from python_tests.packaging.machine_code import CUOBJDUMP
from rnnkern import _compiler, _extension
from rnnkern._precompile import FACTS

ARCH = "sm_90"
pytestmark = [
    pytest.mark.proof,
    pytest.mark.skipif(not _extension.available, reason=f"no compiled part: {_extension.reason}"),
    pytest.mark.skipif(_compiler.nvrtc() is None, reason=f"{_compiler.LIBRARY} was not found"),
]


def plan() -> dict:
    sizes = (wait_scope.STEPS, wait_scope.BATCH, wait_scope.HIDDEN, 1)
    return json.loads(torch.ops.rnnkern.recurrence_plan("lstm", "bfloat16", sizes, FACTS[ARCH]))


@pytest.fixture(scope="module")
def cubins() -> dict[str, bytes]:
    """Cubins of the forward kernel, by scope."""
    ((header, type),) = [program for program in plan()["programs"] if "ClusterForward" in program[1]]
    found = {}
    with pytest.MonkeyPatch.context() as patch:
        for scope in wait_scope.SCOPES:
            patch.delenv("RNNKERN_CUDA_FLAGS", raising=False)
            patch.setenv("RNNKERN_CUDA_FLAGS", wait_scope.flags(scope))
            found[scope] = _compiler.compile_now(_compiler.Program(header, type, ARCH))
    return found


def test_the_cluster_kernel_serves_the_call_that_is_timed():
    assert plan()["kernel"] == wait_scope.KERNEL.rpartition("/")[2] == "cluster"


def test_the_forms_of_the_wait_are_different_programs(cubins):
    assert len(set(cubins.values())) == len(wait_scope.SCOPES)


@pytest.mark.skipif(CUOBJDUMP is None, reason="no cuobjdump")
def test_only_the_wait_that_reaches_the_cluster_drops_the_l1_lines(cubins, tmp_path):
    """The remaining instructions of the other variant are outside of the loop, at the barriers between blocks."""
    drops = {}
    for scope, cubin in cubins.items():
        path = tmp_path / f"{scope}.cubin"
        path.write_bytes(cubin)
        command = [CUOBJDUMP, "--dump-sass", path]
        code = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        assert "SYNCS.PHASECHK" in code
        drops[scope] = code.count("CCTL.IVALL")
    assert drops["cluster"] > drops["cta"] == 2
