"""Every decoder of JPEG windows that is installed gives the very pixels of decode-then-cut, over good and damaged files.

PIPEC_TURBOJPEG names a libturbojpeg 3 to be tested too, where the system has none.
"""
from __future__ import annotations

import io
from functools import cache

import numpy as np
import pytest
import simplejpeg
from conftest import encoded, picture
from PIL import Image
from pipec.kernels import jpeg, jpegtop
from pipec.kernels.decode import decode_image, decode_region, image_size
from pipec.kernels.imagefile import read_header
from pipec.kernels.ops import BadRecord

MOST = 100_000_000
INSTALLED = list({p.name: p for p in (*jpeg.providers(), jpegtop.load()) if isinstance(p, jpeg.Provider)}.values())
RNG = np.random.default_rng(8)


def noisy(height, width):
    """A photo with detail at every scale, so that each of its bits shows."""
    smooth = np.asarray(picture(np.random.default_rng(height), height, width)).astype(np.int16)
    return np.clip(smooth + RNG.normal(0, 20, smooth.shape), 0, 255).astype(np.uint8)


@cache
def good():
    """Files of every kind, by what is special about them."""
    found = {s: simplejpeg.encode_jpeg(noisy(97, 121), 91, "RGB", s) for s in ("444", "422", "420", "440", "411")}
    found["tiny"] = simplejpeg.encode_jpeg(noisy(3, 5), 90, "RGB", "420")
    found["thin"] = simplejpeg.encode_jpeg(noisy(200, 17), 90, "RGB", "420")
    photo = Image.fromarray(noisy(90, 131))
    found["grey"] = encoded(photo.convert("L"), "JPEG")
    found["progressive"] = encoded(photo, "JPEG", progressive=True)
    found["restarts"] = encoded(photo, "JPEG", restart_marker_blocks=3)
    found["cmyk"] = encoded(photo.convert("CMYK"), "JPEG")
    found["kept as RGB"] = encoded(photo, "JPEG", keep_rgb=True)
    found["coarse"] = encoded(photo, "JPEG", quality=5)
    for k in range(2, 9):
        exif = b"Exif\0\0II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0" + bytes([k]) + b"\0\0\0\0\0\0\0"
        found[f"turned {k}"] = encoded(photo, "JPEG", exif=exif, subsampling=k % 3)
    return found


def damaged():
    """Good files with bytes changed, markers put in, data after the scan, and parts that are gone."""
    rng = np.random.default_rng(3)
    for name, data in good().items():
        begin = data.index(b"\xff\xda") + 14
        for kind in range(0, 10) if name in ("420", "grey", "progressive") else (0, 3, 5, 6):
            broken = bytearray(data)
            at = int(rng.integers(begin, len(data) - 2))
            match kind:
                case 0 | 1 | 2:
                    broken[at] ^= 1 << int(rng.integers(8))
                case 3:
                    broken[at : at + 6] = rng.integers(0, 256, 6, np.uint8).tobytes()
                case 4:
                    broken[at : at + 2] = b"\xff\xd9"
                case 5:
                    broken[at : at + 2] = b"\xff\xd3"
                case 6:
                    del broken[at : at + 5]
                case 7:
                    broken[-2:] = b"\xff\xc4\x00\x05\x00\x01\x02" + b"\xff\xd9"
                case 8:
                    broken[-2:] = b"\0\0\0\0" + b"\xff\xd9" + b"after the end"
                case 9:
                    place = int(rng.integers(2, begin))
                    broken[place] = int(rng.integers(256))
            yield f"{name} {kind}", bytes(broken)


def outcome(function, *args):
    try:
        return function(*args)
    except BadRecord as bad:
        return bad.code


def windows(height, width, count, rng):
    yield 0, 0, height, width
    for _ in range(count):
        top, left = int(rng.integers(0, height)), int(rng.integers(0, width))
        yield top, left, int(rng.integers(1, height - top + 1)), int(rng.integers(1, width - left + 1))


def agrees(data, count, rng):
    """Compares windows with cuts of the whole, for every shrink and number of channels; says how many were compared."""
    compared = 0
    for shrink in jpeg.SHRINKS:
        for channels in (1, 3, 4):
            for cut in ("refuse", "fill") if channels == 3 else ("refuse",):
                rest = channels, True, cut, MOST, shrink
                whole = outcome(decode_image.ref, data, *rest)
                if isinstance(whole, str):
                    assert outcome(decode_region.ref, data, (0, 0, 9, 9), *rest) == whole
                    assert str(outcome(decode_region.cpu, np.empty, data, (1, 0, 5, 9), *rest)) == whole
                    continue
                assert tuple(image_size.ref(data, *rest)) == whole.shape[:2]
                for top, left, rows, columns in windows(*whole.shape[:2], count, rng):
                    part = decode_region.cpu(np.empty, data, (top, left, rows, columns), *rest)
                    np.testing.assert_array_equal(part, whole[top : top + rows, left : left + columns])
                    compared += 1
    return compared


