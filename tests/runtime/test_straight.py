"""Chunks run straight over memory are the chunks that frames give; the permutation's machine code is its NumPy form."""
from __future__ import annotations

import numpy as np
import pytest
from pipec.compiler.compile import plan_for
from pipec.runtime import feed as feeds
from pipec.runtime.order import Permutation
from running import assert_same, delivered, interpreted

HEAD = """seed 5
schema Row
  x: u8[4, 3]
  n: i32
"""
PROGRAMS = {
    "records": """pipeline p
  from npz("{0}") as Row
  shuffle()
  r ~ integers(0, 9)
  y = [f32(x[i, j]) / 2 + r for j, i]
  m = i64(n)
  batch(7)
  emit y, m
""",
    "repeated": """pipeline p
  from npz("{0}") as Row
  repeat(3)
  shuffle()
  r ~ uniform(0, 1)
  y = x[0, 1] + r
  emit y
""",
    "a record that fails": """pipeline p
  from npz("{0}") as Row
  y = 4_000_000_000_000_000_000 + i64(n) * 3_000_000_000_000_000_000
  emit y
""",
    "windows over files": """schema Token
  id: u16
pipeline p
  from bin("{1}") as Token
  window(5, stride=3, rest="drop")
  shuffle()
  a = i64(id[:4])
  b = i64(id[1:])
  c = count() + 0 * a[0]
  batch(4)
  emit a, b, c
""".replace("  c = count() + 0 * a[0]\n", "").replace(", c", ""),
}


@pytest.fixture
def files(tmp_path):
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "d.npz", x=rng.integers(0, 256, (300, 4, 3), np.uint8), n=rng.integers(-1, 3, 300, np.int32))
    for k, count in enumerate((101, 57, 3, 88)):
        rng.integers(0, 5000, count, np.uint16).tofile(tmp_path / f"t{k}.bin")
    return tmp_path / "d.npz", tmp_path / "t*.bin"


@pytest.mark.parametrize("name", PROGRAMS)
def test_straight_is_as_frames_are(name, files, tmp_path, monkeypatch):
    path = tmp_path / "p.pipe"
    path.write_text((HEAD + PROGRAMS[name]).replace("{0}", str(files[0])).replace("{1}", str(files[1])))
    plan = plan_for(str(path))
    assert feeds.straight_step(plan.above[-1].program) is not None
    ran, found = feeds.run_straight, []
    monkeypatch.setattr(feeds, "run_straight", lambda *args: found.append(ran(*args)) or found[-1])
    if name == "a record that fails":
        with pytest.raises(Exception, match="past i64"):
            delivered(path)
        assert False in found
        return
    got = delivered(path)
    assert found and all(found)
    monkeypatch.setattr(feeds, "straight_step", lambda program: None)
    assert_same(got, delivered(path))
    assert_same(got, interpreted(path))


@pytest.mark.parametrize("n", [10_000, 65_536, 65_537, 1_000_003, 2**33 + 5])
def test_permutation_of_many_is_that_of_few(n):
    p = Permutation(n, 0xF0E1D2C3B4A59687)
    asked = np.random.default_rng(1).integers(0, n, 2000)
    many = p[asked]
    assert (many == p._walk(asked, p._forward)).all()
    assert (p.inverse(many) == asked).all()
    assert (p[asked[:5]] == many[:5]).all()
