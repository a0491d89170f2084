"""The library in the language: every function against the same formula in NumPy, or against what it must do on average."""
from __future__ import annotations

import re
from importlib import resources

import numpy as np
import pytest
from pipec.compiler.check import check
from pipec.compiler.evaluate import evaluate
from pipec.dsl.problems import PipeError

WORDS = {"uint8": "u8", "float32": "f32", "int64": "i64", "bool": "bool"}


@pytest.fixture
def run(tmp_path):
    """Values of the field `out` for a program of these lines over records of these arrays."""

    def values(lines, emit="out", seed=3, **arrays):
        np.savez(tmp_path / "data.npz", **arrays)

        def dims(a):
            return f"[{', '.join(map(str, a.shape[1:]))}]" if a.ndim > 1 else ""

        columns = "".join(f"  {name}: {WORDS[str(a.dtype)]}{dims(a)}\n" for name, a in arrays.items())
        body = "".join(f"  {line.strip()}\n" for line in lines.strip().split("\n"))
        text = f'seed {seed}\nschema S\n{columns}pipeline p\n  from npz("{tmp_path}/data.npz") as S\n{body}  emit {emit}\n'
        made = list(evaluate(check(str(tmp_path / "p.pipe"), text=text)))
        names = emit.split(", ")
        columns = [np.stack([m[name] for m in made]) for name in names]
        return columns[0] if len(columns) == 1 else columns

    return values


IMG = np.random.default_rng(0).integers(0, 256, (4, 7, 9, 3)).astype(np.uint8)
ONE = np.arange(400, dtype=np.int64)


def luma(img):
    r, g, b = (img[..., c].astype(np.float32) for c in range(3))
    return r * np.float32(0.2989) + g * np.float32(0.587) + b * np.float32(0.114)


def to_u8(x):
    return np.clip(x, 0, 255).astype(np.uint8)


def near(got, want, share=0.01):
    """u8 images equal but for a few pixels one level apart, where f32 sums are rounded down."""
    difference = np.abs(got.astype(int) - want.astype(int))
    assert difference.max() <= 1 and (difference > 0).mean() <= share


def test_every_function_has_a_sentence_and_is_checked(run):
    text = resources.files("pipec.dsl").joinpath("std.pipe").read_text()
    for m in re.finditer(r"^fn (\w+)", text, re.M):
        assert text[: m.start()].rstrip("\n").rsplit("\n", 1)[-1].startswith("# "), m.group(1)
    check("std.pipe", text=text + '\nschema S\n  v: f32\npipeline p\n  from npz("x.npz") as S\n  emit v\n')


def test_flips_and_layouts(run):
    np.testing.assert_array_equal(run("out = mirror(img, true)", img=IMG), IMG[:, :, ::-1])
    np.testing.assert_array_equal(run("out = mirror(img, false)", img=IMG), IMG)
    np.testing.assert_array_equal(run("out = mirror(img, true)", img=IMG[..., 0]), IMG[:, :, ::-1, 0])
    np.testing.assert_array_equal(run("out = upend(img, true)", img=IMG), IMG[:, ::-1])
    np.testing.assert_array_equal(run("out = to_chw(img)", img=IMG), IMG.transpose(0, 3, 1, 2))
    flipped = run("out ~ random_flip(img)", img=np.repeat(IMG[:1], 60, 0))
    turned = (flipped == IMG[0, :, ::-1]).all((1, 2, 3))
    assert 15 < turned.sum() < 45 and (flipped[~turned] == IMG[0]).all()


def test_normalize_once(run):
    img = np.array([[[[255, 255, 255], [0, 0, 0]]]], np.uint8)
    lines = "out = normalize(img, [0.485, 0.456, 0.406], [0.229, 0.224, 0.225])"
    out = run(lines, img=img)
    assert out.shape == (1, 3, 1, 2) and out.dtype == np.float32
    np.testing.assert_allclose(out[0, :, 0, 0], [2.248908, 2.428571, 2.64], atol=1e-5)
    np.testing.assert_allclose(out[0, :, 0, 1], [-2.117904, -2.035714, -1.804444], atol=1e-5)
    hwc = run(lines.replace("normalize", "normalize_hwc"), img=img)
    np.testing.assert_array_equal(hwc, out.transpose(0, 2, 3, 1))


