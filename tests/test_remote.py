"""Remote files: read in ranges through a server that misbehaves, cached within a bound, the same records as local ones."""
import contextlib
import io
import multiprocessing
import os
import tarfile
import time
from functools import partial

import numpy as np
import pytest

pytest.importorskip("fsspec")
pytest.importorskip("aiohttp")

from faraway import serving
from pipec.kernels import remote
from pipec.kernels.cached import Cache, limit
from pipec.kernels.sources import SourceError, open_source
from pipec.runtime.errors import DataError
from pipec.runtime.opening import open as open_loader
from running import assert_same, delivered, fields_of

COLUMNS = [("jpg", (("jpg",),), "bytes"), ("cls", (("cls",),), "i64")]


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.setattr(remote, "_shared", [])
    monkeypatch.setattr(remote, "Cache", partial(Cache, str(tmp_path / "kept")))
    with serving() as server:
        yield server


def tar_bytes(count, size=50_000, seed=0):
    random = np.random.default_rng(seed)
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for n in range(count):
            for name, data in ((f"{n:04}.jpg", random.bytes(size)), (f"{n:04}.cls", b"%d" % n)):
                member = tarfile.TarInfo(name)
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


def local(tmp_path, name, data):
    path = tmp_path / name
    path.write_bytes(data)
    return str(path)


def same(one, other, order=None):
    assert len(one) == len(other)
    for i in range(len(one)) if order is None else order:
        assert one.read(i) == other.read(i)


def test_a_tar_is_read_in_ranges_and_then_from_the_cache(tmp_path, store):
    data = tar_bytes(120)
    store.files["a/x-0.tar"], store.files["a/x-1.tar"] = data, tar_bytes(30, seed=1)
    paths = [local(tmp_path, name, store.files[f"a/{name}"]) for name in ("x-0.tar", "x-1.tar")]
    near = open_source("tar", paths, {}, COLUMNS)
    far = open_source("tar", [store.url("a/x-*.tar")], {}, COLUMNS)
    same(far, near, np.random.default_rng(0).permutation(len(near)))
    assert store.sent["a/x-0.tar"] <= len(data) + remote.BLOCK
    assert store.asked["a/x-0.tar"] <= 8, "few requests for many blocks"
    asked = store.asked.total()
    remote._shared.clear()
    same(open_source("tar", [store.url("a/x-*.tar")], {}, COLUMNS), near)
    assert store.asked.total() == asked, "all comes from the cache"
    assert far.name(3) == "0003 of x-0.tar"


def test_programs_read_addresses(tmp_path, store):
    store.files["x.tar"] = tar_bytes(40, size=2000)
    text = '''seed 3
param root: path
schema Sample
  jpg: bytes
  cls: i64
pipeline p
  from tar("{root}/x.tar") as Sample
  shuffle()
  batch(8)
  emit cls, jpg
'''
    path = tmp_path / "p.pipe"
    path.write_text(text)
    local(tmp_path, "x.tar", store.files["x.tar"])
    assert_same(delivered(path, root=store.base), delivered(path, root=str(tmp_path)))


# --- every kind -------------------------------------------------------------------------------------------------------


def tables(folder):
    """A file of every kind: (kind, file name, schema)."""
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    rows = 3000
    numbers = np.arange(rows)
    pq.write_table(pa.table({"a": numbers, "t": [f"text {n}" for n in numbers]}), folder / "x.parquet", row_group_size=700)
    with pa.ipc.new_file(folder / "x.arrow", pa.schema([("a", pa.int64())])) as file:
        file.write(pa.record_batch({"a": pa.array(numbers)}))
    with pa.ipc.new_stream(folder / "s.arrow", pa.schema([("a", pa.int64())])) as file:
        file.write(pa.record_batch({"a": pa.array(numbers)}))
    (folder / "x.csv").write_text("a,t\n" + "".join(f'{n},"row\n{n}"\n' for n in numbers))
    (folder / "x.jsonl").write_text("".join(f'{{"a": {n}}}\n' for n in numbers))
    (folder / "x.txt").write_text("".join(f"line {n}\n" for n in numbers))
    numbers.astype("<u2").tofile(folder / "x.bin")
    np.save(folder / "x.npy", numbers)
    np.savez(folder / "x.npz", a=numbers)
    for k, name in enumerate(("cat/a.jpg", "cat/b.jpg", "dog/c.jpg", ".hidden/d.jpg", "dog/.e.jpg", "dog/f.txt")):
        (folder / "classes" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "classes" / name).write_bytes(bytes([k]) * 100)
    a, t = ("a", (("a",),), "i64"), ("t", (("t",),), "text")
    yield from (("parquet", "x.parquet", [a, t]), ("arrow", "x.arrow", [a]), ("arrow", "s.arrow", [a]), ("csv", "x.csv", [a, t]),
                ("jsonl", "x.jsonl", [a]), ("lines", "x.txt", [t]), ("bin", "x.bin", [("a", (("a",),), "u16")]),
                ("npy", "x.npy", [a]), ("npz", "x.npz", [a]), ("files", "classes/", [("file", (("file",),), "bytes")]),
                ("folder", "classes", [("file", (("file",),), "bytes"), ("c", (("class",),), "i64")]),
                ("files", "classes/*/*.jpg", [("name", (("name",),), "text")]))


