"""Chunks run straight over memory, prepared or not, are the chunks that frames give; the permutation's machine code is its
NumPy form."""
from __future__ import annotations

import numpy as np
import pytest
from pipec.compiler.compile import plan_for
from pipec.kernels import parquetpages, words
from pipec.runtime import feed as feeds
from pipec.runtime import prepared
from pipec.runtime.order import Permutation
from pipec.runtime.streams import Stream
from running import assert_same, delivered, fields_of, interpreted, open_loader

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
    "rows of tables": """schema Click
  n: i32?[2] from "n{1..2}"
  word: text?[3] from "w{1..3}"
  plain: text from "p"
  x: f64?
pipeline p
  from parquet("{2}") as Click
  shuffle(chunk=8, mix=4)
  a = [log1p(max(n[i] ?? 0, 0)) for i]
  b = [if missing(word[j]) then -1 else hash(word[j] ?? "none") % 1000 for j]
  c = cross(plain, word[0] ?? plain)
  d = x ?? 0.5
  emit a, b, c, d
""",
}


@pytest.fixture
def files(tmp_path):
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "d.npz", x=rng.integers(0, 256, (300, 4, 3), np.uint8), n=rng.integers(-1, 3, 300, np.int32))
    for k, count in enumerate((101, 57, 3, 88)):
        rng.integers(0, 5000, count, np.uint16).tofile(tmp_path / f"t{k}.bin")
    words = [[f"w{v}" * (v % 4) if v else None for v in rng.integers(0, 30, 300).tolist()] for _ in range(4)]
    columns = {f"w{k}": v for k, v in enumerate(words, 1)} | {"p": [w or "plain" for w in words[3]]}
    columns |= {k: [v or None for v in rng.integers(-3, 9, 300).tolist()] for k in ("n1", "n2", "x")}
    tables = pytest.importorskip("pyarrow")
    types = {"n1": tables.int32(), "n2": tables.int32(), "x": tables.float64()}
    table = tables.table({k: tables.array(v, types.get(k, tables.string())) for k, v in columns.items()})
    pytest.importorskip("pyarrow.parquet").write_table(table, tmp_path / "t.parquet", row_group_size=130)
    return tmp_path / "d.npz", tmp_path / "t*.bin", tmp_path / "t.parquet"


def written(name, files, folder):
    """The program as a file."""
    path, text = folder / "p.pipe", HEAD + PROGRAMS[name]
    for number, file in enumerate(files):
        text = text.replace(f"{{{number}}}", str(file))
    path.write_text(text)
    return path


@pytest.mark.parametrize("name", PROGRAMS)
def test_straight_is_as_frames_are(name, files, tmp_path, monkeypatch):
    path = written(name, files, tmp_path)
    plan = plan_for(str(path))
    assert feeds.straight_step(plan.above[-1].program) is not None
    ready, alone = watched(monkeypatch, feeds.Prepared, "run"), watched(monkeypatch, feeds, "run_straight")
    if name == "a record that fails":
        with pytest.raises(Exception, match="past i64"):
            delivered(path)
        assert False in ready and False in alone
        return
    got = delivered(path)
    found = alone if name == "rows of tables" else ready   # what tables decode doesn't stay
    assert found and all(found)
    assert not (ready and alone)
    monkeypatch.setattr(feeds.Feed, "prepared", lambda *args: None)
    assert_same(got, delivered(path))
    assert alone and all(alone)
    monkeypatch.setattr(feeds, "straight_step", lambda program: None)
    assert_same(got, delivered(path))
    assert_same(got, interpreted(path))


def watched(monkeypatch, owner, name):
    """What calls of a function return, in a list."""
    found, function = [], getattr(owner, name)

    def call(*args):
        found.append(function(*args))
        return found[-1]

    monkeypatch.setattr(owner, name, call)
    return found


@pytest.mark.parametrize("name, after", [("records", 5), ("windows over files", 3)])
def test_prepared_goes_on_anywhere(name, after, files, tmp_path, monkeypatch):
    """Small blocks and tasks, so that both end within the epoch; from a state, for several epochs, with threads."""
    monkeypatch.setattr(prepared, "PIECE", 40)
    monkeypatch.setattr(Stream, "chunk", lambda _: 7)
    ready = watched(monkeypatch, feeds.Prepared, "run")
    path = written(name, files, tmp_path)
    whole = [interpreted(path, epoch) for epoch in range(2)]
    for epoch in range(2):
        assert_same(delivered(path, epoch, threads=3), whole[epoch])
    with open_loader(str(path), as_="numpy", workers="threads", threads=3) as loader:
        batches = iter(loader)
        begun = [fields_of(next(batches)) for _ in range(after)]
        state = loader.state_dict()
    with open_loader(str(path), as_="numpy", workers="threads", threads=2) as loader:
        loader.load_state_dict(state)
        assert_same(begun + [fields_of(batch) for batch in loader], whole[0])
    assert all(ready)


def test_prepared_ranks(files, tmp_path, monkeypatch):
    """Each rank's producer makes its own records."""
    monkeypatch.setattr(prepared, "PIECE", 40)
    monkeypatch.setattr(Stream, "chunk", lambda _: 7)
    ready, path = watched(monkeypatch, feeds.Prepared, "run"), written("repeated", files, tmp_path)
    shares = [delivered(path, rank=rank, world=2) for rank in range(2)]
    assert ready and all(ready)
    assert_same([record for both in zip(*shares, strict=True) for record in both], interpreted(path))


def test_rows_of_tables_without_the_extension(files, tmp_path, monkeypatch):
    for module in (parquetpages, words):
        monkeypatch.setattr(module, "extension", lambda: None)
    test_straight_is_as_frames_are("rows of tables", files, tmp_path, monkeypatch)


@pytest.mark.parametrize("n", [10_000, 65_536, 65_537, 1_000_003, 2**33 + 5])
def test_permutation_of_many_is_that_of_few(n):
    p = Permutation(n, 0xF0E1D2C3B4A59687)
    asked = np.random.default_rng(1).integers(0, n, 2000)
    many = p[asked]
    assert (many == p._walk(asked, p._forward)).all()
    assert (p.inverse(many) == asked).all()
    assert (p[asked[:5]] == many[:5]).all()
