"""images.npz: what torchvision's v2 transforms make of a small photo (needs torch and torchvision)."""
from __future__ import annotations

import numpy as np
import torch
from make import kept
from PIL import Image
from torchvision import tv_tensors
from torchvision.transforms import InterpolationMode, v2
from torchvision.transforms.v2 import functional as F

NEAREST, BILINEAR, BICUBIC = InterpolationMode.NEAREST_EXACT, InterpolationMode.BILINEAR, InterpolationMode.BICUBIC
PLAIN = InterpolationMode.NEAREST


def photo(height: int, width: int, seed: int) -> np.ndarray:
    """Smooth colours, a black and a white patch with sharp edges, a little noise."""
    rng = np.random.default_rng(seed)
    small = Image.fromarray(rng.integers(0, 256, (5, 6, 3), np.uint8))
    img = np.asarray(small.resize((width, height), Image.Resampling.BICUBIC)).astype(np.int16)
    img = np.clip(img + rng.integers(-6, 7, img.shape), 0, 255).astype(np.uint8)
    img[3:9, 4:11], img[12:17, 15:24] = 0, 255
    return img


def hwc(img: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(img.copy()).permute(2, 0, 1)


def out(result: torch.Tensor) -> np.ndarray:
    return result.permute(1, 2, 0).numpy()


def policy(name: str, strength: float) -> np.ndarray:
    """One operation of torchvision's policies at a strength."""
    return out(v2.RandAugment()._apply_image_or_video_transform(hwc(img), name, strength, PLAIN, {torch.Tensor: None}))


def strengths(policies: v2.RandAugment | v2.TrivialAugmentWide) -> np.ndarray:
    """[operation, strength 0 to 30, negative] as the policies draw them, for the operations as `augment` numbers them."""
    found = np.zeros((14, 31, 2), np.float32)
    for k, name in enumerate(NAMES):
        of, signed = policies._AUGMENTATION_SPACE[name]
        sizes = of(31, 29, 37)
        for s in range(31):
            size = 0.0 if sizes is None else float(sizes[s])
            found[k, s] = size, -size if signed else size
    return found


NAMES = ("Identity", "ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate", "Brightness", "Color", "Contrast", "Sharpness",
         "Posterize", "Solarize", "AutoContrast", "Equalize")
rng = np.random.default_rng(5)
img, dull = photo(29, 37, 1), (photo(23, 21, 2) // 3 + 60).astype(np.uint8)
moves = rng.uniform(-3, 3, (2, 29, 37)).astype(np.float32)
# torchvision counts displacements in halves of the image's size.
grid = torch.from_numpy(np.stack([moves[1] * 2 / 37, moves[0] * 2 / 29], -1)[None])
inputs = {"img": img, "dull": dull, "across": moves[1], "down": moves[0],
          "boxes": np.array([[2, 3, 20, 15], [30, 20, 37, 29], [0, 0, 5.5, 4.25]], np.float32)}
kept("images", inputs, {"F": F, "I": hwc(img), "D": hwc(dull), "out": out, "NEAREST": NEAREST, "BILINEAR": BILINEAR,
                        "BICUBIC": BICUBIC, "PLAIN": PLAIN, "grid": grid, "torch": torch, "policy": policy,
                        "strengths": strengths, "RandAugment": v2.RandAugment,
                        "TrivialAugmentWide": v2.TrivialAugmentWide, "XYXY": tv_tensors.BoundingBoxFormat.XYXY})
