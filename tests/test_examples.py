"""The example programs on small data: compiled = interpreted, bit for bit, and formatted as they stand."""
from pathlib import Path

import pytest
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


def test_draws_change_with_the_epoch_only(imagenet):
    first, again, second = (delivered(EXAMPLES / "photos.pipe", epoch, "train", root=str(imagenet), size=32, batch_size=6)
                            for epoch in (0, 0, 1))
    assert all((a["image"] == b["image"]).all() for a, b in zip(first, again))
    assert any((a["image"] != b["image"]).any() for a, b in zip(first, second))
