"""The example programs on small data: compiled = interpreted, bit for bit, and formatted as they stand."""
import io
import wave
from pathlib import Path

import numpy as np
import pytest
from conftest import write_tar
from pipec.dsl.format import format_text
from running import assert_compiled_is_interpreted, delivered

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.fixture(autouse=True)
def _user_code(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))   # city_ops


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.pipe")), ids=lambda p: p.stem)
def test_formatted(path):
    assert format_text(path.read_text(), str(path)) == path.read_text()


def test_imagenet(imagenet):
    assert_compiled_is_interpreted(EXAMPLES / "imagenet.pipe", root=str(imagenet), size=48, batch_size=8)


def test_imagenet_val(imagenet):
    assert_compiled_is_interpreted(EXAMPLES / "imagenet_val.pipe", epochs=(0,), root=str(imagenet), size=48, batch_size=5)


def test_cifar(cifar):
    assert_compiled_is_interpreted(EXAMPLES / "cifar.pipe", data=str(cifar), batch_size=64)


def test_segment(city):
    assert_compiled_is_interpreted(EXAMPLES / "segment.pipe", root=str(city), size=40, batch_size=4)


@pytest.mark.parametrize("run", ["train", "val"])
def test_photos(imagenet, run):
    assert_compiled_is_interpreted(EXAMPLES / "photos.pipe", run=run, epochs=(0,), root=str(imagenet), size=32, batch_size=6)


def wav(rng, samples, channels, rate):
    """A WAV file of noise."""
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(rng.normal(0, 3000, (samples, channels)).astype("<i2").tobytes())
    return out.getvalue()


def test_speech(tmp_path):
    rng, members = np.random.default_rng(6), []
    for k in range(8):
        clip = wav(rng, int(rng.integers(6000, 20000)), 1 + k % 2, 16_000 if k % 3 else 22_050)
        members += [(f"{k:03d}.wav", clip), (f"{k:03d}.txt", b"word " * k)]
    write_tar(tmp_path / "train-000.tar", members)
    assert_compiled_is_interpreted(EXAMPLES / "speech.pipe", epochs=(0,), root=str(tmp_path), mels=32)


def test_draws_change_with_the_epoch_only(imagenet):
    first, again, second = (delivered(EXAMPLES / "photos.pipe", epoch, "train", root=str(imagenet), size=32, batch_size=6)
                            for epoch in (0, 0, 1))
    assert all((a["image"] == b["image"]).all() for a, b in zip(first, again))
    assert any((a["image"] != b["image"]).any() for a, b in zip(first, second))
