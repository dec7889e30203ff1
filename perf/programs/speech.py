"""A sound like that of a speaker, for programs that analyse speech."""

import numpy as np

RATE = 16_000
"""Samples per second."""
FORMANTS = ((700, 80), (1220, 90), (2600, 120))
"""Resonances of the vocal tract, frequency and bandwidth in Hz."""


def speech(seconds: float) -> np.ndarray:
    """Syllables of one vowel, three per second, with a pause in every second pair of seconds; float32."""
    from scipy.signal import lfilter

    t = np.arange(int(seconds * RATE)) / RATE
    pitch = 120 + 20 * np.sin(2 * np.pi * 0.7 * t) + 10 * np.sin(2 * np.pi * 3 * t)
    phase = 2 * np.pi * np.cumsum(pitch) / RATE
    sound = sum(np.sin(k * phase) / k for k in range(1, 30))
    for frequency, bandwidth in FORMANTS:
        radius = np.exp(-np.pi * bandwidth / RATE)
        turn = 2 * np.pi * frequency / RATE
        sound = lfilter([1 - radius], [1, -2 * radius * np.cos(turn), radius**2], sound)
    syllables = np.clip(np.sin(2 * np.pi * 3 * t), 0, None) * (np.sin(2 * np.pi * 0.25 * t) > 0)
    noise = np.random.default_rng(0).standard_normal(len(t))
    return (0.5 * sound / np.abs(sound).max() * syllables + 0.003 * noise).astype(np.float32)
