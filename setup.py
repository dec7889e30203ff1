"""Builds rnnkern._C, one C++ library on PyTorch's stable ABI; pyproject.toml holds everything else.

docs/install.md lists the environment variables. Object files stay in build/ninja, which makes a second build quick.
"""

import json
import os
import re
import shutil
import sys
import sysconfig
from pathlib import Path
from shlex import quote
from subprocess import call, getoutput, getstatusoutput

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ENV, BUILD = os.environ.get, Path("build/ninja")  # relative like all sources, so that a copied tree reuses its objects
CXX = ENV("CXX", "c++")
COMPILE = f"{CXX} -std=c++20 -fPIC -fopenmp -fvisibility=hidden -Wall -DTORCH_TARGET_VERSION=0x020b000000000000"
COMPILE += f" -DPy_LIMITED_API=0x030b0000 -I{BUILD} -Icsrc -isystem {quote(sysconfig.get_path('include'))}"
COMPILE += f" {ENV('RNNKERN_CXXFLAGS', '')}"
LINK = f"-shared -fopenmp {ENV('RNNKERN_LDFLAGS', '')}"
# Each level includes those before it. The compiler defines the macro if the processor supports the level.
LEVELS = dict(re.findall(r"^  X\((\w+), \d+, (\w+)", Path("csrc/common/simd_level.h").read_text(), re.MULTILINE))


def simd_levels():
    """The SIMD levels to compile; for a wheel also plain, because pip caches it and may install it elsewhere."""
    macros = getoutput(f"{CXX} -march=native -dM -E -x c++ {os.devnull}")
    known = list(LEVELS) if "__x86_64__" in macros else ["plain"]
    supported = [level for level in known if LEVELS[level] in macros]
    named = {"all": known, "supported": supported, "host": supported[-1:]}
    wanted = ENV("RNNKERN_SIMD_LEVELS") or "host"
    always = [] if {"--inplace", "editable_wheel"} & {*sys.argv} else ["plain"]
    names = {*named.get(wanted, wanted.replace(",", " ").split()), *always}
    if names - set(known):
        some = ", ".join(known)
        sys.exit(f"rnnkern: RNNKERN_SIMD_LEVELS must be host, supported, all or some of {some}, got {wanted!r}")
    names |= {"avx512_bf16"} if "amx" in names else set()  # amx adds tiles to the levels with AVX-512
    names |= {"avx512"} if "avx512_bf16" in names else set()  # avx512_bf16 compiles only products of bfloat16
    return [level for level in known if level in names]


def write(name, text):
    """Writes a file only if its text has changed, so that ninja does not recompile what depends on it."""
    if not (BUILD / name).exists() or (BUILD / name).read_text() != text:
        (BUILD / name).write_text(text)


def ninja_lines(sources, levels, torch):
    # --no-as-needed keeps the dependency on libtorch.so, of which no symbol is used directly. The weak symbol that
    # returns the CUDA stream is found through it if PyTorch was built with CUDA, and is NULL otherwise.
    link = f"{CXX} {LINK} -L{quote(torch)}/lib -o $out $in -Wl,--no-as-needed -ltorch -ldl"
    yield f"builddir = {BUILD}\nrule link\n command = {link}\n description = link $out"
    compile = f"{COMPILE} -isystem {quote(torch)}/include $extra -MD -MF $out.d -c $in -o $out"
    yield f"rule cpp\n command = {compile}\n description = $in $extra\n depfile = $out.d\n deps = gcc"
    objects = []
    for source in sources:
        for level in [x for x in levels if x != "amx"] if "/cpu/" in source and "level" in source else [""]:
            if (level == "avx512_bf16") == ("bf16" in source):
                objects.append(f"{BUILD}/{source}.{level or 'any'}.o")
                # -O3 only where -O2 was 3 to 20 % slower in measurements, because it takes twice as long to compile.
                extra = "-O3" if level not in ("", "plain", "avx512_bf16") else "-O2"
                extra += f" -DRNNKERN_SIMD_LEVEL={level}" if level else ""
                extra += " -DRNNKERN_TILES=1" if "amx" in levels and level.startswith("avx512") else ""
                yield f"build {objects[-1]}: cpp {source}\n extra = {extra}"
    yield f"build {BUILD}/_C.so: link {' '.join(objects)}\n"


class Build(build_ext):
    """Compiles with ninja: in parallel, and only what has changed, including headers and flags."""

    def build_extension(self, ext):
        import torch

        levels = simd_levels()
        commit = getoutput("git --git-dir=.git describe --always --dirty --exclude='*' 2>/dev/null") or None
        facts = {"commit": commit, "torch": torch.__version__, "built_simd_levels": levels}
        write("build_facts.h", f"#define RNNKERN_BUILD_FACTS {json.dumps(json.dumps(facts)[:-1])}\n")
        each = " ".join(f"X({level})" for level in levels)
        write("build_levels.h", f"#pragma once\n#define RNNKERN_BUILT_LEVELS(X) {each}\n")
        write("build.ninja", "\n".join(ninja_lines(ext.sources, levels, torch.__path__[0])))
        ninja = [sys.executable, *f"-m ninja -f {BUILD}/build.ninja -j {ENV('MAX_JOBS') or os.cpu_count()}".split()]
        if call(ninja):
            sys.exit("rnnkern: the C++ part does not build; what ninja printed says why")
        # The headers are installed with the library, because CUDA kernels are compiled from them at run time.
        others = shutil.ignore_patterns("*.cpp", "interpreter")
        shutil.copytree("csrc", f"{self.build_lib}/rnnkern/csrc", ignore=others, dirs_exist_ok=True)
        self.copy_file(BUILD / "_C.so", self.get_ext_fullpath(ext.name))
        print(f"rnnkern: built for the SIMD levels {', '.join(levels)}", flush=True)


paths = sorted(Path("csrc").rglob("*.cpp"))
sources = [str(path) for path in paths if "interpreter" not in path.parts and path.name != "probe.cpp"]
BUILD.mkdir(parents=True, exist_ok=True)
probe = f"{COMPILE} csrc/common/probe.cpp {LINK} -o {BUILD}/probe.so"
wanted = ENV("RNNKERN_CPP") != "0"
failed, printed = getstatusoutput(probe) if wanted else (True, "")
if failed:
    why = f"the C++ compiler fails: {probe}\n{printed}" if wanted else "RNNKERN_CPP=0"
    print(f"rnnkern: pure Python is installed, without the C++ part: {why}", file=sys.stderr)
modules = [] if failed else [Extension("rnnkern._C", sources, py_limited_api=True)]
setup(ext_modules=modules, cmdclass={"build_ext": Build}, options={"bdist_wheel": {"py_limited_api": "cp311"}})
