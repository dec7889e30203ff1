"""Builds here what ``make gpu`` needs on a machine with a GPU: the library, the tests' libraries, and all CUDA kernels
that its jobs start, compiled for an H100 by NVRTC. ``make gpu-pack``.

The kernels are those that a rehearsal of all jobs starts on a stand-in for the driver. They are cached in the pack, so
a second run compiles only what has changed.
"""

import filecmp
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from perf.gpu.runner import ROOT

PACK = Path(os.environ.get("RNNKERN_GPU_PACK") or ROOT / "build" / "gpu_pack")
KERNELS, FACTS = PACK / "kernels", PACK / "facts.json"
LIBRARY, CONFORMANCE = "_C.abi3.so", "conformance_cuda.so"
BYTES = 40 * 2**20
"""Largest size of a pack."""
IMPORT = "import rnnkern; from rnnkern._extension import reason; raise SystemExit(reason)"


def digest() -> str:
    """A hash of the sources of the libraries."""
    found = hashlib.sha256()
    for path in sorted(path for path in (ROOT / "csrc").rglob("*") if path.is_file()):
        found.update(str(path.relative_to(ROOT)).encode() + path.read_bytes())
    return found.hexdigest()


def environment() -> dict[str, str]:
    """What makes the tests and the package use the pack."""
    found = {"RNNKERN_CACHE_DIR": str(KERNELS), "RNNKERN_CONFORMANCE_LIBRARY": str(PACK / CONFORMANCE)}
    if FACTS.exists():
        found["RNNKERN_COMMIT"] = json.loads(FACTS.read_text())["commit"]
    return found


def unpack() -> str:
    """Puts the library in its place and sets the environment; builds the library for this machine alone if the pack's
    does not load. Returns a line that says what happened."""
    said = "there is no pack"
    if FACTS.exists() and json.loads(FACTS.read_text())["csrc"] != digest():
        said = "the pack is left out, because csrc has changed since"
        FACTS.unlink()
    elif FACTS.exists():
        os.environ.update(environment())
        if any(path.stat().st_uid not in (0, os.geteuid()) for path in KERNELS.rglob("*")):
            # The files have the owner that they had where they were packed, and the package loads no other user's.
            shutil.copytree(KERNELS, PACK / "copy", dirs_exist_ok=True)
            shutil.rmtree(KERNELS)
            (PACK / "copy").rename(KERNELS)
        target = ROOT / "rnnkern" / LIBRARY
        if not (target.exists() and filecmp.cmp(PACK / LIBRARY, target)):
            shutil.copy2(PACK / LIBRARY, target.with_suffix(".partial"))
            target.with_suffix(".partial").replace(target)  # another process may have loaded the old one
        said = f"the pack of commit {os.environ['RNNKERN_COMMIT']}"
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", IMPORT], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        said += f", whose library does not load: {done.stderr.strip()}; built here"
        command = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
        built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        if built.returncode:
            sys.exit(f"make gpu: {said}: {built.stdout[-2000:]}{built.stderr[-2000:]}")
    return said


def rename_kernels() -> None:
    """Gives the kernels the names that this machine's NVRTC would give them."""
    from rnnkern import _compiler

    if FACTS.exists() and (compiler := _compiler.nvrtc()):
        for path in KERNELS.glob("*-nvrtc*.cubin"):
            wanted = path.with_name(f"{path.name.rpartition('-nvrtc')[0]}-nvrtc{compiler.version}.cubin")
            if not wanted.exists():
                path.rename(wanted)


def main(argv: Sequence[str]) -> None:
    from perf import record
    from python_tests.gpu import kernels, standin
    from rnnkern import _compiler

    KERNELS.mkdir(parents=True, exist_ok=True)
    FACTS.unlink(missing_ok=True)
    made = {
        LIBRARY: ROOT / "rnnkern" / LIBRARY,
        CONFORMANCE: kernels.build_library("cuda"),
        "libcuda.so.1": standin.build_driver(),
        "drivers.so": standin.build_drivers(),
    }
    for name, path in made.items():
        shutil.copy2(path, PACK / name)
    before = set(KERNELS.iterdir())
    facts = {"commit": record.commit(), "csrc": digest(), "nvrtc": _compiler.nvrtc().version}
    FACTS.write_text(json.dumps(facts))
    out = PACK.with_name("gpu_rehearsal")  # not where the report of a run may lie
    command = [sys.executable, "-m", "perf.gpu", "--rehearse", "--out", str(out), *argv]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | environment(), check=False)
    total = sum(path.stat().st_size for path in PACK.rglob("*") if path.is_file())
    kernels_now = set(KERNELS.iterdir())
    print(
        f"{PACK}: {total / 2**20:.1f} MiB, {len(kernels_now)} files of kernels, {len(kernels_now - before)} new; "
        f"commit {facts['commit']}, NVRTC {facts['nvrtc']}"
    )
    if done.returncode or total > BYTES:
        FACTS.unlink()
        sys.exit("make gpu-pack: the rehearsal fails" if done.returncode else f"make gpu-pack: more than {BYTES} bytes")


if __name__ == "__main__":
    main(sys.argv[1:])
