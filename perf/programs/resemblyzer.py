"""Resemblyzer turns speech into a vector for its speaker, by a published LSTM of three layers; its weights are in its
wheel."""

import functools
from collections.abc import Sequence

from resemblyzer import VoiceEncoder

import rnnkern
from perf.programs.measure import Case, Clock
from perf.programs.speech import speech


def embed(way: str, clock: Clock, seconds: float) -> Sequence:
    encoder = VoiceEncoder("cpu", verbose=False)
    if way == "rnnkern":
        rnnkern.replace(encoder)
    clock.watch(encoder.lstm, "forward")
    sound = speech(seconds)
    return [clock.run(lambda: encoder.embed_utterance(sound))]


def cases(tiny: bool = False) -> list[Case]:
    seconds = 3 if tiny else 60
    ways = {way: functools.partial(embed, way, seconds=seconds) for way in ("as published", "rnnkern")}
    return [Case("Resemblyzer", f"{seconds} s of speech", ways, 1, "speaker", tolerance=1e-5)]
