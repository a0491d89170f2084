"""What sources refuse with which message, as docs/sources.md lists it; missing values by column; sound in shards."""
import gzip
import io
import os
import re
import tarfile
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from pipec.kernels import remote
from pipec.kernels.cached import Cache
from pipec.kernels.ops import BadRecord
from pipec.kernels.sources import KINDS, SourceError, open_source
from running import assert_compiled_is_interpreted, delivered

PAGE = Path(__file__).parent.parent / "docs" / "sources.md"


def opened(kind, path, *columns, **options):
    listed = []
    for c in columns:
        name, text = c.split(":", 1)
        listed.append((name.split(".")[-1], ((name,),), text.strip()))
    return open_source(kind, [str(path)], options, listed)


def tar_of(*members):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, data in members:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


def sparse():
    """A member of 4 KiB of which only the last KiB is stored, as `tar --sparse` writes it, and a plain one."""
    head = tarfile.TarInfo("a.jpg")
    head.size, head.type = 1024, tarfile.GNUTYPE_SPARSE
    made = bytearray(head.tobuf(tarfile.GNU_FORMAT))
    made[386:410] = b"%011o\0%011o\0" % (3072, 1024)
    made[483:495] = b"%011o\0" % 4096
    made[148:156] = b"        "
    made[148:156] = b"%06o\0 " % sum(made)
    return bytes(made) + b"x" * 1024 + tar_of(("b.jpg", b"B"))


def npy(array):
    out = io.BytesIO()
    np.lib.format.write_array(out, array, allow_pickle=True)
    return out.getvalue()


def parquet(columns):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    out = io.BytesIO()
    pq.write_table(pa.table({k: v(pa) for k, v in columns.items()}), out)
    return out.getvalue()


def arrow(columns):
    pa = pytest.importorskip("pyarrow")
    table, out = pa.table({k: v(pa) for k, v in columns.items()}), io.BytesIO()
    with pa.ipc.new_file(out, table.schema) as file:
        file.write_table(table)
    return out.getvalue()


def folder(*files):
    def make(path):
        for name in files:
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            if not name.endswith("/"):
                (path / name).write_bytes(b"x")
            else:
                (path / name).mkdir(exist_ok=True)
    return make


def lmdb_of(name):
    """A database whose entries stand in a database of this name in it."""
    def make(path):
        lmdb = pytest.importorskip("lmdb")
        with lmdb.open(str(path), max_dbs=1, map_size=1 << 20) as made, made.begin(write=True) as writer:
            writer.put(b"k", b"v", db=made.open_db(name, txn=writer))
    return make


STRUCTS = {"s": lambda pa: pa.array([{"x": 1}]), "m": lambda pa: pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64())),
           "l": lambda pa: pa.array([[1]]), "a": lambda pa: pa.array([None], pa.int64())}
