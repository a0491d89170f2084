"""Functions of std.pipe beside Pillow, NumPy and plain Python: padding, many crops, orientation, boxes, sound; one program."""
from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image, ImageOps
from recipes.seen import seen
from running import assert_same, delivered, interpreted

PROGRAM = """seed 4
schema S
  photo: u8[20, 30, 3]
  boxes: f32[3, 4]
  wave: f32[50]
  angle: f32
  orientation: i64
pipeline p
  from npz("{path}") as S
  padded = pad(photo, 3, 4, 5, 6, 7)
  edge = pad(photo, 3, 4, 5, 6, mode="edge")
  mirrored = pad(photo, 19, 4, 5, 29, mode="reflect")
  doubled = pad(photo, 20, 4, -5, 30, mode="symmetric")
  five = five_crop(photo, 8, 9)
  ten = ten_crop(photo, 8, 9)
  turned = rotate_expanded(photo, angle)
  shown = orient(photo, orientation)
  small = resize_short(photo, 10, longest=14)
  z ~ random_zoom_out(photo, boxes)
  part ~ random_iou_box(20, 30, boxes)
  held = centers_inside(boxes, part)
  some ~ random_part(wave, 20)
  more ~ random_part(wave, 60)
  law = mu_law(wave)
  slope = deltas([[wave[2 * i + j] for j < 2] for i < 25])
  swapped = permute_channels(photo, [2, 0, 1])
  emit padded, edge, mirrored, doubled, five, ten, turned, shown, small, z, part, held, some, more, law, slope, swapped
"""


@pytest.fixture(scope="module")
def given(tmp_path_factory):
    """The program, its data and what it delivers, compiled and interpreted alike."""
    root, rng = tmp_path_factory.mktemp("library"), np.random.default_rng(2)
    corners = rng.uniform(0, 14, (8, 3, 2)) * [1.6, 1]
    data = {"photo": rng.integers(0, 256, (8, 20, 30, 3), np.uint8), "wave": rng.uniform(-1, 1, (8, 50)).astype(np.float32),
            "boxes": np.concatenate([corners, corners + rng.uniform(3, 9, (8, 3, 2))], -1).astype(np.float32),
            "angle": np.array([0, 90, 30, -45, 180, 7.5, 270, 100], np.float32), "orientation": np.arange(1, 9)}
    np.savez(root / "a.npz", **data)
    path = root / "p.pipe"
    path.write_text(PROGRAM.format(path=root / "a.npz"))
    found = delivered(path)
    assert_same(found, interpreted(path))
    return path, data, found


def each(given, *names):
    _, data, found = given
    for k, record in enumerate(found):
        yield {name: values[k] for name, values in data.items()}, *(record[name] for name in names)


def test_pad(given):
    for r, padded, edge, mirrored, doubled in each(given, "padded", "edge", "mirrored", "doubled"):
        around = ((3, 5), (4, 6), (0, 0))
        assert np.array_equal(padded, np.pad(r["photo"], around, constant_values=7))
        assert np.array_equal(edge, np.pad(r["photo"], around, mode="edge"))
        assert np.array_equal(mirrored, np.pad(r["photo"], ((19, 5), (4, 29), (0, 0)), mode="reflect"))
        assert np.array_equal(doubled, np.pad(r["photo"], ((20, 0), (4, 30), (0, 0)), mode="symmetric")[:35])


def test_many_crops(given):
    for r, five, ten in each(given, "five", "ten"):
        def crops(p):
            return [p[:8, :9], p[:8, -9:], p[-8:, :9], p[-8:, -9:], p[6:14, 10:19]]

        assert np.array_equal(five, crops(r["photo"]))      # half of 21 is 10.5, to the even one
        assert np.array_equal(ten, crops(r["photo"]) + crops(r["photo"][:, ::-1]))


def test_rotate_expanded_is_as_large_as_pillows(given):
    for r, turned in each(given, "turned"):
        wanted = np.asarray(Image.fromarray(r["photo"]).rotate(float(r["angle"]), expand=True))
        assert turned.shape == wanted.shape
        assert (turned != wanted).any(-1).mean() < 0.02     # "nearest" at ties


