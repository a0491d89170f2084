"""Decoding images: formats by content, orientation, depth, palettes, limits, cut and damaged files."""
from __future__ import annotations

import io
import random
import struct
import threading
import tracemalloc
import zlib

import numpy as np
import pytest
from PIL import Image
from pipec.kernels.decode import decode_image, decode_mask, decode_u16, turned
from pipec.kernels.imagefile import read_header
from pipec.kernels.ops import BadRecord

MOST = 100_000_000


def image(data, channels=3, orient=True, cut="refuse", max_pixels=MOST):
    made = []

    def alloc(shape, dtype):
        made.append(np.full(shape, 170, dtype))
        return made[-1]

    out = decode_image.cpu(alloc, data, channels, orient, cut, max_pixels)
    assert out is made[-1] and len(made) == 1
    np.testing.assert_array_equal(out, decode_image.ref(data, channels, orient, cut, max_pixels))
    return out


def saved(picture, kind, **options):
    out = io.BytesIO()
    picture.save(out, kind, **options)
    return out.getvalue()


def png(width, height, bits, colour, rows, extra=b""):
    """A PNG whose rows of packed bytes are `rows`."""
    def chunk(name, body):
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    head = struct.pack(">IIBBBBB", width, height, bits, colour, 0, 0, 0)
    body = zlib.compress(b"".join(b"\0" + r for r in rows))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + extra + chunk(b"IDAT", body) + chunk(b"IEND", b"")


def natural(height=90, width=120, seed=0):
    rng = np.random.default_rng(seed)
    small = Image.fromarray(rng.integers(0, 256, (9, 12, 3), dtype=np.uint8))
    return small.resize((width, height), Image.Resampling.BICUBIC)


def reason(data, **kw):
    with pytest.raises(BadRecord) as e:
        image(data, **kw)
    assert (e.value.code == "E0801" and e.value.reason[0].islower()) or e.value.reason[0] == "`"
    return e.value.reason


DEEP = np.array([[0, 1, 255, 256], [257, 32768, 65280, 65535]], np.uint16)


def test_sixteen_bit_grey_is_scaled():
    data = png(4, 2, 16, 0, [r.astype(">u2").tobytes() for r in DEEP])
    want = np.array([[0, 0, 1, 1], [1, 128, 254, 255]], np.uint8)
    np.testing.assert_array_equal(image(data), np.repeat(want[:, :, None], 3, 2))
    np.testing.assert_array_equal(image(data, channels=1)[:, :, 0], want)
    stored = decode_u16.ref(data, 1, True, MOST)
    assert stored.dtype == np.uint16 and stored.shape == (2, 4, 1)
    np.testing.assert_array_equal(stored[:, :, 0], DEEP)


@pytest.mark.parametrize("colour,channels", [(2, 3), (6, 4)])
def test_sixteen_bit_colour_is_kept_and_scaled(colour, channels):
    values = np.random.default_rng(1).integers(0, 65536, (5, 7, channels)).astype(np.uint16)
    data = png(7, 5, 16, colour, [r.astype(">u2").tobytes() for r in values])
    np.testing.assert_array_equal(decode_u16.ref(data, channels, True, MOST), values)
    np.testing.assert_array_equal(image(data, channels=channels), np.rint(values / 257).astype(np.uint8))
    with pytest.raises(BadRecord, match="channels, not 1"):
        decode_u16.ref(data, 1, True, MOST)


def palette(**options):
    picture = Image.fromarray(np.array([[0, 1], [2, 255]], np.uint8), "P")
    colours = [0] * 768
    colours[3:6], colours[6:9], colours[765:] = (128, 0, 0), (0, 128, 0), (224, 224, 192)
    picture.putpalette(colours)
    return saved(picture, "PNG", **options)


def test_palette_is_indexes_for_masks_and_colours_for_images():
    np.testing.assert_array_equal(decode_mask.ref(palette(), True, MOST), [[0, 1], [2, 255]])
    want = [[[0, 0, 0], [128, 0, 0]], [[0, 128, 0], [224, 224, 192]]]
    np.testing.assert_array_equal(image(palette()), want)
    np.testing.assert_array_equal(image(palette(transparency=0)), want)
    alpha = image(palette(transparency=0), channels=4)[:, :, 3]
    np.testing.assert_array_equal(alpha, [[0, 255], [255, 255]])


