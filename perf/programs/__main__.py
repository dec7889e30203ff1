"""Runs programs as their authors wrote them and with rnnkern, checks that the results agree, and compares the times.

``python -m perf.programs [NAME ...]``. Each program runs in an environment of its own in build/programs, which has what
it needs in addition to the packages of this environment, PyTorch among them.
"""

import argparse
import importlib
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import torch

from perf import record
from perf.programs import picture, tables
from perf.programs.measure import measured
from perf.progress import Progress

REQUIREMENTS = {
    "recurrent_ppo": ("sb3-contrib==2.9.2", "minigrid"),
    "tirex": ("tirex-ts==1.4.2",),
    "medaka": ("medaka-cpu==2.2.0",),
    "silero_vad": ("silero-vad==6.2.3", "onnxruntime", "scipy"),
    "resemblyzer": ("Resemblyzer==0.1.4", "setuptools<81"),  # its dependency webrtcvad imports pkg_resources
    "neuralhydrology": ("neuralhydrology==1.13.0",),
    "pypots": ("pypots==1.5",),
}
"""What pip installs for each program."""
BUILT = record.ROOT / "build" / "programs"


def interpreter(name: str) -> Path:
    """That of the program's environment, which is made if it is not there.

    Raises:
        subprocess.CalledProcessError: pip failed.
    """
    folder, wanted = BUILT / name, "\n".join(REQUIREMENTS[name])
    python, installed = folder / "bin" / "python", folder / "installed.txt"
    if not installed.exists() or installed.read_text() != wanted:
        print(f"{name}: installing {', '.join(REQUIREMENTS[name])}", flush=True)
        venv.create(folder, with_pip=True, clear=True)
        [site] = folder.glob("lib/python*/site-packages")
        (site / "parent.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
        subprocess.run([python, "-m", "pip", "install", "--quiet", *REQUIREMENTS[name]], check=True)
        installed.write_text(wanted)
    return python


def run(name: str, repeats: int, path: Path) -> None:
    """Measures a program whose packages are there: first at tiny sizes, which compiles what is compiled once."""
    program = importlib.import_module(f"perf.programs.{name}")
    first, cases = program.cases(tiny=True), program.cases()
    runs = sum(len(case.ways) for case in first) + repeats * sum(len(case.ways) for case in cases)
    with Progress(name, runs, "run") as progress:
        for case in first:
            measured(case, 1, progress)
        for case in cases:
            record.append(path, measured(case, repeats, progress))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(REQUIREMENTS)}; all by default")
    parser.add_argument("--repeats", type=int, default=3, help="rounds, in which the ways take turns")
    parser.add_argument("--here", type=Path, metavar="CSV", help="run in this environment and append rows to a file")
    record.add_output_arguments(parser)
    chosen = parser.parse_args()
    if unknown := [name for name in chosen.names if name not in REQUIREMENTS]:
        parser.error(f"NAME must be one of {', '.join(REQUIREMENTS)}, got {', '.join(unknown)}")
    names = chosen.names or list(REQUIREMENTS)
    if chosen.here:
        for name in names:
            run(name, chosen.repeats, chosen.here)
        return
    torch.set_num_threads(2)
    rows, pictures = record.output(chosen, torch.device("cpu"))
    path, failed = rows / tables.PROGRAMS, []
    for name in names:
        try:
            python = interpreter(name)
        except subprocess.CalledProcessError:
            print(f"{name} is left out: its packages cannot be installed", flush=True)
            continue
        command = [python, "-m", "perf.programs", name, "--here", path.absolute(), "--repeats", str(chosen.repeats)]
        failed += [name] * (subprocess.run(command, cwd=record.ROOT).returncode != 0)
    if path.exists():
        found = record.read(path)
        print(record.table(tables.of_programs(found)))
        picture.draw(pictures / "programs.png", found)
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
