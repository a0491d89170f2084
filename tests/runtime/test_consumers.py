"""What a loop receives: torch, NumPy and JAX, over the ring's memory where that can be."""
from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from pipec.runtime import consumers

sys.path.insert(0, str(Path(__file__).parent))
import fakes
from fakes import make


def test_kinds(monkeypatch):
    with pytest.raises(ValueError, match='"torch", "numpy", "jax" or "cupy"'):
        make(as_="tensorflow", rows=4)
    monkeypatch.setitem(consumers.PACKAGES, "jax", "no_such_package")
    with pytest.raises(ModuleNotFoundError, match='as_="jax": no_such_package isn\'t installed here; as_="numpy"'):
        make(as_="jax", rows=4)


def test_numpy_is_read_only_over_the_ring():
    with make(as_="numpy", rows=64, batch=32) as loader:
        batch = next(iter(loader))
        assert not batch.image.flags.writeable and batch.image.base is not None
        with pytest.raises(ValueError, match="read-only"):
            batch.image[0] = 1


@pytest.fixture
def jax():
    return pytest.importorskip("jax")


def test_jax_arrays_stay_as_they_are(jax):
    """Those over the ring's memory too, while it goes round many times."""
    with make(as_="jax", rows=1000, width=1024, batch=32) as loader:
        kept = []
        for k, batch in enumerate(loader):
            assert isinstance(batch.image, jax.Array) and batch.image.dtype == np.uint8
            assert batch.label.dtype == np.int32 and batch.label.tolist() == list(range(32 * k, min(32 * k + 32, 1000)))
            if k % 8 == 0:
                kept.append((32 * k, batch.image, batch.image + 1))
        for _ in range(2):
            for _ in loader:
                pass
        for at, image, more in kept:
            want = np.stack([fakes.content(0, p, 1024) for p in range(at, at + len(image))])
            assert (np.asarray(image) == want).all() and (np.asarray(more) == want + np.uint8(1)).all()


def test_jax_copies_only_what_is_not_aligned(jax):
    memory = np.zeros(4096 + 128, np.uint8)
    start = -memory.__array_interface__["data"][0] % 64
    for shift, shared in ((0, True), (1, False)):
        view = memory[start + shift : start + shift + 4096]
        made = consumers.to_jax(view)
        assert (made.unsafe_buffer_pointer() == view.__array_interface__["data"][0]) == shared


def test_jax_values(jax):
    import ml_dtypes

    got = consumers.to_jax([np.arange(3, dtype=np.int64), b"x", "y", None, np.float64(1.5), np.zeros(2, ml_dtypes.bfloat16)])
    assert got[0].dtype == np.int32 and got[1:4] == [b"x", "y", None] and got[4].dtype == np.float32
    assert got[5].dtype == ml_dtypes.bfloat16
    with pytest.raises(OverflowError, match="jax_enable_x64"):
        consumers.to_jax(np.array([1 << 40]))