def test_orient_is_what_viewers_do(given):
    for r, shown in each(given, "shown"):
        tagged = Image.fromarray(r["photo"])
        tagged.getexif()[0x0112] = int(r["orientation"])
        assert np.array_equal(shown, np.asarray(ImageOps.exif_transpose(tagged)))


def test_the_longer_side_is_bounded(given):
    for _, small in each(given, "small"):
        assert small.shape == (9, 14, 3)       # 10 by 15 is too long: 14, and 14 × 10 / 15 rounded down


def test_zoom_out(given):
    sizes = set()
    for r, image, boxes in each(given, "z_image", "z_boxes"):
        left, top = (boxes - r["boxes"])[0, :2].round().astype(int)
        assert np.allclose(boxes - r["boxes"], np.tile([left, top], 2), atol=1e-4)
        assert np.array_equal(image[top : top + 20, left : left + 30], r["photo"])
        assert image.astype(int).sum() == r["photo"].astype(int).sum()      # the rest is 0
        sizes.add(image.shape[:2])
    assert (20, 30) in sizes and len(sizes) > 2


def test_iou_box(given):
    path, data, found = given
    kept = 0
    for record, given_boxes, r in zip(found, data["boxes"], seen(path, "emit", wanted=("part",))):
        top, left, height, width = record["part"].tolist()
        middles = (given_boxes[:, :2] + given_boxes[:, 2:]) / 2
        inside = ((middles > [left, top]) & (middles < [left + width, top + height])).all(1)
        assert record["held"].tolist() == inside.tolist()
        level = int(r.draw("part.random_iou_box/level.integers"))
        if (top, left, height, width) == (0, 0, 20, 30):
            continue
        kept += 1
        assert 0 <= top <= 20 - height and 0 <= left <= 30 - width and 0.5 <= height / width <= 2
        overlaps = [_overlap(b, (left, top, left + width, top + height)) for b in given_boxes[inside].tolist()]
        assert max(overlaps) >= [0, 0.1, 0.3, 0.5, 0.7, 0.9][level] - 1e-6
    assert kept >= 2


def _overlap(a, b):
    both = max(min(a[2], b[2]) - max(a[0], b[0]), 0) * max(min(a[3], b[3]) - max(a[1], b[1]), 0)
    return both / ((a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - both)


def test_sound(given):
    for r, some, more, law, slope in each(given, "some", "more", "law", "slope"):
        wave = r["wave"].astype(np.float64)
        assert any(np.array_equal(some, r["wave"][i : i + 20]) for i in range(31))
        assert np.array_equal(more, np.pad(r["wave"], (0, 10)))
        curved = np.sign(wave) * np.log1p(255 * abs(wave)) / np.log1p(255)
        assert abs(law - np.floor((curved + 1) / 2 * 255 + 0.5)).max() <= 1
        pairs = np.pad(wave.reshape(25, 2), ((2, 2), (0, 0)), mode="edge")
        lines = sum(k * pairs[2 + k : 27 + k] for k in (-2, -1, 1, 2)) / 10
        np.testing.assert_allclose(slope, lines, atol=1e-6)


def test_channels(given):
    for r, swapped in each(given, "swapped"):
        assert np.array_equal(swapped, r["photo"][..., [2, 0, 1]])


def test_orientation_of_a_file(tmp_path):
    from pipec.kernels.ops import OPERATORS

    for tag in range(1, 9):
        exif = Image.Exif()
        exif[0x0112] = tag
        out = io.BytesIO()
        Image.new("RGB", (9, 7)).save(out, "JPEG", exif=exif)
        assert OPERATORS["image_orientation"].ref(out.getvalue()) == tag
    out = io.BytesIO()
    Image.new("L", (9, 7)).save(out, "PNG")
    assert OPERATORS["image_orientation"].ref(out.getvalue()) == 1
