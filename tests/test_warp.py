"""Geometry, filters and policies of the library against torchvision's formulas in NumPy, or against Pillow."""
from __future__ import annotations

import numpy as np
import pytest
from PIL import Image, ImageOps
from pipec.compiler.check import check
from pipec.compiler.compile import lowered
from pipec.compiler.emit_numba import kernel_text
from running import assert_same, interpreted, run_compiled, run_interpreted

F = np.float32


def smooth(count=2, h=21, w=26):
    rng = np.random.default_rng(1)
    return np.stack([np.asarray(Image.fromarray(rng.integers(0, 256, (4, 5, 3), np.uint8))
                                .resize((w, h), Image.Resampling.BICUBIC))
                     for _ in range(count)])


IMG = smooth()


@pytest.fixture
def out(tmp_path):
    """The field `out` of a program of these lines over records `img`."""

    def values(lines, img=IMG):
        np.savez(tmp_path / "d.npz", img=img)
        dtype = {"uint8": "u8", "float32": "f32"}[str(img.dtype)]
        body = "".join(f"  {line.strip()}\n" for line in lines.strip().split("\n"))
        text = (f'seed 3\nschema S\n  img: {dtype}[{", ".join(map(str, img.shape[1:]))}]\npipeline p\n'
                f'  from npz("{tmp_path}/d.npz") as S\n{body}  emit out\n')
        (tmp_path / "p.pipe").write_text(text)
        return np.stack([r["out"] for r in interpreted(tmp_path / "p.pipe")])

    return values


def close(one, other, share=0.02):
    """Equal but for a few values one level apart."""
    difference = np.abs(one.astype(int) - other.astype(int))
    assert difference.max() <= 1 and (difference > 0).mean() <= share, (difference.max(), (difference > 0).mean())


# --- torchvision's grids, restated ------------------------------------------------------------------


def matrix(angle, translate=(0, 0), scale=1.0, shear=(0, 0), center=(0, 0)):
    rot, sx, sy = (np.radians(v) for v in (angle, *shear))
    a = np.cos(rot - sy) / np.cos(sy)
    b = -np.cos(rot - sy) * np.tan(sx) / np.cos(sy) - np.sin(rot)
    c = np.sin(rot - sy) / np.cos(sy)
    d = -np.sin(rot - sy) * np.tan(sx) / np.cos(sy) + np.cos(rot)
    m = np.array([d, -b, 0, -c, a, 0]) / scale
    (cx, cy), (tx, ty) = center, translate
    m[2] += m[0] * (-cx - tx) + m[1] * (-cy - ty) + cx
    m[5] += m[3] * (-cx - tx) + m[4] * (-cy - ty) + cy
    return m


def affine_grid(m, h, w):
    y, x = np.mgrid[:h, :w] + 0.5
    x, y = x - w * 0.5, y - h * 0.5
    return (m[3] * x + m[4] * y + m[5]) / (0.5 * h), (m[0] * x + m[1] * y + m[2]) / (0.5 * w)


def grid_sample(img, gy, gx, mode, fill):
    """torch's grid_sample with zeros outside and align_corners=False, then torchvision's fill."""
    h, w = img.shape[:2]
    y, x = ((gy + 1) * h - 1) / 2, ((gx + 1) * w - 1) / 2
    both = np.concatenate([img.astype(float), np.ones((h, w, 1))], 2)

    def at(yi, xi):
        inside = (yi >= 0) & (yi < h) & (xi >= 0) & (xi < w)
        return both[np.clip(yi, 0, h - 1), np.clip(xi, 0, w - 1)] * inside[..., None]

    if mode == "nearest":
        made = at(np.rint(y).astype(int), np.rint(x).astype(int))
        return np.where(made[..., 3:] < 0.5, fill, made[..., :3]).astype(np.uint8)
    y0, x0 = np.floor(y).astype(int), np.floor(x).astype(int)
    dy, dx = (y - y0)[..., None], (x - x0)[..., None]
    made = (at(y0, x0) * (1 - dy) * (1 - dx) + at(y0, x0 + 1) * (1 - dy) * dx
            + at(y0 + 1, x0) * dy * (1 - dx) + at(y0 + 1, x0 + 1) * dy * dx)
    return np.rint((made[..., :3] - fill) * made[..., 3:] + fill).astype(np.uint8)


