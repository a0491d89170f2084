"""The recipes of images with Pillow and NumPy, by torchvision's formulas; draws are given."""
from __future__ import annotations

import io
import math
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageEnhance, ImageOps
from tokenizers import Tokenizer

from .seen import Seen, assert_like_pixels, chunks

MEAN, STD = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])


def photo(data: bytes) -> Image.Image:
    return Image.open(io.BytesIO(data)).convert("RGB")


def box(r: Seen, draw: str, w: int, h: int, ratio: tuple[float, float] = (3 / 4, 4 / 3)) -> tuple[int, int, int, int]:
    """torchvision's RandomResizedCrop.get_params, from ten tries that are given: left, top, right, bottom."""
    for area, log_aspect in zip(r.draw(f"{draw}/area.uniform"), r.draw(f"{draw}/aspect.log_uniform/u.uniform")):
        aspect = np.exp(np.float64(log_aspect))
        width, height = round(np.sqrt(h * w * np.float64(area) * aspect)), round(np.sqrt(h * w * np.float64(area) / aspect))
        if 0 < width <= w and 0 < height <= h:
            left, top = int(r.draw(f"{draw}/across.integers")), int(r.draw(f"{draw}/down.integers"))
            return left, top, left + width, top + height
    width, height = w, h
    if w / h < min(ratio):
        height = round(w / min(ratio))
    elif w / h > max(ratio):
        width = round(h * max(ratio))
    left, top = (w - width) // 2, (h - height) // 2
    return left, top, left + width, top + height


def crop(r: Seen, draw: str, size: int, filter: Any = Image.Resampling.BILINEAR) -> np.ndarray:
    """A random part of the photo, resized."""
    image = photo(r["jpg"])
    part = image.crop(box(r, f"{draw}.random_resized_crop/box.random_box", *image.size))
    return np.asarray(part.resize((size, size), filter))


def normal(image: np.ndarray, mean: Any = MEAN, std: Any = STD) -> np.ndarray:
    return np.moveaxis((image / 255 - np.asarray(mean)) / np.asarray(std), -1, 0)


def clip(records: list[Seen], tokenizer: Path, size: int, context: int, count: int) -> list[dict[str, Any]]:
    """Draws used: those of the crop."""
    encoder = Tokenizer.from_file(str(tokenizer))
    encoder.enable_truncation(context)
    mean, std = [0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711]
    rows = []
    for r in records:
        ids = encoder.encode(r["caption"]).ids
        image = normal(crop(r, "crop", size, Image.Resampling.BICUBIC), mean, std)
        rows.append({"image": image, "tokens": ids + [0] * (context - len(ids)), "count": len(ids)})
    return [{name: np.array([row[name] for row in part]) for name in rows[0]} for part in chunks(rows, count, whole=True)]


# --- pixels, as torchvision changes u8 images -------------------------------------------------------------------------


def floored(x: np.ndarray) -> np.ndarray:
    return np.clip(x, 0, 255).astype(np.uint8)


def grey(image: np.ndarray) -> np.ndarray:
    return np.floor(image @ np.array([0.2989, 0.587, 0.114]))


def blend(image: np.ndarray, other: Any, ratio: float) -> np.ndarray:
    return floored(ratio * image.astype(float) + (1 - ratio) * other)


def turned_hue(image: np.ndarray, turn: float) -> np.ndarray:
    """By way of HSV, with the usual six cases."""
    rgb = image / 255.0
    value, span = rgb.max(-1), np.ptp(rgb, axis=-1)
    safe = np.where(span == 0, 1, span)
    red, green, blue = (((value - rgb[..., k]) / safe) for k in range(3))
    hue = np.where(rgb[..., 0] == value, blue - green,
                   np.where(rgb[..., 1] == value, 2 + red - blue, 4 + green - red))
    hue = (hue / 6 + turn) % 1 * 6
    part, strong = np.floor(hue), np.where(value == 0, 0, span / np.where(value == 0, 1, value))
    rest = hue - part
    p, q, t = value * (1 - strong), value * (1 - strong * rest), value * (1 - strong * (1 - rest))
    cases = np.array([[value, t, p], [q, value, p], [p, value, t], [p, q, value], [t, p, value], [value, p, q]])
    chosen = np.take_along_axis(cases, (part.astype(int) % 6)[None, None], 0)[0]
    return floored(np.floor(np.moveaxis(chosen, 0, -1) * 255.999))


