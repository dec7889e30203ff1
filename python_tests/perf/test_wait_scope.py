"""Both forms of the cluster kernels' wait compile, and are what is to be compared."""

import subprocess

import pytest

from perf import wait_scope
from python_tests.gpu import builder
from python_tests.packaging.machine_code import CUOBJDUMP

pytestmark = [
    pytest.mark.proof,
    pytest.mark.skipif(builder.nvcc() is None, reason="no nvcc"),
    pytest.mark.skipif(CUOBJDUMP is None, reason="no cuobjdump"),
]


def test_only_the_wait_that_reaches_the_cluster_drops_the_l1_lines(tmp_path):
    """What is left of the other stands outside of the loop, where blocks wait for each other."""
    drops = {}
    for scope in wait_scope.SCOPES:
        command = [CUOBJDUMP, "--dump-sass", wait_scope.build(scope, "sm_90", tmp_path)]
        code = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        assert "SYNCS.PHASECHK" in code
        drops[scope] = code.count("CCTL.IVALL")
    assert drops["cluster"] > drops["cta"] == 2
