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
        source = Path(folder, "probe.cpp")
        source.write_text("#include <Python.h>\n#include <omp.h>\n#include <concepts>\n")
        command = [*CXX, *FLAGS, f"-I{PYTHON}", str(source), *LINK, "-o", f"{folder}/probe.so"]
        try:
            probe = subprocess.run(command, check=False, capture_output=True, text=True)
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
    number = arch.removesuffix("+PTX").replace(".", "")
    codes = ["sm", "compute"] if arch.endswith("+PTX") else ["sm"]
    return [f"-gencode=arch=compute_{number},code={code}_{number}" for code in codes]


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
        torch = importlib.util.find_spec("torch")
        if not torch:
            sys.exit("rnnkern: a build without isolation needs torch installed")
        torch, nvcc = torch.submodule_search_locations[0], find_nvcc()
        archs = cuda_archs(nvcc) if nvcc else []
        flags = [*FLAGS, "-Icsrc", f"-I{BUILD}", "-isystem", f"{torch}/include", "-isystem", PYTHON]
        # libtorch.so counts as needed although no symbol asks for it: through it the weak getter of the CUDA stream
        # is found in a PyTorch that has CUDA, and stays NULL in one that has not.
        libraries = [f"-L{torch}/lib", "-Wl,--no-as-needed", "-ltorch"]
        rules = {"cpp": [*CXX, *flags]}
        if nvcc:
            cuda = ["-DRNNKERN_WITH_CUDA", "-DUSE_CUDA"]
            codes = [code for arch in archs for code in gencode(arch)]
            rules["cpp"] += cuda
            rules["cu"] = [nvcc, "--forward-unknown-to-host-compiler", *flags, *cuda, *codes]
            folders = re.findall(r'"(-L[^"]+)"', says(nvcc, "--dryrun", "none.o", stream="stderr"))
            libraries += [*folders, "-lcudart_static", "-ldl", "-lrt", "-lpthread"]
        sources = [source for source in ext.sources if source.rpartition(".")[2] in rules]

        lines = [
            f"builddir = {BUILD}\nrule link\n command = {shlex.join([*CXX, *LINK])} -o $out $in {shlex.join(libraries)}"
        ]
        for name, command in rules.items():
            lines += [f"rule {name}\n command = {shlex.join(command)} -MD -MF $out.d -c $in -o $out"]
            lines += [" depfile = $out.d\n deps = gcc"]
        lines += [f"build {BUILD}/{source}.o: {source.rpartition('.')[2]} {source}" for source in sources]
        lines += [f"build {BUILD}/_C.so: link {' '.join(f'{BUILD}/{source}.o' for source in sources)}\n"]
        (ROOT / BUILD).mkdir(parents=True, exist_ok=True)
        (ROOT / BUILD / "build.ninja").write_text("\n".join(lines))
        write_facts(ROOT / BUILD / "build_facts.h", nvcc, archs)
        ninja = [sys.executable, "-m", "ninja", "-f", f"{BUILD}/build.ninja"]
        subprocess.run(ninja + (["-j", ENV("MAX_JOBS")] if ENV("MAX_JOBS") else []), cwd=ROOT, check=True)
        target = Path(self.get_ext_fullpath(ext.name))
        target.parent.mkdir(parents=True, exist_ok=True)
        self.copy_file(ROOT / BUILD / "_C.so", target)


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