def test_normalize_wants_a_mean_for_each_channel(run):
    with pytest.raises(PipeError) as e:
        run("out = normalize(img, [0.485, 0.456, 0.406], [0.229, 0.224, 0.225])", img=IMG[..., :1])
    assert e.value.problems[0].code in ("E0203", "E0204")


def test_one_hot(run):
    labels = np.array([0, 2, 9], np.int64)
    np.testing.assert_array_equal(run("out = one_hot(cls, 3)", cls=labels), [[1, 0, 0], [0, 0, 1], [0, 0, 0]])
    smooth = run("out = one_hot(cls, 4, 0.2)", cls=labels[:2])
    np.testing.assert_allclose(smooth, [[0.85, 0.05, 0.05, 0.05], [0.05, 0.05, 0.85, 0.05]], atol=1e-6)


@pytest.mark.parametrize("size,crop,at", [(255, 224, 16), (7, 4, 2), (8, 5, 2), (8, 4, 2), (4, 7, -1), (5, 5, 0)])
def test_center_box(run, size, crop, at):
    box = run(f"out = center_box(n, n, {crop}, {crop})", n=np.array([size], np.int64))[0]
    assert box.tolist() == [at, at, crop, crop]


def test_center_crop_pads_what_is_too_small(run):
    out = run("out = center_crop(img, 4, 12)", img=IMG)
    np.testing.assert_array_equal(out[:, :, 1:10], IMG[:, 2:6])
    assert not out[:, :, :1].any() and not out[:, :, 10:].any()


