"""Builds rnnkern._C, one library on PyTorch's stable ABI; pyproject.toml holds everything else.

Environment variables:
    RNNKERN_SIMD_LEVELS  host (default: plain and this processor's own), all (for wheels), or names with commas
    RNNKERN_CUDA         1 compiles the CUDA kernels too, with nvcc; so does TORCH_CUDA_ARCH_LIST unless this is 0
    RNNKERN_CPP          0 installs pure Python
    RNNKERN_CXXFLAGS, RNNKERN_LDFLAGS   appended, for sanitizers and the like
    CXX, CUDA_HOME, TORCH_CUDA_ARCH_LIST, MAX_JOBS   as PyTorch reads them

Objects stay in build/ninja, so that a second build compiles only what has changed.
"""

import importlib.metadata
import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

ENV = os.environ.get
ROOT = Path(__file__).resolve().parent
BUILD = Path("build/ninja")  # relative, as are all sources: a copy of the tree keeps its objects
PYTHON = sysconfig.get_path("include")
CXX = shlex.split(ENV("CXX", "c++"))
FLAGS = ["-std=c++20", "-DTORCH_TARGET_VERSION=0x020b000000000000", "-DPy_LIMITED_API=0x030b0000"]
FLAGS += ["-fPIC", "-fopenmp", "-fvisibility=hidden", "-Wall", *shlex.split(ENV("RNNKERN_CXXFLAGS", ""))]
LINK = ["-shared", "-fopenmp", *shlex.split(ENV("RNNKERN_LDFLAGS", ""))]
PROBE = """
#include <Python.h>
#include <omp.h>

#define RNNKERN_SIMD_LEVEL plain
#include "common/simd_target.h"
#include "common/simd.h"
void probe(rnnkern::Vec<float>* v) { rnnkern::transpose(v); }
"""
LEVELS = {  # as csrc/common/simd_level.cpp asks the processor; each has those before it
    "plain": set(),
    "avx2": {"avx2", "fma", "f16c"},
    "avx512": {"avx512f", "avx512dq", "avx512bw", "avx512vl"},
    "avx512_bf16": {"avx512_bf16"},
}


def says(*command, stream="stdout"):
    return getattr(subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True), stream).strip()


def why_no_extension():
    """The reason to install pure Python, or None. A compiler that works builds a Python module with the SIMD types."""
    if ENV("RNNKERN_CPP") == "0":
        return "RNNKERN_CPP=0"
    with tempfile.TemporaryDirectory() as folder:
        command = [*CXX, *FLAGS, "-Icsrc", f"-I{PYTHON}", "-x", "c++", "-", *LINK, "-o", f"{folder}/probe.so"]
        try:
            probe = subprocess.run(command, cwd=ROOT, input=PROBE, check=False, capture_output=True, text=True)
        except OSError as error:
            return f"the C++ compiler does not start ({error})"
    return f"the C++ compiler fails: {shlex.join(command)}\n{probe.stderr}" if probe.returncode else None


def simd_levels():
    """The SIMD levels to compile: plain always, since pip keeps wheels and may install one on another machine."""
    wanted = ENV("RNNKERN_SIMD_LEVELS") or "host"
    if sysconfig.get_platform() != "linux-x86_64":
        return ["plain"]
    if wanted == "all":
        return list(LEVELS)
    if wanted == "host":
        has = set(re.search(r"^flags\s*:(.*)", Path("/proc/cpuinfo").read_text(), re.M)[1].split())
        own = "plain"
        for level, flags in LEVELS.items():
            if not flags <= has:
                break
            own = level
        wanted = own
    names = {"plain", *re.split("[ ,]+", wanted)}
    names |= {"avx512"} if "avx512_bf16" in names else set()  # which differs from it in bfloat16 alone
    if names - set(LEVELS):
        sys.exit(f"rnnkern: RNNKERN_SIMD_LEVELS must be host, all or some of {', '.join(LEVELS)}, got {wanted!r}")
    return [level for level in LEVELS if level in names]


