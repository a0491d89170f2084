"""Whole programs give the same bits after simplify and prune, and come back from their graph's text."""
from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import numpy as np
import pytest
from pipec.compiler.check import check
from pipec.compiler.compile import passes, transformed
from pipec.compiler.evaluate import evaluate
from pipec.compiler.graph import walk
from pipec.compiler.graphtext import parse_graph, print_graph, renumbered
from pipec.compiler.prune import prune
from pipec.compiler.retype import check_graph
from pipec.compiler.simplify import simplify

HEAD = """seed 3

let MEAN = [120.0, 110.0, 100.0]

schema Photo
  image: u8[6, 5, 3]
  label: u8
  score: f32
  row: i32[7]

"""
PROGRAMS = {
    "crop and flip": """pipeline p
  from npz("{data}") as Photo
  shuffle()
  top ~ integers(0, 3)
  flip ~ bernoulli(0.5)
  dy ~ integers(-2, 3)
  moved = [image[y + dy, (if flip then 4 - x else x), c] ?? 0 for y < 6, x < 5, c]
  cropped = [f32(moved[y + top, x, c]) - MEAN[c] for y < 4, x, c]
  spread = std(cropped) + mean(cropped)
  scaled = [cropped[y, x, c] / (spread + 1) for c, y, x]
  unused = log(score)
  batch(4)
  share()
  emit scaled, label, flip
""",
    "where and arithmetic": """pipeline p
  from npz("{data}") as Photo
  where label % 3 != 0 and score > 0.2
  n = i64(label)
  a = (n + 1) * 2 - n * 1 + 0
  b = if not (n < 4) then min(n, 255) else max(n, 0)
  c = [if row[i] >= 0 then row[i] // 2 else -row[i] for i]
  d = [row[min(i + 2, 6)] + row[clamp(i - 1, 0, 6)] for i < 7]
  total = sum(c[i] * d[i] for i)
  far = sum(c[i] * d[i] for i)
  gap = total - far
  batch(3, whole=true)
  emit a, b, c, d, total, gap
""",
    "windows and rows": """pipeline p
  from npz("{data}") as Photo
  each(row)
  wide = f32(row) * 1.0 / 4.0
  window(4, stride=3, rest="drop")
  best = argmax(row[i] for i < 4)
  at = wide[best]
  tail = row[1:]
  emit at, tail, best
""",
    "branches": """pipeline base
  from npz("{data}") as Photo
  half = score / 2
  both = half + 0.5
  emit half, both, label

pipeline p
  from zip(x=base, y=base)
  sum_of = x.half + y.both
  tag = x.label
  batch(5)
  emit sum_of, tag
""",
}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    rng = np.random.default_rng(1)
    np.savez(
        tmp_path / "d.npz",
        image=rng.integers(0, 256, (13, 6, 5, 3), dtype=np.uint8),
        label=rng.integers(0, 10, 13, dtype=np.uint8),
        score=rng.random(13, dtype=np.float32),
        row=rng.integers(-50, 50, (13, 7), dtype=np.int32),
    )
    return tmp_path / "d.npz"


@pytest.mark.parametrize("name", PROGRAMS)
def test_passes_change_no_value(name: str, data: Path) -> None:
    text = HEAD + PROGRAMS[name].replace("{data}", str(data))
    program = check("p.pipe", run="p", text=text)
    smaller = prune(simplify(program.emit))
    assert len(list(walk(smaller))) < len(list(walk(program.emit)))
    stored = parse_graph(print_graph(smaller))
    assert stored is renumbered(smaller)
    before = list(evaluate(program))
    after = list(evaluate(dataclasses.replace(program, emit=stored)))
    assert len(before) == len(after) > 0
    for a, b in zip(before, after, strict=True):
        assert a.keys() == b.keys()
        for field in a:
            x, y = np.asarray(a[field]), np.asarray(b[field])
            assert (x.dtype, x.shape, x.tobytes()) == (y.dtype, y.shape, y.tobytes()), field


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_pass_gives_a_graph_that_checks(name: str, data: Path) -> None:
    program = check("p.pipe", run="p", text=HEAD + PROGRAMS[name].replace("{data}", str(data)))
    for step, _ in passes():
        check_graph(transformed(program.emit, until=step, on_device=True), program.params, program.seed is not None)


def test_every_pass_shows_before_and_after() -> None:
    for name, step in passes():
        step = getattr(step, "func", step)
        text = f"{sys.modules[step.__module__].__doc__}{step.__doc__}"
        assert "Before:" in text and "After:" in text, name
