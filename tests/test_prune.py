"""Dead fields go, with the columns and stages' lists that only they needed; what anything reads stays."""
from __future__ import annotations

import pytest
from conftest import write_tar
from pipec.compiler.graph import Node, walk
from pipec.compiler.graphtext import parse_graph, print_graph
from pipec.compiler.prune import prune
from pipec.kernels import parquetpages
from pipec.kernels.storage import Files
from running import delivered


def pruned(text: str) -> Node:
    return prune(parse_graph(text.replace("\n    ", "\n")))


def stage(root: Node, op: str) -> Node:
    return next(n for n in walk(root) if n.op == op)


def source(name: str, path: str, **types: str) -> str:
    """A line of graph text: a source with these columns."""
    columns = ", ".join(f'("{k}", (("{k}",),), "{t}")' for k, t in types.items())
    frame = ", ".join(f"{k}: {t}" for k, t in types.items())
    return f'{name} = source(columns=({columns},), kind="npz", options=(), paths=("{path}",)) : {{{frame}}}'


def fields(n: Node) -> list[str]:
    return [name for name, _ in n.type.parts]


def columns(n: Node) -> list[str]:
    return [c[0] for c in n["columns"]]


HEAD = """
    """ + source("s", "d.npz", a="f32", b="i64", c="bytes") + """
    a = field(name="a") : f32
    b = field(name="b") : i64
    c = field(name="c") : bytes
"""


def test_conditions_keep_what_they_read() -> None:
    g = pruned(HEAD + """
    t = lt(b, 3) : bool
    w = where(s, t) : {a: f32, b: i64, c: bytes}
    m = map(w, a, b, c, names=("a", "b", "c")) : {a: f32, b: i64, c: bytes}
    emit(m, names=("a",)) : {a: f32}
    """)
    assert columns(stage(g, "source")) == ["a", "b"]
    assert fields(stage(g, "where")) == ["a", "b"]
    assert stage(g, "map")["names"] == ("a",)


def test_batch_keeps_what_sorts_it() -> None:
    g = pruned(HEAD + """
    m = map(s, a, b, c, names=("a", "b", "c")) : {a: f32, b: i64, c: bytes}
    n = count() : i64
    t = batch(m, 4, b, has=("n", "by"), whole=false, pad=false, edges=()) : {a: f32[n], b: i64[n], c: bytes[n]}
    x = field(name="a") : f32[n]
    o = map(t, x, names=("a",)) : {a: f32[n]}
    emit(o, names=("a",)) : {a: f32[n]}
    """)
    assert columns(stage(g, "source")) == ["a", "b"]
    assert fields(stage(g, "batch")) == ["a", "b"]


SIZES = """
    h = extent(field="a", axis=0) : i64
    """ + source("s", "d.npz", a="f32[h]", b="f32[h]", c="i64") + """
    a = field(name="a") : f32[h]
    b = field(name="b") : f32[h]
    c = field(name="c") : i64
"""


def test_a_size_goes_by_a_field_that_is_kept() -> None:
    g = pruned(SIZES + """
    m = map(s, h, b, a, names=("n", "b", "a")) : {n: i64, b: f32[h], a: f32[h]}
    n = field(name="n") : i64
    o = map(m, n, b, names=("n", "b")) : {n: i64, b: f32[h]}
    emit(o, names=("n", "b")) : {n: i64, b: f32[h]}
    """)
    assert columns(stage(g, "source")) == ["b"]
    assert 'extent(axis=0, field="b")' in print_graph(g)
    assert 'field="a"' not in print_graph(g)


def test_a_size_alone_keeps_its_field() -> None:
    g = pruned(SIZES + """
    m = map(s, h, c, names=("n", "c")) : {n: i64, c: i64}
    emit(m, names=("n",)) : {n: i64}
    """)
    assert columns(stage(g, "source")) == ["a"]


def test_branches_of_mix_and_zip() -> None:
    two = HEAD + """
    """ + source("r", "e.npz", a="f32", b="i64", c="bytes") + """
    """
    g = pruned(two + """
    m = mix(s, r, names=("p", "q"), weights=(), until="first", key="k") : {a: f32, b: i64, c: bytes}
    o = map(m, b, names=("b",)) : {b: i64}
    emit(o, names=("b",)) : {b: i64}
    """)
    assert all(columns(n) == ["b"] for n in walk(g) if n.op == "source")
    assert fields(stage(g, "mix")) == ["b"]
    g = pruned(two + """
    z = zip(s, r, names=("x", "y")) : {x.a: f32, x.b: i64, x.c: bytes, y.a: f32, y.b: i64, y.c: bytes}
    v = field(name="x.c") : bytes
    o = map(z, v, names=("v",)) : {v: bytes}
    emit(o, names=("v",)) : {v: bytes}
    """)
    assert [columns(n) for n in walk(g) if n.op == "source"] == [["c"], ["a"]]
    assert fields(stage(g, "zip")) == ["x.c", "y.a"]


