"""Compilation of CUDA kernels at their first use: the cache, what its keys depend on, and errors.

Damaged files, other users' and processes at once: python_tests/cells/test_cache.py, since all compiled code is kept by
the same functions."""

import resource
import shutil
import stat
import warnings
from pathlib import Path

import pytest
import torch

from rnnkern import _compiler, _extension
from rnnkern._compiler import CompilationError, Program, cubin_of, key_of, place_of

SMALL = Program("cuda/alone.cuh", "rnnkern::cuda::AloneKernel", "sm_90")
OTHER = Program("recurrence/cuda/step.cuh", "rnnkern::AccumulateKernel<float>", "sm_90")
ELF = b"\x7fELF"

pytestmark = [
    pytest.mark.skipif(not _extension.available, reason=f"no compiled part: {_extension.reason}"),
    pytest.mark.skipif(_compiler.nvrtc() is None, reason=f"{_compiler.LIBRARY} was not found"),
]


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path) -> Path:
    """An empty cache, in a process that has compiled nothing."""
    monkeypatch.setenv("RNNKERN_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("RNNKERN_CUDA_FLAGS", raising=False)
    monkeypatch.setattr(_compiler, "_in_memory", {})
    _compiler.warn_of_folder.cache_clear()
    return tmp_path / "cache"


@pytest.fixture
def compiled(monkeypatch) -> list[Program]:
    """A list of the programs that are compiled from now on."""
    found, compile_now = [], _compiler.compile_now

    def compile_and_tell(program):
        found.append(program)
        return compile_now(program)

    monkeypatch.setattr(_compiler, "compile_now", compile_and_tell)
    return found


def next_process():
    """Clears the cache in memory, as in a new process."""
    _compiler._in_memory.clear()


# ---- the cache


def test_a_cubin_is_compiled_once_and_kept(cache, compiled):
    assert not _compiler.is_compiled(SMALL)
    cubin = cubin_of(SMALL)
    assert cubin.startswith(ELF)
    assert _compiler.is_compiled(SMALL)
    assert cubin_of(SMALL) == cubin
    next_process()
    assert _compiler.is_compiled(SMALL)
    assert cubin_of(SMALL) == cubin
    assert compiled == [SMALL]
    (file,) = cache.iterdir()
    assert file == place_of(SMALL)
    assert file.name.startswith("cuda_AloneKernel-sm_90-")
    assert stat.S_IMODE(file.stat().st_mode) == 0o644, "another user of the machine cannot read it"


def test_a_full_disk_leaves_nothing_behind(cache, compiled):
    """The size of files is limited to 100 bytes; Python ignores the signal for larger files."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
        try:
            cubins = [cubin_of(SMALL), cubin_of(OTHER), cubin_of(SMALL)]
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
    (warning,) = given
    assert "cannot keep compiled kernels" in str(warning.message)
    assert all(cubin.startswith(ELF) for cubin in cubins)
    assert compiled == [SMALL, OTHER]
    assert list(cache.iterdir()) == []


def test_where_the_cache_is(monkeypatch):
    monkeypatch.setenv("RNNKERN_CACHE_DIR", "/given")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    monkeypatch.setenv("HOME", "/home/someone")
    assert _compiler.cache_folder() == Path("/given")
    monkeypatch.delenv("RNNKERN_CACHE_DIR")
    assert _compiler.cache_folder() == Path("/xdg/rnnkern")
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    assert _compiler.cache_folder() == Path("/home/someone/.cache/rnnkern")

    def unknown():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", unknown)  # of a user whom the system does not know
    assert _compiler.cache_folder() == Path("/.cache/rnnkern")


# ---- names of cubins


@pytest.fixture
def headers(monkeypatch, tmp_path) -> Path:
    """A copy of the headers, which replaces those of the package."""
    copy = tmp_path / "csrc"
    shutil.copytree(_compiler.sources(), copy, ignore=shutil.ignore_patterns("*.cpp", "interpreter"))
    monkeypatch.setattr(_compiler, "sources", lambda: copy)
    _compiler._header.cache_clear()
    yield copy
    _compiler._header.cache_clear()


@pytest.mark.parametrize("name", ["recurrence/cuda/problem.h", "cells/math.h", "device/standard/cmath"])
def test_a_changed_header_makes_another_key(name, headers):
    before = key_of(OTHER)
    (headers / "common/team.h").unlink()  # is not included
    _compiler._header.cache_clear()
    assert key_of(OTHER) == before
    with open(headers / name, "a") as file:
        file.write("// more\n")
    _compiler._header.cache_clear()
    assert key_of(OTHER) != before


def test_the_key_is_of_all_that_is_compiled(headers, tmp_path, monkeypatch):
    """A kernel compiles with only the headers that its key includes."""
    header, alone = "recurrence/cuda/step.cuh", tmp_path / "alone"
    for name, text in (_compiler._included(header) | _compiler._included("device/entry.cuh")).items():
        (alone / name).parent.mkdir(parents=True, exist_ok=True)
        (alone / name).write_bytes(text)
    shutil.copytree(headers / "device/standard", alone / "device/standard")
    monkeypatch.setattr(_compiler, "sources", lambda: alone)
    type = "rnnkern::StepForwardKernel<rnnkern::Gru, float, true>"
    assert _compiler.compile_now(Program(header, type, "sm_90")).startswith(ELF)


def test_type_architecture_and_flags_are_of_the_key(monkeypatch, compiled):
    keys = {key_of(SMALL), key_of(OTHER), key_of(OTHER._replace(type="rnnkern::AccumulateKernel<double>"))}
    cubin = cubin_of(SMALL)
    monkeypatch.setenv("RNNKERN_CUDA_FLAGS", "-lineinfo -DUNUSED=1")
    assert cubin_of(SMALL) != cubin
    assert len(keys | {key_of(SMALL), key_of(SMALL._replace(arch="sm_80"))}) == 5
    monkeypatch.setenv("RNNKERN_CUDA_FLAGS", "--unheard-of")
    with pytest.raises(CompilationError, match="unheard-of"):
        cubin_of(SMALL)


# ---- the compiler


def test_what_does_not_compile_raises_with_the_log():
    wrong = SMALL._replace(type="rnnkern::cuda::NoKernel")
    with pytest.raises(CompilationError, match=r'nvrtcCompileProgram(.|\n)*has no member "NoKernel"'):
        cubin_of(wrong)
    cubin, text = _compiler.compile_kernel(*wrong, False)
    assert cubin.numel() == 0
    assert b"the CUDA kernel rnnkern::cuda::NoKernel does not compile for sm_90" in bytes(text.tolist())


def test_the_launcher_gets_the_cubin_and_the_name_of_its_function():
    cubin, text = _compiler.compile_kernel(*OTHER, False)
    assert bytes(cubin.tolist()) == cubin_of(OTHER)
    assert bytes(text.tolist()) == b"AccumulateKernel_float"
    with torch.device("meta"):  # a user may set another default device
        for given in (OTHER, OTHER._replace(type="rnnkern::NoKernel")):
            assert [part.device.type for part in _compiler.compile_kernel(*given, False)] == ["cpu", "cpu"]


@pytest.mark.parametrize("arch", ["sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_103", "sm_120"])
def test_every_architecture_is_known_to_the_compiler(arch):
    assert cubin_of(OTHER._replace(arch=arch)).startswith(ELF)


def test_a_library_that_does_not_open_is_passed_over(monkeypatch, tmp_path):
    (tmp_path / "libnvrtc.so.13").write_bytes(b"no library")
    found = _compiler.nvrtc().path
    places = [str(tmp_path / "libnvrtc.so.13"), str(tmp_path / "missing"), "libnvrtc.so.unheard_of", found]
    monkeypatch.setattr(_compiler, "_places", lambda: iter(places))
    assert _compiler.nvrtc.__wrapped__().path == found
    monkeypatch.setattr(_compiler, "_places", lambda: iter(places[:3]))
    assert _compiler.nvrtc.__wrapped__() is None


# ---- without NVRTC


def refusal(version="13.0", capability=(9, 0)):
    return _extension._cuda_refusal.__wrapped__(version, capability)


def test_reasons_and_remedies():
    assert refusal() is None
    for version, said in (("12.8", "built with CUDA 12.8"), (None, "built without CUDA")):
        why = refusal(version)
        assert why.endswith(said)
        assert _extension.remedies[why] == "install a PyTorch built with CUDA 13"
    assert refusal(capability=(7, 5)).endswith("a GPU with compute capability 8.0 or later, got 7.5")


def test_without_nvrtc_what_was_compiled_ahead_serves(cache, monkeypatch):
    """As in a container image that was built with NVRTC."""
    cubin = cubin_of(SMALL)
    next_process()
    monkeypatch.setattr(_compiler, "nvrtc", lambda: None)
    assert refusal() is None
    assert cubin_of(SMALL) == cubin
    assert not _compiler.is_compiled(OTHER)
    with pytest.raises(CompilationError, match=rf"libnvrtc.so.13 was not found, and {cache} does not contain the"):
        cubin_of(OTHER)
    place_of(SMALL).unlink()
    why = refusal()
    assert why.startswith("NVRTC (libnvrtc.so.13), which compiles rnnkern's CUDA kernels")
    assert _extension.remedies[why].startswith("`pip install 'rnnkern[cuda]'`")
