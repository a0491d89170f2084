"""Sources of columns (parquet, arrow): right values of every type, damaged and foreign files."""
import datetime
import decimal
import json
import random

import numpy as np
import pytest
from opened import BIG, all_of, cache, column, opened, refused  # noqa: F401
from pipec.kernels import blocks
from pipec.kernels.ops import BadRecord
from pipec.kernels.sources import SourceError

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

FORMS = {
    "parquet": lambda table, path: pq.write_table(table, path, row_group_size=2),
    "dictionaries": lambda table, path: pq.write_table(table, path, use_dictionary=True, data_page_version="2.0"),
    "file": lambda table, path: _ipc(pa.ipc.new_file, table, path),
    "stream": lambda table, path: _ipc(pa.ipc.new_stream, table, path),
}


def _ipc(writer, table, path):
    with pa.OSFile(str(path), "wb") as sink, writer(sink, table.schema) as out:
        out.write_table(table, max_chunksize=2)


@pytest.fixture(params=FORMS)
def table(request, tmp_path):
    """A function: a table in one of four forms of files, opened."""
    def make(data, *columns):
        path = tmp_path / "t.data"
        FORMS[request.param](data, path)
        return opened("parquet" if request.param in ("parquet", "dictionaries") else "arrow", path, *columns)
    return make


def test_nulls_keep_types(table):
    data = pa.table({"a": [1, None, BIG], "b": [True, None, False], "c": pa.array([255, 0, None], pa.uint8())})
    assert all_of(table(data, "a: i64?", "b: bool?", "c: u8?")) == [
        {"a": 1, "b": True, "c": 255}, {"a": None, "b": None, "c": 0}, {"a": BIG, "b": False, "c": None}]
    source = table(data, "a: i64", "c: u8?")
    assert column(source, "a") == [1, "`a` is missing here (null), and i64 has no `?`", BIG]
    assert source.name(1) == "row 1 of t.data" and source.read(0)["c"].dtype == np.uint8


def test_texts_dictionaries_and_bytes(table):
    data = pa.table({"d": pa.array(["x", "y", None, "z", "y"]).dictionary_encode(), "t": ["é", "", None, "b", "c"],
                     "b": [b"\xff", b"", None, b"x", b"y"], "w": [["p", None], [], None, ["q"], ["r"]]})
    assert column(table(data, "d: text?"), "d") == ["x", "y", None, "z", "y"]
    assert column(table(data, "t: text?"), "t") == ["é", "", None, "b", "c"]
    assert column(table(data, "b: bytes?"), "b") == [b"\xff", b"", None, b"x", b"y"]
    assert column(table(data, "b: text?"), "b")[0] == "`b` isn't UTF-8 text: byte 0 is 0xff"
    assert column(table(data, "w: text?[n]"), "w") == [["p", None], [], [], ["q"], ["r"]]
    assert column(table(data, "s: text?[2] from d+t"), "s")[2:4] == [[None, None], ["z", "b"]]


def test_structs_and_lists(table):
    data = pa.table({"s": pa.array([{"a": 1, "b": {"c": 1.5}}, None, {"a": None, "b": None}, {"a": 4, "b": {"c": 2.5}}]),
                     "m": [[[1, 2], [3, 4]], [], [[5, 6]], [[7], [8, 9]]], "f": [[1.0, 2.0], [3.0, None], None, [4.0]],
                     "o": [[{"u": 1, "v": [1, 2]}, {"u": 2, "v": [3, 4]}], [], [{"u": 3, "v": [5, 6]}], [None]]})
    assert column(table(data, "a: i64? from s.a"), "a") == [1, None, None, 4]
    assert column(table(data, "c: f64? from s.b.c"), "c") == [1.5, None, None, 2.5]
    assert column(table(data, "m: i64[n, 2]"), "m") == [[[1, 2], [3, 4]], [], [[5, 6]], "the lists in `m` have unlike lengths"]
    assert column(table(data, "f: f64?[2]"), "f") == [
        [1, 2], [3, None], [None, None], "`f` has shape [1], the schema says f64?[2]"]
    assert column(table(data, "f: f64[_]"), "f")[1:] == ["`f` is missing here (null), and f64[_] has no `?`", [], [4]]
    assert column(table(data, "f: f64[2]"), "f")[2] == "`f` is missing here (null), and f64[2] has no `?`"
    assert column(table(data, "u: i64?[k] from o.u"), "u") == [[1, 2], [], [3], [None]]
    assert column(table(data, "v: i64[k, 2] from o.v"), "v")[:3] == [[[1, 2], [3, 4]], [], [[5, 6]]]


