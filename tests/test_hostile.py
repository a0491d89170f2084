"""Files made to do harm, or damaged: a message or a bad record, in bounded time and memory, and nothing else is lost."""
import gzip
import io
import json
import resource
import struct
import subprocess
import sys
import tarfile
import time
import zipfile
from contextlib import contextmanager

import numpy as np
import pytest
from pipec.kernels.audio import decode_audio
from pipec.kernels.ops import BadRecord
from pipec.kernels.sources import SourceError, open_source


@contextmanager
def bounded(seconds=20, megabytes=150):
    """No more time and memory than that."""
    before, begun = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    yield
    assert time.process_time() - begun < seconds
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024 < megabytes


def opened(kind, path, *columns, **options):
    listed = [(c.split(":")[0], ((c.split(":")[0],),), c.split(":")[1].strip()) for c in columns]
    return open_source(kind, [str(path)], options, listed)


def values(source, field):
    """A field of every record, or the reason why it can't be read."""
    out = []
    for i in range(len(source)):
        try:
            out.append(source.read(i)[field])
        except BadRecord as bad:
            out.append(bad.reason)
    return out


# --- tables -----------------------------------------------------------------------------------------------------------


def test_a_parquet_file_cut_anywhere_makes_a_message_and_the_others_are_read(tmp_path):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    pq.write_table(pa.table({"a": np.arange(4000)}), tmp_path / "a.parquet", row_group_size=1000)
    whole = (tmp_path / "a.parquet").read_bytes()
    for cut in (0, 3, 4, 11, len(whole) // 2, len(whole) - 8, len(whole) - 1):
        (tmp_path / "b.parquet").write_bytes(whole[:cut])
        with bounded(), pytest.raises(SourceError, match=r"b\.parquet`: the file can't be read") as caught:
            opened("parquet", tmp_path / "b.parquet", "a: i64")
        assert caught.value.code == "E0810"
        found = values(opened("parquet", tmp_path / "?.parquet", "a: i64"), "a")
        assert found[:-1] == list(range(4000)) and "can't be read" in found[-1]
    # a row group that is damaged inside the file: those records are bad, the others are read
    at = len(whole) // 2
    (tmp_path / "b.parquet").write_bytes(whole[:at] + bytes(64) + whole[at + 64 :])
    found = values(opened("parquet", tmp_path / "b.parquet", "a: i64"), "a")
    assert len(found) == 4000 and sum(v == n for n, v in enumerate(found)) >= 2000


def test_a_row_of_a_gigabyte(tmp_path):
    with open(tmp_path / "x.csv", "wb") as file:   # a hole, so that it takes no disk
        file.write(b"a,b\n1,2\n")
        file.seek(1 << 30)
        file.write(b"\n3,4\n")
    with bounded(30, 60):
        found = values(opened("csv", tmp_path / "x.csv", "a: i64", "b: i64"), "a")
    assert found[::2] == [1, 3] and "more than 67,108,864" in found[1]
    (tmp_path / "y.csv").write_bytes(b'a,b\n1,2\n"' + b"x" * 1_000_000 + b"\n5,6\n" * 1000)   # a quote that is never closed
    with bounded():
        found = values(opened("csv", tmp_path / "y.csv", "a: i64", "b: i64"), "a")
    assert found[0] == 1 and len(found) == 2 and "never closed" in found[1]


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, '{"a":' + "[" * 100_000 + "]" * 100_000 + "}",
                                  '{"a":' * 100_000 + "1" + "}" * 100_000])
def test_json_nested_100_000_deep(tmp_path, text):
    (tmp_path / "x.jsonl").write_text('{"a": 1}\n' + text + '\n{"a": 3}\n')
    with bounded():
        found = values(opened("jsonl", tmp_path / "x.jsonl", "a: i64"), "a")
    assert found[::2] == [1, 3] and ("nested too deep" in found[1] or "no JSON" in found[1])


