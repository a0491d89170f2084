"""Sources: WebDataset rules, damaged shards, class folders, arrays."""
import contextlib
import io
import os
import random
import tarfile

import numpy as np
import pytest
from pipec.kernels.ops import BadRecord
from pipec.kernels.sources import SourceError, expand, number_of, open_source


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("PIPEC_CACHE", str(tmp_path_factory.mktemp("cache")))


def tar_bytes(members, **kw):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", **kw) as tar:
        for name, data in members:
            if isinstance(name, tarfile.TarInfo):
                tar.addfile(name)
                continue
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


def tar_source(path, *columns):
    listed = [(c.split("|")[0].replace(".", "_"), (tuple(c.split("|")),), t) for c, t in columns]
    return open_source("tar", (str(path),), {}, listed)


def test_keys_end_at_the_first_dot_after_the_last_slash(tmp_path):
    names = ["a.b.jpg", "a.cls", "dir.v1/c.jpg", "./d.jpg", "e.JPG", "f..jpg", "README", ".hidden.jpg", "p/22.0/1.1.png"]
    (tmp_path / "a.tar").write_bytes(tar_bytes([(n, b"x") for n in names]))
    source = tar_source(tmp_path / "a.tar", ("jpg|b.jpg|.jpg|1.png", "bytes"))
    assert source.keys == ["a", "dir.v1/c", "./d", "e", "f", "p/22.0/1"]
    assert [source.read(i)["jpg"] for i in range(6)] == [b"x"] * 6


def test_junk_members_are_no_samples(tmp_path):
    folder, link = tarfile.TarInfo("dir"), tarfile.TarInfo("l.jpg")
    folder.type, link.type, link.linkname = tarfile.DIRTYPE, tarfile.SYMTYPE, "a.jpg"
    members = [(folder, b""), (link, b""), ("__meta__", b"x"), ("__MACOSX/._a.jpg", b"x"), ("._a.jpg", b"x"),
               ("n" * 150 + ".jpg", b"long"), ("a.jpg", b"y")]
    (tmp_path / "a.tar").write_bytes(tar_bytes(members, format=tarfile.PAX_FORMAT))
    source = tar_source(tmp_path / "a.tar", ("jpg", "bytes"))
    assert source.keys == ["n" * 150, "a"]
    assert source.read(0)["jpg"] == b"long"


def test_archives_one_behind_the_other(tmp_path):
    first, second = tar_bytes([("a.txt", b"1"), ("b.txt", b"2")]), tar_bytes([("b.txt", b"3"), ("c.txt", b"4")])
    for between, after in ((b"", b""), (bytes(3 << 20), b"padding that is no header" * 100)):
        (tmp_path / "a.tar").write_bytes(first + between + second + after)
        source = tar_source(tmp_path / "a.tar", ("txt", "text"), ("__key__", "path"))
        assert [tuple(source.read(i).values()) for i in range(len(source))] == [
            ("1", "a"), ("2", "b"), ("3", "b"), ("4", "c")], "the records of one key don't meet"


def test_members_with_holes_are_bad_and_those_behind_them_are_read(tmp_path):
    from test_sources_kinds import sparse

    (tmp_path / "a.tar").write_bytes(sparse())
    source = tar_source(tmp_path / "a.tar", ("jpg", "bytes"))
    with pytest.raises(BadRecord, match=r"`a.jpg` is stored with holes"):
        source.read(0)
    assert len(source) == 2 and source.read(1) == {"jpg": b"B"}


def test_arrays_in_big_endian_order(tmp_path):
    out = io.BytesIO()
    np.save(out, np.array([1, 2], ">i4"))
    (tmp_path / "a.tar").write_bytes(tar_bytes([("a.npy", out.getvalue())]))
    found = tar_source(tmp_path / "a.tar", ("npy", "i32[n]")).read(0)["npy"]
    assert found.tolist() == [1, 2] and found.dtype == np.int32
    (tmp_path / "a.npy").write_bytes(out.getvalue())      # mapped, so as it is
    with pytest.raises(SourceError) as caught:
        open_source("npy", (str(tmp_path / "a.npy"),), {}, [("x", (("x",),), "i32")])
    assert caught.value.code == "E0602" and "big-endian" in caught.value.notes[0]


def test_the_same_member_twice_is_a_bad_record(tmp_path):
    (tmp_path / "a.tar").write_bytes(tar_bytes([("a.txt", b"1"), ("a.txt", b"2"), ("b.txt", b"3")]))
    source = tar_source(tmp_path / "a.tar", ("txt", "text"))
    with pytest.raises(BadRecord, match=r"`a.txt` stands in the shard twice"):
        source.read(0)
    assert source.read(1) == {"txt": "3"}
    assert source.name(1) == "b of a.tar"


