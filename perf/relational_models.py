"""Models of relational tasks: an encoder of pictures, and what answers from encoded objects (Kerg et al. 2022)."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import (
    Conv2d,
    Flatten,
    Linear,
    Module,
    ReLU,
    Sequential,
    TransformerEncoder,
    TransformerEncoderLayer,
    init,
)

import rnnkern
from rnnkern.nn import ESBN, ContextNorm, CoRelNet

FEATURES = 128


def encoder(side: int) -> Sequential:
    """Three convolutions and two layers, from pictures (N, 3, side, side) to (N, 128). Weights are He's, as in the
    published code: torch's default leaves features that hardly differ between pictures."""
    layers, channels = [], 3
    for _ in range(3):
        layers += [Conv2d(channels, 32, 4, stride=2, padding=1), ReLU()]
        channels, side = 32, side // 2
    layers += [Flatten(), Linear(32 * side * side, 256), ReLU(), Linear(256, FEATURES), ReLU()]
    for layer in layers:
        if isinstance(layer, (Conv2d, Linear)):
            init.kaiming_normal_(layer.weight, nonlinearity="relu")
            init.zeros_(layer.bias)
    return Sequential(*layers)


class Controls(Module):
    """A model of sequences after a context normalization."""

    def __init__(self, answers: int, body: Module, width: int, last: Callable, **norm) -> None:
        super().__init__()
        self.norm, self.body, self.answer, self.last = ContextNorm(FEATURES, **norm), body, Linear(width, answers), last

    def forward(self, x: Tensor) -> Tensor:
        return self.answer(self.last(self.body(self.norm(x))))


def lstm(answers: int, **norm) -> Module:
    body = rnnkern.nn.LSTM(FEATURES, 512, batch_first=True)
    return Controls(answers, body, 512, lambda found: found[0][:, -1], **norm)


def transformer(objects: int, answers: int, **norm) -> Module:
    layer = TransformerEncoderLayer(FEATURES, 8, 512, dropout=0.0, batch_first=True)
    body = Sequential(Places(objects), TransformerEncoder(layer, 1))
    return Controls(answers, body, FEATURES, lambda found: found.mean(1), **norm)


class Places(Module):
    """Adds a learned vector per place."""

    def __init__(self, objects: int) -> None:
        super().__init__()
        self.places = torch.nn.Parameter(0.02 * torch.randn(objects, FEATURES))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.places


NAMES = ("CoRelNet", "CoRelNet-T", "asymmetric", "difference", "ESBN", "LSTM", "Transformer")


def model_of(name: str, objects: int, answers: int, **norm) -> Module:
    """A model of the given name for encoded objects; ``norm`` are options of the normalization."""
    if name == "ESBN":
        return ESBN(FEATURES, answers, **norm)
    if name == "LSTM":
        return lstm(answers, **norm)
    if name == "Transformer":
        return transformer(objects, answers, **norm)
    options = {"CoRelNet": {}, "CoRelNet-T": {"decoder": "transformer"}}.get(name, {"rule": name})
    return CoRelNet(FEATURES, objects, answers, **options, **norm)


class Network(Module):
    """Encodes each picture of a table once, and answers about indices into it. With ``linear``, one more layer follows
    the encoder; the penalty of :meth:`absolute` is on its weights."""

    def __init__(self, body: Module, side: int, linear: bool = False) -> None:
        super().__init__()
        self.encoder, self.body = encoder(side), body
        self.linear = Linear(FEATURES, FEATURES) if linear else None

    def encode(self, pictures: Tensor) -> Tensor:
        encoded = self.encoder(pictures)
        return encoded if self.linear is None else self.linear(encoded)

    def forward(self, pictures: Tensor, places: Tensor) -> Tensor:
        """Logits for places (B, T) into a table of pictures."""
        return self.body(self.encode(pictures)[places])

    def absolute(self) -> Tensor:
        """The sum of absolute weights and biases of the layer after the encoder."""
        return self.linear.weight.abs().sum() + self.linear.bias.abs().sum()