def test_a_sample_that_nobody_reads_goes() -> None:
    text = HEAD + """
    """ + source("r", "e.npz", b="i64", c="bytes") + """
    m = map(s, a, names=("a",)) : {a: f32}
    p = sample(m, r, name="other", path="train/other", times=0) : {a: f32, other.b: i64, other.c: bytes}
    v = field(name="other.b") : i64
    o = map(p, a, v, names=("a", "v")) : {a: f32, v: i64}
    emit(o, names=("a", "v")) : {a: f32, v: i64}
    """
    g = pruned(text)
    assert fields(stage(g, "sample")) == ["a", "other.b"]
    g = pruned(text.replace('o, names=("a", "v")', 'o, names=("a",)'))
    assert not any(n.op == "sample" for n in walk(g))
    assert len([n for n in walk(g) if n.op == "source"]) == 1


def test_each_keeps_what_counts_its_places() -> None:
    g = pruned("""
    h = extent(field="a", axis=0) : i64
    """ + source("s", "d.npz", a="f32[h]", b="f32[h]", c="i64") + """
    e = each(s, fields=("a", "b")) : {a: f32, b: f32, c: i64}
    c = field(name="c") : i64
    o = map(e, c, names=("c",)) : {c: i64}
    emit(o, names=("c",)) : {c: i64}
    """)
    assert columns(stage(g, "source")) == ["a", "c"]
    assert stage(g, "each")["fields"] == ("a",)


def test_pack_and_balance() -> None:
    g = pruned("""
    h = extent(field="a", axis=0) : i64
    """ + source("s", "d.npz", a="f32[h]", b="f32[h]", c="i64") + """
    c = field(name="c") : i64
    l = balance(s, c, field="c", key="train/balance") : {a: f32[h], b: f32[h], c: i64}
    p = pack(l, 8, h, open=4, fields=("a", "b")) : {a: f32?[8], b: f32?[8], c: i64, segment: i64?[8], position: i64?[8]}
    b = field(name="b") : f32?[8]
    o = map(p, b, names=("b",)) : {b: f32?[8]}
    emit(o, names=("b",)) : {b: f32?[8]}
    """)
    assert columns(stage(g, "source")) == ["b", "c"]
    assert stage(g, "pack")["fields"] == ("b",)
    assert fields(stage(g, "pack")) == ["b", "c", "segment", "position"]
    assert stage(g, "pack").args[2]["field"] == "b"


def test_nothing_dead_changes_nothing() -> None:
    g = pruned(HEAD + """
    m = map(s, a, b, c, names=("a", "b", "c")) : {a: f32, b: i64, c: bytes}
    emit(m, names=("a", "b", "c")) : {a: f32, b: i64, c: bytes}
    """)
    assert prune(g) is g
    assert columns(stage(g, "source")) == ["a", "b", "c"]


def test_a_stream_read_twice_keeps_what_either_reads() -> None:
    g = pruned(HEAD + """
    x = map(s, a, names=("v",)) : {v: f32}
    k = cast(b, mode="round") : f32
    y = map(s, k, names=("v",)) : {v: f32}
    m = mix(x, y, names=("p", "q"), weights=(), until="first", key="k") : {v: f32}
    v = field(name="v") : f32
    o = map(m, v, names=("v",)) : {v: f32}
    emit(o, names=("v",)) : {v: f32}
    """)
    assert columns(stage(g, "source")) == ["a", "b"]
    assert len([n for n in walk(g) if n.op == "source"]) == 1


# --- to the data ----------------------------------------------------------------------------------

READS = """schema Row
  {kept}
  {dead}
pipeline p
  from {kind}("{path}") as Row
  unused = {use}
  emit {name}
"""


def test_members_of_tars_that_nothing_needs_are_not_read(tmp_path, monkeypatch):
    write_tar(tmp_path / "a.tar", [(f"{k}.{e}", d) for k in range(5) for e, d in (("cls", b"3"), ("jpg", b"x" * 1000))])
    text = READS.format(kept="cls: i64", dead="jpg: bytes", kind="tar", path=tmp_path / "a.tar", use="decode_image(jpg)",
                        name="cls")
    (tmp_path / "p.pipe").write_text(text)
    real, sizes = Files.pread, []
    monkeypatch.setattr(Files, "pread", lambda self, file, size, at: sizes.append(size) or real(self, file, size, at))
    assert len(delivered(tmp_path / "p.pipe")) == 5
    assert sizes and set(sizes) == {1}


def test_columns_of_parquet_that_nothing_needs_are_not_read(tmp_path, monkeypatch):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(arrow.table({"n": [1, 2, 3], "long": ["x" * 500] * 3}), tmp_path / "a.parquet")
    text = READS.format(kept="n: i64", dead="long: text", kind="parquet", path=tmp_path / "a.parquet", use='long == "y"',
                        name="n")
    (tmp_path / "p.pipe").write_text(text)
    real, pages, asked = parquet.ParquetFile.read_row_group, parquetpages._pages, []

    def read(self, block, columns=None, **rest):
        asked.append(list(columns))
        return real(self, block, columns=columns, **rest)

    def read_pages(made, pread, chunk, column):
        asked.append([chunk.path_in_schema])
        return pages(made, pread, chunk, column)

    monkeypatch.setattr(parquet.ParquetFile, "read_row_group", read)
    monkeypatch.setattr(parquetpages, "_pages", read_pages)   # where the C decoder is there
    assert [int(r["n"]) for r in delivered(tmp_path / "p.pipe")] == [1, 2, 3]
    assert asked and all(columns == ["n"] for columns in asked)
