"""The picture of gradients: their norm against t, and what a trained layer attends to."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from torch import Tensor

from perf.figure import COLOURS, STYLE, plt, save
from perf.record import Row

SHOWN = ("MemRNN", "RelRNN 10/10")


def draw(path: Path, rows: Sequence[Row], maps: Mapping[str, Tensor], x: Tensor) -> None:
    """Norms of all layers, and the attention maps (T, B, T) of two on the first sequence."""
    layers, last = list(dict.fromkeys(row["layer"] for row in rows)), rows[-1]
    shown = [name for name in SHOWN if name in maps]
    with plt.rc_context(STYLE):
        figure, panels = plt.subplots(1, 1 + len(shown), figsize=(6.5 + 3.6 * len(shown), 4.2), layout="constrained",
                                      squeeze=False)  # fmt: skip
        norms, *heat = panels[0]
        for layer, colour in zip(layers, COLOURS * len(layers), strict=False):
            own = [row for row in rows if row["layer"] == layer and row["length"] == last["length"]]
            line = {"color": colour, "linewidth": 1.2, "label": f"{layer}, {own[0]['accuracy']:.0%}"}
            norms.plot([row["t"] for row in own], [row["norm"] for row in own], **line)
        norms.set(ylabel="norm of the loss gradient with respect to h at t", xlabel="t", yscale="log")
        norms.legend(loc="lower right", frameon=False, fontsize=8, title="accuracy")
        norms.grid(color="#eeeeee")
        for axes, name in zip(heat, shown, strict=True):
            shade = maps[name][:, 0].sqrt().numpy()
            axes.imshow(shade, origin="lower", cmap="Blues", aspect="auto", vmin=0, vmax=1)
            symbols = (x[:, 0].argmax(-1) > 0).nonzero().flatten().tolist()
            axes.plot(symbols, [0] * len(symbols), "v", color="#b63c02", markersize=5, clip_on=False)
            axes.set(xlabel=f"event attended to\n({name})", ylabel="step t")
        title = f"denoise, learnt at T = {last['trained']}: gradients at T = {last['length']}, attention at T = "
        figure.suptitle(f"{title}{len(x) - 10}", fontsize=12)
        about = f"{last['device']}, PyTorch {last['torch']}; marks: symbols and the mark; shade: the root of alpha"
        figure.supxlabel(about, fontsize=8, color="#777777")
        save(figure, path)