def test_random_crop_is_a_window_of_the_padded_image(run):
    many = np.repeat(IMG[:1], 40, 0)
    out = run("out ~ random_crop(img, 5, 6, 2)", img=many)
    padded = np.pad(IMG[0], ((2, 2), (2, 2), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (5, 6, 3))[:, :, 0]
    found = {tuple(np.argwhere((windows == o).all((2, 3, 4)))[0]) for o in out}
    assert len(found) > 15 and {y for y, _ in found} >= {0, 6} and {x for _, x in found} >= {0, 7}


def test_resize_short(run):
    assert run("out = resize_short(img, 14)", img=IMG).shape == (4, 14, 18, 3)
    assert run("out = resize_short(img, 5)", img=IMG.transpose(0, 2, 1, 3).copy()).shape == (4, 6, 5, 3)


def boxes(run, h, w, more=""):
    lines = f"out ~ [random_box(h, w{more}) for i < 150]"
    return run(lines, h=np.array([h], np.int64), w=np.array([w], np.int64))[0]


def test_random_box_as_torchvision(run):
    top, left, tall, broad = boxes(run, 375, 500).T
    assert ((top >= 0) & (left >= 0) & (top + tall <= 375) & (left + broad <= 500)).all()
    share, aspect = tall * broad / (375 * 500), broad / tall
    assert 0.07 < share.min() < 0.2 and 0.7 < share.max() <= 1 and 0.4 < share.mean() < 0.65
    assert 0.74 < aspect.min() < 0.85 and 1.2 < aspect.max() < 1.35
    assert len(set(top)) > 60


def test_random_box_where_none_fits(run):
    more = ", [0.9, 1.0], [0.75, 1.3333334]"
    assert (boxes(run, 40, 400, more) == [0, 173, 40, 53]).all()
    assert (boxes(run, 400, 40, more) == [173, 0, 53, 40]).all()
    square = boxes(run, 30, 40, ", scale=[0.25, 1.0], ratio=[1, 1]")
    assert (square[:, 2] == square[:, 3]).all()


def test_random_resized_crop(run):
    out = run("out ~ random_resized_crop(img, 6, 8)", img=IMG)
    assert out.shape == (4, 6, 8, 3) and out.dtype == np.uint8
    near = run('out ~ random_resized_crop(img, 6, 8, filter="nearest")', img=IMG)
    assert all(set(map(tuple, near[i].reshape(-1, 3))) <= set(map(tuple, IMG[i].reshape(-1, 3))) for i in range(4))


def test_random_erasing(run):
    img = np.full((40, 12, 10, 2), 9, np.uint8)
    out = run("out ~ random_erasing(img, 0.5, value=4)", img=img)
    erased = (out == 4).all(3)
    assert (out == 9).all(3).sum() + erased.sum() == 40 * 120
    some = erased.any((1, 2))
    assert 8 < some.sum() < 32
    for mask in erased[some]:
        ys, xs = np.nonzero(mask)
        assert mask[ys.min() : ys.max() + 1, xs.min() : xs.max() + 1].all()
        assert len(ys) / 120 < 0.42


# --- colours ------------------------------------------------------------------------------------


def test_pixel_functions(run):
    np.testing.assert_array_equal(run("out = invert(img)", img=IMG), 255 - IMG)
    np.testing.assert_array_equal(run("out = solarize(img, 100)", img=IMG), np.where(IMG >= 100, 255 - IMG, IMG))
    np.testing.assert_array_equal(run("out = posterize(img, 3)", img=IMG), IMG & 0b11100000)
    np.testing.assert_array_equal(run("out = adjust_brightness(img, 1.2)", img=IMG), to_u8(IMG * np.float32(1.2)))
    grey = run("out = grayscale(img)", img=IMG)
    np.testing.assert_array_equal(grey, np.repeat(luma(IMG).astype(np.uint8)[..., None], 3, 3))


def test_brightness_saturates(run):
    img = np.array([[[[100, 250, 0]]]], np.uint8)
    np.testing.assert_array_equal(run("out = adjust_brightness(img, 1.2)", img=img)[0, 0, 0], [120, 255, 0])


@pytest.mark.parametrize("factor", [0.0, 0.6, 1.7])
def test_contrast_and_saturation(run, factor):
    ratio = np.float32(factor)
    grey = np.floor(luma(IMG))
    mean = grey.mean((1, 2), dtype=np.float32)[:, None, None, None]
    rest = np.float32(1) - ratio
    near(run(f"out = adjust_contrast(img, {factor})", img=IMG), to_u8(IMG * ratio + mean * rest))
    near(run(f"out = adjust_saturation(img, {factor})", img=IMG), to_u8(IMG * ratio + grey[..., None] * rest))


def hue(img, turn):
    """torchvision's formula for u8 images, in f32."""
    f = np.float32
    r, g, b = (img[..., c].astype(f) * f(1 / 255) for c in range(3))
    top, low = np.maximum(np.maximum(r, g), b), np.minimum(np.minimum(r, g), b)
    same = top == low
    s = (top - low) / np.where(same, f(1), top)
    span = np.where(same, f(1), top - low)
    rc, gc, bc = (top - r) / span, (top - g) / span, (top - b) / span
    h = np.where(top == r, bc - gc, np.where(top == g, f(2) + rc - bc, f(4) + gc - rc))
    h = np.fmod(h * f(1 / 6) + f(1), f(1))
    h = np.remainder(h + f(turn), f(1)) * f(6)
    i = np.floor(h)
    part = h - i
    p, q, t = (np.clip(x * top, 0, 1) for x in (1 - s, 1 - s * part, 1 - s + s * part))
    order = ((top, t, p), (q, top, p), (p, top, t), (p, q, top), (t, p, top), (top, p, q))
    i = i.astype(int) % 6
    out = np.zeros(img.shape, f)
    for n, rgb in enumerate(order):
        out[i == n] = np.stack(rgb, -1)[i == n]
    return (out * f(255.999)).astype(np.uint8)


@pytest.mark.parametrize("turn", [-0.5, -0.1, 0.0, 0.25, 0.5])
def test_hue(run, turn):
    img = np.concatenate([IMG, np.array([0, 255, 128], np.uint8)[np.random.default_rng(2).integers(0, 3, IMG.shape)]])
    near(run(f"out = adjust_hue(img, {turn})", img=img), hue(img, turn), share=0.02)
    if turn == 0:
        near(run("out = adjust_hue(img, 0)", img=img), img, share=0.02)


def test_color_jitter(run):
    many = np.repeat(IMG[:1], 6, 0)
    out = run("out ~ color_jitter(img, 0.4, 0.4, 0.4, 0.1)", img=many)
    assert out.dtype == np.uint8 and len({o.tobytes() for o in out}) == 6
    np.testing.assert_array_equal(run("out ~ color_jitter(img)", img=many), many)
    bright = run("out ~ color_jitter(img, brightness=0.5)", img=np.full((60, 1, 1, 3), 100, np.uint8))
    assert 49 <= bright.min() < 65 and 135 < bright.max() <= 150


def test_gaussian_noise(run):
    out = run("out ~ gaussian_noise(img, 10)", img=np.full((2, 20, 20, 3), 128, np.uint8)).astype(float)
    assert abs(out.mean() - 128) < 0.6 and 9.5 < out.std() < 10.5


# --- draws --------------------------------------------------------------------------------------


def drawn(run, line, count=1000):
    """Independent draws, all in one record."""
    return run(f"out ~ [{line} for i < {count}]\nhelp = n", emit="out, help", n=np.zeros(1, np.int64))[0][0]


def test_bernoulli_normal_log_uniform_choice(run):
    assert not drawn(run, "bernoulli(0)", 200).any() and drawn(run, "bernoulli(1)", 200).all()
    assert 0.25 < drawn(run, "bernoulli(0.3)").mean() < 0.35
    z = drawn(run, "normal(2, 3)")
    assert abs(z.mean() - 2) < 0.4 and 2.7 < z.std() < 3.3 and np.isfinite(z).all()
    x = np.log(drawn(run, "log_uniform(0.1, 10)"))
    assert abs(x.mean()) < 0.17 and 1.22 < x.std() < 1.44
    assert set(drawn(run, "choice([3, 5, 8])", 100)) == {3, 5, 8}


@pytest.mark.parametrize("a,b", [(0.2, 0.2), (5.0, 5.0), (1.0, 3.0), (0.05, 0.4)])
def test_beta(run, a, b):
    x = drawn(run, f"beta({a}, {b})")
    mean, variance = a / (a + b), a * b / ((a + b) ** 2 * (a + b + 1))
    assert ((x >= 0) & (x <= 1)).all()
    assert abs(x.mean() - mean) < 4 * np.sqrt(variance / 1000) and abs(x.var() / variance - 1) < 0.25


@pytest.mark.parametrize("alpha", [0.5, 7.0])
def test_gamma(run, alpha):
    x = drawn(run, f"gamma({alpha}, 2)")
    assert abs(x.mean() / (2 * alpha) - 1) < 4 / np.sqrt(alpha * 1000) and abs(x.var() / (4 * alpha) - 1) < 0.4


# --- batches ------------------------------------------------------------------------------------


def test_mixup_moves_towards_another_row(run):
    img, lab = np.array([[100.0], [200.0]], np.float32), np.eye(2, dtype=np.float32)
    lines = "batch(2)\nm ~ mixup(img, lab, 0.7)\na = m.images\nb = m.labels"
    seen = set()
    for seed in range(5):
        a, b = run(lines, emit="a, b", seed=seed, img=img, lab=lab)
        seen.add(tuple(np.round(a.ravel(), 3)))
        np.testing.assert_allclose(b.sum(2), 1, atol=1e-6)
    assert (130, 170) in seen and seen <= {(100, 200), (130, 170)}
    a, b = run(lines, emit="a, b", img=img[:1] / 3, lab=lab[:1])
    np.testing.assert_array_equal(a[0], img[:1] / 3)


def test_cutmix_weighs_labels_by_the_area_really_pasted(run):
    boxes = run("out = cutmix_box(32, 32, 0.7, at, at)", at=np.array([16, 0], np.int64))
    np.testing.assert_array_equal(boxes, [[8, 8, 24, 24], [0, 0, 8, 8]])
    img = np.stack([np.full((2, 32, 32), v, np.float32) for v in (1, 2, 3)])
    lines = "batch(3)\nm ~ cutmix(img, lab, 0.7)\na = m.images\nb = m.labels"
    mixed = 0
    for seed in range(4):
        a, b = (x[0] for x in run(lines, emit="a, b", seed=seed, img=img, lab=np.eye(3, dtype=np.float32)))
        for i in range(3):
            pasted = (a[i, 0] != i + 1).mean()
            np.testing.assert_allclose(b[i, i], 1 - pasted, atol=1e-6)
            np.testing.assert_allclose(b[i].sum(), 1, atol=1e-6)
            mixed += pasted > 0
    assert mixed > 3
    a, b = run(lines, emit="a, b", img=img[:1], lab=np.eye(3, dtype=np.float32)[:1])
    assert (a == 1).all() and b[0, 0].tolist() == [1, 0, 0]