@pytest.mark.parametrize("bits", [1, 2, 4])
def test_few_bits_are_scaled_for_images_and_kept_for_masks(bits):
    top = 2**bits - 1
    row = bytes([(0 << 8 - bits | top << 8 - 2 * bits) & 255])
    other = bytes([top << 8 - bits])
    data = png(2, 2, bits, 0, [row, other])
    np.testing.assert_array_equal(image(data, channels=1)[:, :, 0], [[0, 255], [255, 0]])
    np.testing.assert_array_equal(decode_mask.ref(data, True, MOST), [[0, top], [top, 0]])


def test_grey_and_colour_meet():
    grey = saved(Image.new("L", (8, 8), 77), "JPEG")
    np.testing.assert_array_equal(image(grey), np.full((8, 8, 3), 77))
    for colour, want in {(10, 20, 30): 18, (255, 0, 0): 76, (0, 255, 0): 150, (0, 0, 255): 29}.items():
        assert (image(saved(Image.new("RGB", (3, 2), colour), "PNG"), channels=1) == want).all()


def test_alpha_and_cmyk():
    picture = Image.new("RGBA", (3, 2), (200, 100, 50, 7))
    for kind in ("PNG", "WebP", "TIFF"):
        data = saved(picture, kind, **({"lossless": True, "exact": True} if kind == "WebP" else {}))
        assert (image(data) == (200, 100, 50)).all() and (image(data, channels=4) == (200, 100, 50, 7)).all()
    cmyk = saved(Image.new("CMYK", (16, 16), (0, 255, 255, 0)), "JPEG", quality=95)
    want = np.asarray(Image.open(io.BytesIO(cmyk)).convert("RGB"))
    np.testing.assert_array_equal(image(cmyk), want)
    assert image(cmyk, channels=1).shape == (16, 16, 1) and image(cmyk[:-2]).shape == (16, 16, 3)


def quadrants(tag, kind="JPEG"):
    a = np.zeros((16, 24, 3), np.uint8)
    a[:8, :12, 0] = a[:8, 12:, 1] = a[8:, :12, 2] = 255
    a[8:, 12:] = 255
    exif = Image.Exif()
    exif[0x0112] = tag
    options = {"quality": 95, "subsampling": 0} if kind == "JPEG" else {"lossless": True} if kind == "WebP" else {}
    return saved(Image.fromarray(a), kind, exif=exif, **options)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WebP", "TIFF"])