def test_samples_that_lack_a_member(tmp_path):
    (tmp_path / "a.tar").write_bytes(tar_bytes([("a.txt", b"1"), ("b.txt", b"2"), ("a.cls", b"3")]))
    source = tar_source(tmp_path / "a.tar", ("txt", "text"), ("cls", "i64"))
    assert len(source) == 3
    for i, missing in ((0, "cls"), (1, "cls"), (2, "txt")):
        with pytest.raises(BadRecord, match=f"no member `{missing}`"):
            source.read(i)
    gaps = tar_source(tmp_path / "a.tar", ("txt", "text?"), ("cls", "i64?"))
    assert gaps.read(2) == {"txt": None, "cls": 3}


def test_empty_shards(tmp_path):
    (tmp_path / "s0.tar").write_bytes(bytes(10_240))
    (tmp_path / "s1.tar").write_bytes(tar_bytes([(f"{k}.jpg", b"x") for k in "abc"]))
    (tmp_path / "s2.tar").write_bytes(b"")
    source = tar_source(tmp_path / "s?.tar", ("jpg", "bytes"))
    assert len(source) == 4
    assert [source.read(i)["jpg"] for i in range(3)] == [b"x"] * 3
    with pytest.raises(BadRecord, match="the file is empty"):
        source.read(3)
    assert source.name(3) == "s2.tar of s2.tar"


@pytest.mark.parametrize("cut", [512 + 2048 + 100, 512 + 2048 + 512 + 700])
def test_a_cut_shard_delivers_what_is_whole(tmp_path, cut):
    (tmp_path / "a.tar").write_bytes(tar_bytes([("a.jpg", b"1" * 2000), ("b.jpg", b"2" * 2000)])[:cut])
    source = tar_source(tmp_path / "a.tar", ("jpg", "bytes"))
    assert len(source) == 2
    assert source.read(0)["jpg"] == b"1" * 2000
    with pytest.raises(BadRecord, match="cut"):
        source.read(1)


def test_foreign_and_compressed_files(tmp_path):
    (tmp_path / "a.tar").write_bytes(b"not a tar" * 200)
    (tmp_path / "b.tar").write_bytes(b"\x1f\x8b\x08\0" + bytes(600))
    (tmp_path / "c.tar").write_bytes(tar_bytes([("a.jpg", b"x")]))
    source = tar_source(tmp_path / "?.tar", ("jpg", "bytes"))
    with pytest.raises(BadRecord, match="no tar archive"):
        source.read(0)
    with pytest.raises(BadRecord, match="unpack"):
        source.read(1)
    assert source.read(2)["jpg"] == b"x"


