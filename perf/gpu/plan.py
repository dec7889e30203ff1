"""The plan of ``make gpu``: its stages in order of worth, with their seconds. Uses only the standard library, because
the package is perhaps not built yet."""

from typing import NamedTuple

DEVICE_SECONDS = 900
"""Seconds for which a machine with a GPU can be had, its start included."""
START_SECONDS = 120
"""Seconds that a machine may take to start."""
CALL_SECONDS = {"first": 420, "again": 350}
"""Seconds of the two calls: the whole plan, and a second one for what failed or was missing."""
RESERVED = 15
"""Seconds at the end of a call for the report; no stage may use them."""
SPIN_FLAGS = "-DRNNKERN_SPIN_LIMIT=2000000000"
"""With these compiler options a kernel that waits for two seconds ends and says where, instead of hanging."""
LINES = "-lineinfo"


class Stage(NamedTuple):
    """Jobs that run in the same way."""

    name: str
    until: float  # seconds since the begin of the call at which the stage ends
    estimate: float  # seconds that it is expected to take
    each: float  # seconds for one job, including the start of its process
    at_once: int  # processes
    together: int  # jobs per process; if one fails, a new process runs the others
    flags: str = ""  # options of the compiler of CUDA kernels
    under: str = ""  # tool of compute-sanitizer, for jobs that do not name one


STAGES = {
    "first": Stage("first", 75, 40, 45, 8, 4, SPIN_FLAGS),
    "truth": Stage("truth", 165, 70, 40, 4, 6, SPIN_FLAGS),
    "speed": Stage("speed", 345, 200, 40, 1, 1000),
    "sanitizer": Stage("sanitizer", 405, 60, 80, 8, 1, SPIN_FLAGS),
}
"""The first call. A stage may use the seconds that earlier stages left."""
AGAIN = {
    "faults": Stage("faults", 70, 45, 60, 8, 1, f"{SPIN_FLAGS} {LINES}", "memcheck"),
    "wrong": Stage("wrong", 90, 15, 40, 8, 1, SPIN_FLAGS),
    "first": STAGES["first"]._replace(until=130, estimate=30, each=75),
    "truth": STAGES["truth"]._replace(until=150, estimate=20),
    "sanitizer": STAGES["sanitizer"]._replace(until=210, estimate=60),
    "speed": STAGES["speed"]._replace(until=335, estimate=120),
}
"""The second call: jobs that failed, under memcheck and with source lines; those whose results were wrong, with all
results and places; and those for which no time was left."""
TOOLS = ("memcheck", "racecheck")


def seconds() -> float:
    """Seconds of device time that the whole plan takes at most, if the machine is kept between the calls."""
    return START_SECONDS + sum(CALL_SECONDS.values())
