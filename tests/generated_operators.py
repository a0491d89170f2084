"""Calls of operators and of functions of the library with tensors, as choices for `generated_lines`: (text, kind) each."""
from __future__ import annotations

from typing import TYPE_CHECKING

from generated_data import Kind

if TYPE_CHECKING:
    from generated_lines import Writer

IMAGE = Kind("int", ("4", "5", "3"), 255)


def operators(w: Writer) -> list[tuple[str, Kind]]:
    """They need the fields v, img, iv, marks and wave as the file has them."""
    vector, number = w.pick((("v", "3"), ("wave", "w"))), w.scalar("int", 1)
    return [
        (f"cumsum({vector[0]})", Kind("float", (vector[1],))),
        ("cumsum(iv)", Kind("int", ("4",), 600)),
        ("cummax(marks)", Kind("int", ("w",), 50)),
        (f"cummin({vector[0]})", Kind("float", (vector[1],))),
        (f"cumprod({vector[0]})", Kind("float", (vector[1],))),
        (f"one_hot({number}, 5, 0.1)", Kind("float", ("5",))),
        (f"[bucketize({w.scalar('float', 1)}, [-2.0, 0.0, 0.5, 9.0]), 2]", Kind("int", ("2",), 4)),
        ("histogram([i64(iv[i]) + 1 for i], 4)", Kind("int", ("4",), 20)),
        (f"concat({vector[0]}, v, {vector[0]})", Kind("float", ("9",))) if vector[1] == "3" else
        ("concat(iv, iv)", Kind("int", ("8",), 128)),
        ("[v, v]", Kind("float", ("2", "3"))),
        ("wave[clamp(marks, 0, 2)] ?? 9", Kind("float", ("w",))),
        ("img[clamp(iv, 0, 3)]", IMAGE),
        (f"mirror(img, {w.truth(1)})", IMAGE),
        ("normalize(img, [0.5, 0.4, 0.3], [0.2, 0.3, 0.25])", Kind("float", ("3", "4", "5"))),
        ("resize(img, [0, 0, 4, 5], 3, 7)", Kind("int", ("3", "7", "3"), 255)),
        (f"adjust_contrast(img, {abs(w.number(0, 5)) / 2})", IMAGE),
        (f"adjust_hue(img, 0.{w.number(1, 9)})", IMAGE),
        ("ends(v).low + ends(v).all" if "ends" in w.functions else "v * 2", Kind("float", ("3",))),
        *_pixels(w), *_numbers(w),
    ]


def _pixels(w: Writer) -> list[tuple[str, Kind]]:
    mode = w.pick(("constant", "edge", "reflect", "symmetric"))
    return [
        ("to_chw(img)", Kind("int", ("3", "4", "5"), 255)),
        ("center_crop(img, 2, 3)", Kind("int", ("2", "3", "3"), 255)),
        (f'pad(img, 1, 0, 2, 3, mode="{mode}")', Kind("int", ("7", "8", "3"), 255)),
        ("permute_channels(img, [2, 0, 1])", IMAGE), ("grayscale(img)", IMAGE), ("autocontrast(img)", IMAGE),
        ("equalize(img)", IMAGE), (f"adjust_brightness(img, {w.number(0, 5) / 2})", IMAGE), ("invert(img)", IMAGE),
        (f"adjust_saturation(img, {w.number(0, 5) / 2})", IMAGE), (f"posterize(img, {w.number(1, 8)})", IMAGE),
        (f"solarize(img, {w.number(0, 256)})", IMAGE), (f"adjust_sharpness(img, {w.number(0, 5) / 2})", IMAGE),
        ("gaussian_blur(img, 3, 0.7)", IMAGE), ("five_crop(img, 2, 2)", Kind("int", ("5", "2", "2", "3"), 255)),
        (f'rotate(img, {w.number(-4, 4) * 20}, filter="{w.pick(("nearest", "bilinear"))}")', IMAGE),
        (f"erase(img, {w.number(0, 3)}, 1, 2, {w.number(1, 4)}, value=7)", IMAGE),
        ("[sum(channel_histograms(img)[c]) for c < 3]", Kind("int", ("3",), 20)),
    ]


def _numbers(w: Writer) -> list[tuple[str, Kind]]:
    return [
        ("deltas(m)", Kind("float", ("2", "3"))), ("mu_law(v)", Kind("int", ("3",), 256)),
        ("pre_emphasis(wave)", Kind("float", ("w",))),
        ("box_overlaps([[v[0], v[1], v[2], 3]], [[0.0, 1.0, 9.0, 9.0], [v[2], 0, 2, 2]])", Kind("float", ("1", "2"))),
        ("flip_boxes([[v[0], v[1], v[2], 3]], 40, flag)", Kind("float", ("1", "4"))),
        ("clip_boxes([[v[0], v[1], v[2], 3]], 4, 5)", Kind("float", ("1", "4"))),
        ("pad_boxes([[v[0], v[1], v[2], 3]], 4, 5)", Kind("float", ("1", "4"))),
        ("[hash(iv[i], salt=3) % 100 for i]", Kind("int", ("4",), 100)),
        ("[cross(iv[i], n) % 100 for i]", Kind("int", ("4",), 100)),
        ("power_to_db(m)", Kind("float", ("2", "3"))),
    ]


def draws_of_images(w: Writer) -> list[tuple[str, Kind]]:
    return [
        ("random_crop(img, 2, 3)", Kind("int", ("2", "3", "3"), 255)), ("random_flip(img)", IMAGE),
        ("random_crop(img, 4, 4, padding=2)", Kind("int", ("4", "4", "3"), 255)),
        ("random_box(9, 8)", Kind("int", ("4",), 9)), ("random_erasing(img, p=0.7)", IMAGE),
        ("random_resized_crop(img, 3, 4)", Kind("int", ("3", "4", "3"), 255)), ("random_grayscale(img, 0.5)", IMAGE),
        (f"color_jitter(img, 0.3, 0.2, 0.4, {w.pick(('0.1', '0.0'))}, shuffled={w.pick(('true', 'false'))})", IMAGE),
        ("gaussian_noise(img, 9.0)", IMAGE), ('random_rotation(img, 40, filter="bilinear")', IMAGE),
        ("random_part(iv, 2)", Kind("int", ("2",), 128)), ("log_gamma(0.5)", Kind("float")),
    ]
