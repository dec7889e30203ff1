"""Style and saving of all pictures."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axis import Axis
from matplotlib.ticker import NullFormatter, StrMethodFormatter

INK = "#333333"
STYLE = {"font.size": 10, "text.color": INK, "axes.labelcolor": INK, "axes.edgecolor": "#999999"}
STYLE |= {"xtick.color": INK, "ytick.color": INK, "axes.spines.top": False, "axes.spines.right": False}
STYLE |= {"svg.hashsalt": "rnnkern"}  # makes the SVG file reproducible

COLOURS = ("#08519c", "#b63c02", "#2b7a3f", "#7b3294", "#8c6d1f", "#0b7a85", "#a01a58", "#555555")
MOST_LINES = 6
"""Maximum number of lines per panel."""
LAYERS = ("LSTM", "RelRNN", "RelLSTM", "MemRNN", "ExpRNN", "SABLSTM", "RNN")
LAYER_COLOURS = dict(zip(LAYERS, COLOURS, strict=False))
"""Colour of a layer in all pictures that compare attention layers with others."""


def numbered(axis: Axis, ticks: Sequence[float]) -> None:
    """Labels these values alone, as plain numbers, on a logarithmic axis."""
    axis.set_ticks(sorted(set(ticks)))
    axis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axis.set_minor_formatter(NullFormatter())
    axis.set_tick_params(which="minor", length=0)


def save(figure: plt.Figure, path: Path) -> None:
    """Saves the figure as PNG at ``path`` and as SVG beside it, and closes it. The files contain no date and no
    software version, so that they change only if the figure does."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130, metadata={"Software": None})
    figure.savefig(path.with_suffix(".svg"), metadata={"Creator": None, "Date": None})
    plt.close(figure)
