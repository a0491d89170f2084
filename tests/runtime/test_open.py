"""Real programs through `pipec.open`: same batches whatever runs them, exact resumption, values of any size."""
from __future__ import annotations

import io
import tarfile

import numpy as np
import pipec
import pytest
from pipec.runtime.errors import DataError


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    with tarfile.open(folder / "s.tar", "w") as tar:
        for k in range(300):
            for name, data in ((f"{k:05d}.txt", (f"né {k} " * (k % 9)).encode()), (f"{k:05d}.cls", str(k).encode())):
                member = tarfile.TarInfo(name)
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
    return folder


def program(folder, name, lines):
    text = f"""seed 7

schema S
  t: text from "txt"
  k: i64 from "cls"

pipeline train
  from tar("{folder}/s.tar") as S
"""
    path = folder / f"{name}.pipe"
    path.write_text(text + "".join(f"  {line}\n" for line in lines))
    return path


PROGRAMS = {
    "records": ["where k % 3 != 1", "shuffle()", "emit t, k"],
    "batches": ["where k % 3 != 1", "shuffle()", "x: f32[700] = [f32(k + i) for i < 700]", "batch(16)", "emit t, k, x"],
    "padded": ["shuffle()", "z: f32[m] = [f32(k + i) for i < k]", "batch(16, pad=true)", "z = z ?? -1.0", "emit k, z"],
}


def same(a, b):
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    return np.array_equal(a, b)


@pytest.mark.parametrize("name", PROGRAMS)
def test_same_batches_and_exact_states(folder, name):
    path = program(folder, name, PROGRAMS[name])
    with pipec.open(path, workers="threads", threads=1, as_="numpy") as loader:
        right, states = [], []
        for batch in loader:
            right.append(batch)
            states.append(loader.state_dict())
        second = [batch.k for batch in loader]
        assert not same([b.k for b in right], second)
    assert sum(np.size(b.k) for b in right) == (300 if name == "padded" else 200)
    with pipec.open(path, threads=3) as loader:
        got = list(loader)
        assert len(got) == len(right)
        for a, b in zip(right, got, strict=True):
            assert all(same(x, y) for x, y in zip(a, b, strict=True))
        for at in (0, len(right) // 2, len(right) - 1):
            loader.load_state_dict(states[at])
            rest = list(loader)
            assert same([np.asarray(b.k) for b in rest], [b.k for b in right[at + 1 :]])
        assert same([np.asarray(b.k) for b in loader], second)


def test_length(folder):
    path = program(folder, "length", ["shuffle()", "batch(16)", "emit k"])
    with pipec.open(path, workers="threads") as loader:
        assert len(loader) == len(list(loader)) == 19
    path = program(folder, "unknown", ["where k > 5", "batch(16)", "emit k"])
    with pipec.open(path, workers="threads") as loader, pytest.raises(TypeError, match="leaves records out"):
        len(loader)


def test_long_values_make_the_ring_larger(folder):
    lines = ["take(5)", "z: f32[m] = [f32(i) for i < 5000000 + k]", "emit k, z"]
    path = program(folder, "long", lines)
    with pipec.open(path, workers="threads", threads=1) as loader:
        for _ in range(2):
            got = list(loader)
            assert [int(b.k) for b in got] == [0, 1, 2, 3, 4]
            assert [len(b.z) for b in got] == [5_000_000 + k for k in range(5)] and float(got[3].z[-1]) == 5_000_002
    with pipec.open(path, workers="threads", threads=1, memory="40MB") as loader, pytest.raises(DataError, match="`z`"):
        list(loader)


def test_no_such_file(folder):
    path = program(folder, "none", ["emit k"])
    path.write_text(path.read_text().replace("s.tar", "none.tar"))
    with pytest.raises(DataError) as caught:
        pipec.open(path)
    assert caught.value.code in ("E0810", "E0601")
