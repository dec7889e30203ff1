"""PyPOTS classifies patients by GRU-D (Che et al. 2018) from series with many gaps, such as those of PhysioNet 2012.
The patients are random here."""

import functools
from collections.abc import Sequence

import torch
from pypots.classification import GRUD
from torch import Tensor, nn

import rnnkern
from perf.programs.measure import Case, Clock

UNITS, HOURS, SIGNALS, PATIENTS = 128, 48, 37, 1024
"""Hidden units, the steps and features of PhysioNet 2012, and patients in an epoch."""
OBSERVED = 0.2
"""Share of the values that are not missing."""


def forward(backbone: nn.Module, x: Tensor, mask: Tensor, gaps: Tensor, mean: Tensor, filled: Tensor) -> tuple:
    """As the backbone's method, on (B, T, I): all decayed states (B, T, H), and the last state before its decay."""
    cell, decay = backbone.rnn_cell, backbone.temp_decay_h
    gamma = backbone.temp_decay_x(gaps)
    x = mask * x + (1 - mask) * (gamma * filled + (1 - gamma) * mean.unsqueeze(1))
    from_x, from_h, from_mask = cell.weight_ih.split((x.shape[2], cell.hidden_size, x.shape[2]), 1)
    u = nn.functional.linear(torch.cat((x, mask), 2), torch.cat((from_x, from_mask), 1), cell.bias_ih)
    decays = nn.functional.linear(gaps, decay.W, decay.b)
    after = torch.cat((decays[:, 1:], torch.zeros_like(decays[:, :1])), 1)  # of the gap after each step
    gates, candidate = from_h.split((2 * cell.hidden_size, cell.hidden_size))
    R = cell.weight_hh + torch.cat((gates, torch.zeros_like(candidate)))
    R, bias = torch.cat((R, candidate)), torch.cat((cell.bias_hh, torch.zeros_like(cell.bias_hh[: cell.hidden_size])))
    start = x.new_zeros(len(x), cell.hidden_size)
    y, (last,) = rnnkern.ops.recurrence(
        rnnkern.cells.gru_d_pypots, torch.cat((u, after), 2).transpose(0, 1), R, (start,), bias=bias
    )
    return torch.cat((start[:, None], y[:-1].transpose(0, 1)), 1), last


def train(way: str, clock: Clock, units: int, patients: int) -> Sequence[Tensor]:
    """Trains for an epoch, and returns what the model then says of some patients."""
    torch.manual_seed(0)
    model = GRUD(HOURS, SIGNALS, 2, units, epochs=1, model_saving_strategy=None, verbose=False, device="cpu")
    backbone = model.model.model
    if way == "rnnkern":
        backbone.forward = functools.partial(forward, backbone)
    clock.watch(backbone, "forward", backbone.parameters())
    x = torch.randn(patients, HOURS, SIGNALS).cumsum(1) / HOURS**0.5
    label = (x.mean((1, 2)) > 0).long()
    x[torch.rand(x.shape) > OBSERVED] = torch.nan
    data = {"X": x.numpy(), "y": label.numpy()}
    clock.run(lambda: model.fit(data))
    return [torch.as_tensor(model.predict({"X": x[:64].numpy()})["classification_proba"])]


def cases(tiny: bool = False) -> list[Case]:
    units, patients = (8, 64) if tiny else (UNITS, PATIENTS)
    ways = {way: functools.partial(train, way, units=units, patients=patients)
            for way in ("as published", "rnnkern")}  # fmt: skip
    return [Case("GRU-D (PyPOTS)", f"{patients:,} patients, {HOURS} hours, {units} units", ways, 1, "epoch",
                 tolerance=1e-3)]  # fmt: skip
