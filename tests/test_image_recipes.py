"""The recipes of images: compiled = interpreted, and both like Pillow and NumPy with the same draws."""
from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from conftest import encoded, picture, write_tar
from recipes import images
from recipes.seen import Seen, assert_alike, assert_like_pixels, seen
from running import assert_same, delivered, interpreted

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """train-000.tar of eight photos with classes."""
    root, rng = tmp_path_factory.mktemp("photos"), np.random.default_rng(9)
    members = []
    for k in range(8):
        image = picture(rng, *(int(n) for n in rng.integers(40, 90, 2)))
        members += [(f"{k}.jpg", encoded(image, "JPEG", quality=90)), (f"{k}.cls", str(k).encode())]
    write_tar(root / "train-000.tar", members)
    return str(root)


@pytest.mark.parametrize("name", ["simclr", "multicrop", "detection", "randaugment"])
def test_short(name):
    assert len((EXAMPLES / f"{name}.pipe").read_text().splitlines()) < 45


# The next two have many branches, which take long to compile: tests/slow compares what is compiled.


def test_simclr(photos):
    records = seen(EXAMPLES / "simclr.pipe", root=photos, size=32)
    (expected,) = images.simclr(records, 32, len(records))
    for name in ("one", "two"):
        assert_like_pixels([r[name] for r in records], expected[name], 2, 0.02, 0.5)


def test_randaugment(photos):
    records = seen(EXAMPLES / "randaugment.pipe", root=photos, size=32)
    (expected,) = images.randaugment(records, 32, len(records))
    assert [int(r["cls"]) for r in records] == expected["cls"].tolist()
    levels = [np.moveaxis(x, 1, -1) * images.STD * 255 + images.MEAN * 255
              for x in (np.array([r["image"] for r in records]), expected["image"])]
    assert_like_pixels(*(np.rint(x) for x in levels), 2, 0.02, 0.5)


def test_multicrop(photos):
    params = {"root": photos, "large": 40, "small": 24}
    found = delivered(EXAMPLES / "multicrop.pipe", batch_size=4, **params)
    assert_same(found, interpreted(EXAMPLES / "multicrop.pipe", batch_size=4, **params))
    expected = images.multicrop(seen(EXAMPLES / "multicrop.pipe", **params), 40, 24, 4)
    assert_alike(found, expected, wide=4 / 255 / 0.22, near=4 / 255 / 0.22)


@pytest.fixture(scope="module")
def objects(tmp_path_factory):
    """Photos with lists of boxes and kinds."""
    root, rng = tmp_path_factory.mktemp("objects"), np.random.default_rng(8)
    members = []
    for k in range(12):
        h, w = int(rng.integers(60, 90)), int(rng.integers(70, 120))
        corners = rng.integers(0, 50, (int(rng.integers(1, 5)), 2))
        boxes = np.concatenate([corners, corners + rng.integers(6, 20, corners.shape)], 1).astype(np.float32)
        image = picture(rng, h, w)
        for name, array in (("boxes", boxes), ("kinds", np.arange(len(boxes), dtype=np.int64))):
            out = io.BytesIO()
            np.save(out, array)
            members.append((f"{k:03d}.{name}.npy", out.getvalue()))
        members.append((f"{k:03d}.jpg", encoded(image, "JPEG")))
    write_tar(root / "a.tar", members)
    return root


def test_detection(objects):
    params = {"root": str(objects), "size": 48}
    found = delivered(EXAMPLES / "detection.pipe", batch_size=4, **params)
    assert_same(found, interpreted(EXAMPLES / "detection.pipe", batch_size=4, **params))
    raw = seen(EXAMPLES / "detection.pipe", "batch/map", **params)     # with the boxes of the file
    given = [Seen(r.fields, s.draws) for r, s in zip(raw, seen(EXAMPLES / "detection.pipe", **params), strict=True)]
    assert_alike(found, images.detection(given, 48, 4), image=1, boxes=1e-3)
    for batch in found:
        boxes, kinds = batch["boxes"], batch["kinds"]
        assert ((kinds >= 0) == (boxes[..., 2] - boxes[..., 0] >= 2)).all()
        assert (boxes >= 0).all() and (boxes <= 48).all()