@pytest.fixture(params=[*INSTALLED, None], ids=lambda p: p.name if p else "simplejpeg alone")
def provider(request):
    """One provider alone, always chosen."""
    if request.param is None:
        with jpeg.only():
            yield None
        return
    eager = jpeg.Provider(request.param.name, "", request.param.decode, fixed=-1e12)
    with jpeg.only(eager):
        yield eager


def test_good_files(provider):
    rng = np.random.default_rng(1)
    assert all(agrees(data, 4, rng) == 80 for data in good().values())


def test_damaged_files(provider):
    rng = np.random.default_rng(2)
    compared = [agrees(data, 1, rng) for _, data in damaged()]
    assert len(compared) == 98 and sum(c > 0 for c in compared) > 60


def test_providers_decode_what_they_are_for(provider):
    """Not that everything is left to simplejpeg."""
    if provider is None:
        return
    for name in ("444", "422", "420", "440", "grey", "kept as RGB", "restarts"):
        header = read_header(good()[name])
        for shrink in jpeg.SHRINKS if provider.name != "nvImageCodec" else (1,):
            out = np.zeros((5, 6, 3), np.uint8)
            assert provider.decode(good()[name], header, shrink, jpeg.Window(2, 3, 5, 6), out), (name, shrink)


def test_the_cheapest_decodes():
    big = encoded(Image.fromarray(noisy(600, 800)), "JPEG")
    header = read_header(big)
    few, cheap = (jpeg.Provider(n, "", lambda *_: True, fixed=f) for n, f in (("dear", 5e4), ("cheap", 0.0)))
    with jpeg.only(few, cheap):
        assert jpeg.cheapest(big, header, 1, jpeg.Window(100, 100, 99, 99)) is cheap
    with jpeg.only(jpeg.Provider("slow to start", "", lambda *_: True, fixed=1e9)):
        assert jpeg.cheapest(big, header, 1, jpeg.Window(100, 100, 99, 99)) is None
    reader = jpeg.Provider("reads on", "", lambda *_: True, reads_on=True)
    top = jpeg.Window(0, 0, 60, 800)
    assert reader.cost(big, header, 1, top) > cheap.cost(big, header, 1, top)


def test_a_decoder_whose_pixels_differ_is_not_used():
    def wrong(data, header, shrink, window, out):
        out[:] = 77
        return True

    assert "differ" in jpeg.compared(jpeg.Provider("wrong", "", wrong))
    assert "none of the images" in jpeg.compared(jpeg.Provider("idle", "", lambda *_: False))


@pytest.mark.skipif("C extension _jpegregion" not in [p.name for p in INSTALLED], reason="libjpeg-turbo's headers weren't there")
def test_the_extension_refuses_windows_that_do_not_fit():
    from pipec.kernels import _jpegregion

    data = good()["420"]
    for height, width, top, left, rows, columns, channels, shrink in (
        (97, 121, 0, 0, 98, 5, 3, 1), (97, 121, -1, 0, 5, 5, 3, 1), (97, 121, 95, 0, 5, 5, 3, 1), (97, 121, 0, 0, 5, 5, 2, 1),
        (97, 121, 0, 0, 5, 5, 3, 3), (2**31, 2**31, 0, 0, 2**31, 2**31, 3, 1), (97, 121, 2**62, 0, 2**62, 5, 3, 1),
    ):
        with pytest.raises((ValueError, OverflowError)):
            _jpegregion.decode_window(data, bytearray(75), height, width, top, left, rows, columns, channels, shrink)
    assert not _jpegregion.decode_window(data, bytearray(75), 97, 122, 0, 0, 5, 5, 3, 1)      # not this image's size
    assert not _jpegregion.decode_window(b"no JPEG", bytearray(75), 97, 121, 0, 0, 5, 5, 3, 1)


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "BMP", "GIF", "WEBP"])
def test_other_formats_are_shrunk_by_means(kind):
    data = encoded(Image.fromarray(noisy(33, 46)), kind, **({"lossless": True} if kind == "WEBP" else {}))
    whole = decode_image.ref(data, 3, True, "refuse", MOST, 1)
    small = decode_image.ref(data, 3, True, "refuse", MOST, 4)
    assert small.shape == (9, 12, 3) == (*image_size.ref(data, 3, True, "refuse", MOST, 4), 3)
    mean = whole[8:12, 4:8].reshape(16, 3).mean(axis=0)
    np.testing.assert_allclose(small[2, 1], mean, atol=0.51)
    np.testing.assert_array_equal(decode_region.cpu(np.empty, data, (1, 2, 5, 40), 3, True, "refuse", MOST, 4), small[1:6, 2:])