# kind, what is there, columns, options, code, message; the code of a bad record has a `*` before it
REFUSED = [
    ("tar", tar_of(("a.jpg", b"x")), ["png: bytes"], {}, "E0601", "no sample of `…` has a member `png`"),
    ("tar", tar_of(("a.jpg", b"x"), ("b.cls", b"1")), ["cls: i64"], {}, "*E0801", "this sample has no member `cls`"),
    ("tar", tar_of(("a.cls", b"one")), ["cls: i64"], {}, "*E0801", '`cls` holds "one", which is no i64'),
    ("tar", tar_of(("a.cls", b"300")), ["cls: u8"], {}, "*E0801", "`cls` holds 300, which doesn't fit u8"),
    ("tar", tar_of(("a.txt", b"\xff")), ["txt: text"], {}, "*E0801", "`txt` isn't UTF-8 text: byte 0 is 0xff"),
    ("tar", tar_of(("a.npy", npy(np.zeros(3)))), ["npy: f32[n]"], {}, "*E0801", "`npy` holds float64, the schema says f32[n]"),
    ("tar", tar_of(("a.jpg", b"x"), ("a.jpg", b"y")), ["jpg: bytes"], {}, "*E0801", "`a.jpg` stands in the shard twice"),
    ("tar", tar_of(("a.jpg", b"x" * 2000))[:1000], ["jpg: bytes"], {}, "*E0801",
     "`a.jpg` is cut short: the shard ends at byte 1,000"),
    ("tar", sparse(), ["jpg: bytes"], {}, "*E0801", "`a.jpg` is stored with holes"),
    ("tar", b"", ["jpg: bytes"], {}, "*E0801", "the file is empty"),
    ("tar", b"no tar" * 500, ["jpg: bytes"], {}, "*E0801", "this is no tar archive"),
    ("tar", gzip.compress(tar_of(("a.jpg", os.urandom(9000))))[:5000], ["jpg: bytes"], {}, "*E0801",
     "can't be unpacked past byte"),
    ("folder", folder("a.jpg"), ["file: bytes"], {}, "E0810", "has no folders in it"),
    ("folder", folder("cat/a.jpg", "dog/"), ["file: bytes"], {}, "E0810", "is empty"),
    ("folder", folder("cat/a.jpg"), ["size: f32"], {}, "E0601", "a folder has no `size`"),
    ("audio", folder("a.jpg"), ["file: bytes"], {}, "E0810",
     "holds no files that end in: wav, flac, mp3, ogg, opus, aif, aiff, au"),
    ("npz", b"PK\3\4" + bytes(40), ["a: i64"], {}, "E0810", "is damaged or holds Python objects"),
    ("npy", npy(np.array([{}])), ["a: i64"], {}, "E0810", "is damaged or holds Python objects"),
    ("npy", b"text", ["a: i64"], {}, "E0810", "is neither .npy nor .npz"),
    ("npy", npy(np.zeros(3)), ["a: f32"], {}, "E0602", "holds float64, the schema says f32"),
    ("npy", npy(np.zeros((3, 2))), ["a: f64"], {}, "E0602", "has shape (3, 2), the schema says f64 a record"),
    ("bin", bytes(7), ["a: u16"], {}, "E0602", "has 7 bytes, no whole number of records of 2"),
    ("bin", bytes(7), ["a: u16"], {"skip": 9}, "E0602", "has 7 bytes, fewer than `skip`"),
    ("bin", bytes(8), ["a: u16[n]"], {}, "E0602", "has no fixed size, and records of `bin` have one"),
    ("bin", b"\2", ["a: bool"], {}, "*E0801", "`a` holds a byte that is neither 0 nor 1"),
    ("parquet", b"PAR1" + bytes(20), ["a: i64"], {}, "E0810", "the file can't be read"),
    ("parquet", partial(parquet, STRUCTS), ["b: i64"], {}, "E0601", "has no column `b`"),
    ("parquet", partial(parquet, STRUCTS), ["a: i32"], {}, "E0602", "holds int64, the schema says i32"),
    ("parquet", partial(parquet, STRUCTS), ["s: i64"], {}, "E0602", "holds structs, the schema says i64"),
    ("parquet", partial(parquet, STRUCTS), ["m: i64"], {}, "E0602", "which can't be read"),
    ("parquet", partial(parquet, STRUCTS), ["l: i64"], {}, "E0602", "holds lists in 1 dimensions, the schema says i64"),
    ("parquet", partial(parquet, STRUCTS), ["a: i64"], {}, "*E0602", "`a` is missing here (null), and i64 has no `?`"),
    ("parquet", partial(parquet, {"l": lambda pa: pa.array([[[1], [2, 3]]])}), ["l: i64[n, m]"], {}, "*E0801",
     "the lists in `l` have unlike lengths"),
    ("arrow", partial(arrow, {"t": lambda pa: pa.array([2**62], pa.timestamp("s"))}), ["t: i64"], {}, "*E0801",
     "`t` is past what i64 microseconds hold"),
    ("arrow", b"FEA1" + bytes(20), ["a: i64"], {}, "E0810", "is of Feather's first version: write it again with version 2"),
    ("arrow", partial(arrow, STRUCTS), ["a: f32"], {}, "E0602", "holds int64, the schema says f32"),
    ("arrow", folder("dataset_dict.json", "train/x"), ["a: i64"], {}, "E0810", "holds several datasets"),
    ("arrow", folder("x.txt"), ["a: i64"], {}, "E0810", "holds no .arrow files"),
    ("parquet", folder("a.parquet", "b.parquet"), ["a: i64"], {}, "E0810", "`…` is a folder"),
    ("csv", b"", ["a: i64"], {}, "E0810", "is empty: it has no header line"),
    ("csv", b"a\n1\n", ["b: i64"], {}, "E0601", "has no column `b`"),
    ("csv", b"a,a\n1,2\n", ["a: i64"], {}, "E0602", "has two columns `a`"),
    ("csv", "a\n1\n".encode("utf-16"), ["a: i64"], {}, "E0810", "is UTF-16 text: convert it to UTF-8"),
    ("csv", b"PK\3\4", ["a: i64"], {}, "E0810", "is a zip archive: unpack it"),
    ("csv", b"PAR1", ["a: i64"], {}, "E0810", "is a Parquet file: `parquet` reads it"),
    ("csv", "a\n".encode("utf-16-le"), ["a: i64"], {}, "E0810", "is no text: byte 1 is 0"),
    ("csv", b"a\n1\n", ["a: i64"], {"delimiter": "::"}, "E0810", "`delimiter` is one ASCII character"),
    ("csv", b"a\n1\n", ["a: i64"], {"nulls_of": ["x"]}, "E0810", "`nulls_of` holds `x`: write a column and a spelling"),
    ("csv", b"a\n1\n", ["a: i64"], {"nulls_of": ["b=1"]}, "E0601", "has no column `b`, which `nulls_of` names"),
    ("csv", b"a,b\n1\n", ["a: i64"], {}, "*E0801", "this row has 1 fields, not 2"),
    ("csv", b"a\nx\n", ["a: i64"], {}, "*E0801", '`a` holds "x", which is no i64'),
    ("csv", b"a,b\n,1\n", ["a: i64"], {}, "*E0602", "`a` is missing, and i64 has no `?`"),
    ("csv", b'a\n"x\n', ["a: text"], {}, "*E0801", "a quoted field is never closed"),
    ("csv", b'a\n"x"y\n', ["a: text"], {}, "*E0801", "a quoted field is followed by more of its field"),
    ("jsonl", b'{"a": 1}\n', ["b: i64"], {}, "E0601", "has no key `b`"),
    ("jsonl", b'{"a": 1}\n{"a": \n', ["a: i64"], {}, "*E0801", "this line is no JSON"),
    ("jsonl", b"[1]\n", ["a: i64"], {}, "*E0801", "this line is a list, not an object"),
    ("jsonl", b'[\n{"a": 1},\n{"a": 2}\n]\n', ["a: i64"], {}, "*E0801", "an object stands on a line of its own"),
    ("jsonl", b'{"a": NaN}\n', ["a: f64"], {}, "*E0801", "this line is no JSON"),
    ("jsonl", b'{"a": "1"}\n', ["a: i64"], {}, "*E0801", "`a` is a text (1), not i64"),
    ("jsonl", b'{"a": 300}\n', ["a: u8"], {}, "*E0801", "`a` holds 300, which doesn't fit u8"),
    ("jsonl", b'{"a": null}\n', ["a: i64"], {}, "*E0602", "`a` is missing or null, and i64 has no `?`"),
    ("jsonl", b'{"a": [[1], [2, 3]]}\n', ["a: i64[n, m]"], {}, "*E0801", "the lists in `a` have unlike lengths"),
    ("jsonl", b'{"a": [1, 2]}\n', ["a: i64[3]"], {}, "*E0803", "`a` has shape [2], the schema says i64[3]"),
    ("lines", b"\xff\n", ["t: text"], {}, "*E0801", "this line isn't UTF-8 text: byte 0 is 0xff"),
    ("lmdb", b"garbage", ["value: bytes"], {}, "E0810", "can't be read"),
    ("lmdb", folder("x.txt"), ["value: bytes"], {}, "E0810", "holds no data.mdb"),
    ("lmdb", lmdb_of(b"named"), ["value: bytes"], {}, "E0810", "holds databases with names"),
]


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setattr(remote, "_shared", [])
    monkeypatch.setattr(remote, "Cache", partial(Cache, str(tmp_path.parent / f"{tmp_path.name}-kept")))


