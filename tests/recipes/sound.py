"""The recipe of noisy speech in NumPy, in f64: resampling, noise at a loudness, log-mel frames, batches by a budget."""
from __future__ import annotations

import io
import math
import wave
from typing import Any

import numpy as np

from .seen import Seen, padded


def mono(audio: bytes, rate: int) -> np.ndarray:
    """A 16-bit WAV file as one channel at a rate; the sum is torchaudio's sinc of six zeros under a Hann window."""
    with wave.open(io.BytesIO(audio)) as file:
        given, channels = file.getframerate(), file.getnchannels()
        clip = np.frombuffer(file.readframes(file.getnframes()), "<i2").reshape(-1, channels).mean(1) / 32768
    if given == rate:
        return clip
    common = math.gcd(given, rate)
    old, new = given // common, rate // common
    base = min(old, new) * 0.99
    at = np.arange(-(-new * len(clip) // old))
    out = np.zeros(len(at))
    reach = math.ceil(6 * old / base)
    for shift in range(-reach - 1, reach + 2):
        source = at * old // new + shift
        t = np.clip((source / old - at / new) * base, -6, 6)
        weight = np.sinc(t) * np.cos(t * np.pi / 12) ** 2 * base / old
        out += weight * np.where((source >= 0) & (source < len(clip)), clip[np.clip(source, 0, len(clip) - 1)], 0)
    return out


def log_mel(clip: np.ndarray, rate: int, mels: int) -> np.ndarray:
    """Powers of periodic Hann frames of 400 every 160 samples, the edges mirrored; triangles on HTK's mel scale."""
    around = np.pad(clip, 200, mode="reflect")
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(400) / 400)
    frames = np.stack([around[i * 160 : i * 160 + 400] * window for i in range(1 + len(clip) // 160)])
    power = np.abs(np.fft.rfft(frames)) ** 2
    top = 2595 * np.log10(1 + rate / 2 / 700)
    points = 700 * (10 ** (np.linspace(0, top, mels + 2) / 2595) - 1)
    hertz = np.linspace(0, rate / 2, 201)
    rising = (hertz - points[:-2, None]) / (points[1:-1] - points[:-2])[:, None]
    falling = (points[2:, None] - hertz) / (points[2:] - points[1:-1])[:, None]
    return np.log(np.maximum(power @ np.maximum(np.minimum(rising, falling), 0).T, 1e-10))


def noisy_speech(records: list[Seen], rate: int, mels: int, budget: int) -> list[dict[str, Any]]:
    """Draws used: which noise, from where in it, and how loud."""
    batches: list[list[tuple[np.ndarray, np.ndarray]]] = [[]]
    for r in records:
        clip, noise = mono(r["audio"], rate), mono(r["other.audio"], rate)
        part = np.resize(np.roll(noise, -int(r.draw("loud.add_noise/start.integers"))), len(clip))
        ratio = 10 ** (r.draw("loud.add_noise/snr.uniform") / 10)
        mel = log_mel(clip + part * np.sqrt((clip**2).sum() / (part**2).sum() / ratio), rate, mels)
        row = (mel, np.frombuffer(r["words"].encode(), np.uint8))
        if batches[-1] and max(len(m) for m, _ in [*batches[-1], row]) * (len(batches[-1]) + 1) > budget:
            batches.append([])
        batches[-1].append(row)
    return [{"mel": padded([m for m, _ in rows], 0), "frames": np.array([len(m) for m, _ in rows]),
             "letters": padded([w for _, w in rows], 0), "spoken": np.array([len(w) for _, w in rows])} for rows in batches]
