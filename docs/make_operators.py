"""Writes docs/operators.md from the operators' own heads and texts: `python docs/make_operators.py`."""
from __future__ import annotations

import inspect
import re
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from pipec import dsl
from pipec.kernels.ops import OPERATORS, Registry
from pipec.kernels.random import DRAWS
from pipec.kernels.scalar import SCALARS

TARGET = Path(__file__).parent / "operators.md"
TITLES = {"decode": "Images: decoding", "resize": "Images: resizing", "warp": "Images: reading between pixels",
          "filters": "Images: filters and counts", "audio": "Sound", "text": "Texts", "table": "Columns and rows of numbers"}
SIGNS = {"add": "a + b", "sub": "a - b", "mul": "a * b", "div": "a / b", "floordiv": "a // b", "mod": "a % b", "pow": "a ^ b",
         "neg": "-a", "eq": "a == b", "ne": "a != b", "lt": "a < b", "le": "a <= b", "gt": "a > b", "ge": "a >= b",
         "and": "a and b", "or": "a or b", "not": "not a"}
START = """# Functions and operators

Everything that a program can call, from the definitions themselves. This file is generated: `python docs/make_operators.py`
writes it again. [language.md](language.md) explains heads and types; `pipec explain CODE` explains errors.

In a head, a name after `:` is the type an argument must have, `= value` is what it has when it isn't given, and the part
after `->` is the result. `any`, `num`, `int` and `float` stand for a dtype, the same one wherever the word recurs. Arguments
are given in order or by name: `resize(img, box, 64, 64, filter="area")`.

- [The language's own](#the-languages-own)
- [Draws](#draws)
- [The library](#the-library)
- [Operators](#operators)
- [Scalar functions](#scalar-functions)
- [What recipes need](#what-recipes-need)
- [Not there](#not-there)

## The language's own

- `sum prod mean std var min max`: of all places of a tensor, `sum(x)`, or of an expression over binders,
  `sum(x[i] * w[i] for i)`. `std` and `var` divide by n - 1; `std(x, correction=0)` divides by n.
- `any all`: of bools, likewise.
- `argmax argmin first`: the place of the greatest, the least, the first true one, as i64. They run over one dimension or
  one binder.
- `concat(a, b, …)`: tensors one after the other along the first dimension.
- `missing(x)`: is there no value; of a tensor a bool for each place.
- `u8(x)` and so on to `f64(x)` and `bool(x)`: numbers as that dtype. To integers they are rounded half to even and kept in
  range, but `i64(x)` cuts towards zero.

Of nothing, `sum prod any all` are 0, 1, false and true. `mean std var min max argmax argmin` of what may be empty may be
missing, and so may `first`: write `?? value`.

## Draws

Written with `~`, these and every function of the library that uses them.

| | |
|---|---|
"""
LIBRARY = """
## The library

Written in the language itself: `dsl/std.pipe` is readable, and a function of yours with the same name takes its place.

"""
SCALAR = """
## Scalar functions

They apply to tensors of equal sizes element by element. Integers are computed in i64; a function with the result `float`
makes them f32.

"""

