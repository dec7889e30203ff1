"""Installation with and without the compiled extension: what works, and the messages."""

import json
import shutil
import sys

import torch

import rnnkern
from python_tests.packaging.conftest import ROOT, succeed
from rnnkern import _extension

REASON = "print(rnnkern._extension.reason)"


def test_pure_python_says_why(pure, python):
    assert not list(pure.rglob("*.so"))
    assert "without its compiled extension" in python(REASON, pure)
    said = json.loads(python("import json; print(json.dumps(rnnkern.build_info()))", pure))
    assert said.pop("version") == rnnkern.__version__
    assert not any(said.values())


def test_pure_python_computes(pure, python):
    """The reference computes results and gradients."""
    code = """
import torch
from rnnkern.ops import explain, recurrence
u, R, h0 = torch.randn(5, 2, 3, requires_grad=True), torch.randn(3, 3), torch.zeros(2, 3)
h, (last,) = recurrence("tanh", u, R, (h0,))
h.sum().backward()
print(tuple(h.shape), tuple(u.grad.shape), explain(recurrence, "tanh", u, R, (h0,)).implementation)
"""
    assert python(code, pure) == "(5, 2, 3) (5, 2, 3) reference\n"


def test_no_compiler_says_so_and_installs(pip, python, tmp_path):
    said = pip("install", "--target", tmp_path, CXX="/nonexistent/c++")
    assert "rnnkern: pure Python is installed, without the C++ part: the C++ compiler fails: /nonexistent/c++ " in said
    assert "without its compiled extension" in python(REASON, tmp_path)


def test_a_compiler_without_the_vector_extensions_is_a_reason():
    """For example clang, which can build a Python module but not the SIMD header."""
    done = succeed(sys.executable, "setup.py", "--name", folder=ROOT, CXX="c++ -D__builtin_shuffle=missing")
    assert "rnnkern: pure Python is installed, without the C++ part: the C++ compiler fails" in done.stderr
    assert "csrc/common/simd.h" in done.stderr


def test_library_that_does_not_load_is_a_reason(pure, python, tmp_path):
    shutil.copytree(pure / "rnnkern", tmp_path / "rnnkern")
    (tmp_path / "rnnkern" / "_C.abi3.so").write_bytes(b"not a library")
    assert "does not work with this system" in python(REASON, tmp_path)


def test_a_processor_below_the_built_levels_is_a_reason(monkeypatch):
    facts = {"built_simd_levels": ["avx512"], "simd_levels": [], "processor_simd_level": "avx2"}
    monkeypatch.setattr(torch.ops.rnnkern, "build_info", lambda: json.dumps(facts))
    said = "rnnkern's compiled extension was built for the SIMD levels avx512, and this processor supports only avx2"
    assert _extension._load() == said
    assert "RNNKERN_SIMD_LEVELS=all" in _extension.remedies[said]


def test_old_torch_is_a_reason(monkeypatch):
    monkeypatch.setattr(torch, "__version__", "2.10.1+cpu")
    assert _extension._load() == "rnnkern's compiled extension needs torch 2.11 or later, got torch 2.10.1+cpu"
