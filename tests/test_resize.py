"""Resizing: parity with Pillow on the cropped image, the same bits from NumPy, plain Python and machine code."""
from __future__ import annotations

import numpy as np
import pytest
from PIL import Image
from pipec.compiler import emit_numba, emulate, native
from pipec.compiler.loops import Argument, Buffer, Builder, Const, Kernel, Var
from pipec.kernels.resize import resize
from pipec.runtime import objects

PILLOW = {"bilinear": 2, "bicubic": 3, "area": 4, "nearest": 0}
WORDS = {"uint8": "u8", "float32": "f32", "int64": "i64", "uint16": "u16", "bool": "bool", "float64": "f64"}


def word(array):
    return WORDS[str(array.dtype)]


def kernel_of(dtype, box_dtype, rest, filter, antialias):
    """The operator's loops as a kernel of their own; image sizes are arguments, channels are constants."""
    k = Builder()
    sizes = {n: Var(f"size.{n}", "i64") for n in ("h", "w", "height", "width")}
    channels = tuple(Const(r, "i64") for r in rest)
    img = Buffer("data.img", dtype, (sizes["h"], sizes["w"], *channels))
    out = Buffer("data.out", dtype, (sizes["height"], sizes["width"], *channels))
    box = Buffer("data.box", box_dtype, (Const(4, "i64"),))
    resize.lower(k, out, img, box, sizes["height"], sizes["width"], filter, Const(antialias, "bool"))
    arguments = [Argument("data", b.name, b.dtype, b.name) for b in (img, box, out)]
    arguments += [Argument("size", v.name, "i64", v.name) for v in sizes.values()]
    return Kernel("resize", tuple(arguments), tuple(k.body))


MADE = {}


def lowered(how, img, box, height, width, filter="bilinear", antialias=True):
    key = (how, word(img), word(box), img.shape[2:], filter, antialias)
    if key not in MADE:
        kernel = kernel_of(*key[1:])
        if how == "python":
            MADE[key] = emulate.load(emit_numba.kernel_text(kernel))
        else:
            MADE[key] = objects.load(native.build([kernel]))["resize"]
    img = np.ascontiguousarray(img)
    out = np.full((height, width, *img.shape[2:]), 7, img.dtype)
    table = np.array([a.ctypes.data for a in (img, box, out)] + [*img.shape[:2], height, width], np.int64)
    scratch, status = np.empty(1 << 22, np.uint8), np.zeros(1, np.int64)
    begin = scratch.ctypes.data + 63 & -64
    arena = np.array([0, 0, begin, scratch.ctypes.data + len(scratch)], np.int64)
    MADE[key](1, table.ctypes.data, status.ctypes.data, arena.ctypes.data)
    assert status[0] == 0
    return out


def ref(img, box, height, width, filter="bilinear", antialias=True):
    with np.errstate(all="ignore"):
        return resize.ref(img, box, height, width, filter, antialias)


def whole(img):
    return np.array([0, 0, *img.shape[:2]], np.int64)


def row(*values):
    return np.array(values, np.uint8)[None, :]


def to_row(img, width, filter, antialias=True):
    return ref(img, whole(img), 1, width, filter, antialias)[0].tolist()


def test_small_cases():
    spike = row(0, 0, 0, 255, 0, 0, 0, 0, 0)
    assert to_row(spike, 3, "bilinear") == [32, 57, 0]
    assert to_row(spike, 3, "bilinear", antialias=False) == [0, 0, 0]
    assert to_row(spike, 3, "area") == [0, 85, 0]
    assert to_row(row(0, 100), 4, "bilinear") == [0, 25, 75, 100]
    assert to_row(row(0, 0, 255, 255), 6, "nearest") == [0, 0, 0, 255, 255, 255]
    assert to_row(row(10, 20), 1, "bilinear") == [15]


