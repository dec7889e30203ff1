"""Builds rnnkern._C, one library on PyTorch's stable ABI; pyproject.toml holds everything else.

Environment: RNNKERN_CPP=0 installs pure Python; RNNKERN_CUDA=0|1 leaves CUDA out or insists on it (default: in where
nvcc is found); CXX, CUDA_HOME, TORCH_CUDA_ARCH_LIST and MAX_JOBS as PyTorch reads them; RNNKERN_CXXFLAGS and
RNNKERN_LDFLAGS are appended, for sanitizers and the like. Objects stay in build/ninja, so a second build is short.
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
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ENV = os.environ.get
ROOT = Path(__file__).resolve().parent
BUILD = Path("build/ninja")  # relative, as are all sources: a copy of the tree keeps its objects
PYTHON = sysconfig.get_path("include")
CXX = shlex.split(ENV("CXX", "c++"))
FLAGS = ["-std=c++20", "-O3", "-DTORCH_TARGET_VERSION=0x020b000000000000", "-DPy_LIMITED_API=0x030b0000"]
FLAGS += ["-fPIC", "-fopenmp", "-fvisibility=hidden", "-Wall", *shlex.split(ENV("RNNKERN_CXXFLAGS", ""))]
LINK = ["-shared", "-fopenmp", *shlex.split(ENV("RNNKERN_LDFLAGS", ""))]


def says(*command, stream="stdout"):
    return getattr(subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True), stream).strip()


def why_no_extension():
    """The reason to install pure Python, or None. A compiler that works is one that builds a Python module."""
    if ENV("RNNKERN_CPP") == "0":
        return "RNNKERN_CPP=0"
    with tempfile.TemporaryDirectory() as folder:
        command = [*CXX, *FLAGS, f"-I{PYTHON}", "-x", "c++", "-", *LINK, "-o", f"{folder}/probe.so"]
        try:
            code = "#include <Python.h>\n#include <omp.h>\n#include <concepts>\n"
            probe = subprocess.run(command, input=code, check=False, capture_output=True, text=True)
        except OSError as error:
            return f"the C++ compiler does not start ({error})"
    return f"the C++ compiler fails: {shlex.join(command)}\n{probe.stderr}" if probe.returncode else None


def find_nvcc():
    """The path of nvcc, or None to build without CUDA. Whether this machine has a GPU does not matter."""
    if ENV("RNNKERN_CUDA") == "0":
        return None
    places = [f"{ENV('CUDA_HOME')}/bin/nvcc", "nvcc", "/usr/local/cuda/bin/nvcc"]
    nvcc = next(filter(None, map(shutil.which, places)), None)
    if ENV("RNNKERN_CUDA") == "1" and not nvcc:
        sys.exit("rnnkern: RNNKERN_CUDA=1, but nvcc is not in CUDA_HOME, on PATH or in /usr/local/cuda")
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


def write_facts(path, nvcc, archs):
    """The header behind rnnkern.build_info(); left alone while nothing changes, so that nothing compiles again."""
    commit = (ROOT / ".git").exists() and says("git", "describe", "--always", "--dirty", "--exclude=*")
    cuda = re.search("release .* V(.*)", says(nvcc, "--version"))[1] if nvcc else None
    torch = importlib.metadata.version("torch")
    facts = {"commit": commit or None, "nvcc": cuda, "cuda_archs": archs, "torch": torch}
    text = f"#define RNNKERN_BUILD_FACTS {json.dumps(json.dumps(facts)[:-1])}\n"
    if not path.exists() or path.read_text() != text:
        path.write_text(text)


class Build(build_ext):
    """Compiles with ninja: in parallel, and again only what changed, headers and flags included."""

    def build_extension(self, ext):
        torch, nvcc = importlib.util.find_spec("torch"), find_nvcc()
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
            flags += ["-DRNNKERN_WITH_CUDA", "-DUSE_CUDA"]
            codes = [code for arch in archs for code in gencode(arch)]
            compilers["cu"] = [nvcc, "--forward-unknown-to-host-compiler", *codes]
            folders = re.findall(r'"(-L[^"]+)"', says(nvcc, "--dryrun", "none.o", stream="stderr"))
            libraries += [*folders, "-lcudart_static", "-ldl", "-lrt", "-lpthread"]

        link = f"{shlex.join([*CXX, *LINK])} -o $out $in {shlex.join(libraries)}"
        lines = [f"builddir = {BUILD}\nrule link\n command = {link}"]
        for kind, compiler in compilers.items():
            compile = f"{shlex.join([*compiler, *flags])} -MD -MF $out.d -c $in -o $out"
            lines += [f"rule {kind}\n command = {compile}\n depfile = $out.d\n deps = gcc"]
        kinds = {source: Path(source).suffix[1:] for source in ext.sources}
        without = () if nvcc else ("cuda_",)  # drivers of what nvcc compiles
        chosen = [s for s, kind in kinds.items() if kind in compilers and not Path(s).name.startswith(without)]
        objects = {source: f"{BUILD}/{source}.o" for source in chosen}
        lines += [f"build {made}: {kinds[source]} {source}" for source, made in objects.items()]
        lines += [f"build {BUILD}/_C.so: link {' '.join(objects.values())}\n"]
        (ROOT / BUILD).mkdir(parents=True, exist_ok=True)
        (ROOT / BUILD / "build.ninja").write_text("\n".join(lines))
        write_facts(ROOT / BUILD / "build_facts.h", nvcc, archs)
        jobs = ENV("MAX_JOBS") or str(os.cpu_count())
        ninja = [sys.executable, "-m", "ninja", "-f", f"{BUILD}/build.ninja", "-j", jobs]
        if subprocess.run(ninja, cwd=ROOT, check=False).returncode:
            sys.exit("rnnkern: the C++ part does not build; what ninja printed says why")
        self.mkpath(os.path.dirname(self.get_ext_fullpath(ext.name)))
        self.copy_file(ROOT / BUILD / "_C.so", self.get_ext_fullpath(ext.name))


csrc = [str(path.relative_to(ROOT)) for path in sorted((ROOT / "csrc").rglob("*.*"))]
sources = [path for path in csrc if path.endswith((".cpp", ".cu")) and "interpreter" not in path]
# What is not compiled counts as a dependency, so that a source distribution carries it.
extension = Extension("rnnkern._C", sources, depends=sorted(set(csrc) - set(sources)), py_limited_api=True)
missing = why_no_extension()
if missing:
    print(f"rnnkern: pure Python is installed, without the C++ part: {missing}", file=sys.stderr)
setup(
    ext_modules=[] if missing else [extension],
    cmdclass={"build_ext": Build},
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
