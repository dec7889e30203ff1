"""Shows the progress of a run. Uses only the standard library, so that it can also cover the time of imports."""

import shutil
import sys
import threading
import time
from typing import Self

LOG_SECONDS, TERMINAL_SECONDS = 4.0, 0.2


class Progress:
    """Context manager that shows the current step on standard error: on a terminal as one line that is updated and
    removed at the end, in a log as a line every four seconds.

    A thread writes the line, so that the seconds also advance during a long step. A run of less than four seconds
    writes nothing to a log.

    Args:
        what: name of the run.
        total: number of steps, if known.
        unit: name of a step.
    """

    def __init__(self, what: str, total: int | None = None, unit: str = "step") -> None:
        self.what, self.total, self.unit = what, total, unit
        self.done = 0
        self._begun = time.monotonic()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._write, daemon=True)

    def advance(self, steps: int = 1) -> None:
        self.done += steps

    def __str__(self) -> str:
        count = f"{self.done} of {self.total} {self.unit}s, " if self.total is not None else ""
        return f"{self.what}: {count}{time.monotonic() - self._begun:.0f} s"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()

    def _write(self) -> None:
        terminal = sys.stderr.isatty()
        while not self._over.wait(TERMINAL_SECONDS if terminal else LOG_SECONDS):
            if terminal:
                shown = str(self)[: shutil.get_terminal_size().columns - 1]
                print(f"\r\033[K{shown}", end="", file=sys.stderr, flush=True)
            else:
                print(self, file=sys.stderr, flush=True)
        if terminal:
            print("\r\033[K", end="", file=sys.stderr, flush=True)