NEEDS = """
Image from a file | `decode_image(jpg)`; a label mask `decode_mask(png)`, 16 bits `decode_u16(png)`
Size without decoding | `image_size(jpg)`
EXIF orientation | applied by `decode_image`; `image_orientation(jpg)`, `orient(img, o)`, `orient_boxes`
Resize | `resize(img, [0, 0, h, w], 224, 224)`, with the filters bilinear, bicubic, nearest, area
Shorter side | `resize_short(img, 256)`, `resize_short(img, 800, longest=1333)`
Crop | `crop(img, top, left, 224, 224)`, `center_crop(img, 224, 224)`
Random crop | `random_crop(img, 32, 32, padding=4)`
Random part, resized | `random_resized_crop(img, 224, 224)`
Five and ten crops | `five_crop(img, 224, 224)`, `ten_crop(img, 224, 224)`
Several crops | `crops ~ [random_resized_crop(img, 96, 96) for i < 8]`
Pad | `pad(img, 2, 2, 2, 2)`, also `mode="edge"`, `"reflect"`, `"symmetric"`
Flip left and right | `mirror(img, flip)`, `random_flip(img)`
Flip top and bottom | `upend(img, flip)`
Rotate | `rotate(img, 30)`, `rotate_expanded(img, 30)`, `random_rotation(img, 30)`
Affine | `affine(img, angle=10, scale=0.9)`, `random_affine(img, 10)`
Perspective | `perspective(img, start, end)`, `random_perspective(img)`
Elastic | `elastic(img, down, across)`, `random_elastic(img)`
Brightness | `adjust_brightness(img, 1.2)`
Contrast | `adjust_contrast(img, 1.2)`, `autocontrast(img)`
Saturation | `adjust_saturation(img, 1.2)`
Hue | `adjust_hue(img, 0.1)`
Colour jitter | `color_jitter(img, 0.4, 0.4, 0.4, 0.1)`
Grey | `grayscale(img)`, `random_grayscale(img, 0.2)`
Channels in another order | `permute_channels(img, [2, 1, 0])`
Blur | `gaussian_blur(img, 9, 1.5)`
Sharpen | `adjust_sharpness(img, 2)`
Equalize | `equalize(img)`
Invert, solarize, posterize | `invert(img)`, `solarize(img, 128)`, `posterize(img, 4)`
Erase (cutout) | `erase(img, top, left, 16, 16)`, `random_erasing(img)`
Noise | `gaussian_noise(img, 8)`
RandAugment | `rand_augment(img, 9)`
TrivialAugment | `trivial_augment(img)`
AutoAugment | `auto_augment(img)`
Normalize, channels first | `normalize(img, MEAN, STD)`, `to_chw(img)`
Mixup and CutMix | `mixup(images, labels, lam)`, `cutmix(images, labels, lam)` below `batch`
Boxes through a crop and a resize | `crop_boxes(boxes, part)`, `resize_boxes(boxes, part, 512, 512)`
Boxes through a flip | `flip_boxes(boxes, width, flip)`
Boxes that left | `clip_boxes(boxes, h, w)`, `kept = indices(visible_boxes(boxes))`, `boxes = boxes[kept]`
Zoom out | `random_zoom_out(img, boxes)`, `pad_boxes(boxes, top, left)`
Crop by overlap | `random_iou_box(h, w, boxes)`, `centers_inside(boxes, part)`
Overlaps of boxes | `box_overlaps(a, b)`
Gaps filled, and their mask | `x ?? 0`, `missing(x)`
Numbers made even | `log1p(max(x, 0))`, `clamp(x, 0, 1)`, `(x - mean(x)) / std(x)`
Buckets | `bucketize(x, [1, 10, 100])`
Rows of an embedding table | `hash(word, salt=1) % 1000`, `cross(a, b) % 1000`
Numbers of names | `lookup(name, "labels.csv", key="name", column="id")`
One of n | `one_hot(cls, 10, smoothing=0.1)`
Calendar | `year(t)`, `month(t)`, `day(t)`, `hour(t)`, `minute(t)`, `weekday(t)`, `day_of_year(t)`, `week(t)`
Running sums and extremes | `cumsum(x)`, `cumprod(x)`, `cummax(x)`, `cummin(x)`
Counts of values | `histogram(x, 10)`
Texts | `lower(t)`, `strip(t)`, `replace(t, "a", "b")`, `split(t)`, `parse_int(t)`, `utf8(t)`
Tokens | `tokenize(t, "tokenizer.json")`
Parts of a series | `x[a:b]`, beyond its ends `x[a:b] ?? 0`, gathered `x[order]`
Places of what holds | `indices(mask)`, `first(mask)`, `argmax(x)`
Joined | `concat(a, b)`
Sound from a file | `decode_audio(wav)`; one channel: `to_mono(clip.samples)`
Another rate | `resample(wave, rate, 16_000)`
A random part of a sound | `random_part(wave, 16_000)`
Spectrum | `spectrogram(wave, 400, 160)`
Mel scale | `mel_bank(80, 201, 16_000)`, `power_to_db(power)`
MFCC and deltas | `mfcc(mel, 13)`, `deltas(x)`
Pre-emphasis, mu-law | `pre_emphasis(wave)`, `mu_law(wave)`
SpecAugment | `spec_augment(x)`
Noise at a loudness | `add_noise(wave, noise, 0, 20)`
"""
RECIPES = """
## What recipes need

{count} things that training on images, tables, tokens and sound asks for, and how they are written.

| | |
|---|---|
{rows}
"""
ABSENT = """
## Not there

What people may look for and won't find. An `extern fn` of yours can do what is needed now.

- **Images**: AutoAugment's policies for CIFAR-10 and SVHN; AugMix; compressing again as JPEG; CLAHE; median and motion blur
  (`convolve` takes a row and a column, so only kernels that are their product); HSV and Lab as values; video.
- **Boxes**: through `rotate`, `affine`, `perspective` and `elastic`; turned boxes; keypoints; suppressing those that overlap.
  Masks go through all of these: the same call with `filter="nearest"`.
- **Sound**: other speeds and pitches, finding speech, waves back from spectra, constant-Q spectra. A spectrogram is powers,
  not complex numbers.
- **Texts**: regular expressions, Unicode normalisation, JSON inside a text, tokenizers other than a `tokenizer.json`.
- **Tables**: sorting, the k greatest, distinct values, joins (`lookup` is one with a small table), time zones, statistics of
  the whole data (compute them before and write them as `let`).
"""


