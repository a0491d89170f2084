"""Compressed shards and tables: the same records as unpacked ones, unpacked once, refused with a message where damaged."""
import bz2
import gzip
import io
import lzma
import os
import tarfile
from functools import partial

import numpy as np
import pytest
from pipec.kernels import remote
from pipec.kernels.cached import Cache
from pipec.kernels.ops import BadRecord
from pipec.kernels.sources import SourceError, open_source
from running import assert_compiled_is_interpreted, assert_same, delivered


def packed(kind, data):
    if kind == "zst":
        pa = pytest.importorskip("pyarrow")
        sink = pa.BufferOutputStream()
        with pa.CompressedOutputStream(sink, "zstd") as stream:
            stream.write(data)
        return sink.getvalue().to_pybytes()
    return {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress}[kind](data)


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setattr(remote, "_shared", [])
    monkeypatch.setattr(remote, "Cache", partial(Cache, str(tmp_path / "kept")))


def tar_bytes(count, size=1000):
    random, buffer = np.random.default_rng(count), io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for n in range(count):
            for name, data in ((f"{n:04}.jpg", random.bytes(size)), (f"{n:04}.cls", b"%d" % n)):
                member = tarfile.TarInfo(name)
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


COLUMNS = [("jpg", (("jpg",),), "bytes"), ("cls", (("cls",),), "i64")]
NUMBER = [("a", (("a",),), "i64")]


@pytest.mark.parametrize("kind", ["gz", "zst", "bz2", "xz"])
def test_packed_files_hold_the_same_records(tmp_path, kind):
    csv = b"a\n" + b"".join(b"%d\n" % n for n in range(5000))
    jsonl = b"".join(b'{"a": %d}\n' % n for n in range(100))
    files = {"x.tar": ("tar", tar_bytes(30), COLUMNS), "x.csv": ("csv", csv, NUMBER), "x.jsonl": ("jsonl", jsonl, NUMBER),
             "x.txt": ("lines", csv, [("t", (("t",),), "text")])}
    for name, (source, data, columns) in files.items():
        (tmp_path / name).write_bytes(data)
        (tmp_path / f"{name}.{kind}").write_bytes(packed(kind, data))
        near, far = (open_source(source, [str(tmp_path / n)], {}, columns) for n in (name, f"{name}.{kind}"))
        assert len(near) == len(far)
        for i in range(0, len(near), 7):
            assert near.read(i) == far.read(i)
        assert far.name(3) == near.name(3) + f".{kind}"


def test_a_shuffled_program_gives_the_same_batches(tmp_path):
    text = '''seed 5
param end: text = ""
schema Sample
  jpg: bytes
  cls: i64
pipeline p
  from tar("FOLDER/{0..2}.tar{end}") as Sample
  shuffle()
  batch(8)
  emit cls, jpg
'''
    path = tmp_path / "p.pipe"
    path.write_text(text.replace("FOLDER", str(tmp_path)))
    for n in range(3):
        (tmp_path / f"{n}.tar").write_bytes(tar_bytes(10 + n))
        (tmp_path / f"{n}.tar.gz").write_bytes(packed("gz", tar_bytes(10 + n)))
    assert_same(delivered(path, end=".gz"), delivered(path))
    assert_compiled_is_interpreted(path, end=".gz")


def test_a_shard_is_unpacked_once_and_again_when_it_changes(tmp_path, monkeypatch):
    unpacked = []
    fill = remote.shared().cache.__class__._made
    monkeypatch.setattr(Cache, "_made", lambda self, path, make, what: [unpacked.append(what), fill(self, path, make, what)][1])
    (tmp_path / "x.tar.gz").write_bytes(packed("gz", tar_bytes(20)))
    for _ in range(3):
        assert open_source("tar", [str(tmp_path / "x.tar.gz")], {}, COLUMNS).read(7)["cls"] == 7
    assert len(unpacked) == 1
    (tmp_path / "x.tar.gz").write_bytes(packed("gz", tar_bytes(30)))
    assert len(open_source("tar", [str(tmp_path / "x.tar.gz")], {}, COLUMNS)) == 30
    assert len(unpacked) == 2


def test_what_the_cache_lost_is_unpacked_again(tmp_path):
    (tmp_path / "x.tar.gz").write_bytes(packed("gz", tar_bytes(20)))
    open_source("tar", [str(tmp_path / "x.tar.gz")], {}, COLUMNS)
    for entry in os.scandir(tmp_path / "kept"):
        os.unlink(entry.path)
    assert open_source("tar", [str(tmp_path / "x.tar.gz")], {}, COLUMNS).read(7)["cls"] == 7


