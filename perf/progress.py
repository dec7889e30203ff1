"""Shows how far a run is. Needs the standard library alone, so that it can show how long imports take too."""

import shutil
import sys
import threading
import time
from typing import Self

LOG_SECONDS, TERMINAL_SECONDS = 4.0, 0.2


class Progress:
    """Names the step at hand on standard error while a ``with`` block runs: on a terminal in one line that is written
    over and removed at the end, in a log in a line every four seconds.

    A thread writes, so that the seconds advance within a long step too; what takes less than four seconds writes
    nothing to a log.

    Args:
        what: names the run.
        total: how many steps it has, if that is known.
        unit: what a step is called.
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
