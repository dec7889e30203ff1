"""Every public layer by name, of small sizes."""

import rnnkern
from rnnkern import nn

INPUT_SIZE, OBJECTS, HIDDEN_SIZE = 4, 5, 8
NAMES = [name for name in nn.__all__ if isinstance(getattr(nn, name), type)]
ARGUMENTS = {
    "Recurrent": (rnnkern.cells.mgu, INPUT_SIZE, HIDDEN_SIZE), "ContextNorm": (INPUT_SIZE,),
    "Similarity": (INPUT_SIZE,), "CoRelNet": (INPUT_SIZE, OBJECTS, 2), "ESBN": (INPUT_SIZE, 2, 3, HIDDEN_SIZE),
    "HeavyBallODE": (INPUT_SIZE, None),
}  # fmt: skip


def layer(name, **options):
    steps = {"steps": 2} if name.endswith("ODE") else {}
    return getattr(nn, name)(*ARGUMENTS.get(name, (INPUT_SIZE, HIDDEN_SIZE)), **steps, **options)