def test_every_kind_reads_addresses(tmp_path, store):
    folder = tmp_path / "data"
    folder.mkdir()
    kinds = list(tables(folder))
    for path in folder.rglob("*"):
        if path.is_file():
            store.files["d/" + path.relative_to(folder).as_posix()] = path.read_bytes()
    for kind, name, columns in kinds:
        near, far = open_source(kind, [str(folder / name)], {}, columns), open_source(kind, [store.url("d/" + name)], {}, columns)
        assert len(near) == len(far) > 0, name
        for i in range(0, len(near), 1 + len(near) // 7):
            assert near.read(i) == far.read(i), name
        assert far.name(1).removeprefix(store.url("d/")) == near.name(1).removeprefix(f"{folder}/")
    assert store.files["d/classes/.hidden/d.jpg"]


def test_of_a_remote_parquet_file_only_some_columns_come(tmp_path, store):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    random = np.random.default_rng(0)
    pq.write_table(pa.table({f"c{k}": random.random(200_000) for k in range(12)}), tmp_path / "x.parquet", compression="none")
    data = store.files["x.parquet"] = (tmp_path / "x.parquet").read_bytes()
    far = open_source("parquet", [store.url("x.parquet")], {}, [("c3", (("c3",),), "f64")])
    assert far.read(1999)["c3"] == pq.read_table(tmp_path / "x.parquet", columns=["c3"])["c3"][1999].as_py()
    assert store.sent["x.parquet"] < len(data) / 3


# --- trouble ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def hasty(monkeypatch):
    """No waiting between attempts."""
    monkeypatch.setattr("pipec.kernels.fetch.time.sleep", lambda seconds: None)


@pytest.mark.parametrize("trouble", ["drop", "short", 500, 503, 429, "mixed"])
def test_what_passes_is_tried_again_and_nothing_is_lost(tmp_path, store, hasty, trouble):
    data = store.files["x.tar"] = tar_bytes(100)
    kinds = ["drop", "short", 500, 503]
    store.trouble = lambda path, n: None if n % 3 else kinds[n // 3 % 4] if trouble == "mixed" else trouble
    far = open_source("tar", [store.url("x.tar")], {}, COLUMNS)
    same(far, open_source("tar", [local(tmp_path, "x.tar", data)], {}, COLUMNS), np.random.default_rng(1).permutation(100))


def test_a_server_that_never_answers_is_given_up(store, hasty, monkeypatch):
    monkeypatch.setenv("PIPEC_REMOTE_ATTEMPTS", "3")
    store.files["x.tar"] = tar_bytes(4)
    store.trouble = lambda path, n: 503
    with pytest.raises(SourceError, match=r"x\.tar` can't be read: the server answers 503") as caught:
        open_source("tar", [store.url("x.tar?key=secret")], {}, COLUMNS)
    assert caught.value.code == "E0812" and "3 attempts" in caught.value.notes[0] and "secret" not in str(caught.value)
    assert store.asked["x.tar"] == 3
    with pytest.raises(SourceError, match=r"Connect call failed|Cannot connect") as caught:
        open_source("tar", ["http://127.0.0.1:9/x.tar"], {}, COLUMNS)
    assert caught.value.code == "E0812"


def test_what_will_not_pass_is_not_tried_again(store, hasty):
    store.files["x.tar"] = tar_bytes(4)
    for status, said in ((403, "may not be read"), (404, "there is no file"), (400, "answers 400")):
        store.trouble = lambda path, n, status=status: status
        store.asked.clear()
        with pytest.raises(SourceError, match=said):
            open_source("tar", [store.url("x.tar")], {}, COLUMNS)
        assert store.asked["x.tar"] == 1
    with pytest.raises(SourceError, match="there is no file `http") as caught:
        open_source("tar", [store.url("y.tar")], {}, COLUMNS)
    assert caught.value.code == "E0810"
    with pytest.raises(SourceError, match="no file matches"):
        open_source("tar", [store.url("z/*.tar")], {}, COLUMNS)
    for address in ("ftp://a/b.tar", "simplecache::http://a/b.tar", "file:///etc/passwd"):
        with pytest.raises(SourceError, match=r"kind that isn't read|there is no file"):
            open_source("tar", [address], {}, COLUMNS)
    with pytest.raises(SourceError, match="LMDB databases are mapped"):
        open_source("lmdb", [store.url("x.mdb")], {}, [("key", (("key",),), "bytes")])


def test_an_object_that_changes_ends_the_run(store, hasty):
    store.files["x.tar"] = tar_bytes(200)
    far = open_source("tar", [store.url("x.tar")], {}, COLUMNS)
    first = far.read(0)
    for path in (remote.shared().cache.folder,):
        for entry in os.scandir(path):
            os.unlink(entry.path)
    remote.shared().recent.clear()
    store.files["x.tar"] = tar_bytes(200, seed=9)
    with pytest.raises(SourceError, match="has changed while it was read") as caught:
        far.read(150)
    assert caught.value.code == "E0812" and "give new data a new name" in caught.value.notes[1]
    again = open_source("tar", [store.url("x.tar")], {}, COLUMNS)
    assert again.read(0) != first, "a new run sees the new one, and nothing kept of the old one"


def test_a_length_that_is_a_lie_makes_a_message(store, hasty):
    store.files["x.csv"] = b"a\n" + b"1\n" * 1000
    store.trouble = lambda path, n: "longer" if n == 0 else None
    with pytest.raises(SourceError, match=r"has changed|can't be read"):
        open_source("csv", [store.url("x.csv")], {}, [("a", (("a",),), "i64")])
    store.tags = False
    with pytest.raises(SourceError, match=r"has changed|can't be read"):
        open_source("csv", [store.url("x.csv")], {}, [("a", (("a",),), "i64")])


def test_servers_without_ranges_are_read_once_as_a_whole(tmp_path, store, hasty):
    data = store.files["x.tar"] = tar_bytes(100)
    store.ranges = False
    far = open_source("tar", [store.url("x.tar")], {}, COLUMNS)
    same(far, open_source("tar", [local(tmp_path, "x.tar", data)], {}, COLUMNS))
    assert store.sent["x.tar"] <= 2 * len(data)


def test_without_a_tag_nothing_outlives_the_run(store):
    store.tags = False
    store.files["x.csv"] = b"a\n1\n"
    assert open_source("csv", [store.url("x.csv")], {}, [("a", (("a",),), "i64")]).read(0) == {"a": 1}
    store.files["x.csv"] = b"a\n2\n"
    assert open_source("csv", [store.url("x.csv")], {}, [("a", (("a",),), "i64")]).read(0) == {"a": 2}


def test_a_run_ends_with_the_message_whatever_skip_bad_says(tmp_path, store, hasty, monkeypatch):
    monkeypatch.setenv("PIPEC_REMOTE_ATTEMPTS", "2")
    monkeypatch.setenv("PIPEC_REMOTE_CACHE", "0")
    store.files["x.tar"] = tar_bytes(1500, size=20_000)
    path = tmp_path / "p.pipe"
    path.write_text(f'''schema Sample
  jpg: bytes
  cls: i64
pipeline p
  from tar("{store.url("x.tar")}") as Sample
  skip_bad(at_most=1.0)
  batch(8)
  emit cls, jpg
''')
    expected = delivered(path)
    found = []
    store.asked.clear()
    remote._shared.clear()
    store.trouble = lambda path, n: 503 if n > 5 else None
    loader = open_loader(str(path), as_="numpy", workers="threads", threads=2)
    with loader, pytest.raises(DataError, match="can't be read: the server answers 503") as caught:
        for batch in loader:
            found.append(fields_of(batch))
    assert caught.value.code == "E0812" and 0 < len(found) < len(expected)
    assert_same(found, expected[: len(found)])


# --- the cache --------------------------------------------------------------------------------------------------------


def held(folder):
    total = 0
    for entry in os.scandir(folder):
        with contextlib.suppress(FileNotFoundError):
            total += 0 if entry.name.startswith("lock") or entry.name == "total" else entry.stat().st_size
    return total


def test_the_cache_stays_within_its_bound_and_drops_the_oldest(tmp_path):
    cache = Cache(str(tmp_path / "c"), 1_000_000)
    for n in range(50):
        assert cache.put(f"k.{n}", bytes([n]) * 50_000)
        os.utime(tmp_path / "c" / f"k.{n}", (n, n))
        assert held(cache.folder) <= cache.limit
    assert cache.get("k.49", 50_000) == bytes([49]) * 50_000 and cache.get("k.0", 50_000) is None
    assert not cache.put("big", bytes(2_000_000)) and cache.get("big", 2_000_000) is None
    path = tmp_path / "c" / "k.49"
    path.write_bytes(path.read_bytes()[:-9] + b"x" * 9)
    assert cache.get("k.49", 50_000) is None, "damage is noticed"


def test_whole_files_stay_while_they_are_held(tmp_path):
    cache = Cache(str(tmp_path / "c"), 30 << 20)
    pinned = cache.whole("a.whole", lambda out: out.write(b"x" * (10 << 20)), "a")
    for n in range(60):
        cache.put(f"k.{n}", bytes(1 << 20))
    assert os.path.exists(pinned.path) and held(cache.folder) <= cache.limit
    with pytest.raises(SourceError, match="there is no room for b") as caught:
        cache.whole("b.whole", lambda out: [out.write(bytes(1 << 20)) for _ in range(25)], "b")
    assert caught.value.code == "E0813" and "PIPEC_REMOTE_CACHE" in caught.value.notes[1]
    assert not [n for n in os.listdir(cache.folder) if n.endswith(".part")]
    del pinned
    assert cache.whole("b.whole", lambda out: [out.write(bytes(1 << 20)) for _ in range(25)], "b")
    assert held(cache.folder) <= cache.limit


def _fill(folder, seed):
    cache, random = Cache(folder, 2_000_000), np.random.default_rng(seed)
    for n in random.integers(0, 100, 300).tolist():
        found = cache.get(f"k.{n}", 40_000)
        assert found is None or found == bytes([n]) * 40_000
        if found is None:
            cache.put(f"k.{n}", bytes([n]) * 40_000)
    with cache._locked():
        assert held(folder) <= cache.limit


def test_processes_share_the_cache(tmp_path):
    workers = [multiprocessing.get_context("fork").Process(target=_fill, args=(str(tmp_path / "c"), seed)) for seed in range(3)]
    for w in workers:
        w.start()
    for w in workers:
        w.join(240)
    assert [w.exitcode for w in workers] == [0, 0, 0]


@pytest.mark.parametrize("text, size", [("50GB", 50 * 10**9), ("1.5GiB", 3 << 29), ("0", 0), ("7", 7), ("200M", 200 * 10**6)])
def test_sizes(monkeypatch, text, size):
    monkeypatch.setenv("PIPEC_REMOTE_CACHE", text)
    assert limit() == size


def test_a_size_that_is_none(monkeypatch):
    monkeypatch.setenv("PIPEC_REMOTE_CACHE", "much")
    with pytest.raises(SourceError, match="is no size") as caught:
        limit()
    assert caught.value.code == "E0813"


def test_file_systems_that_only_fsspec_knows(monkeypatch, store, hasty):
    """The way of `gs://` and `hf://`, on fsspec's own file system in memory."""
    import fsspec
    from pipec.kernels import fetch

    monkeypatch.setattr(fetch, "SCHEMES", (*fetch.SCHEMES, "memory"))
    files = fsspec.filesystem("memory")
    for n in range(2):
        files.pipe_file(f"/pipec/x-{n}.tar", tar_bytes(60, seed=n))
    far = open_source("tar", ["memory://pipec/x-*.tar"], {}, COLUMNS)
    assert len(far) == 120 and far.read(77)["cls"] == 17
    remote.shared().cache._evict(0)
    remote.shared().recent.clear()
    files.pipe_file("/pipec/x-0.tar", tar_bytes(61))
    with pytest.raises(SourceError, match="has changed while it was read"):
        far.read(3)
    with pytest.raises(SourceError, match="is a folder, not a file"):
        open_source("tar", ["memory://pipec"], {}, COLUMNS)


def test_a_forked_process_reads_on(store):
    store.files["x.tar"] = tar_bytes(60)
    far = open_source("tar", [store.url("x.tar")], {}, COLUMNS)
    remote.shared().cache._evict(0)
    remote.shared().recent.clear()
    child = os.fork()
    if not child:
        os._exit(0 if far.read(50)["cls"] == 50 else 1)
    deadline = time.monotonic() + 240
    while (done := os.waitpid(child, os.WNOHANG)) == (0, 0) and time.monotonic() < deadline:
        time.sleep(0.05)
    if done == (0, 0):
        os.kill(child, 9)
    assert done == (child, 0)
