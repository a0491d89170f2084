"""Boxes of objects through crops, flips, resizes and EXIF orientation, against drawing them."""
from __future__ import annotations

import numpy as np
import pytest
from pipec.compiler.check import check
from pipec.compiler.evaluate import evaluate
from pipec.kernels.decode import turned
from running import assert_compiled_is_interpreted

BOXES = np.array([[2, 3, 10, 9], [0, 0, 4, 4], [14, 10, 20, 12]], np.float32)


@pytest.fixture
def out(tmp_path):
    def values(*lines, **arrays):
        np.savez(tmp_path / "d.npz", boxes=BOXES[None], **{k: np.array([v]) for k, v in arrays.items()})
        more = "".join(f"  {k}: i64\n" for k in arrays)
        body = "".join(f"  {line}\n" for line in lines)
        text = f'schema S\n  boxes: f32[3, 4]\n{more}pipeline p\n  from npz("{tmp_path}/d.npz") as S\n{body}  emit out\n'
        return next(iter(evaluate(check(str(tmp_path / "p.pipe"), text=text))))["out"]

    return values


def test_crop_clip_flip_resize(out):
    np.testing.assert_array_equal(out("out = crop_boxes(boxes, [2, 3, 8, 9])"), [[0, 1, 7, 7], [0, 0, 1, 2], [9, 8, 9, 8]])
    np.testing.assert_array_equal(out("out = clip_boxes(boxes, 8, 16)"), [[2, 3, 10, 8], [0, 0, 4, 4], [14, 8, 16, 8]])
    np.testing.assert_array_equal(out("out = flip_boxes(boxes, 20, true)"), [[10, 3, 18, 9], [16, 0, 20, 4], [0, 10, 6, 12]])
    np.testing.assert_array_equal(out("out = flip_boxes(boxes, 20, false)"), BOXES)
    np.testing.assert_array_equal(out("out = resize_boxes(boxes, [0, 0, 12, 20], 24, 10)"), BOXES * [0.5, 2, 0.5, 2])


def test_boxes_that_vanish_leave(out):
    lines = "part = crop_boxes(boxes, [2, 3, 8, 9])", "kept = indices(visible_boxes(part))", "out = part[kept]"
    np.testing.assert_array_equal(out(*lines), [[0, 1, 7, 7], [0, 0, 1, 2]])
    np.testing.assert_array_equal(out("out = visible_boxes(crop_boxes(boxes, [2, 3, 8, 9]), 3)"), [True, False, False])


@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation(out, orientation):
    stored = np.zeros((12, 20, 3), bool)
    for k, (x0, y0, x1, y1) in enumerate(BOXES.astype(int)):
        stored[y0:y1, x0:x1, k] = True
    shown = turned(stored, orientation)
    h, w = shown.shape[:2]
    boxes = out("out = orient_boxes(boxes, o, h, w)", o=orientation, h=h, w=w)
    for k in range(3):
        ys, xs = np.nonzero(shown[..., k])
        np.testing.assert_array_equal(boxes[k], [xs.min(), ys.min(), xs.max() + 1, ys.max() + 1])


def test_overlaps(out):
    np.testing.assert_allclose(out("out = box_overlaps(boxes, [[0, 0, 4, 4], [2, 3, 6, 9]])"),
                               [[2 / 62, 0.5], [1, 2 / 38], [0, 0]], atol=1e-6)


def test_compiled(tmp_path):
    rng = np.random.default_rng(0)
    corners = rng.uniform(0, 30, (20, 5, 2)).astype(np.float32)
    np.savez(tmp_path / "d.npz", boxes=np.concatenate([corners, corners + rng.uniform(1, 20, (20, 5, 2)).astype(np.float32)], 2))
    (tmp_path / "p.pipe").write_text(
        f'seed 2\n\nschema S\n  boxes: f32[5, 4]\n\npipeline p\n  from npz("{tmp_path}/d.npz") as S\n  box ~ random_box(40, 50)\n'
        "  flip ~ bernoulli(0.5)\n  boxes = flip_boxes(resize_boxes(boxes, box, 32, 32), 32, flip)\n"
        "  kept = indices(visible_boxes(boxes))\n  boxes = boxes[kept]\n  emit boxes\n")
    assert_compiled_is_interpreted(tmp_path / "p.pipe")
