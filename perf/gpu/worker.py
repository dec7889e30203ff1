"""Runs jobs of ``make gpu`` one after the other. Writes two lines of JSON for each to standard output: its name when it
begins, and its result. Ends after a job that fails, because the CUDA context may be lost with it."""

import argparse
import contextlib
import ctypes
import faulthandler
import functools
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from unittest import mock

import torch

from perf.gpu import jobs

FAULTS = "RNNKERN_GPU_FAULTS"
"""In a rehearsal, the fault of a job by its name, as JSON: "kill", "hang", "fault" or "wrong"."""
ILLEGAL_ADDRESS = 700


@contextlib.contextmanager
def on_stand_in(pack: Path | None) -> Iterator[Callable[[str], None]]:
    """Context manager in which CPU tensors run by the CUDA drivers on a stand-in for a GPU's driver, from the libraries
    in ``pack`` or newly built ones. Yields a function that makes a fault happen."""
    from python_tests.gpu import givens_recurrences, recurrences, relevancies, standin
    from rnnkern._cells import library

    libraries = (
        [pack / "libcuda.so.1", pack / "drivers.so"] if pack else [standin.build_driver(), standin.build_drivers()]
    )
    driver = standin.Driver(standin.load(*libraries), standin.H100)
    actions = {
        "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
        "hang": lambda: time.sleep(3600),
        "fault": lambda: driver.fail("cuLaunchKernelEx", ILLEGAL_ADDRESS),
        "wrong": lambda: (_ for _ in ()).throw(AssertionError("wrong, 31 times naive")),
    }

    def register(name: str, on_cuda: bool = False) -> None:
        """Registers an own cell with the drivers that start its kernels."""
        found = library.library_of(library._known[name], on_cuda=True)
        ctypes.CDLL(str(libraries[1])).rnnkern_register_cell(name.encode(), os.fsencode(found))

    class Operators:
        def __getattr__(self, name: str):
            return getattr(torch.ops.rnnkern_stub if name in standin.OPERATORS else torch.ops.rnnkern, name)

    class Place:  # as in the tests, but all kernels may run
        name, operators, kernel, facts = "interpret", Operators(), "block,cluster,grid", standin.H100

    with contextlib.ExitStack() as stack:
        for family in (recurrences, relevancies, givens_recurrences):
            stack.enter_context(family.routed(Place))
        stack.enter_context(mock.patch.object(library, "refusal", functools.cache(register)))
        yield lambda kind: actions[kind]()


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m perf.gpu.worker", description=__doc__)
    parser.add_argument("names", nargs="+")
    parser.add_argument("--folder", type=Path, required=True, help="of the CSVs")
    parser.add_argument("--command", default="make gpu")
    parser.add_argument("--seconds", type=float, default=60.0, help="of a job, after which its traceback is printed")
    parser.add_argument("--rehearse", action="store_true")
    parser.add_argument("--pack", type=Path, help="folder of the stand-in's libraries")
    parser.add_argument("--details", action="store_true")
    chosen = parser.parse_args(argv)
    told = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # everything else that is printed goes to the log

    def tell(name: str, **result: object) -> None:
        told.write(json.dumps({"name": name} | result) + "\n")

    faults = json.loads(os.environ.get(FAULTS, "{}")) if chosen.rehearse else {}
    with contextlib.ExitStack() as stack:
        cause = stack.enter_context(on_stand_in(chosen.pack)) if chosen.rehearse else None
        operators = torch.ops.rnnkern_stub if chosen.rehearse else torch.ops.rnnkern
        device = torch.device("cpu" if chosen.rehearse else "cuda")
        counts = lambda: json.loads(operators.kernel_counts())  # noqa: E731
        place = jobs.Place(device, chosen.folder, chosen.command, counts, chosen.rehearse, chosen.details)
        known = jobs.jobs()
        for name in chosen.names:
            tell(name)
            faulthandler.dump_traceback_later(chosen.seconds)
            begun = time.monotonic()
            try:
                if name in faults:
                    cause(faults[name])
                status, text = "ok", known[name](place)
                if not chosen.rehearse:
                    torch.cuda.synchronize()
            except AssertionError as error:
                status, text = "wrong", str(error)
            except Exception as error:
                traceback.print_exc()
                status, text = "failed", f"{type(error).__name__}: {error}"
            faulthandler.cancel_dump_traceback_later()
            tell(name, status=status, text=text, seconds=round(time.monotonic() - begun, 1))
            if status == "failed":
                sys.exit(1)


if __name__ == "__main__":
    main(sys.argv[1:])
