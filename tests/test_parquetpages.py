"""Parquet's pages decoded by our own extension: the values of Arrow's reader, and nothing but its answers about damage."""
from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from pipec.kernels import parquetpages
from pipec.kernels.blocks import BlockSource
from pipec.kernels.columns import Stacked
from pipec.kernels.ops import BadRecord
from pipec.kernels.sources import open_source

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
pytestmark = pytest.mark.skipif(parquetpages.extension() is None, reason="the extension isn't built")

WORDS = {"i32": pa.int32(), "u32": pa.uint32(), "f32": pa.float32(), "i64": pa.int64(), "u64": pa.uint64(), "f64": pa.float64(),
         "text": pa.string()}
ROWS = 1501


def column(rng, word, different, gone, rows=ROWS):
    """Values as real columns have them: runs of equal ones, few different ones or many, none missing or some or all."""
    places = np.sort(rng.integers(0, different, rows)) if different % 2 else rng.integers(0, different, rows)
    mask = rng.random(rows) < gone
    if word == "text":
        return pa.array([None if m else f"{p:x}é" * (p % 5) for p, m in zip(places.tolist(), mask.tolist())], pa.string())
    values = (places * 2654435761 % (1 << 31)).astype(np.dtype(WORDS[word].to_pandas_dtype()))
    return pa.array(values, WORDS[word], mask=mask)


def table(rng, word, rows=ROWS):
    kinds = [(3, 0), (ROWS * 9, 0.3), (700, 0.02), (1, 0.5), (5, 1), (40_000, 0)]
    return pa.table({f"c{j}": column(rng, word, *kind, rows) for j, kind in enumerate(kinds)})


def source(path, word, missing="?"):
    names = tuple((f"c{j}",) for j in range(6))
    return open_source("parquet", (str(path),), {}, [("many", names, f"{word}{missing}[6]"), ("one", (("c2",),), f"{word}?")])


def read(made: BlockSource, order):
    """What is read at these places as Python values, a reason in place of a bad record."""
    found, bad = made.read_many(order)
    rows = zip(*(plain(getattr(v, "array", v)) for v in found.values()))
    return [bad[i].reason if i in bad else row for i, row in enumerate(rows)]


def plain(values):
    """Rows as Python values, None where one is missing."""
    if isinstance(values, list):
        return [repr(v) for v in values]
    out = np.array(np.ma.getdata(values), object)
    out[np.ma.getmaskarray(values)] = None
    return out.tolist()


def both(monkeypatch, path, word, missing="?"):
    """The records as the extension and as Arrow reads them, and how many fields the extension read in each block."""
    ours = source(path, word, missing)
    order = np.random.default_rng(1).permutation(len(ours))
    each = [sum(isinstance(v, Stacked) for v in ours.block(b).values()) for b in range(len(ours.blocks))]
    made = read(ours, np.arange(len(ours))), read(ours, order)
    with monkeypatch.context() as without:
        without.setattr(parquetpages, "extension", lambda: None)
        arrow = source(path, word, missing)
        assert not any(arrow.plain.values())
        return made, (read(arrow, np.arange(len(arrow))), read(arrow, order)), each


@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize("written", [
    {"compression": "snappy", "data_page_version": "1.0"},
    {"compression": "zstd", "data_page_version": "2.0", "data_page_size": 900, "write_batch_size": 97},
    {"compression": "none", "use_dictionary": False, "data_page_size": 2000, "write_batch_size": 100},
    {"compression": "snappy", "data_page_version": "2.0", "dictionary_pagesize_limit": 3000, "write_batch_size": 211},
], ids=lambda w: "-".join(map(str, w.values())))
def test_values_are_those_of_arrow(tmp_path, monkeypatch, word, written):
    made = table(np.random.default_rng(5), word)
    pq.write_table(made, tmp_path / "a.parquet", row_group_size=650, **written)
    ours, arrow, each = both(monkeypatch, tmp_path / "a.parquet", word)
    assert each == [2, 2, 2] and ours == arrow


@pytest.mark.parametrize("word", ["i32", "text"])
def test_missing_values_that_the_schema_has_not(tmp_path, monkeypatch, word):
    pq.write_table(table(np.random.default_rng(6), word), tmp_path / "a.parquet")
    ours, arrow, each = both(monkeypatch, tmp_path / "a.parquet", word, "")
    assert each == [2] and ours == arrow and "missing here" in ours[0][0]