def blurred(image: np.ndarray, size: int, sigma: float) -> np.ndarray:
    """Rows, then columns, by a Gaussian of `size` pixels; the edge mirrored."""
    reach = size // 2
    kernel = np.exp(-0.5 * ((np.arange(size) - reach) / sigma) ** 2)
    kernel /= kernel.sum()
    around = np.pad(image.astype(float), ((reach, reach), (reach, reach), (0, 0)), mode="reflect")
    down = sum(k * around[i : i + image.shape[0]] for i, k in enumerate(kernel))
    return np.rint(sum(k * down[:, i : i + image.shape[1]] for i, k in enumerate(kernel))).astype(np.uint8)


# --- the recipes ------------------------------------------------------------------------------------------------------


def _simclr_view(r: Seen, name: str, size: int) -> np.ndarray:
    image = crop(r, f"{name}.view/crop", size)
    if r.draw(f"{name}.view/flipped.random_flip/flip.bernoulli/u.uniform") < 0.5:
        image = image[:, ::-1]
    if r.draw(f"{name}.view/jitter.bernoulli/u.uniform") < np.float32(0.8):
        light, range_, colour, turn = (
            float(r.draw(f"{name}.view/coloured.color_jitter/{k}.uniform")) for k in ("light", "range", "colour", "turn"))
        image = blend(image, 0, light)
        image = blend(image, grey(image).mean(), range_)
        image = blend(image, grey(image)[..., None], colour)
        image = turned_hue(image, turn)
    if r.draw(f"{name}.view/grey.random_grayscale/act.bernoulli/u.uniform") < np.float32(0.2):
        image = np.repeat(grey(image)[..., None], 3, -1).astype(np.uint8)
    if r.draw(f"{name}.view/blur.bernoulli/u.uniform") < 0.5:
        image = blurred(image, size // 20 * 2 + 1, float(r.draw(f"{name}.view/sigma.uniform")))
    return image


def simclr(records: list[Seen], size: int, count: int) -> list[dict[str, Any]]:
    views = [{name: _simclr_view(r, name, size) for name in ("one", "two")} for r in records]
    return [{name: np.array([v[name] for v in part]) for name in part[0]} for part in chunks(views, count, whole=True)]


def _crops(r: Seen, name: str, times: int, size: int) -> np.ndarray:
    made = []
    for k in range(times):
        image = photo(r["jpg"])
        here = Seen(r.fields, {path: {at[1:]: v for at, v in d.items() if at[0] == k} for path, d in r.draws.items()})
        part = image.crop(box(here, f"{name}.view/crop.random_resized_crop/box.random_box", *image.size))
        view = np.asarray(part.resize((size, size), Image.Resampling.BICUBIC))
        flip = here.draw(f"{name}.view/flipped.random_flip/flip.bernoulli/u.uniform") < 0.5
        made.append(normal(view[:, ::-1] if flip else view))
    return np.array(made)


def multicrop(records: list[Seen], large: int, small: int, count: int) -> list[dict[str, Any]]:
    rows = [(_crops(r, "wide", 2, large), _crops(r, "near", 8, small)) for r in records]
    return [{"wide": np.array([w for w, _ in part]), "near": np.array([n for _, n in part])}
            for part in chunks(rows, count, whole=True)]


def detection(records: list[Seen], size: int, count: int) -> list[dict[str, Any]]:
    rows = []
    for r in records:
        image = photo(r["jpg"])
        left, top, right, bottom = box(r, "part.random_box", *image.size, ratio=(0.5, 2.0))
        pixels = np.asarray(image.crop((left, top, right, bottom)).resize((size, size), Image.Resampling.BILINEAR))
        flip = r.draw("flip.bernoulli/u.uniform") < 0.5
        kept = []
        for (x0, y0, x1, y1), kind in zip(r["boxes"].tolist(), r["kinds"].tolist()):
            x0, x1 = (min(max(x - left, 0), right - left) * size / (right - left) for x in (x0, x1))
            y0, y1 = (min(max(y - top, 0), bottom - top) * size / (bottom - top) for y in (y0, y1))
            x0, x1 = (size - x1, size - x0) if flip else (x0, x1)
            if x1 - x0 >= 2 and y1 - y0 >= 2:
                kept.append(((x0, y0, x1, y1), kind))
        rows.append((pixels[:, ::-1] if flip else pixels, kept))
    made = []
    for part in chunks(rows, count):
        most = max(len(kept) for _, kept in part)
        boxes, kinds = np.zeros((len(part), most, 4), np.float32), np.full((len(part), most), -1)
        for i, (_, kept) in enumerate(part):
            for j, (corners, kind) in enumerate(kept):
                boxes[i, j], kinds[i, j] = corners, kind
        made.append({"image": np.array([pixels for pixels, _ in part]), "boxes": boxes, "kinds": kinds})
    return made


def _augmented(image: Image.Image, kind: int, negative: bool) -> Image.Image:
    """One of RandAugment's operations at strength 9 of 30, as torchvision has Pillow do it."""
    w, h = image.size
    sign = -1 if negative else 1
    slant, factor, bits, threshold = sign * 0.3 * 9 / 30, 1 + sign * 0.9 * 9 / 30, 8 - round(9 / 30 * 4), 255 * (1 - 9 / 30)
    right, below = (int(sign * 150 / 331 * side * 9 / 30) for side in (w, h))
    matrix = {1: (1, slant, 0, 0, 1, 0), 2: (1, 0, 0, slant, 1, 0), 3: (1, 0, -right, 0, 1, 0), 4: (1, 0, 0, 0, 1, -below)}
    if kind in matrix:
        return image.transform(image.size, Image.Transform.AFFINE, matrix[kind])
    match kind:
        case 5:
            return image.rotate(sign * 30 * 9 / 30)
        case 6:
            return ImageEnhance.Brightness(image).enhance(factor)
        case 7:
            return ImageEnhance.Color(image).enhance(factor)
        case 8:
            return ImageEnhance.Contrast(image).enhance(factor)
        case 9:
            return ImageEnhance.Sharpness(image).enhance(factor)
        case 10:
            return ImageOps.posterize(image, bits)
        case 11:
            return ImageOps.solarize(image, math.ceil(threshold))
        case 12:
            return ImageOps.autocontrast(image)
        case 13:
            return ImageOps.equalize(image)
    return image


def randaugment(records: list[Seen], size: int, count: int) -> list[dict[str, Any]]:
    """Operations begin with the recipe's own crop, since `equalize` makes much of single levels."""
    rows = []
    for r in records:
        pixels = crop(r, "crop", size)
        flip = r.draw("flipped.random_flip/flip.bernoulli/u.uniform") < 0.5
        assert_like_pixels(r["flipped"], pixels[:, ::-1] if flip else pixels, 1, 0, 0.5)
        image = Image.fromarray(r["flipped"])
        for kind, turned in (("kind", "turned"), ("next", "then_turned")):
            operation = int(r.draw(f"changed.rand_augment/{kind}.integers"))
            signed = 1 <= operation <= 9        # only these have a direction
            negative = signed and r.draw(f"changed.rand_augment/{turned}.bernoulli/u.uniform") < 0.5
            image = _augmented(image, operation, bool(negative))
        rows.append({"image": normal(_erased(r, np.array(image))), "cls": int(r["cls"])})
    return [{name: np.array([row[name] for row in part]) for name in part[0]} for part in chunks(rows, count, whole=True)]


def _erased(r: Seen, image: np.ndarray) -> np.ndarray:
    """torchvision's RandomErasing, from ten tries that are given."""
    if r.draw("erased.random_erasing/act.bernoulli/u.uniform") >= 0.25:
        return image
    h, w, _ = image.shape
    for area, log_aspect in zip(r.draw("erased.random_erasing/area.uniform"),
                                r.draw("erased.random_erasing/aspect.log_uniform/u.uniform")):
        aspect = np.exp(np.float64(log_aspect))
        height, width = round(np.sqrt(h * w * area * aspect)), round(np.sqrt(h * w * area / aspect))
        if height < h and width < w:
            top, left = int(r.draw("erased.random_erasing/top.integers")), int(r.draw("erased.random_erasing/left.integers"))
            image[top : top + height, left : left + width] = 0
            break
    return image
