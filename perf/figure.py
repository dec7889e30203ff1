"""What pictures share: how they look, and how they are saved."""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

INK = "#333333"
STYLE = {"font.size": 10, "text.color": INK, "axes.labelcolor": INK, "axes.edgecolor": "#999999"}
STYLE |= {"xtick.color": INK, "ytick.color": INK, "axes.spines.top": False, "axes.spines.right": False}


def save(figure: plt.Figure, path: Path) -> None:
    """And closes it. The file does not name what drew it, so that it changes with the figure alone."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130, metadata={"Software": None})
    plt.close(figure)
