"""The recipes of images with Pillow and NumPy, by torchvision's formulas; draws are given."""
from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from tokenizers import Tokenizer

from .seen import Seen, chunks

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