def test_orientation(kind):
    names = {(1, 0, 0): "R", (0, 1, 0): "G", (0, 0, 1): "B", (1, 1, 1): "W"}

    def corners(a):
        spots = (a[2, 2], a[2, -3], a[-3, 2], a[-3, -3])
        return "".join(names[tuple(int(v) // 128 for v in s)] for s in spots)

    for tag, want in enumerate(["RGBW", "GRWB", "WBGR", "BWRG", "RBGW", "BRWG", "WGBR", "GWRB"], 1):
        data = quadrants(tag, kind)
        a = image(data)
        assert a.shape == ((16, 24, 3) if tag < 5 else (24, 16, 3)) and corners(a) == want
        off = image(data, orient=False)
        assert off.shape == (16, 24, 3) and corners(off) == "RGBW"


def test_turned_matches_pillow():
    a = np.arange(6, dtype=np.uint8).reshape(2, 3)
    ways = {2: 0, 3: 3, 4: 1, 5: 5, 6: 4, 7: 6, 8: 2}
    for tag, way in ways.items():
        np.testing.assert_array_equal(turned(a, tag), np.asarray(Image.fromarray(a).transpose(Image.Transpose(way))))


@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"restart_marker_blocks": 2}])
def test_jpeg_without_its_end_marker_is_whole(options):
    data = saved(natural(), "JPEG", quality=90, **options)
    np.testing.assert_array_equal(image(data[:-2]), image(data))
    assert "ends early" in reason(data[: len(data) // 2])
    assert "ends early" in reason(data[:-40])
    assert image(data[: len(data) // 2], cut="fill").shape == (90, 120, 3)
    np.testing.assert_array_equal(image(data + b"x" * 70), image(data))


def test_progressive_jpeg_cut_between_scans_ends_early():
    data = saved(natural(), "JPEG", quality=90, progressive=True)
    last = data.rfind(b"\xff\xda")
    tables = data.rfind(b"\xff\xc4", 0, last)
    assert "ends early" in reason(data[: min(tables, last)])


def test_png_cut():
    data = saved(natural(), "PNG")
    for n in (1, 4, 11, 12):
        np.testing.assert_array_equal(image(data[:-n]), np.asarray(natural()))
    for n in (13, 100, len(data) // 2):
        assert reason(data[:-n]) == "this PNG ends early"
    filled = image(data[: len(data) // 2], cut="fill")
    np.testing.assert_array_equal(filled[:20], np.asarray(natural())[:20])
    assert not filled[-1].any()


def test_by_content_and_foreign_data():
    picture = Image.new("P", (6, 5), 0)
    picture.putpalette([10, 20, 30] * 256)
    for kind in ("GIF", "BMP", "TIFF", "PNG"):
        assert (image(saved(picture, kind)) == (10, 20, 30)).all()
    assert reason(b"") == "there is no data"
    assert "text" in reason(b"not an image") and "HTML" in reason(b"<!DOCTYPE html><p>404")
    assert "zip" in reason(b"PK\x03\x04....") and "JSON" in reason(b'{"error": 1}')
    assert "AVIF" in reason(b"\0\0\0\x20ftypavif") and "knows" in reason(b"\x01\x02\x03\x04\x05")
    assert "ends early" in reason(b"\xff\xd8\xff") and "GIF" in reason(saved(picture, "GIF")[:20])


def test_limit_comes_before_decoding():
    data = png(30_000, 30_000, 8, 2, [])
    compressor = zlib.compressobj(9)
    body = b"".join(compressor.compress(b"\0" * 90_001) for _ in range(200)) + compressor.flush()
    data = data.replace(b"IDAT" + zlib.compress(b""), b"IDAT" + body)
    tracemalloc.start()
    assert "too many pixels" in reason(data)
    assert tracemalloc.get_traced_memory()[1] < 20_000_000
    tracemalloc.stop()
    assert "too many pixels" in reason(saved(natural(), "JPEG"), max_pixels=1000)
    assert "too many pixels" in reason(saved(natural(), "WebP"), max_pixels=1000)
    assert image(saved(natural(), "JPEG"), max_pixels=90 * 120).shape == (90, 120, 3)


def test_masks_refuse_colours():
    for data in (saved(natural(), "PNG"), saved(natural(), "JPEG"), png(4, 2, 16, 0, [bytes(8)] * 2)):
        with pytest.raises(BadRecord):
            decode_mask.ref(data, True, MOST)
    assert (decode_mask.ref(saved(Image.new("L", (8, 8), 77), "JPEG"), True, MOST) == 77).all()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WebP", "GIF", "BMP", "TIFF"])
def test_damaged_bytes_only_make_bad_records(kind):
    rng = random.Random(kind)
    start = saved(natural(24, 31), kind, **({"progressive": True, "exif": Image.Exif()} if kind == "JPEG" else {}))
    refused = 0
    for n in range(300):
        data = bytearray(start[: rng.randrange(len(start))] if n % 5 == 0 else start)
        for _ in range(rng.randrange(1, 6)):
            if data:
                data[min(rng.randrange(len(data)), rng.choice((40, 10**9)), len(data) - 1)] = rng.randrange(256)
        for decode in (decode_image.ref, decode_mask.ref, decode_u16.ref):
            try:
                if decode is decode_image.ref:
                    decode(bytes(data), rng.choice((1, 3, 4)), True, rng.choice(("refuse", "fill")), 10**6)
                else:
                    decode(bytes(data), *((1,) if decode is decode_u16.ref else ()), True, 10**6)
            except BadRecord as e:
                refused += 1
                assert len(str(e)) < 200 and len(e.label) < 200
    assert refused


def test_threads_give_the_same_pixels():
    files = [saved(natural(60, 80, s), kind) for s in range(4) for kind in ("JPEG", "PNG")]
    want = [image(f) for f in files]
    wrong = []

    def work():
        for f, w in zip(files * 3, want * 3, strict=True):
            if not np.array_equal(image(f), w):
                wrong.append(f)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_header_reads_what_decoding_gives():
    for kind in ("JPEG", "PNG", "WebP", "GIF", "BMP", "TIFF"):
        header = read_header(saved(natural(), kind))
        assert (header.kind, header.width, header.height) == (kind, 120, 90)
