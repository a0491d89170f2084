"""Programs over sources of tables and texts: machine code delivers what the reference does, bad rows among good ones too."""
import json
import random

import numpy as np
import pytest
from opened import cache  # noqa: F401
from running import assert_compiled_is_interpreted, delivered, interpreted

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

PROGRAMS = {
    "bin": ("a: u16\n  b: f32[2]", "x = [b[i] * a for i]\n  emit a, x"),
    "csv": ("a: i64?\n  b: f32\n  t: text?", "a = a ?? -1\n  chars: u8[n] = utf8(t ?? \"none\")\n  emit a, b, n"),
    "jsonl": ("a: i64?[k] from \"s.a\"\n  f: bool", "total = sum(a[i] ?? 100 for i)\n  emit total, f, k"),
    "lines": ("t: text", "chars: u8[n] = utf8(t)\n  emit t, chars, n"),
    "parquet": ("a: i32?[3] from \"a{1..3}\"\n  t: text?[2] from \"t{1..2}\"\n  v: f32[_]\n  s: u8 from \"s.u\"",
                "gone = [missing(a[i]) for i]\n  a = [a[i] ?? 0 for i]\n  h = [hash(t[j] ?? \"\") % 1000 for j]\n"
                "  total = sum(v)\n  emit a, gone, h, total, s"),
    "files": ("body: bytes\n  name: text", "emit body, name"),
}


def write(kind, path):
    rng = np.random.default_rng(2)
    if kind == "bin":
        records = np.zeros(50, np.dtype([("a", "<u2"), ("b", "<f4", (2,))]))
        records["a"], records["b"] = np.arange(50), rng.normal(size=(50, 2))
        records.tofile(path)
    elif kind == "csv":
        cells = [("" if i % 3 == 0 else f"w{i}", i / 8, "" if i % 4 == 0 else i) for i in range(50)]
        path.write_text("t,b,a\n" + "".join(f"{t},{b},{a}\n" for t, b, a in cells))
    elif kind == "jsonl":
        objects = [{"s": {"a": [None, i][: i % 3] if i % 5 else None}, "f": i % 2 == 0} for i in range(50)]
        path.write_text("".join(json.dumps(o) + "\n" for o in objects))
    elif kind == "lines":
        path.write_text("".join("x" * (i % 7) + "\n" for i in range(50)))
    elif kind == "parquet":
        cells = {f"a{k}": pa.array([None if rng.random() < 0.3 else i for i in range(50)], pa.int32()) for k in (1, 2, 3)}
        texts = {f"t{k}": [None if rng.random() < 0.3 else f"w{i}" for i in range(50)] for k in (1, 2)}
        lists = pa.array([[i / 3] * (i % 4) for i in range(50)], pa.list_(pa.float32()))
        structs = pa.array([{"u": i} for i in range(50)], pa.struct([("u", pa.uint8())]))
        pq.write_table(pa.table({**cells, **texts, "v": lists, "s": structs}), path, row_group_size=9)
    else:
        path.mkdir()
        for i in range(20):
            (path / f"{i}.txt").write_text("x" * i)


