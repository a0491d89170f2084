"""Sources of numbers, tables and texts (bin, csv, jsonl, lines, parquet, arrow, files, lmdb): right values, hostile files."""
import datetime
import decimal
import json
import random
import resource
import time

import numpy as np
import pytest
from pipec.kernels import blocks, rows
from pipec.kernels.ops import BadRecord
from pipec.kernels.sources import KINDS, SourceError, open_source
from pipec.kernels.words import Coded
from running import assert_compiled_is_interpreted, delivered, interpreted

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
BIG = 2**53 + 1


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("PIPEC_CACHE", str(tmp_path_factory.mktemp("cache")))


def opened(kind, path, *columns, **options):
    """A source; a column is "field: type" or "field: type from name"."""
    triples = []
    for column in columns:
        field, _, rest = column.partition(": ")
        text, _, names = rest.partition(" from ")
        stacked = [n.split("|") for n in (names or field).split("+")]
        triples.append((field, tuple(map(tuple, stacked)), text))
    paths = path if isinstance(path, tuple) else (str(path),)
    return open_source(kind, paths, options, triples)


def plain(value):
    """A value as Python's, None for what is missing."""
    if isinstance(value, np.ma.MaskedArray):
        out = np.array(value.data, object)
        out[np.ma.getmaskarray(value)] = None
        return out.tolist()
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def all_of(source):
    """Every record as Python values, a bad one as its reason; `read_many` in any order says the same as `read`."""
    out = []
    for index in range(len(source)):
        try:
            out.append({f: plain(v) for f, v in source.read(index).items()})
        except BadRecord as bad:
            out.append(bad.reason)
    if hasattr(source, "read_many"):
        for order in (np.arange(len(source)), np.random.default_rng(3).permutation(len(source))):
            fields, bad = source.read_many(order)
            fields = {f: v.array if isinstance(v, Coded) else v for f, v in fields.items()}
            for place, index in enumerate(order.tolist()):
                if isinstance(out[index], str):
                    assert bad[place].reason == out[index]
                else:
                    assert place not in bad
                    found = {f: plain(np.ma.getdata(v)[place]) if not isinstance(v, list | np.ma.MaskedArray) else
                             None if v[place] is np.ma.masked else plain(v[place]) for f, v in fields.items()}
                    assert repr(found) == repr(out[index])
    return out


def column(source, field):
    return [r if isinstance(r, str) else r[field] for r in all_of(source)]


def refused(code, kind, path, *columns, **options):
    with pytest.raises(SourceError) as error:
        opened(kind, path, *columns, **options)
    assert error.value.code == code
    return " | ".join((error.value.title, *error.value.notes))


# --- bin ----------------------------------------------------------------------------------------