def test_shrunk_pixels_are_near_the_means():
    data = encoded(picture(np.random.default_rng(1), 160, 200), "JPEG", quality=95, subsampling=0)
    whole = decode_image.ref(data, 3, True, "refuse", MOST, 1).astype(np.float32)
    for shrink in (2, 4, 8):
        small = decode_image.ref(data, 3, True, "refuse", MOST, shrink)
        means = whole.reshape(160 // shrink, shrink, 200 // shrink, shrink, 3).mean(axis=(1, 3))
        assert np.abs(small - means).mean() < 1.5
    with pytest.raises(BadRecord, match="`shrink` is 1, 2, 4 or 8"):
        decode_image.ref(data, 3, True, "refuse", MOST, 3)


def test_what_a_cut_file_holds_is_its_window_too():
    data = good()["420"][: len(good()["420"]) * 2 // 3]
    whole = decode_image.ref(data, 3, True, "fill", MOST, 1)
    part = decode_region.cpu(np.empty, data, (40, 10, 50, 60), 3, True, "fill", MOST, 1)
    np.testing.assert_array_equal(part, whole[40:90, 10:70])


def test_a_window_outside_is_cut_off():
    data = good()["turned 6"]
    whole = decode_image.ref(data, 3, True, "refuse", MOST, 1)
    for window in ((-5, -5, 20, 20), (120, 80, 99, 99), (500, 0, 5, 5), (0, 0, 0, 9), (3, 3, -2, 5)):
        part = decode_region.cpu(np.empty, data, window, 3, True, "refuse", MOST, 1)
        np.testing.assert_array_equal(part, decode_region.ref(data, window, 3, True, "refuse", MOST, 1))
    assert part.shape[0] == 0 and whole.shape == (131, 90, 3)


def test_memory_is_bounded_by_the_window():
    out = io.BytesIO()
    Image.fromarray(noisy(700, 900)).save(out, "JPEG")
    part = decode_region.cpu(np.empty, out.getvalue(), (650, 10, 20, 30), 3, True, "refuse", MOST, 1)
    assert part.shape == (20, 30, 3) and part.base is None


def test_where_nothing_decodes_parts_simplejpeg_leaves_out_what_lies_below(monkeypatch):
    monkeypatch.setattr(jpeg, "_LOADERS", {"none": lambda: jpeg.Absent("none", "it isn't there")})
    absent, top = jpeg.providers.__wrapped__()
    assert (absent.name, top.name) == ("none", jpegtop.NAME)
    data, out = simplejpeg.encode_jpeg(noisy(300, 200), 90, "RGB", "420"), np.empty((20, 30, 3), np.uint8)
    header, window = read_header(data), jpeg.Window(40, 50, 20, 30)
    asked = []
    monkeypatch.setattr(jpegtop, "whole_to", lambda told, shorter, *rest: asked.append((read_header(told), shorter)))
    assert top.decode(data, header, 1, window, out) and asked[0][0].height == asked[0][1].height == 92
    assert not top.decode(data, header, 1, jpeg.Window(240, 0, 40, 9), out)    # nothing to leave out
    assert top.cost(data, header, 1, window) < jpeg.PER_BYTE * len(data) + jpeg.PER_PIXEL * 300 * 200
    with jpeg.only(top):
        assert jpeg.cheapest(data, header, 1, jpeg.Window(200, 0, 60, 200)) is None


def test_a_file_that_nothing_can_be_decoded_of_is_bad():
    """After a warning simplejpeg says nothing of the error that ends its work: what its memory held before isn't the image."""
    data = bytearray(good()["progressive"])
    scans = [k for k in range(len(data) - 1) if data[k : k + 2] == b"\xff\xda"]
    data[scans[1] - 60 : scans[1] - 58] = b"\xff\x35"                     # a warning: bytes that belong to no marker
    data[-2:] = b"\xff\xc4\x00\x05\x00\x01\x02\xff\xd9"                 # and a table that is too short
    for shrink in (1, 8):
        assert outcome(decode_image.ref, bytes(data), 3, True, "refuse", MOST, shrink) == "E0801"
        assert outcome(decode_region.cpu, np.empty, bytes(data), (3, 1, 4, 3), 3, True, "refuse", MOST, shrink) == "E0801"