def test_mutated_shards_never_crash(tmp_path):
    whole = bytearray(tar_bytes([(f"{k}.jpg", bytes([k]) * 700) for k in range(5)]))
    rng = random.Random(1)
    for trial in range(150):
        data = bytearray(whole)
        for _ in range(rng.randint(1, 8)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        path = tmp_path / f"{trial}.tar"
        path.write_bytes(data[: rng.randrange(1, len(data))])
        try:
            source = tar_source(path, ("jpg", "bytes"))
        except SourceError:
            continue
        for i in range(len(source)):
            with contextlib.suppress(BadRecord):
                assert isinstance(source.read(i)["jpg"], bytes)


def test_the_index_is_kept_until_the_shard_changes(tmp_path):
    path = tmp_path / "a.tar"
    path.write_bytes(tar_bytes([("a.jpg", b"x")]))
    assert len(tar_source(path, ("jpg", "bytes"))) == 1
    kept = [os.path.join(d, f) for d, _, fs in os.walk(os.environ["PIPEC_CACHE"]) for f in fs]
    assert len(kept) == 1
    path.write_bytes(tar_bytes([("a.jpg", b"x"), ("b.jpg", b"y")]))
    assert len(tar_source(path, ("jpg", "bytes"))) == 2
    with open(kept[0], "wb") as file:
        file.write(b"damaged")
    path.write_bytes(tar_bytes([("a.jpg", b"x"), ("b.jpg", b"y"), ("c.jpg", b"z")]))
    assert len(tar_source(path, ("jpg", "bytes"))) == 3


def test_a_column_that_no_sample_has(tmp_path):
    (tmp_path / "a.tar").write_bytes(tar_bytes([("a.jpg", b"x"), ("a.cls", b"1")]))
    with pytest.raises(SourceError, match=r"no sample of .* has a member `png`") as error:
        tar_source(tmp_path / "a.tar", ("png", "bytes"))
    assert error.value.code == "E0601" and "`cls`, `jpg`" in error.value.notes[0]


@pytest.mark.parametrize("text, word, value", [("7", "i64", 7), ("255", "u8", 255), ("9007199254740993", "i64", 2**53 + 1),
                                               ("0.5", "f32", 0.5), ("true", "bool", True)])
def test_numbers_from_text(text, word, value):
    assert number_of(text, word, "x") == value


@pytest.mark.parametrize("text, word", [("256", "u8"), ("-1", "u8"), ("cat", "i64"), ("", "i64"), ("1.5", "i64"),
                                        ("9" * 10_000, "i64"), ("maybe", "bool")])
def test_numbers_that_are_none(text, word):
    with pytest.raises(BadRecord):
        number_of(text, word, "`cls`")


def test_class_folders(tmp_path):
    for name in ("10", "2", "1", ".ipynb_checkpoints"):
        (tmp_path / name).mkdir()
        for file in ("x.jpg", "y.JPEG", "z.PNG", "notes.txt", ".DS_Store"):
            (tmp_path / name / file).write_bytes(f"{name}/{file}".encode())
    columns = [("jpg", (("file",),), "bytes"), ("label", (("class",),), "i64"), ("name", (("class_name",),), "text")]
    source = open_source("folder", (str(tmp_path),), {}, columns)
    assert len(source) == 9
    assert [source.read(i)["name"] for i in (0, 3, 6)] == ["1", "10", "2"]
    assert [int(source.read(i)["label"]) for i in (0, 3, 6)] == [0, 1, 2]
    assert source.read(3)["jpg"] == b"10/x.jpg"
    (tmp_path / "empty").mkdir()
    with pytest.raises(SourceError, match=r"`.*empty` is empty"):
        open_source("folder", (str(tmp_path),), {}, columns)
    assert len(open_source("folder", (str(tmp_path),), {"allow_empty": True}, columns)) == 9


def test_listing_order_is_bytewise(tmp_path):
    names = ["10.jpg", "9.jpg", "a.jpg", "B.jpg"]
    (tmp_path / "c").mkdir()
    for name in random.Random(2).sample(names, 4):
        (tmp_path / "c" / name).write_bytes(b"")
    source = open_source("folder", (str(tmp_path),), {}, [("file", (("file",),), "bytes")])
    assert [source.name(i) for i in range(4)] == ["c/10.jpg", "c/9.jpg", "c/B.jpg", "c/a.jpg"]


def test_arrays(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.arange(24, dtype=np.uint8).reshape(6, 2, 2), y=np.arange(6)[:, None])
    source = open_source("npz", (str(tmp_path / "a.npz"),), {}, [("x", (("x",),), "u8[2, 2]"), ("y", (("y",),), "i64")])
    assert len(source) == 6 and source.read(2)["y"] == 2 and source.read(2)["x"].tolist() == [[8, 9], [10, 11]]
    np.save(tmp_path / "b.npy", np.zeros((3, 4), np.float32))
    assert len(open_source("npy", (str(tmp_path / "b.npy"),), {}, [("v", (("v",),), "f32[4]")])) == 3


@pytest.mark.parametrize("type_text, code", [("u8[2, 3]", "E0602"), ("f32[2, 2]", "E0602"), ("u8", "E0602")])
def test_arrays_unlike_the_schema(tmp_path, type_text, code):
    np.savez(tmp_path / "a.npz", x=np.zeros((6, 2, 2), np.uint8))
    with pytest.raises(SourceError) as error:
        open_source("npz", (str(tmp_path / "a.npz"),), {}, [("x", (("x",),), type_text)])
    assert error.value.code == code


def test_arrays_of_objects_and_damaged_ones_are_refused(tmp_path):
    np.savez(tmp_path / "o.npz", x=np.array([{}, []], object))
    (tmp_path / "d.npz").write_bytes(b"PK\x03\x04 damaged")
    (tmp_path / "t.npz").write_text("text")
    for name in "odt":
        with pytest.raises(SourceError):
            open_source("npz", (str(tmp_path / f"{name}.npz"),), {}, [("x", (("x",),), "u8")])


def test_paths_that_match_nothing_say_what_is_there(tmp_path):
    (tmp_path / "train-0.tar").write_bytes(b"")
    with pytest.raises(SourceError) as error:
        expand([str(tmp_path / "val-*.tar")])
    assert "train-0.tar" in error.value.notes[0]