def find_nvcc():
    """The path of nvcc, or None to build without CUDA. Whether this machine has a GPU does not matter."""
    if not (ENV("TORCH_CUDA_ARCH_LIST") if ENV("RNNKERN_CUDA") is None else ENV("RNNKERN_CUDA") == "1"):
        return None
    places = [f"{ENV('CUDA_HOME')}/bin/nvcc", "nvcc", "/usr/local/cuda/bin/nvcc"]
    nvcc = next(filter(None, map(shutil.which, places)), None)
    if not nvcc:
        sys.exit("rnnkern: CUDA was asked for, but nvcc is not in CUDA_HOME, on PATH or in /usr/local/cuda")
    return nvcc


def cuda_archs(nvcc):
    """As TORCH_CUDA_ARCH_LIST has them: "9.0+PTX" is code for 9.0, and PTX that later devices translate."""
    if wanted := ENV("TORCH_CUDA_ARCH_LIST"):
        return re.split("[ ;]+", wanted.strip(" ;"))
    known = says(nvcc, "--list-gpu-code").split()
    return [arch for arch, code in {"8.0": "sm_80", "9.0+PTX": "sm_90", "10.0": "sm_100"}.items() if code in known]


def gencode(arch):
    number, _, ptx = arch.replace(".", "").partition("+")
    return [f"-gencode=arch=compute_{number},code={kind}_{number}" for kind in ("sm", *(["compute"] if ptx else []))]


def write(path, text):
    """Left alone while nothing changes, so that nothing compiles again."""
    if not path.exists() or path.read_text() != text:
        path.write_text(text)


def write_facts(folder, levels, nvcc, archs):
    """The headers behind rnnkern.build_info() and the choice of a SIMD level."""
    commit = (ROOT / ".git").exists() and says("git", "describe", "--always", "--dirty", "--exclude=*")
    cuda = re.search("release .* V(.*)", says(nvcc, "--version"))[1] if nvcc else None
    torch = importlib.metadata.version("torch")
    facts = {"commit": commit or None, "nvcc": cuda, "cuda_archs": archs, "torch": torch, "built_simd_levels": levels}
    write(folder / "build_facts.h", f"#define RNNKERN_BUILD_FACTS {json.dumps(json.dumps(facts)[:-1])}\n")
    each = " ".join(f"X({level})" for level in levels)
    write(folder / "build_levels.h", f"#pragma once\n#define RNNKERN_BUILT_LEVELS(X) {each}\n")


def run_ninja():
    """Compiles in parallel; says every few seconds that it goes on, since one file can take a minute."""
    jobs, begun = ENV("MAX_JOBS") or str(os.cpu_count()), time.monotonic()
    command = [sys.executable, "-m", "ninja", "-f", f"{BUILD}/build.ninja", "-j", jobs]
    with subprocess.Popen(command, cwd=ROOT, env=os.environ | {"NINJA_STATUS": "[%f/%t] "}) as process:
        while True:
            try:
                if process.wait(5):
                    sys.exit("rnnkern: the C++ part does not build; what ninja printed says why")
                return time.monotonic() - begun
            except subprocess.TimeoutExpired:
                print(f"rnnkern: compiling, {time.monotonic() - begun:.0f} s", flush=True)


