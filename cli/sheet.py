"""Draws records as a contact sheet: images with their labels, curves, tokens and table rows."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

CELL, GAP, LINE = 176, 12, 15
MOST_TILES = 16   # images of a field that holds several
OUTLINE = (225, 29, 72)
MEAN, STD = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])  # what `normalize` usually takes away
INK, FAINT, PAPER, SHADE = (24, 24, 27), (113, 113, 122), (250, 250, 249), (231, 229, 228)


def contact_sheet(records: Sequence[Mapping[str, Any]]) -> Image.Image:
    """One cell per record, in rows; every record shows all its fields."""
    cells = [_cell(r) for r in records]
    columns = max(1, int(np.ceil(np.sqrt(len(cells)))))
    width, height = max(c.width for c in cells), max(c.height for c in cells)
    rows = -(-len(cells) // columns)
    sheet = Image.new("RGB", (columns * (width + GAP) + GAP, rows * (height + GAP) + GAP), PAPER)
    for k, cell in enumerate(cells):
        sheet.paste(cell, (GAP + k % columns * (width + GAP), GAP + k // columns * (height + GAP)))
    return sheet


def _cell(record: Mapping[str, Any]) -> Image.Image:
    pictures: list[Image.Image] = []
    lines: list[tuple[str, str]] = []
    arrays = {name: np.asarray(v) for name, v in record.items() if not isinstance(v, bytes | str)}
    for name, value in record.items():
        array = arrays.get(name)
        image = as_image(array) if array is not None else None
        if image is not None:
            boxes = [a for n, a in arrays.items() if "box" in n and a.ndim == 2 and a.shape[1] == 4]
            pictures.append(_fit(image if array is None or array.ndim == 4 else _outlined(image, boxes)))
        elif array is not None and array.ndim == 1 and array.dtype.kind == "f" and len(array) > 16 and not _one_hot(array):
            pictures.append(_curve(array))
            lines.append((name, f"{len(array):,}: {array.min():.3g} to {array.max():.3g}"))
        else:
            lines.append((name, _short(value, array)))
    height = sum(p.height + 3 for p in pictures) + LINE * len(lines) + 3
    cell = Image.new("RGB", (CELL, max(height, LINE)), PAPER)
    pen, y = ImageDraw.Draw(cell), 0
    for picture in pictures:
        cell.paste(picture, (0, y))
        y += picture.height + 3
    font = ImageFont.load_default(12)
    for name, text in lines:
        label = _clip(name, max(CELL // 3, CELL - 10 - round(font.getlength(text[:200]))), font) + " "
        pen.text((1, y), label, fill=FAINT, font=font)
        start = round(font.getlength(label)) + 4
        pen.text((start, y), _clip(text, CELL - start - 1, font), fill=INK, font=font)
        y += LINE
    return cell


def _clip(text: str, width: int, font: Any) -> str:
    """The part of a text that is at most `width` pixels wide."""
    text = "".join(c if c.isprintable() else " " for c in text[:200])
    if font.getlength(text) <= width:
        return text
    while text and font.getlength(text + "…") > width:
        text = text[:-1]
    return text + "…"


def _one_hot(array: NDArray[Any]) -> bool:
    return bool(np.isclose(array.astype(np.float64).sum(), 1) and (array >= 0).all())


def _short(value: Any, array: NDArray[Any] | None) -> str:
    if array is None:
        return f"{len(value):,} bytes" if isinstance(value, bytes) else str(value)
    if array.ndim == 0:
        return _one(array)
    if array.ndim == 1 and array.dtype.kind == "f" and len(array) > 4 and _one_hot(array):
        top = np.argsort(array)[::-1][:2]
        return ", ".join(f"{i} ({array[i]:.2f})" for i in top if array[i] > 0)
    if array.ndim == 1:
        return "  ".join(_one(v) for v in array[:12]) + ("  …" if len(array) > 12 else "")
    return f"{array.dtype} [{', '.join(map(str, array.shape))}]"


def _one(value: Any) -> str:
    item = np.asarray(value)
    if item.dtype.kind == "b":
        return "true" if item else "false"
    return str(value) if item.dtype.kind in "iuOU" else f"{float(item):.4g}"


def as_image(array: NDArray[Any]) -> Image.Image | None:
    """An image of H×W, H×W×C or C×H×W numbers, several of them side by side; None where the array isn't one.

    Small integers of one channel (masks) get a colour each. Floats are taken as they are if they lie in 0 to 1, as
    ImageNet-normalised if that gives such, else spread from their 1st to their 99th percentile.
    """
    if array.ndim == 4:
        return _tiled([as_image(a) for a in array[:MOST_TILES]])
    if array.ndim == 3 and array.shape[0] in (1, 3) and array.shape[2] not in (1, 3):
        array = array.transpose(1, 2, 0)
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    if array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] != 3) or min(array.shape[:2]) < 4:
        return None
    if array.dtype == np.uint8:
        if array.ndim == 2 and len(np.unique(array)) <= 64:
            return Image.fromarray(_colours()[array])
        return Image.fromarray(np.ascontiguousarray(array))
    if array.ndim == 2 and array.dtype.kind in "iu" and array.min() >= 0 and array.max() <= 255:
        return Image.fromarray(_colours()[array.astype(np.uint8)])
    numbers = array.astype(np.float64)
    if not np.isfinite(numbers).any():
        return None
    if array.dtype.kind not in "iu":
        for natural in (numbers, numbers * STD + MEAN) if array.ndim == 3 else (numbers,):
            if np.nanmin(natural) >= -0.02 and np.nanmax(natural) <= 1.02:
                return Image.fromarray((np.nan_to_num(natural).clip(0, 1) * 255).round().astype(np.uint8))
    low, high = np.nanpercentile(numbers[np.isfinite(numbers)], (1, 99))
    spread = np.clip((numbers - low) / max(high - low, 1e-12), 0, 1)
    return Image.fromarray((np.nan_to_num(spread) * 255).astype(np.uint8))


def _tiled(images: Sequence[Image.Image | None]) -> Image.Image | None:
    """Images of one size in rows; None where one of them is none."""
    if not images or images[0] is None:
        return None
    columns = int(np.ceil(np.sqrt(len(images))))
    width, height = (side + max(2, side // 40) for side in images[0].size)
    whole = Image.new("RGB", (columns * width, -(-len(images) // columns) * height), PAPER)
    for k, image in enumerate(images):
        if image is None:
            return None
        whole.paste(image, (k % columns * width, k // columns * height))
    return whole


def _outlined(image: Image.Image, boxes: Sequence[NDArray[Any]]) -> Image.Image:
    """The image with boxes (left, top, right, bottom in its pixels) drawn on it; those of no size are padding."""
    image, wide = image.convert("RGB"), max(1, max(image.size) // 90)
    pen = ImageDraw.Draw(image)
    for left, top, right, bottom in (tuple(map(float, b)) for several in boxes for b in several):
        if left < right and top < bottom:
            pen.rectangle((left, top, right - 1, bottom - 1), outline=OUTLINE, width=wide)
    return image


def _colours() -> NDArray[np.uint8]:
    """A colour for each of 256 classes; 0 is black, 255 (not labelled) grey."""
    k = np.arange(256)
    table = np.stack([(k * 97 + 60) % 256, (k * 57 + 120) % 256, (k * 149 + 30) % 256], axis=1).astype(np.uint8)
    table[0], table[255] = 0, 160
    return table


def _fit(image: Image.Image) -> Image.Image:
    scale = CELL / max(image.size)
    size = (max(1, round(image.width * scale)), max(1, round(image.height * scale)))
    method = Image.Resampling.NEAREST if scale > 1 else Image.Resampling.BILINEAR
    return image.convert("RGB").resize(size, method)


def _curve(values: NDArray[Any]) -> Image.Image:
    image = Image.new("RGB", (CELL, CELL // 3), SHADE)
    numbers = np.nan_to_num(values.astype(np.float64))
    low, high = float(numbers.min()), float(numbers.max())
    x = np.linspace(0, CELL - 1, len(numbers))
    y = (CELL // 3 - 3) * (1 - (numbers - low) / max(high - low, 1e-12)) + 1
    ImageDraw.Draw(image).line(list(zip(x.tolist(), y.tolist())), fill=INK)
    return image
