"""silero-vad says for each 32 ms of sound whether somebody speaks, by a network in TorchScript or ONNX form. Here its
LSTM is replaced: the parts of the TorchScript form are called one after another."""

import functools
from collections.abc import Sequence

import torch
from silero_vad import load_silero_vad
from torch import Tensor, nn

import rnnkern
from perf.programs.measure import Case, Clock
from perf.programs.speech import RATE, speech

FRAME, PAST = 512, 64
"""Samples of a frame, and samples before it that the network sees too."""


class Stream(nn.Module):
    """The published network for 16 kHz with an LSTM of rnnkern, which takes one step per frame.

    Called with the samples (512) of a frame, it returns the probability of speech, and keeps its state.
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.spectrum, self.encoder, self.last = network.stft, network.encoder, network.decoder.decoder
        self.lstm = rnnkern.nn.LSTM(128, 128)
        for own, published in zip(self.lstm.parameters(), network.decoder.rnn.parameters(), strict=True):
            own.data.copy_(published)
        self.requires_grad_(False)
        self.stream = self.step = self.lstm.stream()  # the clock replaces the second
        self.reset_states()

    def reset_states(self) -> None:
        """Makes the next frame the first one."""
        self.past = torch.zeros(PAST)
        self.stream.reset()

    def forward(self, frame: Tensor, rate: int) -> Tensor:
        x, self.past = torch.cat((self.past, frame)), frame[-PAST:]
        x = self.encoder(self.spectrum(x.unsqueeze(0)))  # (1, 128, 1)
        return self.last(self.step(x.view(1, -1)).unsqueeze(-1))


def listen(way: str, clock: Clock, seconds: float) -> Sequence[Tensor]:
    """The probabilities for a stream of frames."""
    model = load_silero_vad(onnx=way == "ONNX")
    if way == "rnnkern":
        model = Stream(model._model)
        clock.watch(model, "step")
    frames = torch.from_numpy(speech(seconds)).unfold(0, FRAME, FRAME)
    with torch.inference_mode():
        for frame in frames[:20]:  # TorchScript compiles in its first calls
            model(frame, RATE)
        model.reset_states()
        return [clock.run(lambda: torch.cat([model(frame, RATE).view(1) for frame in frames]))]


def cases(tiny: bool = False) -> list[Case]:
    seconds = 4 if tiny else 60
    return [
        Case("silero-vad", f"a stream of speech, {form}",
             {way: functools.partial(listen, way, seconds=seconds) for way in (form, "rnnkern")},
             seconds * RATE // FRAME, "frame", tolerance=1e-4, threads=1)
        for form in ("TorchScript", "ONNX")
    ]  # fmt: skip