class Build(build_ext):
    """Compiles with ninja: in parallel, and again only what changed, headers and flags included."""

    def build_extension(self, ext):
        torch, nvcc, levels = importlib.util.find_spec("torch"), find_nvcc(), simd_levels()
        if not torch:
            sys.exit("rnnkern: a build without isolation needs torch installed")
        torch = torch.submodule_search_locations[0]
        archs = cuda_archs(nvcc) if nvcc else []
        flags = [*FLAGS, "-Icsrc", f"-I{BUILD}", "-isystem", f"{torch}/include", "-isystem", PYTHON]
        # libtorch.so counts as needed although no symbol asks for it: through it the weak getter of the CUDA stream
        # is found in a PyTorch that has CUDA, and stays NULL in one that has not.
        libraries = [f"-L{torch}/lib", "-Wl,--no-as-needed", "-ltorch"]
        compilers = {"cpp": CXX}
        if nvcc:
            codes = [code for arch in archs for code in gencode(arch)]
            compilers["cu"] = [nvcc, "--forward-unknown-to-host-compiler", *codes]
            folders = re.findall(r'"(-L[^"]+)"', says(nvcc, "--dryrun", "none.o", stream="stderr"))
            libraries += [*folders, "-lcudart_static", "-ldl", "-lrt", "-lpthread"]

        link = f"{shlex.join([*CXX, *LINK])} -o $out $in {shlex.join(libraries)}"
        lines = [f"builddir = {BUILD}\noptimize = -O2\nrule link\n command = {link}\n description = link $out"]
        for kind, compiler in compilers.items():
            compile = f"{shlex.join(compiler)} $optimize {shlex.join(flags)} $extra -MD -MF $out.d -c $in -o $out"
            lines += [f"rule {kind}\n command = {compile}\n description = $in $extra\n depfile = $out.d\n deps = gcc"]
        without = () if nvcc else ("cuda_",)  # drivers of what nvcc compiles
        objects = []
        for source in ext.sources:
            name, kind = Path(source).name, Path(source).suffix[1:]
            if kind not in compilers or name.startswith(without):
                continue
            for level in levels if "_level" in name and "simd_level" not in name else [""]:
                if level == "avx512_bf16" and "bf16" not in name:
                    continue
                objects.append(f"{BUILD}/{source}{level and '.' + level}.o")
                lines += [f"build {objects[-1]}: {kind} {source}"]
                lines += [f" extra = -DRNNKERN_SIMD_LEVEL={level}"] if level else []
                # Where -O2 was measured slower, by 3 to 20 %; it takes half as long to compile.
                lines += [" optimize = -O3"] if level not in ("", "plain") and "f16" not in name else []
                # Other objects stay as they are when CUDA joins the build.
                if nvcc and (kind == "cu" or name.startswith(("cuda_", "registration"))):
                    lines += [" extra = -DRNNKERN_WITH_CUDA -DUSE_CUDA"]
        lines += [f"build {BUILD}/_C.so: link {' '.join(objects)}\n"]
        (ROOT / BUILD).mkdir(parents=True, exist_ok=True)
        (ROOT / BUILD / "build.ninja").write_text("\n".join(lines))
        write_facts(ROOT / BUILD, levels, nvcc, archs)
        seconds = run_ninja()
        self.mkpath(os.path.dirname(self.get_ext_fullpath(ext.name)))
        self.copy_file(ROOT / BUILD / "_C.so", self.get_ext_fullpath(ext.name))
        cuda = f"CUDA for {', '.join(archs)}" if nvcc else "without CUDA"
        print(f"rnnkern: built for the SIMD levels {', '.join(levels)}, {cuda}, in {seconds:.0f} s", flush=True)


class Sources(build_py):
    """A source distribution has every file that git tracks, whether or not there is a compiler. Without git it has what
    the build needs, and what an unpacked source distribution lists."""

    def get_source_files(self):
        tracked = says("git", "ls-files").splitlines() if (ROOT / ".git").exists() else []
        return [*super().get_source_files(), *csrc, *tracked]


csrc = [str(path.relative_to(ROOT)) for path in sorted((ROOT / "csrc").rglob("*.*"))]
sources = [path for path in csrc if path.endswith((".cpp", ".cu")) and "interpreter" not in path]
extension = Extension("rnnkern._C", sources, py_limited_api=True)
missing = why_no_extension()
if missing:
    print(f"rnnkern: pure Python is installed, without the C++ part: {missing}", file=sys.stderr)
setup(
    ext_modules=[] if missing else [extension],
    cmdclass={"build_ext": Build, "build_py": Sources},
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
