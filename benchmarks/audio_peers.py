"""W7, speech in WAV and FLAC as its users read it: 16 kHz, log-mel of 80, batches of 32 padded to the longest."""
from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from . import data

HERE = Path(__file__).parent
RATE, CLIPS = 16_000, 500
Epochs = Callable[[int], Iterable[Any]]


def folder() -> Path:
    return data.FOLDER / "speech"


def prepare() -> None:
    """`FOLDER/speech/clip*.wav` and `.flac`: 1 to 15 seconds (6 in the mean) of voices made here, at four rates, 16 bits."""
    if (folder() / "done").exists():
        return
    import numpy as np
    import soundfile

    folder().mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(99)
    voices = [_voice(rng) for _ in range(12)]
    for k in range(CLIPS):
        rate = (16_000, 22_050, 44_100, 48_000)[int(rng.integers(4))]
        seconds = float(np.clip(rng.gamma(4.0, 1.6), 1, 15))
        voice = voices[int(rng.integers(len(voices)))]
        begin = rng.uniform(0, 15 - seconds)
        at = (begin + np.arange(int(seconds * rate)) / rate) * RATE
        wave = np.interp(at, np.arange(len(voice)), voice) + rng.normal(0, rng.uniform(0.001, 0.02), len(at))
        soundfile.write(folder() / f"clip{k:04d}.{'wav' if k % 2 else 'flac'}", np.clip(wave, -1, 1), rate, subtype="PCM_16")
    (folder() / "done").touch()


def _voice(rng: Any) -> Any:
    """Fifteen seconds of a buzz whose pitch and formants move, with pauses."""
    import numpy as np

    t = np.arange(15 * RATE) / RATE
    pitch = rng.uniform(90, 240) * 2 ** (0.3 * np.sin(2 * np.pi * 0.7 * t + rng.uniform(0, 6)))
    phase = 2 * np.pi * np.cumsum(pitch) / RATE
    formants = [c * (1 + 0.2 * np.sin(2 * np.pi * r * t + rng.uniform(0, 6))) for c, r in ((500, 2), (1500, 3), (2500, 1.5))]
    wave = sum(sum(1 / (1 + ((h * pitch - f) / 200) ** 2) for f in formants) * np.sin(h * phase) for h in range(1, 25))
    spoken = np.clip(10 * (np.sin(2 * np.pi * 1.3 * t + rng.uniform(0, 6)) + 0.6), 0, 1)
    return 0.6 * wave * spoken / np.abs(wave).max()


def ours(workload: str, threads: int) -> Epochs:
    import pipec

    loader = pipec.open(str(HERE / "W7.pipe"), threads=threads, root=str(folder()))
    return lambda _: iter(loader)


def _clips(threads: int, features: Callable[[str], Any]) -> Epochs:
    """A torch DataLoader over the files, batches padded. Its workers have computed a few before they begin."""
    import torch
    from torch.utils.data import DataLoader, Dataset

    torch.set_num_threads(1)
    files = sorted(str(p) for p in folder().glob("clip*"))

    class Clips(Dataset):  # type: ignore[type-arg]
        def __len__(self) -> int:
            return len(files)

        def __getitem__(self, i: int) -> Any:
            return features(files[i])

    def warm(_: int) -> None:
        for file in files[:8]:
            features(file)

    loader = DataLoader(Clips(), batch_size=BATCH["W7"], shuffle=True, collate_fn=_padded, num_workers=threads,
                        persistent_workers=True, prefetch_factor=4, worker_init_fn=warm)
    return lambda _: loader


def _padded(rows: list[Any]) -> Any:
    import torch

    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True), torch.tensor([len(r) for r in rows])


def librosa(workload: str, threads: int) -> Epochs:
    """A torch DataLoader whose workers call librosa."""
    return _clips(threads, _librosa_features())


def librosa_loop(workload: str, threads: int) -> Epochs:
    """librosa in a plain loop: one process, one thread, warm."""
    import random

    features = _librosa_features()
    files = sorted(str(p) for p in folder().glob("clip*"))
    for file in files[:40]:
        features(file)

    def epoch(_: int) -> Iterable[Any]:
        order = random.sample(files, len(files))
        for first in range(0, len(order), BATCH["W7"]):
            yield _padded([features(file) for file in order[first : first + BATCH["W7"]]])

    return epoch


def _librosa_features() -> Callable[[str], Any]:
    import librosa as library
    import numpy as np
    import soundfile
    import torch

    def features(path: str) -> Any:
        wave, rate = soundfile.read(path, dtype="float32")
        if rate != RATE:
            wave = library.resample(wave, orig_sr=rate, target_sr=RATE, res_type="soxr_hq")
        mel = library.feature.melspectrogram(y=wave, sr=RATE, n_fft=400, hop_length=160, n_mels=80)
        return torch.from_numpy(np.log(mel + 1e-6).T.copy())

    torch.set_num_threads(1)
    return features


def torchaudio(workload: str, threads: int) -> Epochs:
    import soundfile
    import torch
    import torchaudio as library

    mel = library.transforms.MelSpectrogram(RATE, n_fft=400, hop_length=160, n_mels=80)
    resamplers: dict[int, Any] = {}

    def features(path: str) -> Any:
        samples, rate = soundfile.read(path, dtype="float32")
        wave = torch.from_numpy(samples)
        if rate != RATE:
            if rate not in resamplers:
                resamplers[rate] = library.transforms.Resample(rate, RATE)
            wave = resamplers[rate](wave)
        return torch.log(mel(wave) + 1e-6).T

    return _clips(threads, features)


BATCH = {"W7": 32}
PREPARE = {"W7": prepare}
MODULE = {"librosa": "librosa", "librosa-loop": "librosa", "torchaudio": "torchaudio"}
PEERS: dict[str, dict[str, Callable[[str, int], Epochs]]] = {
    "W7": {"pipec": ours, "librosa": librosa, "librosa-loop": librosa_loop, "torchaudio": torchaudio}}
_LIBROSA = "soxr's high quality resampling, zeros beyond the ends, Slaney's mels"
DIFFERS = {"W7": {"librosa": _LIBROSA, "librosa-loop": _LIBROSA + "; one process and thread"}}
