"""Draws a schematic of RelRNN's buffer and relevant set: docs/images/relevancy-schematic.png and .svg.

``python -m perf.relevancy_schematic``
"""

from perf import record
from perf.figure import COLOURS, INK, STYLE, plt, save

PAST, BUFFER, RELEVANT = 10, 4, 3
CHOSEN = (1, 3, 4)
"""Events in the relevant set."""


def box(axes: plt.Axes, x: float, y: float, text: str, colour: str, filled: bool) -> None:
    face = colour if filled else "white"
    axes.add_patch(plt.Rectangle((x, y), 0.8, 0.6, facecolor=face, edgecolor=colour, linewidth=1.4))
    axes.text(x + 0.4, y + 0.3, text, ha="center", va="center", color="white" if filled else colour, fontsize=9)


def arrow(axes: plt.Axes, start: tuple[float, float], end: tuple[float, float], colour: str = INK) -> None:
    axes.annotate("", end, start, zorder=0, arrowprops={"arrowstyle": "->", "color": colour, "linewidth": 1.2})


def main() -> None:
    blue, orange, grey = COLOURS[0], COLOURS[1], "#bbbbbb"
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(10, 4.2), layout="constrained")
        for event in range(PAST):
            in_buffer, kept = event >= PAST - BUFFER, event in CHOSEN
            colour = blue if in_buffer else orange if kept else grey
            box(axes, event, 2.2, f"h{event}", colour, in_buffer)
        axes.text(PAST - BUFFER / 2, 3.05, "buffer S: the newest states", ha="center", color=blue)
        axes.text(2.9, 3.05, "older states", ha="center", color=INK)
        for slot, event in enumerate(CHOSEN):
            arrow(axes, (event + 0.4, 2.15), (1.5 + slot + 0.4, 1.25), orange)
            box(axes, 1.5 + slot, 0.6, f"h{event}", orange, True)
        arrow(axes, (PAST - BUFFER + 0.3, 2.15), (1.5 + RELEVANT - 0.1, 1.25), blue)
        told = "the oldest state of S leaves it next:\nit enters R if its relevance is\nabove the lowest one there"
        axes.text(5.75, 1.35, told, fontsize=9, color=blue)
        axes.text(1.5 + RELEVANT / 2, 0.2, "relevant set R: the highest scores", ha="center", color=orange)
        box(axes, PAST + 1.2, 1.2, "c", INK, True)
        axes.text(PAST + 1.6, 0.75, "attention over S and R", ha="center", fontsize=9)
        for event in range(PAST - BUFFER, PAST):
            arrow(axes, (event + 0.6, 2.2), (PAST + 1.15, 1.6), grey)
        for slot in range(RELEVANT):
            arrow(axes, (1.5 + slot + 0.4, 0.9), (PAST + 1.15, 1.3 + 0.05 * slot), grey)
        axes.set(xlim=(-0.3, PAST + 2.8), ylim=(0, 3.4))
        axes.axis("off")
        save(figure, record.PICTURES / "relevancy-schematic.png")


if __name__ == "__main__":
    main()