def photo(height, width, channels=3, seed=0):
    """Smooth, inside 30 to 225, so that no filter overshoots."""
    rng = np.random.default_rng(seed)
    small = rng.integers(60, 196, (height // 8 + 2, width // 8 + 2, channels), dtype=np.uint8)
    layers = [Image.fromarray(small[:, :, c]).resize((width, height), Image.Resampling.BICUBIC) for c in range(channels)]
    return np.stack([np.asarray(layer) for layer in layers], axis=2)


@pytest.mark.parametrize("filter", PILLOW)
def test_pillow_on_the_cropped_image(filter):
    rng = np.random.default_rng(7)
    for seed in range(40):
        img = photo(*rng.integers(9, 150, 2), seed=seed)
        h, w, _ = img.shape
        top, left = rng.integers(0, h - 1), rng.integers(0, w - 1)
        tall, broad = rng.integers(1, h - top + 1), rng.integers(1, w - left + 1)
        height, width = (int(v) for v in rng.integers(1, 90, 2))
        got = ref(img, np.array([top, left, tall, broad]), height, width, filter)
        crop = Image.fromarray(img[top : top + tall, left : left + broad])
        want = np.asarray(crop.resize((width, height), PILLOW[filter]))
        most = np.abs(got.astype(int) - want.astype(int)).max()
        assert most <= (0 if filter == "nearest" else 1), (img.shape, top, left, tall, broad, height, width)


def test_only_pixels_that_the_box_touches_are_read():
    img = photo(40, 50)
    inside = np.zeros_like(img)
    inside[7:21, 11:32] = img[7:21, 11:32]
    box = np.array([7.25, 11.5, 13.5, 20.0], np.float32)
    for filter in PILLOW:
        np.testing.assert_array_equal(ref(img, box, 9, 33, filter), ref(inside, box, 9, 33, filter))
    close = np.array([7, 11, 14, 21], np.float32)
    np.testing.assert_array_equal(ref(img, close, 9, 33), ref(img[7:21, 11:32].copy(), whole(img[7:21, 11:32]), 9, 33))


def test_other_dtypes_and_ranks():
    mask = np.random.default_rng(1).integers(0, 2, (9, 11)).astype(bool)
    assert ref(mask, whole(mask), 20, 30, "nearest").dtype == bool
    deep = photo(30, 30).astype(np.uint16) * 200
    assert np.abs(ref(deep, whole(deep), 12, 12).astype(int) - ref(photo(30, 30), whole(deep), 12, 12) * 200.0).max() <= 101
    video = np.stack([photo(12, 14), photo(12, 14, seed=3)], axis=2)
    np.testing.assert_array_equal(ref(video, whole(video), 5, 6)[:, :, 1], ref(photo(12, 14, seed=3), whole(video), 5, 6))
    assert ref(np.zeros((0, 5, 3), np.uint8), np.zeros(4), 2, 2).shape == (2, 2, 3)


BOXES = ([0, 0, 17, 23], [2, 3, 9, 14], [0.5, 1.25, 12.5, 7.75], [-4, -5, 30, 40], [16.5, 22.5, 4, 4], [3, 3, 0, 0],
         [np.nan, np.inf, -1, np.nan], [1e30, -1e30, 1e30, 1e30])


@pytest.mark.parametrize("filter,dtype,rest,antialias", [
    ("bilinear", np.uint8, (3,), True), ("bicubic", np.float32, (), False), ("area", np.uint16, (1,), True),
    ("nearest", np.uint8, (), True), ("bicubic", np.uint8, (1,), True),
])
def test_machine_code_gives_the_same_bits(filter, dtype, rest, antialias):
    rng = np.random.default_rng(3)
    for box in BOXES:
        img = (rng.random((17, 23, *rest)) * 250).astype(dtype)
        for height, width in ((5, 7), (16, 16), (33, 50)):
            args = (img, np.array(box, np.float32), height, width, filter, antialias)
            got, want = lowered("native", *args), ref(*args)
            np.testing.assert_array_equal(got.view(np.uint8), np.ascontiguousarray(want).view(np.uint8), str(box))


def test_plain_python_gives_the_same_bits():
    img = photo(9, 8)[:, :, :2]
    for filter in ("bilinear", "nearest"):
        args = (img, np.array([1, 2, 7, 5], np.int64), 4, 3, filter, True)
        np.testing.assert_array_equal(lowered("python", *args), ref(*args))


def test_unknown_filter_is_refused():
    with pytest.raises(ValueError, match="bilinear, nearest, bicubic, area"):
        ref(row(1, 2), np.array([0, 0, 1, 2]), 1, 1, "lanczos")
