"""Running sums, buckets, counts, places, hashes: references, and the same bits from the loops."""
from __future__ import annotations

import numpy as np
import pytest
from pipec.compiler import emit_numba, emulate
from pipec.compiler.loops import Argument, Buffer, Builder, Const, Kernel
from pipec.kernels import table
from pipec.kernels.ops import OPERATORS

WORDS = {"uint8": "u8", "int8": "i8", "int32": "i32", "int64": "i64", "float32": "f32", "float64": "f64", "bool": "bool"}


def lowered(op, out_shape, out_dtype, *args):
    """The operator's loops run as plain Python: arrays are memory, numbers are constants."""
    k = Builder()
    arguments, row, operands = [], [], []

    def memory(name, a):
        arguments.append(Argument("data", name, WORDS[str(a.dtype)], name))
        row.append(a.ctypes.data)
        return Buffer(name, WORDS[str(a.dtype)], tuple(Const(n, "i64") for n in a.shape))

    out = np.full(out_shape, 7, out_dtype)
    target = memory("data.out", out)
    for i, a in enumerate(args):
        if isinstance(a, np.ndarray):
            operands.append(memory(f"data.{i}", a))
        else:
            operands.append(Const(a, "bool" if isinstance(a, bool) else "i64" if isinstance(a, int) else "f32"))
    op.lower(k, target, *operands)
    kernel = Kernel("k", tuple(arguments), tuple(k.body))
    table_, status, arena = np.array(row, np.int64), np.zeros(1, np.int64), np.zeros(4, np.int64)
    emulate.load(emit_numba.kernel_text(kernel))(1, table_.ctypes.data, status.ctypes.data, arena.ctypes.data)
    assert status[0] == 0
    return out


@pytest.mark.parametrize("name", ["cumsum", "cumprod", "cummax", "cummin"])
@pytest.mark.parametrize("dtype", [np.int32, np.int8, np.float32, np.float64])
def test_running(name, dtype):
    rng = np.random.default_rng(1)
    op = OPERATORS[name]
    for n in (0, 1, 2, 9):
        x = (rng.normal(size=n) * 30).astype(dtype)
        if n == 9 and np.dtype(dtype).kind == "f":
            x[4] = np.nan
        want = op.ref(x)
        assert want.dtype == dtype and want.shape == x.shape
        np.testing.assert_array_equal(lowered(op, x.shape, dtype, x), want)


def test_running_values():
    assert table.cumsum.ref(np.array([100, 100, -100], np.int8)).tolist() == [100, 127, 100]
    assert table.cummax.ref(np.array([1, 3, 2, 5])).tolist() == [1, 3, 3, 5]
    assert table.cummin.ref(np.array([4, 3, 5, 1])).tolist() == [4, 3, 3, 1]
    assert table.cumprod.ref(np.array([2, 3, 4])).tolist() == [2, 6, 24]


@pytest.mark.parametrize("right", [False, True])
def test_bucketize_as_torch(right):
    torch = pytest.importorskip("torch")
    edges = np.array([1, 2, 4, 8], np.int64)
    for x in range(-1, 11):
        want = int(torch.bucketize(torch.tensor(x), torch.tensor(edges), right=right))
        assert table.bucketize.ref(np.int64(x), edges, right) == want
        assert lowered(table.bucketize, (), np.int64, x, edges, right) == want


def test_bucketize_of_floats():
    edges = np.array([0.5, 1.5], np.float32)
    for x, want in ((0.0, 0), (0.5, 0), (0.6, 1), (9.0, 2), (float("nan"), 2)):
        assert table.bucketize.ref(np.float32(x), edges, False) == want
        assert lowered(table.bucketize, (), np.int64, x, edges, False) == want


def test_histogram_and_indices():
    x = np.array([0, 2, 2, 9, -1, 3], np.int32)
    want = [1, 0, 2, 1]
    assert table.histogram.ref(x, 4).tolist() == want
    assert lowered(table.histogram, (4,), np.int64, x, 4).tolist() == want
    mask = np.array([True, False, True, True])
    assert table.indices.ref(mask).tolist() == table.indices.cpu(np.empty, mask).tolist() == [0, 2, 3]


def murmur(data):
    """MurmurHash64A with seed 0, as it is published."""
    m, h = 0xC6A4A7935BD1E995, len(data) * 0xC6A4A7935BD1E995 % 2**64
    whole = len(data) // 8 * 8
    for i in range(0, whole, 8):
        k = int.from_bytes(data[i : i + 8], "little") * m % 2**64
        h = (h ^ (k ^ k >> 47) * m % 2**64) * m % 2**64
    if data[whole:]:
        h = (h ^ int.from_bytes(data[whole:], "little")) * m % 2**64
    h = (h ^ h >> 47) * m % 2**64
    return h ^ h >> 47


def splitmix(bits, salt):
    z = (bits + salt * 0x9E3779B97F4A7C15) % 2**64
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ z >> 27) * 0x94D049BB133111EB % 2**64
    return (z ^ z >> 31) >> 1


def test_hash_is_fixed_and_salted():
    assert table.hash_.name == "hash" and int(table.hash_.ref("abc", 0)) == 4538615379635924670
    assert int(table.hash_.ref("", 5)) == 980875101213047373 == splitmix(0, 5)
    for text in ("a", "eight by", "nine byte", "é" * 20):
        assert int(table.hash_.ref(text, -3)) == int(table.hash_.ref(text.encode(), -3)) == splitmix(murmur(text.encode()), -3)
    assert [int(table.hash_.ref(v, 1)) for v in (-7, np.uint64(2**64 - 7), np.int8(-7))] == [splitmix(2**64 - 7, 1)] * 3
    values = [int(table.hash_.ref(t, s)) for t in ("", "a", "b", "é") for s in (0, 1, -1, 2**62)]
    assert len(set(values)) == 16 and all(0 <= v < 2**63 for v in values)
    many = np.array([int(table.hash_.ref(str(i), 3)) % 100 for i in range(5000)])
    assert np.bincount(many, minlength=100).min() > 20


def test_utf8():
    assert table.utf8.ref("aé").tolist() == table.utf8.cpu(np.empty, "aé").tolist() == [97, 195, 169]
    assert table.utf8.ref("").shape == (0,)


@pytest.mark.parametrize("name", ["cumsum", "cumprod"])
def test_running_integers_stop_at_the_ends_of_i64(name):
    for x in ([2**62, 2**62, 2**62, -5], [-(2**62), -(2**62), -(2**62), 7], [3 * 10**9, -4 * 10**9, 2, 9]):
        x = np.array(x, np.int64)
        want = OPERATORS[name].ref(x)
        exact = np.cumsum(x.astype(object)) if name == "cumsum" else np.cumprod(x.astype(object))
        assert want[1] == min(max(exact[1], -(2**63)), 2**63 - 1)
        np.testing.assert_array_equal(lowered(OPERATORS[name], x.shape, np.int64, x), want)