def test_numbers_without_end(tmp_path):
    (tmp_path / "x.jsonl").write_text('{"a": ' + "9" * 1_000_000 + '}\n{"a": 2}\n')
    (tmp_path / "x.csv").write_text("a\n" + "9" * 1_000_000 + "\n2\n")
    with bounded():
        for kind in ("jsonl", "csv"):
            found = values(opened(kind, tmp_path / f"x.{kind}", "a: i64"), "a")
            assert found[1] == 2 and isinstance(found[0], str) and len(found[0]) < 200


def test_state_files_of_datasets_that_lead_elsewhere(tmp_path):
    pa = pytest.importorskip("pyarrow")
    (tmp_path / "set").mkdir()
    with pa.ipc.new_stream(tmp_path / "other.arrow", pa.schema([("a", pa.int64())])) as out:
        out.write(pa.record_batch({"a": pa.array([1])}))
    (tmp_path / "set" / "state.json").write_text(json.dumps({"_data_files": [{"filename": "../other.arrow"}]}))
    with pytest.raises(SourceError, match="can't be read"):   # names are looked up in the folder only
        opened("arrow", tmp_path / "set", "a: i64")
    for text in ("[" * 100_000, '{"_data_files": 3}', '{"_data_files": [{}]}', "null"):
        (tmp_path / "set" / "state.json").write_text(text)
        with bounded(), pytest.raises(SourceError, match="is no dataset"):
            opened("arrow", tmp_path / "set", "a: i64")


# --- archives ---------------------------------------------------------------------------------------------------------


def tar_of(*members):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, data in members:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


def patched(data, at, field):
    """A tar header with other bytes at `at`, and the right checksum."""
    header = bytearray(data[:512])
    header[at : at + len(field)] = field
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header) + data[512:]


@pytest.mark.parametrize("size", [b"77777777777\0", b"\x80" + b"\0" * 3 + b"\x7f" + b"\xff" * 7, b"\xff" * 12, b"00000001750\0"])
def test_tars_that_lie_about_sizes(tmp_path, size):
    (tmp_path / "a.tar").write_bytes(patched(tar_of(("a.jpg", b"x" * 100), ("b.jpg", b"y" * 100)), 124, size))
    (tmp_path / "b.tar").write_bytes(tar_of(("c.jpg", b"z" * 10)))
    with bounded():
        found = values(opened("tar", tmp_path / "?.tar", "jpg: bytes"), "jpg")
    assert found[-1] == b"z" * 10, "the other shard is read"
    assert any(isinstance(v, str) and ("cut" in v or "tar" in v) for v in found[:-1]), "the one that lies has a bad record"


def test_names_in_tars_are_never_written(tmp_path):
    (tmp_path / "a.tar").write_bytes(tar_of(("../../evil.jpg", b"x"), ("/etc/evil.jpg", b"y")))
    source = opened("tar", tmp_path / "a.tar", "jpg: bytes")
    assert values(source, "jpg") == [b"x", b"y"] and not (tmp_path.parent.parent / "evil.jpg").exists()