def needs() -> str:
    """The table of what recipes need; every function in it must be there."""
    lines = [line.split(" | ") for line in NEEDS.strip().split("\n")]
    own = set(re.findall(r"^fn (\w+)", Path(dsl.__file__).with_name("std.pipe").read_text(encoding="utf-8"), re.MULTILINE))
    known = own | set(OPERATORS) | set(SCALARS) | {"concat", "first", "missing", "mean", "std", "max", "argmax", "mel_bank"}
    for _, how in lines:
        unknown = {name for code in re.findall(r"`([^`]*)`", how) for name in re.findall(r"(\w+)\(", code)} - known
        assert not unknown, unknown
    return RECIPES.format(count=len(lines), rows="\n".join(f"| {need} | {how} |" for need, how in lines))


def library() -> str:
    """The functions of std.pipe with the comments above them, in its own sections."""
    text = Path(dsl.__file__).with_name("std.pipe").read_text(encoding="utf-8")
    out: list[str] = []
    comment: list[str] = []
    lines = iter(text.split("\n"))
    for line in lines:
        if section := re.match(r"# --- (.+?) -+$", line):
            out.append(f"### {section[1][0].upper()}{section[1][1:]}\n")
            comment = []
        elif line.startswith("# "):
            comment.append(line[2:])
        elif line.startswith("fn "):
            head = line[3:]
            while head.count("(") > head.count(")"):
                head += " " + next(lines).strip()
            out.append(f"```text\n{head}\n```\n\n" + "\n".join(comment) + "\n")
            comment = []
        else:
            if comment and not line and out and out[-1].startswith("### "):
                out.append("\n".join(comment) + "\n")
            comment = []
    return "\n".join(out)


def operators() -> str:
    out = []
    for module in sorted(Registry.modules):
        loaded = import_module(f"pipec.kernels.{module}")
        out.append(f"### {TITLES[module]}\n")
        for operator in OPERATORS.values():
            if operator.ref.__module__ == loaded.__name__:
                examples = "".join(f"\n`{operator.name}({', '.join(map(shown, args))})` is `{shown(result)}`.\n"
                                   for args, result in operator.examples)
                out.append(f"```text\n{operator.head}\n```\n\n{inspect.cleandoc(operator.doc)}\n{examples}")
    return "\n".join(out)


def scalars() -> str:
    rows = ["| | | for example |", "|---|---|---|"]
    for scalar in SCALARS.values():
        args, result = scalar.example
        sign = SIGNS.get(scalar.name)
        call = f"{scalar.name}({', '.join(map(shown, args))})"
        if sign:
            places = {"a": shown(args[0]), "b": shown(args[-1])}
            call = " ".join(places.get(word, word) for word in sign.split(" ")) if " " in sign else f"-{places['a']}"
        rows.append(f"| `{sign or scalar.head}` | {scalar.doc} | `{call}` is `{shown(result)}` |")
    return "\n".join(rows) + "\n"


def shown(value: Any) -> str:
    """A value as a program writes it."""
    match value:
        case np.ndarray():
            return shown(value.tolist())
        case bool() | np.bool_():
            return "true" if value else "false"
        case str():
            return f'"{value}"'
        case list():
            return f"[{', '.join(map(shown, value))}]"
    return f"{value}"


def text() -> str:
    """The whole file."""
    draws = "".join(f"| `{d.head}` | {d.doc} |\n" for d in DRAWS.values())
    return f"{START}{draws}{LIBRARY}{library()}\n## Operators\n\n{operators()}{SCALAR}{scalars()}{needs()}{ABSENT}"


if __name__ == "__main__":
    TARGET.write_text(text(), encoding="utf-8")
