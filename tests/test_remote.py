"""Remote files: read in ranges through a server that misbehaves, cached within a bound, the same records as local ones."""
import io
import tarfile
from functools import partial

import numpy as np
import pytest

pytest.importorskip("fsspec")
pytest.importorskip("aiohttp")

from faraway import serving
from pipec.kernels import remote
from pipec.kernels.cached import Cache
from pipec.kernels.sources import open_source
from running import assert_same, delivered

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
