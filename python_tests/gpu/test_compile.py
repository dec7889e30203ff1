"""Without a GPU: what the interpreter ran is also what nvcc takes, and ptxas assembles every instruction."""

import ctypes

import pytest

from python_tests.gpu import builder, kernels


@pytest.mark.skipif(builder.nvcc() is None, reason="no nvcc")
@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100"])
def test_primitives_compile_for_hardware(arch):
    flags = ["--Werror=all-warnings"]
    built = builder.build(f"conformance_{arch}", [kernels.CONFORMANCE], flags, target=arch)
    assert ctypes.CDLL(str(built)).run_conformance


def test_a_library_that_does_not_build_says_why():
    source = builder.ROOT / "build" / "wrong.cpp"
    source.parent.mkdir(exist_ok=True)
    source.write_text("int f() { return unheard_of; }")
    with pytest.raises(RuntimeError, match="unheard_of"):
        builder.build("wrong", ["build/wrong.cpp"])