def test_bombs_stay_packed(tmp_path, monkeypatch):
    from functools import partial

    from pipec.kernels import remote
    from pipec.kernels.cached import Cache

    monkeypatch.setattr(remote, "_shared", [])
    monkeypatch.setattr(remote, "Cache", partial(Cache, str(tmp_path / "kept"), 20 << 20))
    bomb = io.BytesIO()
    with gzip.GzipFile(fileobj=bomb, mode="wb", compresslevel=1) as out:
        for _ in range(100):
            out.write(bytes(1 << 20))
    (tmp_path / "x.tar.gz").write_bytes(bomb.getvalue())
    (tmp_path / "x.csv.gz").write_bytes(bomb.getvalue())
    for kind, column in (("tar", "jpg: bytes"), ("csv", "a: i64")):
        with bounded(30, 60), pytest.raises(SourceError, match="there is no room for what is packed") as caught:
            opened(kind, tmp_path / f"x.{kind}.gz", column)
        assert caught.value.code == "E0813"
    assert sum(f.stat().st_size for f in (tmp_path / "kept").iterdir()) < 20 << 20
    with zipfile.ZipFile(tmp_path / "x.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        header = io.BytesIO()
        np.lib.format.write_array_header_1_0(header, {"descr": "|u1", "fortran_order": False, "shape": (100 << 20,)})
        archive.writestr("a.npy", header.getvalue() + bytes(100 << 20))
    with bounded(30, 60), pytest.raises(SourceError, match=r"there is no room for `a` of .*x\.npz"):
        opened("npz", tmp_path / "x.npz", "a: u8")


@pytest.mark.parametrize("shape", ["(1000000000000,)", "(-1,)", "(4,)" * 1000])
def test_arrays_whose_headers_lie(tmp_path, shape):
    header = f"{{'descr': '<i8', 'fortran_order': False, 'shape': {shape}, }}".encode().ljust(117) + b"\n"
    npy = b"\x93NUMPY\x01\0" + struct.pack("<H", len(header)) + header + bytes(64)
    (tmp_path / "x.npy").write_bytes(npy)
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("a.npy", npy)
    for kind in ("npy", "npz"):
        with bounded(), pytest.raises(SourceError) as caught:
            opened(kind, tmp_path / f"x.{kind}", "a: i64")
        assert caught.value.code in ("E0810", "E0602")


# --- sound ------------------------------------------------------------------------------------------------------------


def wav(samples, said=None):
    data = np.asarray(samples, "<i2").tobytes()
    size = len(data) if said is None else said
    return (b"RIFF" + struct.pack("<I", min(36 + size, 0xFFFFFFFF)) + b"WAVEfmt "
            + struct.pack("<IHHIIHH", 16, 1, 1, 16000, 32000, 2, 16) + b"data" + struct.pack("<I", size) + data)


@pytest.mark.parametrize("said", [200, 1 << 31, 0xFFFFFEFF])
def test_a_wav_that_lies_about_its_length(said):
    data = wav(np.arange(75), said)
    with bounded(5, 20):
        with pytest.raises(BadRecord, match="ends early"):
            decode_audio.ref(data, "refuse")
        samples, rate = decode_audio.ref(data, "fill")
    assert samples.shape == (75, 1) and rate == 16000
    assert decode_audio.ref(wav(np.arange(75), 100), "refuse")[0].shape == (50, 1), "one that says less has what it says"
    assert decode_audio.ref(wav([]), "refuse")[0].shape == (0, 1)


# --- programs ---


def test_a_chain_of_many_lines_is_compiled_or_refused(monkeypatch):
    from pipec.compiler import deep
    from pipec.compiler.check import check
    from pipec.compiler.compile import lowered
    from pipec.dsl.problems import PipeError

    lines = "".join(f"  a{i} = [sin(a{i - 1}[i]) + {i}.5 for i]\n" for i in range(1, 90))
    program = check("p.pipe", text='schema S\n  a0: f32[8]\n\npipeline p\n  from npz("x.npz") as S\n' + lines + "  emit a89\n")
    limit = sys.getrecursionlimit()
    assert len(lowered(program).kernels) == 1
    monkeypatch.setattr(deep, "FRAMES", limit)
    with pytest.raises(PipeError, match="too many steps") as failed:
        lowered(program)
    assert failed.value.problems[0].code == "E0513" and sys.getrecursionlimit() == limit


# --- lmdb -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("content", [b"", b"garbage" * 1000, bytes(8192), b"\0" * 16 + b"\xbe\xef\xc0\xde" + bytes(8192)])
def test_what_is_no_lmdb_database(tmp_path, content):
    pytest.importorskip("lmdb")
    path = tmp_path / "x.mdb"
    path.write_bytes(content)
    code = ("import sys\nfrom pipec.kernels.sources import open_source, SourceError\n"
            "try:\n s = open_source('lmdb', [sys.argv[1]], {}, [('value', (('value',),), 'bytes')])\n print('read', len(s))\n"
            "except SourceError as e:\n print(e.code)\n")
    done = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0 and done.stdout.strip() == "E0810", (done.stdout, done.stderr[-300:])
