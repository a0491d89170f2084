"""The example programs for images: compiled = interpreted, and what detection promises of boxes and labels."""
from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from conftest import encoded, picture, write_tar
from pipec.compiler.check import check
from running import assert_compiled_is_interpreted, delivered

EXAMPLES = Path(__file__).parent.parent / "examples"


def test_multicrop(imagenet):
    assert_compiled_is_interpreted(EXAMPLES / "multicrop.pipe", (0,), root=str(imagenet), batch_size=20, large=40, small=24)


@pytest.mark.parametrize("name", ["simclr", "randaugment"])
def test_checks(name):
    check(str(EXAMPLES / f"{name}.pipe"))   # run in tests/slow: many branches take long to compile


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
    assert_compiled_is_interpreted(EXAMPLES / "detection.pipe", epochs=(0,), root=str(objects), size=48, batch_size=4)
    for batch in delivered(EXAMPLES / "detection.pipe", root=str(objects), size=48, batch_size=4):
        boxes, kinds = batch["boxes"], batch["kinds"]
        assert ((kinds >= 0) == (boxes[..., 2] - boxes[..., 0] >= 2)).all()
        assert (boxes >= 0).all() and (boxes <= 48).all()