def raised(source):
    for i in range(len(source)):
        source.read(i)


@pytest.mark.parametrize("kind, data, columns, options, code, message", REFUSED, ids=[r[0] for r in REFUSED])
def test_what_is_refused(tmp_path, kind, data, columns, options, code, message):
    if kind == "lmdb":
        pytest.importorskip("lmdb")
    path = tmp_path / "x"
    if isinstance(data, bytes):
        path.write_bytes(data)
    elif isinstance(data, partial):
        path.write_bytes(data())
    else:
        path.mkdir()
        data(path)
    with pytest.raises(BadRecord if code[0] == "*" else SourceError) as caught:
        raised(opened(kind, path, *columns, **options))
    said = caught.value.reason if code[0] == "*" else caught.value.title
    assert caught.value.code == code.lstrip("*")
    assert re.search(re.escape(message).replace("…", ".*"), said), said


def test_the_page_lists_what_is_refused():
    text = re.sub(r"\s+", " ", PAGE.read_text())
    for kind, *_, code, message in REFUSED:
        row = f"| {code.lstrip('*')} | {message}"
        assert row in text, f"{kind}: {row}"
    listed = re.findall(r"^\| [^|]* \| (E\d{4}) \| (.*?) \|$", PAGE.read_text(), re.M)
    tested = {(r[4].lstrip("*"), r[5]) for r in REFUSED} | ELSEWHERE
    assert not [row for row in listed if row not in tested], "each is tested"
    for kind in KINDS:
        assert f"\n## `{kind}`" in PAGE.read_text() or f"`{kind}`" in "".join(re.findall(r"^## .*$", PAGE.read_text(), re.M))


