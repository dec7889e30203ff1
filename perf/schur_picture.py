"""Draws the learned Schur form of a NonNormalRNN, from a file that perf.train has saved.

``python -m perf.train --task copy --models rnnkern.NonNormalRNN --seeds 0 --keep build/learnt``
``python -m perf.schur_picture build/learnt/rnnkern.NonNormalRNN-0.pt docs/images/schur-copy.png``
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from matplotlib.colors import LogNorm
from torch import Tensor

import rnnkern
from perf.figure import COLOURS, STYLE, plt, save

LEAST = 1e-4
"""Smaller values are drawn as this one."""


def schur_form(state: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Theta = Lambda + T, the angles and the moduli of the first weight in Schur form.

    Raises:
        ValueError: no weight is in Schur form.
    """
    names = [name.removesuffix("original3") for name in state if name.endswith(".original3")]
    if not names:
        raise ValueError("the state_dict must have a weight in Schur form, as rnnkern.nn.NonNormalRNN's has")
    _, theta, gamma, T = (state[f"{names[0]}original{k}"].double() for k in range(4))
    eye = torch.eye(T.shape[-1], dtype=T.dtype)
    return rnnkern.ops.schur_weight(eye, theta, gamma, T), theta, gamma


def below(Theta: Tensor) -> np.ndarray:
    """The mean magnitude of each diagonal from the main one down."""
    return np.array([Theta.diagonal(-k).abs().mean().item() for k in range(len(Theta))])


def draw(path: Path, state: dict[str, Tensor], title: str) -> None:
    Theta, theta, gamma = schur_form(state)
    with plt.rc_context(STYLE):
        figure = plt.figure(figsize=(13, 4.2), layout="constrained")
        axes = figure.add_subplot(1, 3, 1, xlabel="column", ylabel="row")
        magnitudes = Theta.abs().clamp(min=LEAST).numpy()
        image = axes.imshow(magnitudes, cmap="magma", norm=LogNorm(LEAST, 1), interpolation="nearest")
        figure.colorbar(image, ax=axes, shrink=0.8, label="|Θ|, magnitude of an entry")
        axes = figure.add_subplot(1, 3, 2, projection="polar")
        pairs = gamma[: len(theta)]
        axes.scatter(torch.cat([theta, -theta]).numpy(), torch.cat([pairs, pairs]).numpy(), s=8, color=COLOURS[0])
        axes.set(ylim=(0, 1.1 * gamma.abs().max().item()), yticks=[0.5, 1], xlabel="eigenvalues of Λ: angle, modulus")
        axes = figure.add_subplot(1, 3, 3)
        axes.semilogy(np.maximum(below(Theta), LEAST), color=COLOURS[0])
        axes.set(xlabel="distance below the main diagonal", ylabel="mean |Θ| of a diagonal", xlim=(0, len(Theta) - 1),
                 ylim=(1e-2, 1))  # fmt: skip
        axes.grid(color="#eeeeee")
        figure.suptitle(title, fontsize=12)
        save(figure, path)


def main(argv: Sequence[str]) -> None:
    if len(argv) != 2:
        sys.exit(__doc__)
    source, path = map(Path, argv)
    state = torch.load(source, map_location="cpu", weights_only=True)
    model, _, seed = source.stem.rpartition("-")
    draw(path, state, f"{model}, seed {seed}")
    Theta, _, gamma = schur_form(state)
    diagonals = below(Theta)
    print(f"mean gamma {gamma.mean():.4f}; mean |Theta|: 1 below the main diagonal {diagonals[1]:.2g}, "
          f"all that are two or more below {diagonals[2:].mean():.2g}")  # fmt: skip


if __name__ == "__main__":
    main(sys.argv[1:])