@pytest.mark.parametrize("mode", ["nearest", "bilinear"])
def test_affine_and_rotate(out, mode):
    m = matrix(20, (3, -2), 1.2, (10, 5))
    made = out(f'out = affine(img, 20, across=3, down=-2, scale=1.2, shear_x=10, shear_y=5, filter="{mode}", fill=9)')
    want = np.stack([grid_sample(i, *affine_grid(m, 21, 26), mode, 9) for i in IMG])
    close(made, want) if mode == "bilinear" else np.testing.assert_array_equal(made, want)
    made = out(f'out = rotate(img, 33, "{mode}")')
    want = np.stack([grid_sample(i, *affine_grid(matrix(-33), 21, 26), mode, 0) for i in IMG])
    close(made, want) if mode == "bilinear" else np.testing.assert_array_equal(made, want)


def test_rotate_turns_counter_clockwise(out):
    np.testing.assert_array_equal(out("out = rotate(img, 90)", IMG[:, :, :21].copy()), np.rot90(IMG[:, :, :21], 1, (1, 2)))
    np.testing.assert_array_equal(out('out = affine(img, filter="bilinear")'), IMG)


def test_perspective(out):
    start, end = [[0, 0], [25, 0], [25, 20], [0, 20]], [[3, 2], [22, 1], [24, 18], [1, 19]]
    rows = []
    for (sx, sy), (ex, ey) in zip(start, end):
        rows += [[ex, ey, 1, 0, 0, 0, -sx * ex, -sx * ey], [0, 0, 0, ex, ey, 1, -sy * ex, -sy * ey]]
    c = np.linalg.solve(np.array(rows, float), np.array(start, float).ravel())
    y, x = np.mgrid[:21, :26] + 0.5
    under = c[6] * x + c[7] * y + 1
    gx, gy = (c[0] * x + c[1] * y + c[2]) / (under * 13) - 1, (c[3] * x + c[4] * y + c[5]) / (under * 10.5) - 1
    made = out(f"out = perspective(img, {start}, {end}, fill=7)")
    close(made, np.stack([grid_sample(i, gy, gx, "bilinear", 7) for i in IMG]), 0.03)


def test_elastic(out):
    made = out("out = elastic(img, [0.1 * f32(y) for y < 21, x < 26], [1.5 for y < 21, x < 26])")
    y, x = np.mgrid[:21, :26].astype(float)
    gy, gx = (2 * (y * 1.1) + 1) / 21 - 1, (2 * (x + 1.5) + 1) / 26 - 1
    close(made, np.stack([grid_sample(i, gy, gx, "bilinear", 0) for i in IMG]), 0.03)


# --- filters and tables -----------------------------------------------------------------------------


def test_gaussian_blur(out):
    x = np.arange(7) - 3
    kernel = np.exp(-0.5 * (x / 1.3) ** 2)
    kernel /= kernel.sum()
    padded = np.pad(IMG.astype(float), ((0, 0), (3, 3), (3, 3), (0, 0)), "reflect")
    windows = np.lib.stride_tricks.sliding_window_view(padded, (7, 7), (1, 2))
    close(out("out = gaussian_blur(img, 7, 1.3)"), np.rint(np.einsum("nyxcij,i,j->nyxc", windows, kernel, kernel)), 0.01)


@pytest.mark.parametrize("factor", [0.0, 0.5, 2.0])
def test_sharpness(out, factor):
    kernel = np.array([[1, 1, 1], [1, 5, 1], [1, 1, 1]]) / 13
    windows = np.lib.stride_tricks.sliding_window_view(IMG.astype(float), (3, 3), (1, 2))
    blurred = np.rint(np.einsum("nyxcij,ij->nyxc", windows, kernel))
    want = IMG.astype(float)
    want[:, 1:-1, 1:-1] += (1 - factor) * (blurred - want[:, 1:-1, 1:-1])
    close(out(f"out = adjust_sharpness(img, {factor})"), np.clip(want, 0, 255).astype(np.uint8))