def test_damaged_packed_files(tmp_path):
    whole = packed("gz", tar_bytes(30))
    (tmp_path / "b.tar").write_bytes(tar_bytes(3))
    for data in (whole[: len(whole) // 2], whole[:1000] + b"?" * 50 + whole[1050:], whole[:-4] + b"\0\0\0\0", b"\x1f\x8b"):
        (tmp_path / "a.tar.gz").write_bytes(data)
        source = open_source("tar", [str(tmp_path / "a.tar.gz"), str(tmp_path / "b.tar")], {}, COLUMNS)
        assert len(source) == 4 and source.read(3)["cls"] == 2, "the damaged shard is one bad record, the other is read"
        with pytest.raises(BadRecord, match=r"`a\.tar\.gz` can't be unpacked past byte"):
            source.read(0)
    (tmp_path / "x.csv.gz").write_bytes(packed("gz", b"a\n" + b"1\n" * 9999)[:-9])
    with pytest.raises(SourceError, match=r"`x\.csv\.gz` can't be unpacked past byte") as caught:
        open_source("csv", [str(tmp_path / "x.csv.gz")], {}, NUMBER)
    assert caught.value.code == "E0810"
    (tmp_path / "x.csv.zip").write_bytes(b"PK\3\4" + bytes(100))
    with pytest.raises(SourceError, match="zip archive: unpack it"):
        open_source("csv", [str(tmp_path / "x.csv.zip")], {}, NUMBER)


def test_several_members_of_gzip_and_zeros_after_it(tmp_path):
    (tmp_path / "x.csv.gz").write_bytes(packed("gz", b"a\n1\n") + packed("gz", b"2\n") + bytes(512))
    source = open_source("csv", [str(tmp_path / "x.csv.gz")], {}, NUMBER)
    assert [source.read(i)["a"] for i in range(len(source))] == [1, 2]


def test_large_packed_arrays_are_mapped(tmp_path):
    numbers = np.arange(3 << 20)
    np.savez_compressed(tmp_path / "x.npz", a=numbers)
    source = open_source("npz", [str(tmp_path / "x.npz")], {}, NUMBER)
    assert np.array_equal(source.arrays()["a"], numbers) and any((tmp_path / "kept").glob("*.whole"))


# --- front to back ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("window", [1 << 26, 1 << 21, 1])
def test_streamed_files_are_not_unpacked_on_disk(tmp_path, monkeypatch, window):
    from pipec.kernels import compressed

    monkeypatch.setattr(compressed, "WINDOW", window)
    monkeypatch.setattr(compressed, "PIECE", 1 << 16)
    data = tar_bytes(200, size=20_000)
    (tmp_path / "x.tar").write_bytes(data)
    (tmp_path / "x.tar.gz").write_bytes(packed("gz", data))
    near = open_source("tar", [str(tmp_path / "x.tar")], {}, COLUMNS)
    far = open_source("tar", [str(tmp_path / "x.tar.gz")], {"stream": True}, COLUMNS)
    order = np.arange(200) if window > 1 else np.arange(0, 200, 40)
    order[3:5] = order[3:5][::-1]
    for i in order:
        assert near.read(i) == far.read(i)
    assert not list((tmp_path / "kept").glob("*.whole"))


def test_streamed_programs(tmp_path):
    path = tmp_path / "p.pipe"
    path.write_text(f'''seed 5
schema Row
  a: i64
pipeline p
  from csv("{tmp_path}/*.csv.gz", stream=true) as Row
  shuffle(window=100)
  batch(64)
  emit a
''')
    for n in range(6):
        rows = b"".join(b"%d\n" % k for k in range(n * 1000, n * 1000 + 1000))
        (tmp_path / f"{n}.csv.gz").write_bytes(packed("gz", b"a\n" + rows))
    assert sorted(int(v) for b in delivered(path) for v in b["a"]) == list(range(6000))
    assert_compiled_is_interpreted(path, epochs=(0,))
    assert not list((tmp_path / "kept").glob("*.whole"))


@pytest.mark.parametrize("kind", ["tar", "csv", "jsonl", "lines", "parquet", "arrow", "bin", "npy", "files"])
def test_pipes_are_refused_at_once(tmp_path, kind):
    os.mkfifo(tmp_path / "x")
    with pytest.raises(SourceError, match="no file but a pipe"):
        open_source(kind, [str(tmp_path / "x")], {}, [("file", (("file",),), "bytes")] if kind == "files" else NUMBER)
