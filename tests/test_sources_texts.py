"""Sources of numbers, texts and files (bin, csv, tsv, jsonl, lines, files, lmdb): right values, hostile files."""
import json
import random
import resource
import time

import numpy as np
import pytest
from opened import BIG, all_of, cache, column, opened, refused  # noqa: F401
from pipec.kernels import rows
from pipec.kernels.ops import BadRecord
from pipec.kernels.sources import KINDS, SourceError

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


@pytest.mark.parametrize("line, note", [
    ("a;b", 'the delimiter is ",", and this line has `;`: delimiter=";"'),
    ("a\tb", 'the delimiter is ",", and this line has tabs: `tsv` reads such tables'),
    ("x", 'the delimiter is ","; `delimiter=` says otherwise')])
def test_delimiters_are_guessed_for_the_message_only(tmp_path, line, note):
    (tmp_path / "x.csv").write_text(line + "\n1\n")
    with pytest.raises(SourceError) as caught:
        opened("csv", tmp_path / "x.csv", "a: i64")
    assert caught.value.notes[-1] == note


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


# --- all ----------------------------------------------------------------------------------------

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


def test_every_kind_can_be_opened():
    for kind in KINDS:
        with pytest.raises(SourceError, match=r"there is no (file|folder)"):
            opened(kind, "/nowhere/x", "file: bytes" if kind in ("folder", "files", "audio", "lmdb") else "a: i64")
