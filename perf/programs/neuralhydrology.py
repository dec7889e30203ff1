"""The EA-LSTM of neuralhydrology predicts the flow of rivers from the weather; what is known about a river opens its
input gates. Weather and rivers are random here."""

import functools
from collections.abc import Sequence

import torch
from neuralhydrology.modelzoo.ealstm import EALSTM
from neuralhydrology.utils.config import Config
from torch import Tensor, nn
from torch.utils._pytree import tree_map

import rnnkern
from perf.programs.measure import Case, Clock

UNITS, DAYS, BATCH = 256, 270, 256
"""Sizes of Kratzert et al. 2019."""
WEATHER, RIVER = 5, 27
"""Numbers of inputs for each day and for each river in that paper."""


def forward(model: nn.Module, data: dict[str, Tensor]) -> dict[str, Tensor]:
    """As the model's method, with the cell state of the last day only."""
    x, river = model.embedding_net(data, concatenate_output=False)
    opened = torch.sigmoid(model.input_gate(river))
    start, gates = torch.zeros_like(opened), model.dynamic_gates
    h, (_, c, _) = rnnkern.ops.recurrence(
        rnnkern.cells.ea_lstm, x, gates.weight_hh.T, (start, start, opened),
        weight_ih=gates.weight_ih.T, bias_ih=gates.bias,
    )  # fmt: skip
    h = h.transpose(0, 1)
    return {"h_n": h, "c_n": c} | model.head(model.dropout(h))


def model_of(units: int) -> nn.Module:
    torch.manual_seed(0)
    settings = {
        "hidden_size": units, "initial_forget_bias": 3, "output_dropout": 0.0, "head": "regression",
        "output_activation": "linear", "target_variables": ["flow"], "model": "ealstm",
        "dynamic_inputs": [f"weather{k}" for k in range(WEATHER)],
        "static_attributes": [f"river{k}" for k in range(RIVER)],
    }  # fmt: skip
    return EALSTM(Config(settings))


def train(way: str, clock: Clock, units: int, days: int, batch: int) -> Sequence[Tensor]:
    """The loss of the last day and its gradients, in one step of training."""
    model = model_of(units)
    if way == "rnnkern":
        model.forward = functools.partial(forward, model)
    torch.manual_seed(1)
    data = {"x_d": {f"weather{k}": torch.randn(batch, days, 1) for k in range(WEATHER)}}
    data |= {"x_s": torch.randn(batch, RIVER), "flow": torch.randn(batch)}
    if way == "float64":
        model, data = model.double(), tree_map(Tensor.double, data)
    clock.watch(model, "forward", model.parameters())

    def step() -> list[Tensor]:
        loss = (model(data)["y_hat"][:, -1, 0] - data["flow"]).square().mean()
        loss.backward()
        return [loss.detach()]

    return clock.run(step) + [parameter.grad for parameter in model.parameters()]


def cases(tiny: bool = False) -> list[Case]:
    units, days, batch = (8, 10, 4) if tiny else (UNITS, DAYS, BATCH)
    run = functools.partial(train, units=units, days=days, batch=batch)
    ways = {way: functools.partial(run, way) for way in ("as published", "rnnkern")}
    return [Case("EA-LSTM (neuralhydrology)", f"{batch} rivers, {days} days, {units} units", ways, 1, "training step",
                 tolerance=1e-4, expected=lambda: run("float64", Clock()))]  # fmt: skip