@pytest.mark.parametrize("word", ["u8", "i8", "u16", "i16", "u32", "i32", "u64", "i64", "f16", "f32", "f64"])
def test_tokens_of_any_width(tmp_path, word):
    dtype = np.dtype("<" + word[0] + str(int(word[1:]) // 8))
    values = np.arange(40).astype(dtype)
    (tmp_path / "a.bin").write_bytes(b"head" * 4 + values[:25].tobytes())
    (tmp_path / "b.bin").write_bytes(b"head" * 4 + values[25:].tobytes())
    source = opened("bin", tmp_path / "?.bin", f"id: {word}", skip=16)
    assert len(source) == 40 and column(source, "id") == values.tolist()
    assert source.arrays() is None and source.name(26) == "record 1 of b.bin"
    assert source.ids(np.array([24, 25])).tolist() == [24, 1 << 40]
    assert opened("bin", tmp_path / "a.bin", f"id: {word}", skip=16).arrays()["id"].tobytes() == values[:25].tobytes()
    assert len(opened("bin", tmp_path / "a.bin", f"id: {word}[5]", skip=16)) == 5


def test_bin_records_of_several_fields(tmp_path):
    records = np.zeros(7, np.dtype([("label", "u1"), ("image", "<f4", (2, 3)), ("flag", "?")]))
    records["label"], records["flag"] = np.arange(7), np.arange(7) % 2
    records["image"] = np.arange(42).reshape(7, 2, 3)
    records.tofile(tmp_path / "a.bin")
    layout = (("label", "u8"), ("image", "f32[2, 3]"), ("flag", "bool"))
    for field, text in layout:   # each alone, the others left out
        source = opened("bin", tmp_path / "a.bin", f"{field}: {text}", layout=layout)
        assert column(source, field) == records[field].tolist()
    assert opened("bin", tmp_path / "a.bin", "image: f32[2, 3]", layout=layout).arrays() is None   # not at multiples of 4


def test_bin_bytes_that_are_no_bools_and_broken_sizes(tmp_path):
    (tmp_path / "a.bin").write_bytes(bytes([1, 0, 2]))
    assert column(opened("bin", tmp_path / "a.bin", "b: bool"), "b") == [True, False, "`b` holds a byte that is neither 0 nor 1"]
    assert "3 bytes, no whole number of records of 2" in refused("E0602", "bin", tmp_path / "a.bin", "t: u16")
    assert "no fixed size" in refused("E0602", "bin", tmp_path / "a.bin", "t: u8[n]")
    assert "fewer than `skip`" in refused("E0602", "bin", tmp_path / "a.bin", "t: u8", skip=9)
    (tmp_path / "b.bin").write_bytes(b"")
    assert len(opened("bin", tmp_path / "b.bin", "t: u16")) == 0


def anonymous():
    """KiB of this process's own memory."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("RssAnon"))


def test_a_large_file_takes_no_memory(tmp_path):
    with open(tmp_path / "x.bin", "wb") as file:
        file.truncate(6 << 30)   # a hole
        file.seek(5 << 30)
        file.write(np.arange(8, dtype="<u4").tobytes())
    before = anonymous()
    source = opened("bin", tmp_path / "x.bin", "id: u32")
    assert len(source) == (6 << 30) // 4 and source.read((5 << 30) // 4 + 7)["id"] == 7
    assert source.read_many(np.arange(0, len(source), 1 << 20))[0]["id"].sum() == 0
    assert anonymous() - before < 20_000   # pages of the file itself can be dropped


# --- csv ----------------------------------------------------------------------------------------

def csv(tmp_path, data, *columns, **options):
    (tmp_path / "x.csv").write_bytes(data)
    return opened("csv", tmp_path / "x.csv", *columns, **options)


def test_quotes_bom_crlf_nan_and_big_integers(tmp_path):
    source = csv(tmp_path, b'\xef\xbb\xbfid,text,score\r\n1,"a\nb",0.5\r\n2,"say ""hi""",\r\n9007199254740993,"x,y",nan\r\n',
                 "id: i64", "text: text", "score: f32?")
    assert repr(all_of(source)) == repr([{"id": 1, "text": "a\nb", "score": 0.5}, {"id": 2, "text": 'say "hi"', "score": None},
                                         {"id": BIG, "text": "x,y", "score": float("nan")}])
    assert [source.name(i) for i in range(3)] == ["line 2 of x.csv", "line 4 of x.csv", "line 5 of x.csv"]


def test_missing_cells(tmp_path):
    data = b'a,b\n9007199254740993,x\n,\nNA,""\n5,"NA"\n'
    assert column(csv(tmp_path, data, "a: i64?", nulls=("NA",)), "a") == [BIG, None, None, 5]
    assert column(csv(tmp_path, data, "b: text?", nulls=("NA",)), "b") == ["x", None, "", "NA"]
    assert column(csv(tmp_path, data, "b: text"), "b") == ["x", "", "", "NA"]
    assert column(csv(tmp_path, data, "a: i64"), "a") == [
        BIG, "`a` is missing, and i64 has no `?`", '`a` holds "NA", which is no i64', 5]


def test_rows_of_another_length_are_bad(tmp_path):
    source = csv(tmp_path, b"a,b\n1,2\n3\n4,5,6\n\r\n\n7,8", "a: i64", "b: i64")
    assert column(source, "b") == [2, "this row has 1 fields, not 2", "this row has 3 fields, not 2", 8]
    assert [source.name(i) for i in (1, 2, 3)] == ["line 3 of x.csv", "line 4 of x.csv", "line 7 of x.csv"]


@pytest.mark.parametrize("data, found", [
    (b"a\nx\ry\nz\r\n", ["x\ry", "z"]), (b'a\n5" pipe\nb\n', ['5" pipe', "b"]), (b'a\n"x"y\nb\n', 1),
    (b'a\nb\n"never\nclosed\n', 2),
    (b'a\n""""\n"\r\n"\n', ['"', "\r\n"]), (b"a\n\xff\nb\n", 1), ("a\né\u2028x\n".encode(), ["é\u2028x"])])
def test_odd_cells(tmp_path, data, found):
    source = csv(tmp_path, data, "a: text")
    if isinstance(found, list):
        assert column(source, "a") == found
    else:
        with pytest.raises(BadRecord, match=r"quoted field|UTF-8"):
            source.read(found - 1)


def test_numbers_in_cells(tmp_path):
    bad = ["1_0", "0x1", "1.0", "", "９", "256", "-1"]
    found = column(csv(tmp_path, ("a\n" + "\n".join(f'"{b}"' for b in bad) + "\n+7\n 8 \n").encode(), "a: u8"), "a")
    assert all(isinstance(f, str) for f in found[: len(bad)]) and found[len(bad):] == [7, 8]
    assert column(csv(tmp_path, b"a\ntrue\nFalse\n0\nmaybe\n", "a: bool"), "a")[:3] == [True, False, False]
    for word in ("i8", "u16", "f16", "f32", "f64", "u64"):
        assert csv(tmp_path, b"a\n7\n", f"a: {word}").read_many(np.array([0]))[0]["a"].dtype.itemsize * 8 == int(word[1:])


def test_headers_delimiters_and_files(tmp_path):
    (tmp_path / "f1.csv").write_bytes(b"x,y\n1,a\n2,b\n")
    (tmp_path / "f2.csv").write_bytes(b"y,x\nc,1.5\n")
    source = opened("csv", tmp_path / "f?.csv", "x: f32", "y: text")
    assert column(source, "x") == [1, 2, 1.5] and column(source, "y") == ["a", "b", "c"]
    assert csv(tmp_path, b"1\t2\n3\t4\n", "b: i64 from 1", delimiter="\t", header=False).read(1) == {"b": 4}
    stacked = csv(tmp_path, b"I1,I2,C1,C2\n1,,x,\n3,4,,y\n", "n: i32?[2] from I1+I2", "c: text?[2] from C1+C2")
    assert all_of(stacked) == [{"n": [1, None], "c": ["x", None]}, {"n": [3, 4], "c": [None, "y"]}]
    assert len(csv(tmp_path, b"a\n", "a: i64")) == 0


def test_what_csv_refuses(tmp_path):
    path = tmp_path / "x.csv"
    path.write_bytes(b"size,name,name\n1,2,3\n")
    assert "similar name: `size`" in refused("E0601", "csv", path, "siz: i64")
    assert "two columns `name`" in refused("E0602", "csv", path, "name: i64")
    assert "by number" in refused("E0601", "csv", path, "size: i64", header=False)
    assert "one ASCII character" in refused("E0810", "csv", path, "size: i64", delimiter=";;")
    for start, said in ((b"", "no header line"), (b"\x1f\x8b\x08", "can't be unpacked"), ("a\n".encode("utf-16"), "UTF-16")):
        path.write_bytes(start)
        assert said in refused("E0810", "csv", path, "a: i64")
    assert "is a folder" in refused("E0810", "csv", tmp_path, "a: i64")


def test_the_index_is_right_at_the_edges_of_blocks_and_kept(tmp_path, monkeypatch):
    rng, table = random.Random(5), [["a", "b"]]
    table += [["".join(rng.choice('x"\n,\r') for _ in range(rng.randint(0, 9))), str(i)] for i in range(400)]
    quoted = [[f'"{c.replace(chr(34), chr(34) * 2)}"' for c in r] for r in table]
    data = "".join(",".join(r) + rng.choice(["\n", "\r\n", "\n\r\n"]) for r in quoted)
    for block in (1, 2, 3, 7, 64, 1 << 22):
        monkeypatch.setattr(rows, "BLOCK", block)
        monkeypatch.setattr(rows, "KEPT_FROM", 0 if block == 7 else 1 << 22)
        for _ in range(1 + (block == 7)):   # the second time from the cache
            source = csv(tmp_path, data.encode(), "a: text", "b: i64")
            assert column(source, "a") == [r[0] for r in table[1:]] and column(source, "b") == list(range(400))
        assert [source.rows.line(0, r) for r in (1, 200, 400)] == [
            data[: int(source.rows.indexes[0].starts[r])].count("\n") + 1 for r in (1, 200, 400)]


def test_long_rows_are_refused_in_bounded_memory(tmp_path):
    with open(tmp_path / "x.csv", "wb") as file:   # 300 MB, nearly all of it a hole, read as one row
        file.write(b"a,b\n1,2\n")
        file.seek(300 << 20)
        file.write(b"\n3,4\n")
    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.monotonic()
    source = opened("csv", tmp_path / "x.csv", "a: i64", "b: i64")
    assert column(source, "a") == [1, "this row is 314,572,793 bytes long, more than 67,108,864", 3]
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 60_000 and time.monotonic() - start < 20


# --- jsonl and lines ----------------------------------------------------------------------------

def jsonl(tmp_path, data, *columns):
    (tmp_path / "x.jsonl").write_bytes(data)
    return opened("jsonl", tmp_path / "x.jsonl", *columns)


def test_only_lf_ends_a_line(tmp_path):
    text = "a\u2028b\u2029c\u0085d"
    source = jsonl(tmp_path, f'{{"t":"{text}"}}\n{{"t":"z\\u000b"}}'.encode(), "t: text")
    assert column(source, "t") == [text, "z\x0b"]


def test_json_oddities(tmp_path):
    assert column(jsonl(tmp_path, b'\xef\xbb\xbf{"a":1}\r\n{"a":2}\r\n\r\n{"a":null}', "a: i64?"), "a") == [1, 2, None]
    deep = b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    bad = [b'{"a":NaN}', b'{"a":"x"}', b'{"a":1.0}', b'{"a":true}', b'{"a":99999999999999999999}', b"[1]", b'{"a":1', b'{"b":1}',
           deep, b'{"a":\xff}', b'{"a":null}']
    found = column(jsonl(tmp_path, b"\n".join([b'{"a":9007199254740993}', b'{"a":1,"a":-2}', *bad]), "a: i64"), "a")
    assert found[:2] == [BIG, -2] and all(isinstance(f, str) for f in found[2:])
    assert "nested too deep" in found[10] and "text (x)" in found[3]


def test_json_paths_and_lists(tmp_path):
    data = [{"s": {"x": [{"y": 1, "z": [1, 2.5]}, {"y": 2, "z": [3, 4]}]}, "e": [1, None], "k.d": 5, "w": ["a", None]},
            {"s": {"x": []}, "e": [], "k": {"d": 6}, "w": [None, "b"]}, {"s": {"x": [{"y": None}]}, "k": {"d": 7}, "w": None},
            {"s": {"x": [{"y": 1, "z": [1]}, {"y": 2, "z": [3, 4]}]}, "k": {"d": 8}, "w": ["a"]}]
    whole = "\n".join(map(json.dumps, data)).encode()
    assert column(jsonl(tmp_path, whole, "y: i64?[n] from s.x.y"), "y") == [[1, 2], [], [None], [1, 2]]
    found = column(jsonl(tmp_path, whole, "z: f32[n, 2] from s.x.z"), "z")
    assert found[:2] == [[[1, 2.5], [3, 4]], []] and "null" in found[2] and "unlike lengths" in found[3]
    assert column(jsonl(tmp_path, whole, "e: u8?[_]"), "e") == [[1, None], [], [], []]
    assert column(jsonl(tmp_path, whole, "d: i64 from k.d"), "d") == [5, 6, 7, 8]
    found = column(jsonl(tmp_path, whole, "w: text?[2]"), "w")
    assert found[:3] == [["a", None], [None, "b"], [None, None]] and "shape [1]" in found[3]
    assert "similar name: `s.x.y`" in refused("E0601", "jsonl", tmp_path / "x.jsonl", "y: i64[n] from s.x.yy")


def test_lines(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"\nabc\n\n")
    assert column(opened("lines", tmp_path / "a.txt", "t: text"), "t") == ["", "abc", ""]
    (tmp_path / "a.txt").write_bytes(b"a\rb\nc\r\n\xff\nlast\r")
    assert column(opened("lines", tmp_path / "a.txt", "t: text"), "t") == [
        "a\rb", "c", "this line isn't UTF-8 text: byte 0 is 0xff", "last\r"]
    assert column(opened("lines", tmp_path / "a.txt", "t: bytes"), "t") == [b"a\rb", b"c", b"\xff", b"last\r"]


# --- parquet and arrow --------------------------------------------------------------------------

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


# --- files, lmdb --------------------------------------------------------------------------------

def test_files(tmp_path):
    for name in ("b.txt", "a.wav", "sub/c.FLAC", ".hidden.wav", ".git/x.wav"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(name.encode())
    source = opened("files", tmp_path, "body: text", "name: text", "at: path")
    assert column(source, "body") == ["a.wav", "b.txt", "sub/c.FLAC"] and column(source, "name") == ["a.wav", "b.txt", "c.FLAC"]
    assert column(opened("audio", tmp_path, "clip: bytes"), "clip") == [b"a.wav", b"sub/c.FLAC"]
    assert "no files that end in: wav" in refused("E0810", "audio", tmp_path / "b.txt", "clip: bytes")
    assert "they have: file" in refused("E0601", "files", tmp_path, "x: bytes from nmae")


def test_lmdb(tmp_path):
    lmdb = pytest.importorskip("lmdb")
    with lmdb.open(str(tmp_path / "db"), map_size=1 << 20) as env, env.begin(write=True) as entries:
        for i in (2, 0, 1):
            entries.put(b"k%d" % i, b"v%d" % i)
    source = opened("lmdb", tmp_path / "db", "key: text", "value: bytes")
    assert all_of(source) == [{"key": f"k{i}", "value": b"v%d" % i} for i in range(3)] and source.name(1) == "k1 of db"
    (tmp_path / "no").write_bytes(b"x" * 9000)
    refused("E0810", "lmdb", tmp_path / "no", "value: bytes")


# --- programs -----------------------------------------------------------------------------------

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
    else:
        FORMS["parquet" if kind == "parquet" else "stream"](pa.Table.from_pylist(records), path)
    (tmp_path / "p.pipe").write_text(f'seed 1\n\nschema Row\n  {schema}\n\npipeline train\n  from {kind}("{path}") as Row\n'
                                     f"  skip_bad(at_most=0.9)\n  shuffle()\n  filled = k ?? -1\n  emit {emitted}\n")
    assert_compiled_is_interpreted(tmp_path / "p.pipe")


def test_fields_that_nothing_reads_still_have_their_place(tmp_path):
    write("bin", tmp_path / "data")
    (tmp_path / "p.pipe").write_text('schema Row\n  a: u16\n  b: f32[2]\n\npipeline train\n'
                                     f'  from bin("{tmp_path}/data") as Row\n  emit b\n')
    assert_compiled_is_interpreted(tmp_path / "p.pipe", epochs=(0,))


def test_every_kind_can_be_opened():
    for kind in KINDS:
        with pytest.raises(SourceError, match=r"there is no (file|folder)"):
            opened(kind, "/nowhere/x", "file: bytes" if kind in ("folder", "files", "audio", "lmdb") else "a: i64")


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


def test_texts_in_encodings_that_are_no_dictionaries(tmp_path):
    for name, encoding in (("a", "DELTA_BYTE_ARRAY"), ("b", "DELTA_LENGTH_BYTE_ARRAY"), ("c", "PLAIN")):
        pq.write_table(pa.table({"t": ["x", None, "xy"], "n": [1, 2, 3]}), tmp_path / f"{name}.parquet", use_dictionary=False,
                       column_encoding={"t": encoding, "n": "DELTA_BINARY_PACKED"}, row_group_size=2)
    found = all_of(opened("parquet", tmp_path / "*.parquet", "t: text?", "n: i64"))
    assert found == [{"t": "x", "n": 1}, {"t": None, "n": 2}, {"t": "xy", "n": 3}] * 3


def test_folders_name_the_files_in_them(tmp_path):
    (tmp_path / "parts" / "year=1").mkdir(parents=True)
    (tmp_path / "parts" / "_SUCCESS").write_text("")
    with pytest.raises(SourceError) as caught:
        opened("parquet", tmp_path / "parts", "a: i64")
    assert caught.value.notes == ("there are no files in it",)
    (tmp_path / "parts" / "year=1" / "a.parquet").write_text("")
    for kind in ("tar", "npy", "bin", "parquet", "csv", "tsv", "jsonl", "lines"):
        with pytest.raises(SourceError, match="is a folder") as caught:
            opened(kind, tmp_path / "parts", "a: i64")
        assert caught.value.notes == (f'its files: "{tmp_path}/parts/**/*.parquet"',)


@pytest.mark.parametrize("line, note", [
    ("a;b", 'the delimiter is ",", and this line has `;`: delimiter=";"'),
    ("a\tb", 'the delimiter is ",", and this line has tabs: `tsv` reads such tables'),
    ("x", 'the delimiter is ","; `delimiter=` says otherwise')])
def test_delimiters_are_guessed_for_the_message_only(tmp_path, line, note):
    (tmp_path / "x.csv").write_text(line + "\n1\n")
    with pytest.raises(SourceError) as caught:
        opened("csv", tmp_path / "x.csv", "a: i64")
    assert caught.value.notes[-1] == note


def test_habits_of_other_tools_are_named(tmp_path):
    (tmp_path / "x.csv").write_text('a,b\n1,"say \\"hi\\""\n')
    assert "a quote inside it is written" in column(opened("csv", tmp_path / "x.csv", "b: text"), "b")[0]
    (tmp_path / "x.tsv").write_text('a\tb\n1\t"x\ty"\n')
    assert all_of(opened("tsv", tmp_path / "x.tsv", "a: i64", "b: text")) == [{"a": 1, "b": "x\ty"}]
    (tmp_path / "x.jsonl").write_text('{"a": NaN, "l": null}\n   \n{"a": true}\n[{"a": 1}]\n')
    assert column(opened("jsonl", tmp_path / "x.jsonl", "a: f64"), "a") == [
        "this line is no JSON: invalid character (byte 6); JSON has no NaN and no Infinity: write null",
        "this line is no JSON: it holds only spaces", "`a` is a bool (true), not f64",
        "this line is a list, not an object: `jq -c '.[]'` makes lines of a list of objects"]


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


@pytest.mark.parametrize("words", [pa.string_view(), pa.binary_view(), pa.large_string()])
def test_dictionaries_of_views_as_polars_writes_them(tmp_path, words):
    values = pa.array(["p", "a text that is longer than twelve bytes"], words)
    data = pa.table({"t": pa.DictionaryArray.from_arrays(pa.array([1, 0, None, 1], pa.uint32()), values)})
    _ipc(pa.ipc.new_file, data, tmp_path / "t.arrow")
    assert column(opened("arrow", tmp_path / "t.arrow", "t: text?"), "t") == [
        "a text that is longer than twelve bytes", "p", None, "a text that is longer than twelve bytes"]