def test_columns_that_may_not_be_missing_and_no_rows(tmp_path, monkeypatch):
    rng = np.random.default_rng(7)
    for word in ("f64", "text"):
        fields = [pa.field(f"c{j}", WORDS[word], nullable=False) for j in range(6)]
        made = pa.table([column(rng, word, 90 + j, 0) for j in range(6)], schema=pa.schema(fields))
        pq.write_table(made, tmp_path / "a.parquet")
        for missing in ("", "?"):
            ours, arrow, each = both(monkeypatch, tmp_path / "a.parquet", word, missing)
            assert each == [2] and ours == arrow
        pq.write_table(made.slice(0, 0), tmp_path / "b.parquet")
        ours, arrow, _ = both(monkeypatch, tmp_path / "b.parquet", word)
        assert ours == arrow == ([], [])


def test_what_is_left_to_arrow(tmp_path, monkeypatch):
    rng = np.random.default_rng(8)
    for written in ({"compression": "gzip"}, {"use_dictionary": False, "column_encoding": "DELTA_BINARY_PACKED"}):
        pq.write_table(table(rng, "i64", 200), tmp_path / "a.parquet", **written)
        ours, arrow, each = both(monkeypatch, tmp_path / "a.parquet", "i64")
        assert each == [0] and ours == arrow
    broken = pa.array([b"\xff\xfe", b"x"] * 50).view(pa.string())
    pq.write_table(pa.table({f"c{j}": broken for j in range(6)}), tmp_path / "a.parquet")
    ours, arrow, each = both(monkeypatch, tmp_path / "a.parquet", "text")
    assert each == [0]
    monkeypatch.setattr(parquetpages, "MOST_UNPACKED", 12_000)
    pq.write_table(table(rng, "i64", 2000), tmp_path / "a.parquet")
    assert both(monkeypatch, tmp_path / "a.parquet", "i64")[2] == [1]   # the field of one column is small enough


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("word", ["i32", "f64", "text"])
def test_damaged_pages_are_refused_or_give_the_values_of_arrow(tmp_path, monkeypatch, word, version):
    rng = np.random.default_rng(9)
    kept = {"compression": "none" if version == "1.0" else "snappy", "data_page_version": version, "row_group_size": 150}
    pq.write_table(table(rng, word, 300), tmp_path / "a.parquet", **kept)
    whole = (tmp_path / "a.parquet").read_bytes()
    end = pq.read_metadata(tmp_path / "a.parquet").serialized_size + 8
    agreed = 0
    for _ in range(8 if word == "text" else 25):
        data = bytearray(whole)
        for place in rng.integers(4, len(data) - end, rng.integers(1, 4)):
            data[place] = rng.integers(0, 256)
        (tmp_path / "b.parquet").write_bytes(data)
        try:
            ours, arrow, each = both(monkeypatch, tmp_path / "b.parquet", word)
        except BadRecord:
            continue
        agreed += sum(each)
        if sum(each) == 4:
            for mine, theirs in zip(ours[0], arrow[0]):
                assert mine == theirs or isinstance(theirs, str)
    assert agreed > 4


def test_who_waits_for_a_block_decodes_the_next_one(tmp_path):
    pq.write_table(table(np.random.default_rng(2), "i64", 600), tmp_path / "a.parquet", row_group_size=100)
    made = source(tmp_path / "a.parquet", "i64")
    at, gate, ahead = threading.Event(), threading.Event(), threading.Event()
    decode, asked = made.decode, []

    def gated(file, block):
        asked.append(block)
        if block == 1:
            at.set()
            assert gate.wait(60)
        if block == 2:
            ahead.set()
        return decode(file, block)

    made.read_many(np.arange(100))   # to the end: blocks are read in order
    made.decode = gated
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(made.read_many, np.arange(100, 150))
        assert at.wait(60)
        second = threads.submit(made.read_many, np.arange(150, 200))
        assert ahead.wait(60)        # while the first one is still at block 1
        gate.set()
        parts = [first.result(), second.result()]
    assert asked == [1, 2] and not made.busy
    found = np.ma.concatenate([fields["one"] for fields, bad in parts])
    alone = source(tmp_path / "a.parquet", "i64").read_many(np.arange(100, 200))[0]["one"]
    assert plain(found) == plain(alone)
    made.most = 1                    # no room for another one
    made.block(4)
    made.finished = 4
    lock = made.busy[5] = threading.Lock()
    made._look_ahead(5)
    assert made.busy == {5: lock} and asked == [1, 2, 4]