ELSEWHERE = {  # tested in test_remote.py, test_hostile.py, test_sources_packed.py
    ("E0810", "there is no file `…`"), ("E0810", "no file matches `…`"), ("E0810", "is an address of a kind that isn't read"),
    ("E0812", "can't be read: the server answers 503"), ("E0812", "may not be read"), ("E0812", "has changed while it was read"),
    ("E0813", "there is no room for …"), ("E0810", "is no file but a pipe, a socket or a device"),
    ("E0810", "LMDB databases are mapped into memory, so remote ones can't be read"),
    ("E0801", "this row is … bytes long, more than 67,108,864"), ("E0801", "its block of rows can't be read"),
    ("E0801", "this line is nested too deep"), ("E0810", "can't be unpacked past byte"),
}


def test_spellings_of_missing_values_by_column(tmp_path):
    (tmp_path / "x.csv").write_text('age,city,n\n-1,?,1\n30,-1,-1\n999,"?",2\nNA,NA,3\n')
    source = opened("csv", tmp_path / "x.csv", "age: i64?", "city: text?", "n: i64", nulls=["NA"],
                    nulls_of=["age=-1", "age=999", "city=?"])
    assert [source.read(i) for i in range(4)] == [
        {"age": None, "city": None, "n": 1}, {"age": 30, "city": "-1", "n": -1}, {"age": None, "city": "?", "n": 2},
        {"age": None, "city": None, "n": 3}]
    path = tmp_path / "p.pipe"
    path.write_text(f'''schema Row
  age: i64?
  n: i64
pipeline p
  from csv("{tmp_path}/x.csv", nulls=["NA"], nulls_of=["age=-1", "age=999"]) as Row
  gone = missing(age)
  age = age ?? 0
  emit age, gone, n
''')
    assert_compiled_is_interpreted(path, epochs=(0,))
    assert [bool(b["gone"]) for b in delivered(path)] == [True, False, True, True]


@pytest.mark.parametrize("form", ["WAV", "FLAC", "OGG", "MP3"])
def test_sound_in_shards_and_folders(tmp_path, form):
    soundfile = pytest.importorskip("soundfile")
    wave = np.sin(np.arange(4000) * 0.1).astype(np.float32) * 0.5
    out = io.BytesIO()
    soundfile.write(out, wave, 16000, format=form, **({"subtype": "PCM_16"} if form in ("WAV", "FLAC") else {}))
    end = form.lower()
    (tmp_path / "x.tar").write_bytes(tar_of((f"a.{end}", out.getvalue()), (f"b.{end}", out.getvalue())))
    (tmp_path / "sounds" / "c").mkdir(parents=True)
    (tmp_path / "sounds" / "c" / f"a.{end}").write_bytes(out.getvalue())
    expected = soundfile.read(io.BytesIO(out.getvalue()), dtype="float32", always_2d=True)[0]
    for source, column in ((f'tar("{tmp_path}/x.tar")', end), (f'folder("{tmp_path}/sounds")', "file"),
                           (f'audio("{tmp_path}/sounds")', "file")):
        path = tmp_path / "p.pipe"
        path.write_text(f'schema S\n  sound: bytes from "{column}"\npipeline p\n  from {source} as S\n'
                        "  decoded = decode_audio(sound)\n  samples: f32[n, c] = decoded.samples\n  rate = decoded.rate\n"
                        "  emit samples, rate\n")
        for batch in delivered(path):
            assert int(batch["rate"]) == 16000 and batch["samples"].shape == expected.shape
            assert np.abs(batch["samples"] - expected).max() <= 2e-7   # a library's last bit
        assert np.abs(expected[:4000, 0][: len(wave)] - wave).max() < (0.001 if form in ("WAV", "FLAC") else 0.2)