def test_fixed_size_lists_and_times(table):
    when = [datetime.datetime(2020, 1, 1, 0, 0, 0, 7), datetime.datetime(1960, 1, 1), None]
    data = pa.table({"x": pa.array([[1, 2], None, [3, 4]], pa.list_(pa.int16(), 2)),
                     "us": pa.array(when, pa.timestamp("us", "UTC")), "ms": pa.array([1500, -1, None], pa.timestamp("ms")),
                     "ns": pa.array([1999, -1, None], pa.timestamp("ns")),
                     "day": pa.array([datetime.date(1970, 1, 2), None, None]), "h": pa.array([1.5, None, -2], pa.float16()),
                     "d": pa.array([decimal.Decimal("1.00"), None, decimal.Decimal("-0.07")], pa.decimal128(10, 2)),
                     "e": pa.array([decimal.Decimal("123456789012345678901.5"), None, None], pa.decimal128(38, 3))})
    assert column(table(data, "x: i16?[2]"), "x") == [[1, 2], [None, None], [3, 4]]
    assert column(table(data, "us: i64?"), "us") == [1577836800000007, -315619200000000, None]
    assert column(table(data, "ms: i64?"), "ms") == [1_500_000, -1000, None]
    assert column(table(data, "ns: i64?"), "ns") == [1, -1, None]
    assert column(table(data, "day: i64?"), "day") == [86_400_000_000, None, None]
    assert column(table(data, "d: f64?"), "d") == [1.0, None, -0.07]
    assert column(table(data, "e: f64?"), "e") == [123456789012345678901.5, None, None]
    assert column(table(data, "h: f16?"), "h") == [1.5, None, -2]


def test_int96_and_dictionaries_that_differ(tmp_path):
    when = [datetime.datetime(2500, 1, 1), None]   # past what i64 nanoseconds hold
    times = pa.table({"t": pa.array(when, pa.timestamp("us"))})
    pq.write_table(times, tmp_path / "t.parquet", use_deprecated_int96_timestamps=True)
    assert column(opened("parquet", tmp_path / "t.parquet", "t: i64?"), "t") == [
        int((when[0] - datetime.datetime(1970, 1, 1)).total_seconds()) * 1_000_000, None]
    with pq.ParquetWriter(tmp_path / "d.parquet", pa.schema([("d", pa.dictionary(pa.int32(), pa.string()))])) as out:
        for words in (["x", "y", None], ["y", "z"]):
            out.write_table(pa.table({"d": pa.array(words).dictionary_encode()}))
    assert column(opened("parquet", tmp_path / "d.parquet", "d: text?"), "d") == ["x", "y", None, "y", "z"]


def test_empty_files_and_row_groups(tmp_path):
    schema = pa.schema([("a", pa.int64())])
    pq.write_table(pa.table({"a": []}, schema), tmp_path / "e.parquet")
    assert len(opened("parquet", tmp_path / "e.parquet", "a: i64")) == 0
    with pq.ParquetWriter(tmp_path / "m.parquet", schema) as out:
        for part in ([1, 2], [], [3]):
            out.write_table(pa.table({"a": part}, schema))
    assert column(opened("parquet", tmp_path / "m.parquet", "a: i64"), "a") == [1, 2, 3]
    both = opened("parquet", (str(tmp_path / "e.parquet"), str(tmp_path / "m.parquet"), str(tmp_path / "m.parquet")), "a: i64")
    assert column(both, "a") == [1, 2, 3, 1, 2, 3] and both.ids(np.array([0, 3])).tolist() == [1 << 40, 2 << 40]


def test_only_needed_columns_are_decoded_and_few_blocks_kept(tmp_path, monkeypatch):
    wide = pa.table({f"c{i}": np.arange(100) + i for i in range(50)})
    pq.write_table(wide, tmp_path / "w.parquet", row_group_size=10)
    source = opened("parquet", tmp_path / "w.parquet", "x: i64 from c7")
    assert source.leaves[0] == ["c7"] and column(source, "x") == list(range(7, 107))
    monkeypatch.setattr(blocks, "KEPT", 200)
    source = opened("parquet", tmp_path / "w.parquet", "x: i64 from c7")
    assert column(source, "x") == list(range(7, 107)) and len(source.kept) <= 2


@pytest.mark.parametrize("asked, code, said", [
    ("nope: i64", "E0601", "its columns: `n`, `s.a`"), ("nn: i64", "E0601", "similar name: `n`"),
    ("n: i32", "E0602", "holds int64"), ("n: f32", "E0602", "holds int64"),
    ("n: i64[_]", "E0602", "single values"), ("l: i64", "E0602", "lists in 1"),
    ("s: i64", "E0602", "`s.a`"), ("n: text", "E0602", "holds int64"), ("p: i64", "E0602", "which can't be read")])
