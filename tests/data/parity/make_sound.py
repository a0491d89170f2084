"""sound.npz: what torchaudio and librosa make of half a second of sound (needs torch, torchaudio and librosa)."""
from __future__ import annotations

import librosa
import numpy as np
import torch
import torchaudio
from make import kept
from torchaudio import functional as F

rng = np.random.default_rng(3)
at = np.arange(6000) / 16_000
wave = 0.4 * np.sin(2 * np.pi * (300 + 4000 * at) * at) + 0.1 * np.sin(2 * np.pi * 7000 * at) + 0.02 * rng.standard_normal(6000)
wave[4000:4300] = 0
inputs = {"wave": wave.astype(np.float32)}
W = torch.from_numpy(inputs["wave"])
power = torchaudio.transforms.Spectrogram(400, hop_length=160)(W)
mel = torchaudio.transforms.MelSpectrogram(16_000, 400, hop_length=160, n_mels=40)(W)
inputs["mel"] = mel.T.contiguous().numpy()
kept("sound", inputs, {"F": F, "T": torchaudio.transforms, "W": W, "power": power, "torch": torch, "librosa": librosa})