@pytest.mark.parametrize("kind", PROGRAMS)
def test_compiled_is_interpreted(tmp_path, kind):
    data, program = tmp_path / "data", tmp_path / "p.pipe"
    write(kind, data)
    schema, lines = PROGRAMS[kind]
    program.write_text(f'seed 3\n\nschema Row\n  {schema}\n\npipeline train\n  from {kind}("{data}") as Row\n'
                       f"  shuffle(window=20)\n  {lines}\n")
    assert_compiled_is_interpreted(program)


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet", "arrow"])
def test_bad_rows_are_skipped_alike(tmp_path, kind):
    """Rows with gaps, other sizes and other types among good ones, in columns of every sort."""
    rng, path = random.Random(kind), tmp_path / "data"
    def some(value, *bad):
        return rng.choice(bad) if rng.random() < 0.1 else value

    records = [{"a": some(i, None), "t": some(f"w{i}", None), "v": some([i, i + 1], None, [i], [i, None]),
                "r": some([i / 2] * (i % 3), None, [None]), "w": some(["x", "y"], None, ["x"]), "k": [None, i][i % 2]}
               for i in range(80)]
    schema = "a: i64\n  t: text\n  v: i64[2]\n  r: f64[n]\n  w: text[2]\n  k: i64?"
    emitted = "a, t, v, r, w, filled"
    if kind == "csv":
        cells = [(r["a"], r["t"] or "", r["k"] or "", *["x"][: r["v"] is None]) for r in records]
        path.write_text("a,t,k\n" + "".join(",".join(map(str, row)) + "\n" for row in cells))
        schema, emitted = "a: i64\n  t: text\n  k: i64?", "a, t, filled"
    elif kind == "jsonl":
        path.write_text("".join(some(json.dumps(r), "[1", "7", '{"a": "b"}') + "\n" for r in records))
    elif kind == "parquet":
        pq.write_table(pa.Table.from_pylist(records), path, row_group_size=2)
    else:
        table = pa.Table.from_pylist(records)
        with pa.ipc.new_stream(str(path), table.schema) as out:
            out.write_table(table, max_chunksize=2)
    (tmp_path / "p.pipe").write_text(f'seed 1\n\nschema Row\n  {schema}\n\npipeline train\n  from {kind}("{path}") as Row\n'
                                     f"  skip_bad(at_most=0.9)\n  shuffle()\n  filled = k ?? -1\n  emit {emitted}\n")
    assert_compiled_is_interpreted(tmp_path / "p.pipe")


def test_fields_that_nothing_reads_still_have_their_place(tmp_path):
    write("bin", tmp_path / "data")
    (tmp_path / "p.pipe").write_text('schema Row\n  a: u16\n  b: f32[2]\n\npipeline train\n'
                                     f'  from bin("{tmp_path}/data") as Row\n  emit b\n')
    assert_compiled_is_interpreted(tmp_path / "p.pipe", epochs=(0,))


def test_texts_of_several_row_groups(tmp_path):
    """Texts are equal or not whatever block and column they come from, also beside constants and texts that are made."""
    words = ["x", "yy", "Ä", "x" * 9, "", None]
    rng = random.Random(6)
    data = pa.table({n: pa.array([rng.choice(words) for _ in range(60)], pa.string()) for n in ("a", "b", "c")})
    pq.write_table(data, tmp_path / "t.parquet", row_group_size=17)
    (tmp_path / "p.pipe").write_text(
        "seed 2\nschema S\n  a: text?\n  b: text?\n  c: text?\npipeline p\n"
        f'  from parquet("{tmp_path}/t.parquet") as S\n  shuffle()\n'
        '  one = a ?? "none"\n  other = b ?? "none"\n  small = lower(c ?? "none")\n'
        '  same = one == other\n  known = one == "x"\n  made = one == small or small == "ä"\n  before = one < other\n'
        '  h = hash(one) % 1000\n  k = cross(one, other) % 1000\n  batch(7)\n'
        '  emit one, small, same, known, made, before, h, k\n')
    assert_compiled_is_interpreted(tmp_path / "p.pipe")
    (tmp_path / "q.pipe").write_text((tmp_path / "p.pipe").read_text().replace("  shuffle()\n", ""))
    assert_compiled_is_interpreted(tmp_path / "q.pipe", epochs=(0,))


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_where_no_row_can_be_read(tmp_path, kind):
    rows = [{"a": None, "t": "x"}] * 5
    if kind == "jsonl":
        (tmp_path / "data").write_text("".join(json.dumps(r) + "\n" for r in rows))
    else:
        pq.write_table(pa.Table.from_pylist(rows, pa.schema([("a", pa.int64()), ("t", pa.string())])), tmp_path / "data")
    (tmp_path / "p.pipe").write_text(f'schema Row\n  a: i64\n  t: text?\n\npipeline p\n  from {kind}("{tmp_path}/data") as Row\n'
                                     '  skip_bad(at_most=1)\n  s = t ?? "-"\n  u = lower(s)\n  emit a, s, u\n')
    assert delivered(tmp_path / "p.pipe") == interpreted(tmp_path / "p.pipe") == []
