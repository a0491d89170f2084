"""Parts of images: what is decoded and resized in part has the very values of the whole, and where it must not be, it isn't."""
from __future__ import annotations

from collections import Counter
from textwrap import dedent

import numpy as np
import pytest
from conftest import encoded, picture, write_tar
from pipec.compiler import regions
from pipec.compiler.check import check
from pipec.compiler.compile import lowered, transformed
from pipec.compiler.graph import walk
from pipec.compiler.graphtext import parse_graph, print_graph
from pipec.kernels.ops import OPERATORS
from running import assert_same, run_compiled, run_interpreted

HEAD = """seed 4

schema Photo
  jpg: bytes
  cls: i64

pipeline p
  from tar("{data}") as Photo
"""


def turned(orientation):
    return b"Exif\0\0II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0" + bytes([orientation]) + b"\0\0\0\0\0\0\0"


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    rng = np.random.default_rng(0)
    files = [encoded(picture(rng, int(rng.integers(45, 130)), int(rng.integers(45, 130))), "JPEG", quality=90, subsampling=k % 3,
                     exif=turned(1 + k)) for k in range(8)]
    files += [encoded(picture(rng, 90, 70).convert("L"), "JPEG"), encoded(picture(rng, 90, 71).convert("CMYK"), "JPEG"),
              encoded(picture(rng, 61, 90), "JPEG", progressive=True), encoded(picture(rng, 50, 64), "PNG"),
              encoded(picture(rng, 64, 50), "WEBP", quality=80), encoded(picture(rng, 90, 60), "TIFF"),
              encoded(picture(rng, 12, 80), "JPEG"), encoded(picture(rng, 15, 9), "JPEG", subsampling=2)]
    damaged = bytearray(files[0])
    damaged[len(damaged) // 2 : len(damaged) // 2 + 3] = b"\x12\xff\xd3"
    files.append(bytes(damaged))
    path = tmp_path_factory.mktemp("regions") / "d.tar"
    write_tar(path, [(f"{k:02d}.{e}", d) for k, file in enumerate(files) for e, d in (("jpg", file), ("cls", str(k).encode()))])
    return str(path)


def checked(body, data):
    return check("p.pipe", text=(HEAD + "".join(f"  {line}\n" for line in body.strip().splitlines())).replace("{data}", data))


def operators(program, until=None):
    return [n["op"] for n in walk(transformed(program.emit, until=until)) if n.op == "call"]


EVERY_WAY = """
photo = decode_image(jpg)
a ~ random_resized_crop(photo, 24, 20)
grey = decode_image(jpg, channels=1)
b ~ random_crop(grey, 16, 18, padding=6)
stored = decode_image(jpg, orient=false)
c = center_crop(resize_short(stored, 40), 28, 24)
half = decode_image(jpg, shrink=2)
d ~ random_crop(half, 6, 5)
flip ~ bernoulli(0.5)
e = mirror(crop(half, 1, 2, 30, 4), flip)
"""
MORE_WAYS = """
half = decode_image(jpg, shrink=2)
f ~ random_resized_crop(half, 9, 9, filter="nearest")
wide: u8[h, w, 4] = decode_image(jpg, channels=4)
box ~ random_box(h, w)
g = resize(wide, [f32(box[0]) + 0.25, f32(box[1]) - 0.5, f32(box[2]), f32(box[3])], 7, 9, "bicubic")
i ~ random_scaled_crop(jpg, 11, 10)
"""


def same_values(body, data):
    """How often each operator is called after the pass; every value is that of the whole image."""
    program = checked(body, data)
    reference, code = run_interpreted(program)
    assert code is None and len(reference) == 17
    compiled, code = run_compiled(program)
    assert code is None
    assert_same(compiled, reference)
    return Counter(operators(program, "decode_regions"))


def test_values_stay(data):
    found = same_values(EVERY_WAY + "emit a, b, c, d, e, cls", data)
    assert found["decode_region"] == 4 and not found["decode_image"] and found["resize_part"] == 2


def test_scaled_decoding_is_near_the_resized_whole(tmp_path):
    rng = np.random.default_rng(3)
    photos = [encoded(picture(rng, 300 + 40 * k, 400), "JPEG", quality=92) for k in range(6)]
    write_tar(tmp_path / "d.tar", [(f"{k}.{e}", d) for k, photo in enumerate(photos) for e, d in (("jpg", photo), ("cls", b"1"))])
    program = checked("box = [10, 20, 250 - 40 * cls, 330]\na = decode_scaled(jpg, box, 33, 36)\n"
                      "b = resize(decode_image(jpg), box, 33, 36)\nemit a, b", str(tmp_path / "d.tar"))
    for record in run_interpreted(program)[0]:
        difference = np.abs(record["a"].astype(int) - record["b"])
        assert 0 < difference.mean() < 2 and record["a"].shape == (33, 36, 3)
    shrunk = [n for n in walk(transformed(program.emit)) if n.op == "call" and n["op"] == "decode_region"]
    assert len(shrunk) == 2


WHOLE = {
    "read as a whole": "a ~ random_crop(photo, 8, 8)\nb = mean(photo)",
    "emitted": "a ~ random_crop(photo, 8, 8)\nb = photo",
    "places that only pixels tell": "a = photo[i64(photo[0, 0, 0]), 0, 0] ?? 0\nb = 1",
    "a condition on pixels": "where mean(photo) > 9\na ~ random_crop(photo, 8, 8)\nb = 1",
    "only sometimes": "x ~ random_crop(photo, 8, 8)\na = if cls > 3 then x[0, 0, 0] else h\nb = 1",
    "all rows and columns": "flip ~ bernoulli(0.5)\na = upend(mirror(photo, flip), flip)\nb = 1",
}


@pytest.mark.parametrize("asks", ["where h > 60", "where h > 60 and cls > 0", "check(h > 0 and h < 1000)"])
def test_a_size_is_asked_of_the_header(data, asks):
    """Before anything is decoded, and then only what is read."""
    program = checked(f"photo: u8[h, w, 3] = decode_image(jpg)\n{asks}\na ~ random_crop(photo, 8, 8)\nb = w\nemit a, b", data)
    found = operators(program, "decode_regions")
    assert "image_size" in found and "decode_region" in found and "decode_image" not in found
    (program_of,) = [s.program for s in lowered(program).plan.above]
    steps = [getattr(s, "op", type(s).__name__) for s in program_of.steps]
    assert steps.index("image_size") < steps.index("Require") < steps.index("decode_region")
    assert_same(run_compiled(program)[0], run_interpreted(program)[0])


@pytest.mark.parametrize("name", WHOLE)
def test_whole_images_stay_whole(data, name):
    program = checked(f"photo: u8[h, w, 3] = decode_image(jpg)\n{WHOLE[name]}\nemit a, b", data)
    found = operators(program, "decode_regions")
    assert "decode_image" in found and "decode_region" not in found
    if name in ("a condition on pixels", "only sometimes"):
        assert_same(run_compiled(program)[0], run_interpreted(program)[0])


def test_what_a_mirror_reads_is_not_cropped(data):
    program = checked("small = resize(decode_image(jpg), [0, 0, 20, 20], 8, 9)\nflip ~ bernoulli(0.5)\n"
                      "a = mirror(small, flip)\nemit a", data)
    part = next(n for n in walk(transformed(program.emit, until="decode_regions")) if n.op == "call" and n["op"] == "resize_part")
    assert part.type.dims == (8, 9, 3)


def test_bad_records_stay_bad(data, tmp_path):
    rng = np.random.default_rng(2)
    good = encoded(picture(rng, 60, 80), "JPEG")
    files = [good, good[: len(good) // 2], b"no image", good[:-2], encoded(picture(rng, 50, 60), "PNG")[:-30], good]
    write_tar(tmp_path / "d.tar", [(f"{k}.{e}", d) for k, file in enumerate(files)
                                   for e, d in (("jpg", file), ("cls", str(k).encode()))])
    program = checked("skip_bad(at_most=0.9)\nphoto = decode_image(jpg)\na ~ random_crop(photo, 8, 8)\nemit a, cls",
                      str(tmp_path / "d.tar"))
    assert "decode_region" in operators(program)
    reference = run_interpreted(program)
    assert [int(r["cls"]) for r in reference[0]] == [0, 3, 5]
    assert_same(run_compiled(program)[0], reference[0])


@pytest.mark.parametrize("filter", ["bilinear", "bicubic", "area", "nearest"])
def test_resize_in_parts(filter):
    part, window, resize = (OPERATORS[n].ref for n in ("resize_part", "resize_window", "resize"))
    rng = np.random.default_rng(1)
    for _ in range(60):
        h, w, height, width = (int(v) for v in rng.integers(1, 40, 4))
        image = rng.integers(0, 256, (h, w, 3), np.uint8)
        box = rng.uniform(-5, 40, 4).astype(np.float32) if rng.random() < 0.7 else np.int64([0, 0, h, w])
        antialias = bool(rng.random() < 0.6)
        y, x = int(rng.integers(0, height)), int(rng.integers(0, width))
        cut = y, x, int(rng.integers(1, height - y + 1)), int(rng.integers(1, width - x + 1))
        size = np.array([h, w])
        top, left, tall, wide = (int(v) for v in window(size, box, height, width, *cut, filter, antialias))
        assert top >= 0 and left >= 0 and top + tall <= h and left + wide <= w
        there = image[top : top + tall, left : left + wide]
        made = part(there, np.array([top, left, tall, wide]), size, box, height, width, *cut, filter, antialias)
        whole = resize(image, box, height, width, filter, antialias)
        np.testing.assert_array_equal(made, whole[y : y + cut[2], x : x + cut[3]])


def test_the_example_of_the_docstring():
    text = regions.decode_regions.__doc__ or ""
    before, after = (dedent(t).strip() + "\n" for t in text.split("Before:\n")[1].split("After:\n"))
    assert print_graph(regions.decode_regions(parse_graph(before), {})) == print_graph(parse_graph(after))
