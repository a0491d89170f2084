"""Philox against its published known answers, the primitive distributions' moments and edges, and the same in loop IR."""
from __future__ import annotations

import numpy as np
import pytest
from pipec.compiler import loops
from pipec.kernels.random import DRAWS, draw_bits, draw_key, fold, philox, signed
from pipec.kernels.scalar import ARRAYS, NAMES, PRIMITIVES, cast

# From `kat_vectors` of the Random123 distribution (Salmon, Moraes, Dror, Shaw 2011): counter, key, words.
KNOWN_ANSWERS = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    ((0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), (0xA4093822, 0x299F31D0),
     (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)),
]
IDS = np.arange(200_000)
KEY = draw_key(17, "train/flip.bernoulli", 3)


@pytest.mark.parametrize("counter, key, words", KNOWN_ANSWERS)
def test_philox_gives_its_published_answers(counter, key, words):
    assert tuple(int(w) for w in philox(counter, key[0] | key[1] << 32)) == words


def test_keys_differ_by_seed_epoch_and_path():
    keys = {draw_key(s, p, e) for s in range(5) for e in range(5) for p in ("a", "b", "a/b")}
    assert len(keys) == 75 and all(0 <= k < 2**64 for k in keys)
    assert signed(2**63) == -(2**63) and signed(5) == 5


def test_uniform_is_even_inside_its_bounds_and_in_f32():
    u = DRAWS["uniform"].ref(KEY, IDS, 0, np.float32(2), np.float32(5))
    assert u.dtype == np.float32 and u.min() >= 2 and u.max() <= 5
    assert abs(u.mean() - 3.5) < 0.01 and abs(u.var() - 0.75) < 0.01
    counts = np.histogram(u, 100, (2, 5))[0]
    assert ((counts - 2000) ** 2 / 2000).sum() < 160     # chi-squared with 99 degrees of freedom: 1 in 10,000
    one = DRAWS["uniform"].ref(KEY, IDS, 0, np.float32(1), np.nextafter(np.float32(1), np.float32(2)))
    assert set(one.tolist()) == {1.0, float(np.nextafter(np.float32(1), np.float32(2)))}
    assert np.corrcoef(u[:-1], u[1:])[0, 1] < 0.01


def test_integers_are_even_and_reach_both_ends():
    n = DRAWS["integers"].ref(KEY, IDS, 0, np.int64(-3), np.int64(4))
    counts = np.bincount(n + 3, minlength=7)
    assert len(counts) == 7 and ((counts - len(IDS) / 7) ** 2 / (len(IDS) / 7)).sum() < 30
    wide = DRAWS["integers"].ref(KEY, IDS, 0, np.int64(-(2**63)), np.int64(2**63 - 1))
    assert wide.min() < -(2**62) and wide.max() > 2**62 and len(set(wide.tolist())) == len(IDS)


def test_permutations_are_even():
    seen: dict[tuple[int, ...], int] = {}
    for id in range(6000):
        order = tuple(DRAWS["permutation"].ref(KEY, id, 0, 3).tolist())
        seen[order] = seen.get(order, 0) + 1
    assert len(seen) == 6 and max(abs(c - 1000) for c in seen.values()) < 130
    assert DRAWS["permutation"].ref(KEY, 1, 0, 0).tolist() == [] and DRAWS["permutation"].ref(KEY, 1, 0, 1).tolist() == [0]
    assert sorted(DRAWS["permutation"].ref(KEY, 2**64 - 1, 0, 100).tolist()) == list(range(100))


def test_places_draw_independently():
    i, j = np.meshgrid(np.arange(300), np.arange(300), indexing="ij")
    with np.errstate(over="ignore"):
        places = fold(ARRAYS, (i, j))
    assert len(np.unique(places)) == 90_000
    u = DRAWS["uniform"].ref(KEY, 5, places, np.float32(0), np.float32(1))
    assert u.shape == (300, 300) and abs(u.mean() - 0.5) < 0.01 and len(np.unique(u)) > 89_000
    assert abs(np.corrcoef(u[0], u[1])[0, 1]) < 0.25


def test_empty_bounds():
    f = np.float32
    uniform, integers, permutation = (DRAWS[n].empty for n in ("uniform", "integers", "permutation"))
    assert not uniform(ARRAYS, f(1), f(1)) and uniform(ARRAYS, f(1), f(0.5)) and uniform(ARRAYS, f(0), f(np.nan))
    assert uniform(ARRAYS, f(0), f(np.inf)) and not integers(ARRAYS, np.int64(0), np.int64(1))
    assert integers(ARRAYS, np.int64(2), np.int64(2)) and permutation(ARRAYS, np.int64(-1))


def evaluated(k, known, e):
    match e:
        case loops.Const():
            return np.asarray(e.value, np.int64 if e.dtype == "i64" else np.float32)
        case loops.Var():
            return known[e.name]
        case loops.Load():
            return np.int64(known[e.buffer][evaluated(k, known, e.index)])
        case loops.Cast():
            return cast(evaluated(k, known, e.value), e.dtype, e.mode)
        case loops.Select():
            return np.where(*(evaluated(k, known, p) for p in (e.condition, e.then, e.other)))
    args = [evaluated(k, known, a) for a in e.args]
    made = np.asarray(draw_bits(ARRAYS, *args) if e.fn == "philox" else PRIMITIVES[e.fn](*args))
    assert NAMES[made.dtype] == e.dtype
    return made


def execute(k, known, body):
    for s in body:
        match s:
            case loops.Let() | loops.Set():
                known[s.var] = evaluated(k, known, s.value)
            case loops.Store():
                known[s.buffer][evaluated(k, known, s.index)] = evaluated(k, known, s.value)
            case loops.For():
                for i in range(int(evaluated(k, known, s.start)), int(evaluated(k, known, s.stop))):
                    known[s.var] = np.int64(i)
                    execute(k, known, s.body)


@pytest.mark.parametrize("name, params", [
    ("uniform", (np.float32(-2), np.float32(7))), ("integers", (np.int64(-5), np.int64(10**12)))])
def test_loop_ir_draws_the_same(name, params):
    k = loops.Builder()
    arguments = [loops.Var(n, "i64") for n in ("key", "id")]
    bounds = [loops.Var(f"p{i}", NAMES[p.dtype]) for i, p in enumerate(params)]
    place = fold(k, [loops.Var("i", "i64"), loops.Var("j", "i64")])
    result = DRAWS[name].expand(k, *arguments, place, *bounds)
    with np.errstate(all="ignore"):
        known = {"key": np.int64(signed(KEY)), "id": IDS[:1000], "i": np.int64(3), "j": np.int64(8)}
        known |= {"p0": params[0], "p1": params[1]}
        execute(k, known, k.body)
        same = DRAWS[name].ref(KEY, IDS[:1000], fold(ARRAYS, (np.int64(3), np.int64(8))), *params)
        np.testing.assert_array_equal(evaluated(k, known, result), same)


def test_loop_ir_permutes_the_same():
    k = loops.Builder()
    out = loops.Buffer("out", "i64", (loops.Var("n", "i64"),))
    DRAWS["permutation"].lower(k, out, *(loops.Var(n, "i64") for n in ("key", "id", "at", "n")))
    for n in (0, 1, 2, 9):
        memory = np.zeros(n, np.int64)
        with np.errstate(all="ignore"):
            numbers = {"key": signed(KEY), "id": 77, "at": 0, "n": n}
            execute(k, {"out": memory, **{name: np.int64(v) for name, v in numbers.items()}}, k.body)
        assert memory.tolist() == DRAWS["permutation"].ref(KEY, 77, 0, n).tolist()