def test_columns_that_are_another_type(table, asked, code, said):
    data = pa.table({"n": [1], "s": [{"a": 1}], "l": [[1]], "p": pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64()))})
    with pytest.raises(SourceError) as error:
        table(data, asked)
    assert error.value.code == code and said in " ".join((error.value.title, *error.value.notes))
    assert error.value.field == asked.partition(":")[0]


def test_texts_in_encodings_that_are_no_dictionaries(tmp_path):
    for name, encoding in (("a", "DELTA_BYTE_ARRAY"), ("b", "DELTA_LENGTH_BYTE_ARRAY"), ("c", "PLAIN")):
        pq.write_table(pa.table({"t": ["x", None, "xy"], "n": [1, 2, 3]}), tmp_path / f"{name}.parquet", use_dictionary=False,
                       column_encoding={"t": encoding, "n": "DELTA_BINARY_PACKED"}, row_group_size=2)
    found = all_of(opened("parquet", tmp_path / "*.parquet", "t: text?", "n: i64"))
    assert found == [{"t": "x", "n": 1}, {"t": None, "n": 2}, {"t": "xy", "n": 3}] * 3


@pytest.mark.parametrize("words", [pa.string_view(), pa.binary_view(), pa.large_string()])
def test_dictionaries_of_views_as_polars_writes_them(tmp_path, words):
    values = pa.array(["p", "a text that is longer than twelve bytes"], words)
    data = pa.table({"t": pa.DictionaryArray.from_arrays(pa.array([1, 0, None, 1], pa.uint32()), values)})
    _ipc(pa.ipc.new_file, data, tmp_path / "t.arrow")
    assert column(opened("arrow", tmp_path / "t.arrow", "t: text?"), "t") == [
        "a text that is longer than twelve bytes", "p", None, "a text that is longer than twelve bytes"]


def test_hugging_face_datasets(tmp_path):
    for k in range(2):
        data = pa.table({"image": [{"bytes": b"%d" % i, "path": None} for i in range(3 * k, 3 * k + 3)], "label": [0, 1, 2]})
        _ipc(pa.ipc.new_stream, data, tmp_path / f"data-{k}.arrow")
    (tmp_path / "cache-1.arrow").write_bytes(b"not listed")
    (tmp_path / "state.json").write_text(json.dumps({"_data_files": [{"filename": f"data-{k}.arrow"} for k in (1, 0)]}))
    source = opened("arrow", tmp_path, "jpg: bytes from image.bytes", "label: i64")
    assert column(source, "jpg") == [b"3", b"4", b"5", b"0", b"1", b"2"]
    (tmp_path / "state.json").write_text("{}")
    assert "no dataset" in refused("E0810", "arrow", tmp_path, "label: i64")


@pytest.mark.parametrize("kind", ["parquet", "file", "stream"])
def test_damaged_tables_make_messages_or_bad_records(tmp_path, kind):
    data = pa.table({"a": list(range(60)), "w": [f"word {i}" for i in range(60)], "l": [[i, i + 1] for i in range(60)]})
    FORMS[kind](data, tmp_path / "t")
    whole, rng = (tmp_path / "t").read_bytes(), random.Random(4)
    for trial in range(40):
        broken = bytearray(whole)
        for _ in range(rng.randint(1, 6)):
            broken[rng.randrange(len(broken))] = rng.randrange(256)
        path = tmp_path / f"{trial}.x"
        path.write_bytes(broken if trial % 2 else broken[: rng.randrange(len(broken))])
        try:
            source = opened("parquet" if kind == "parquet" else "arrow", path, "a: i64", "w: text", "l: i64[2]")
            many = min(len(source), 200)
            source.read_many(np.arange(many))
        except SourceError:
            continue
        for i in range(many):
            try:
                source.read(i)
            except BadRecord:
                continue


@pytest.mark.parametrize("header", [b"PAR1", b"ARROW1\0\0", b"\xff\xff\xff\xff", b"FEA1", b"", b"<html>"])
def test_foreign_files_are_named(tmp_path, header):
    (tmp_path / "x").write_bytes(header + bytes(range(64)))
    for kind in ("parquet", "arrow"):
        assert str(tmp_path) in refused("E0810", kind, tmp_path / "x", "a: i64")


def test_a_damaged_file_among_others_is_one_bad_record(tmp_path):
    pq.write_table(pa.table({"a": [1, 2]}), tmp_path / "b.parquet")
    (tmp_path / "a.parquet").write_bytes((tmp_path / "b.parquet").read_bytes()[:-9])
    found = column(opened("parquet", tmp_path / "*.parquet", "a: i64"), "a")
    assert found[0].startswith("the file can't be read") and found[1:] == [1, 2]
    refused("E0810", "parquet", tmp_path / "a.parquet", "a: i64")


def test_without_pyarrow_the_message_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    assert "pip install 'pipec[tables]'" in refused("E0810", "parquet", tmp_path, "a: i64")
