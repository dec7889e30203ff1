"""The picture of gradients: their norm over t, and the attention of trained layers."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from torch import Tensor

from perf.figure import COLOURS, LAYER_COLOURS, STYLE, plt, save
from perf.record import Row

SHOWN = ("MemRNN", "RelRNN 10/10")


def colour(layer: str) -> str:
    """A RelRNN without a relevant set has a colour of its own."""
    return COLOURS[7] if layer.endswith("/0") else LAYER_COLOURS[layer.partition(" ")[0]]


def draw(path: Path, rows: Sequence[Row], maps: Mapping[str, Tensor], x: Tensor) -> None:
    """Draws the norms of all layers, and the attention maps (T, B, T) of two layers on the first sequence."""
    layers, last = list(dict.fromkeys(row["layer"] for row in rows)), rows[-1]
    shown = [name for name in SHOWN if name in maps]
    with plt.rc_context(STYLE):
        figure, panels = plt.subplots(1, 1 + len(shown), figsize=(6.5 + 3.6 * len(shown), 4.6), layout="constrained",
                                      squeeze=False)  # fmt: skip
        norms, *heat = panels[0]
        for layer in layers:
            own = [row for row in rows if row["layer"] == layer and row["length"] == last["length"]]
            label = f"{layer}, accuracy {float(own[0]['accuracy']):.0%}"
            t, norm = ([float(row[name]) for row in own] for name in ("t", "norm"))
            norms.plot(t, norm, color=colour(layer), linewidth=1.2, label=label)
        norms.set(ylabel="gradient norm of the loss with respect to $h_t$", xlabel="step t", yscale="log")
        norms.set_ylim(bottom=1e-28)  # room for the legend; smaller norms are those of an RNN, which reach 0
        norms.legend(loc="lower left", frameon=False, fontsize=8)
        norms.grid(color="#eeeeee")
        image = None
        for axes, name in zip(heat, shown, strict=True):
            shade = maps[name][:, 0].sqrt().numpy()
            image = axes.imshow(shade, origin="lower", cmap="Blues", aspect="auto", vmin=0, vmax=1)
            symbols = (x[:, 0].argmax(-1) > 0).nonzero().flatten().tolist()
            axes.plot(symbols, [0] * len(symbols), "v", color="#b63c02", markersize=5, clip_on=False)
            axes.set(xlabel="step of the state attended to", ylabel="step t")
            axes.set_title(name, fontsize=10)
        if image is not None:
            figure.colorbar(image, ax=heat, label="square root of the attention weight", shrink=0.8)
        title = f"denoise, trained at T = {last['trained']}: gradients at T = {last['length']}, attention at T = "
        figure.suptitle(f"{title}{len(x) - 10}", fontsize=12)
        about = f"{last['device']}, PyTorch {last['torch']}; triangles: steps of the symbols and the mark"
        figure.supxlabel(about, fontsize=8, color="#777777")
        save(figure, path)