def test_equalize_and_autocontrast(out):
    dull = np.concatenate([IMG // 3 + 40, np.full_like(IMG[:1], 7)])
    want = np.stack([np.asarray(ImageOps.equalize(Image.fromarray(i))) for i in dull])
    np.testing.assert_array_equal(out("out = equalize(img)", dull), want)
    low, high = (f(dull.astype(F), (1, 2), keepdims=True) for f in (np.min, np.max))
    same = low == high
    scale = np.where(same, F(1), (high - low) * F(1 / 255))
    want = np.clip((dull - np.where(same, F(0), low)) / scale, 0, 255).astype(np.uint8)
    close(out("out = autocontrast(img)", dull), want)


# --- what is random, compiled -------------------------------------------------------------------------

PROGRAMS = ["out ~ color_jitter(img, 0.4, 0.4, 0.4, 0.1, shuffled=true)",
            "out ~ random_affine(img, 30, 0.1, 0.1, [0.8, 1.2], 10)",
            "out ~ random_perspective(img, p=1)", "out ~ random_elastic(img, 40, 2)", "out ~ trivial_augment(img)",
            "sigma ~ uniform(0.1, 2)\nblur ~ bernoulli(0.5)\nout = if blur then gaussian_blur(img, 5, sigma) else img"]


def program(tmp_path, lines, img):
    np.savez(tmp_path / "d.npz", img=img)
    body = "".join(f"  {line}\n" for line in lines.split("\n"))
    text = (f'seed 3\nschema S\n  img: u8[{", ".join(map(str, img.shape[1:]))}]\npipeline p\n'
            f'  from npz("{tmp_path}/d.npz") as S\n{body}  emit out\n')
    return check(str(tmp_path / "p.pipe"), text=text)


@pytest.mark.parametrize("lines", PROGRAMS, ids=[p.split("~ ")[-1].split("(")[0] for p in PROGRAMS])
def test_compiled_is_interpreted(tmp_path, lines):
    p = program(tmp_path, lines, np.repeat(IMG, 6, 0))
    one, other = run_compiled(p), run_interpreted(p)
    assert one[1] is None
    assert_same(one[0], other[0])
    assert len({r["out"].tobytes() for r in one[0]}) > 5


def test_only_the_chosen_side_is_computed(tmp_path):
    p = program(tmp_path, PROGRAMS[-1], IMG)
    text = kernel_text(lowered(p).kernels[0])
    branch = next(line for line in text.split("\n") if line.startswith("    if ") and "scratch" not in line)
    assert text.index(branch) < text.index("for ")   # one question, before any loop over pixels


def test_augment_operations(out):
    sizes = {0: 1, 1: 0.3, 3: 5.7, 5: 30, 10: 3, 11: 0.5, 14: 0}
    made = {k: out(f"out = augment(img, {k}, {size})") for k, size in sizes.items()}
    np.testing.assert_array_equal(made[0], IMG)
    m = matrix(0, shear=(np.degrees(np.arctan(0.3)), 0), center=(-13, -10.5))
    np.testing.assert_array_equal(made[1][0], grid_sample(IMG[0], *affine_grid(m, 21, 26), "nearest", 0))
    np.testing.assert_array_equal(made[3][:, :, 5:], IMG[:, :, :-5])
    np.testing.assert_array_equal(made[5][0], grid_sample(IMG[0], *affine_grid(matrix(-30), 21, 26), "nearest", 0))
    np.testing.assert_array_equal(made[10], IMG & 0b11100000)
    np.testing.assert_array_equal(made[11], np.where(IMG >= 127.5, 255 - IMG, IMG))
    np.testing.assert_array_equal(made[14], 255 - IMG)


def test_strengths_are_torchvisions(out):
    sizes = out("out = [augment_size(k, f32(j) / 30, false, 331, 662) for k < 14, j < 31]", IMG[:1])[0]
    bins = 31
    spaces = {kind: np.linspace(0, most, bins) for kind, most in {1: 0.3, 3: 300, 4: 150, 5: 30, 6: 0.9, 12: 0}.items()}
    spaces |= {10: 8 - np.round(np.arange(bins) / ((bins - 1) / 4)), 11: np.linspace(1, 0, bins)}
    for kind, space in spaces.items():
        np.testing.assert_allclose(sizes[kind], space, atol=1e-4)
