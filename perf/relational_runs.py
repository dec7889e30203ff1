"""The trainings of ``python -m perf.relational``: tasks, models, settings, and the accuracy that each should reach."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

EQUALITY = "equality"
"""Instead of pictures: the matrix that says which objects are equal."""


class Run(NamedTuple):
    group: str
    name: str  # of the run, in tables
    task: str
    updates: int
    model: str = "CoRelNet"
    pictures: str = "bitmaps"
    held: int | None = None  # m; None: as in the hardest published setting
    batch: int = 96
    options: Mapping[str, Any] = MappingProxyType({})  # of the model
    penalty: float = 0.0  # L1, on one more layer after the encoder
    spurious: str = ""  # "colours" or "separated"
    least: float = 0.0  # goals of the accuracy
    most: float = 1.0
    published: str = ""  # what the thesis says, per cent or in words


CLEAN = {"same/different": (100, 0.995), "RMTS": (300, 0.995), "dist3": (1000, 0.99), "identity rules": (1500, 0.99)}
"""Updates and least accuracies of the four base tasks."""


def _clean() -> list[Run]:
    return [Run("clean", task, task, n, least=least, published="near 100") for task, (n, least) in CLEAN.items()]


def _held() -> list[Run]:
    return [
        Run("held", f"{task}, m = {m}", task, n, held=m, least=least, published="near 100")
        for task, (n, least) in CLEAN.items()
        for m in (0, 50, 85)
    ]


def _spurious() -> list[Run]:
    shared = {"task": "same/different", "held": 50, "pictures": "glyphs", "spurious": "colours"}
    return [
        Run("spurious", "eps 1e-8", updates=600, most=0.55, **shared),
        Run("spurious", "eps 1", updates=600, options={"eps": 1.0}, least=0.98, **shared),
        Run("spurious", "eps 1, m = 0", updates=600, options={"eps": 1.0}, **shared | {"held": 0}),
        Run("spurious", "eps 1, m = 85", updates=600, options={"eps": 1.0}, **shared | {"held": 85}),
        Run("spurious", "eps 1e-2", updates=600, options={"eps": 1e-2}, **shared),
        Run(
            "spurious", "eps 1e-8, L1 of 1", updates=1000, penalty=1.0, least=0.9, published="solved (figure)", **shared
        ),
        Run("spurious", "separated colours", updates=600, **shared | {"spurious": "separated"}),
    ]


HEXOMINOES = {
    "same": "94.7 / 90.4", "between": "96.6 / 93.1", "occurs": "96.2 / 88.7", "xoccurs": "92.2 / 83.6",
    "row matching": "97.7 / 94.8", "colour/shape": "47.2", "left-of": "99.2",
}  # fmt: skip
"""CoRelNet's accuracy on hexominoes and stripes (Kerg 2022, table 1), per cent, of 10 seeds."""


def _games() -> list[Run]:
    shared = {"pictures": "pentominoes", "batch": 32}
    runs = [
        Run("games", game, game, 2500, least=0.93 if game == "between" else 0.0, published=text, **shared)
        for game, text in HEXOMINOES.items()
    ]
    return [*runs, Run("games", "between", "between", 2500, "CoRelNet-T", published="91.9 / 87.0", **shared)]


RUNS = [
    *[
        Run("equality", task, task, updates, pictures=EQUALITY, held=0, least=0.999)
        for task, updates in {"RMTS": 300, "dist3": 1000, "identity rules": 1500}.items()
    ],
    *_clean(),
    Run("controls", "RMTS, no normalization", "RMTS", 300, options={"norm": None}, most=0.85),
    Run("controls", "comparison", "comparison", 300, batch=32, least=0.45, most=0.55),
    Run("controls", "comparison", "comparison", 300, "asymmetric", batch=32, least=0.98),
    Run("controls", "comparison", "comparison", 300, "difference", batch=32, least=0.98),
    Run("controls", "transitive", "transitive", 300, "asymmetric", batch=32, least=0.98),
    Run("controls", "transitive", "transitive", 300, "difference", batch=32, least=0.98),
    Run("controls", "RMTS, segments", "RMTS", 200, "ESBN", batch=32, options={"segments": (2, 2, 2)}, least=0.85),
    Run("controls", "RMTS", "RMTS", 200, "ESBN", batch=32, least=0.7, most=0.85),
    *_spurious(),
    *_games(),
    *_held(),
    Run("unseen", "RMTS3", "RMTS3", 1000, published="near perfect"),
    Run("unseen", "same/different 6", "same/different 6", 1000),
    Run("unseen", "identity rules 4", "identity rules 4", 1500, published="near perfect"),
    Run("unseen", "identity rules 4, missing", "identity rules 4, missing", 1500, published="a clear drop"),
    Run("unseen", "identity rules 4, flipped", "identity rules 4, flipped", 1500),
    Run("unseen", "dist10", "dist10", 300),
    Run("unseen", "dist10, restricted", "dist10, restricted", 300),
    Run("models", "RMTS", "RMTS", 300, "CoRelNet-T", batch=32, published="near 100"),
    Run("models", "dist3", "dist3", 500, "CoRelNet-T", batch=32, published="near 100"),
    Run("models", "dist3", "dist3", 200, "ESBN", batch=32, published="near 100"),
    Run("models", "dist3", "dist3", 500, "LSTM", batch=32),
    Run("models", "dist3", "dist3", 500, "Transformer", batch=32),
]
GROUPS = tuple(dict.fromkeys(run.group for run in RUNS))
