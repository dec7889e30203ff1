"""TiRex (Auer et al. 2025) forecasts time series with twelve sLSTMs. The weights are random: no download is needed."""

import functools
import math

import torch
from tirex.models.tirex import TiRexZero
from torch import Tensor, nn

from perf.programs.measure import Case, Clock
from rnnkern.integrations import tirex as integration

POINTS, AHEAD = 2048, 32
"""Lengths of a series and of its forecast."""
SIZES = {
    "input_patch_size": 32, "output_patch_size": 32, "quantiles": [k / 10 for k in range(1, 10)], "input_ff_dim": 2048,
}  # fmt: skip
BLOCKS = {"embedding_dim": 512, "num_heads": 4, "num_blocks": 12, "ffn_proj_factor": 2.6667}
"""Those of the published model."""


def model_of(**sizes: int) -> nn.Module:
    """A model of the published sizes, or others, with random weights."""
    torch.manual_seed(0)
    model = TiRexZero("torch", SIZES | {"block_kwargs": BLOCKS | sizes}, train_ctx_len=POINTS).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=parameter.shape[-1] ** -0.5)
            else:
                parameter.fill_(1.0)
    return model


def series(count: int, points: int) -> Tensor:
    """Random walks with a season."""
    torch.manual_seed(1)
    season = torch.sin(torch.arange(points) * (2 * math.pi / 24))
    return torch.randn(count, points).cumsum(1) / 10 + season


def unrounded(cell: nn.Module, x: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
    """The published loop in float32; it has the dtype of the recurrent weight."""
    bias = cell._bias_.view(cell.config.num_heads, cell.config.num_gates, -1).transpose(0, 1).flatten()
    return cell._impl_forward_torch(x.flatten(2), states, cell._recurrent_kernel_, bias)


def forecast(way: str, clock: Clock, count: int, points: int, sizes: dict[str, int]) -> tuple[Tensor, ...]:
    model = model_of(**sizes)
    if way == "rnnkern":
        integration.patch(model)
    for block in model.blocks:
        cell = block.slstm_layer.slstm_cell
        if way == "float32":
            cell._impl_torch = functools.partial(unrounded, cell)
        clock.watch(cell, "_impl_torch")
    x = series(count, points)
    with torch.no_grad():
        return clock.run(lambda: model._forecast_quantiles(x, AHEAD))


def cases(tiny: bool = False) -> list[Case]:
    count, points = (2, 256) if tiny else (64, POINTS)
    run = functools.partial(forecast, count=count, points=points,
                            sizes={"embedding_dim": 32, "num_blocks": 2} if tiny else {})  # fmt: skip
    ways = {way: functools.partial(run, way) for way in ("as published", "rnnkern")}
    return [Case("TiRex", f"{count} series of {points:,} points", ways, 1, "forecast", tolerance=1e-5,
                 expected=lambda: run("float32", Clock()))]  # fmt: skip
