"""The table of scalar functions: examples, accuracy, special values, overflow, and the same bits from loop IR."""
from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pipec.compiler import loops
from pipec.kernels.scalar import ARRAYS, NAMES, PRIMITIVES, SCALARS, cast, cast_overflows, overflows

I64 = st.integers(-(2**63), 2**63 - 1)
EDGES = st.sampled_from([0, 1, -1, 2, 3, -2, 63, 64, 2**31, 2**32, 2**62, 2**63 - 1, -(2**63), -(2**63) + 1])
NUMBERS = I64 | EDGES | st.integers(-100, 100)
SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, 2.0, -2.5, math.inf, -math.inf, math.nan,
           1e-42, -1e-42, 1e-38, 3e38, -3e38, 88.7, 1e9, 1e30]


def at(value, dtype=np.float32):
    return np.asarray(value, dtype)


def from_loops(expand, *arrays):
    """What the expansion into loop IR computes, statement by statement, with the primitives of NumPy."""
    k = loops.Builder()
    arguments = [loops.Var(f"arg{i}", NAMES[a.dtype]) for i, a in enumerate(arrays)]
    result = expand(k, *arguments)
    known = {v.name: a for v, a in zip(arguments, arrays, strict=True)}

    def value(e):
        match e:
            case loops.Const():
                return cast(e.value, e.dtype) if not isinstance(e.value, int) or e.dtype != "i64" else np.int64(e.value)
            case loops.Var():
                return known[e.name]
            case loops.Apply():
                args = [value(a) for a in e.args]
                got = np.asarray(PRIMITIVES[e.fn](*args))
                assert NAMES[got.dtype] == e.dtype, e
                return got
            case loops.Cast():
                return cast(value(e.value), e.dtype, e.mode)
            case loops.Select():
                assert e.then.dtype == e.other.dtype
                return np.where(value(e.condition), value(e.then), value(e.other))
        raise AssertionError(e)

    with np.errstate(all="ignore"):
        for s in k.body:
            assert isinstance(s, loops.Let)
            known[s.var] = value(s.value)
        return np.asarray(value(result))


@pytest.mark.parametrize("name", SCALARS)
def test_examples_hold(name):
    args, result = SCALARS[name].example
    arrays = [at(a, np.float32 if isinstance(a, float) else None) for a in args]
    got = SCALARS[name].ref(*arrays)
    assert got == result and got.dtype == at(result, np.float32 if isinstance(result, float) else None).dtype
    assert len(args) == SCALARS[name].arity


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", [n for n, s in SCALARS.items() if s.expand and s.operands in ("num", "float")])
def test_loop_ir_has_the_same_bits(name, dtype):
    scalar = SCALARS[name]
    rng = np.random.default_rng(1)
    columns = [np.array(SPECIAL * len(SPECIAL), dtype), np.repeat(np.array(SPECIAL, dtype), len(SPECIAL)),
               rng.normal(size=len(SPECIAL) ** 2).astype(dtype)][: scalar.arity]
    more = [(rng.normal(size=300) * 10.0 ** rng.integers(-5, 6, 300)).astype(dtype) for _ in columns]
    arrays = [np.concatenate(pair) for pair in zip(columns, more, strict=True)]
    want, got = scalar.ref(*arrays), from_loops(scalar.expand, *arrays)
    assert got.dtype == want.dtype
    np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(np.signbit(got[~np.isnan(got)]) if got.dtype != bool else got,
                                  np.signbit(want[~np.isnan(want)]) if want.dtype != bool else want)


@pytest.mark.parametrize("name", [n for n, s in SCALARS.items() if s.expand and s.operands in ("num", "int")])
@given(data=st.data())
def test_loop_ir_has_the_same_integers(name, data):
    scalar = SCALARS[name]
    arrays = [np.array([data.draw(NUMBERS)], np.int64) for _ in range(scalar.arity)]
    if name in ("floordiv", "mod") and arrays[1][0] == 0:
        return
    np.testing.assert_array_equal(from_loops(scalar.expand, *arrays), scalar.ref(*arrays))
    if scalar.overflow:
        np.testing.assert_array_equal(from_loops(scalar.overflow, *arrays), overflows(name, *arrays))


EXACT = {
    "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b, "floordiv": lambda a, b: a // b,
    "mod": lambda a, b: a % b, "neg": lambda a: -a, "abs": abs, "min": min, "max": max,
    "sign": lambda a: (a > 0) - (a < 0), "clamp": lambda x, a, b: min(max(x, a), b), "floor": lambda a: a,
    "bit_and": lambda a, b: a & b, "bit_or": lambda a, b: a | b, "bit_xor": lambda a, b: a ^ b, "relu": lambda a: max(a, 0),
}


@pytest.mark.parametrize("name", EXACT)
@given(data=st.data())
def test_integers_are_exact_or_overflow(name, data):
    numbers = [data.draw(NUMBERS) for _ in range(SCALARS[name].arity)]
    if name in ("floordiv", "mod") and numbers[1] == 0:
        return
    want = EXACT[name](*numbers)
    arrays = [np.int64(n) for n in numbers]
    assert bool(overflows(name, *arrays)) == (not -(2**63) <= want < 2**63)
    if -(2**63) <= want < 2**63:
        assert int(SCALARS[name].ref(*arrays)) == want


@given(a=NUMBERS | st.integers(-12, 12), b=st.integers(-3, 70))
def test_powers_and_shifts(a, b):
    for name, want, fine in (("pow", None if b < 0 else a**b, b >= 0), ("shift_left", None if b < 0 else a << b, b >= 0),
                             ("shift_right", None if b < 0 else a >> b, b >= 0)):
        fits = fine and -(2**63) <= want < 2**63
        assert bool(overflows(name, np.int64(a), np.int64(b))) == (not fits)
        if fits:
            assert int(SCALARS[name].ref(np.int64(a), np.int64(b))) == want


@given(a=NUMBERS, b=NUMBERS)
def test_upper_half_of_a_product(a, b):
    product = (a % 2**64) * (b % 2**64) >> 64
    assert int(PRIMITIVES["mulhi"](np.int64(a), np.int64(b))) % 2**64 == product


def test_min_and_max_let_nan_win_and_of_equals_take_the_second():
    low, high = SCALARS["min"].ref, SCALARS["max"].ref
    for f in (low, high):
        assert np.isnan(f(at(np.nan), at(1))) and np.isnan(f(at(1), at(np.nan)))
        assert np.signbit(f(at(0.0), at(-0.0))) and not np.signbit(f(at(-0.0), at(0.0)))


def test_division_of_integers_and_remainders_round_down():
    assert SCALARS["mod"].ref(at(-0.25), at(1.0)) == 0.75 and SCALARS["floordiv"].ref(at(-7.5), at(2.0)) == -4
    assert SCALARS["mod"].ref(np.int64(-(2**63)), np.int64(-1)) == 0


def test_halves_are_computed_in_f32_and_rounded_once():
    a = np.arange(0, 4, 0.01).astype(np.float16)
    want = (a.astype(np.float32) * a.astype(np.float32)).astype(np.float16)
    np.testing.assert_array_equal(SCALARS["mul"].ref(a, a), want)
    assert SCALARS["exp"].ref(a).dtype == np.float16


# --- casts --------------------------------------------------------------------------------------


def test_casts():
    f = at([-1.5, -0.5, 0.5, 1.5, 2.5, 254.5, 255.5, 1e9, np.nan, np.inf, -np.inf])
    assert cast(f, "u8", "round").tolist() == [0, 0, 0, 2, 2, 254, 255, 255, 0, 255, 0]
    assert cast(f, "i64", "truncate").tolist()[:6] == [-1, 0, 0, 1, 2, 254]
    assert cast(at([1e30, -1e30, np.nan]), "i64", "truncate").tolist() == [2**63 - 1, -(2**63), 0]
    assert cast(at([2.0**63, 2.0**64]), "u64", "round").tolist() == [2**63, 2**64 - 1]
    assert cast(np.array([-1, 300, 7]), "u8", "round").tolist() == [0, 255, 7]
    assert cast(np.array([2**63], np.uint64), "i64", "round").tolist() == [2**63 - 1]
    assert cast_overflows(np.array([2**63, 1], np.uint64), "i64").tolist() == [True, False]
    assert cast_overflows(np.array([255, 256, -1]), "u8").tolist() == [False, True, True]
    assert cast(np.array([True, False]), "f32").tolist() == [1.0, 0.0]
    assert cast(at([0.0, -0.0, 2.0, np.nan]), "bool").tolist() == [False, False, True, True]
    assert cast(at(1.0), "i64", "bits") == 0x3F800000 and cast(np.int64(0x3F800000), "f32", "bits") == 1.0


# --- accuracy -----------------------------------------------------------------------------------

mpmath.mp.prec = 160
# name: function, ranges (f32), ranges (f64), greatest error in ulp (f32, f64)
ONE = {
    "exp": (mpmath.exp, [(-103, 88.7), (-1, 1)], [(-745, 709.7), (-1, 1)], 1, 1),
    "exp2": (lambda x: mpmath.mpf(2) ** x, [(-149, 127.9), (-1, 1)], [(-1074, 1023.9), (-1, 1)], 1, 1),
    "expm1": (mpmath.expm1, [(-20, 88.7), (-1, 1), (-1e-4, 1e-4)], [(-40, 709.7), (-1, 1), (-1e-4, 1e-4)], 2, 2),
    "log": (mpmath.log, [(1e-45, 2), (0.9, 1.1), (1, 3e38), (1e-45, 1e-38)], [(1e-320, 2), (0.9, 1.1), (1, 1e308)], 1, 1),
    "log2": (lambda x: mpmath.log(x, 2), [(0.01, 2), (0.9, 1.1), (1, 3e38)], [(0.01, 2), (0.9, 1.1), (1, 1e308)], 2, 2),
    "log10": (mpmath.log10, [(0.01, 2), (0.9, 1.1), (1, 3e38)], [(0.01, 2), (0.9, 1.1), (1, 1e308)], 2, 2),
    "log1p": (lambda x: mpmath.log(1 + x), [(-0.999, 1), (-1e-3, 1e-3), (1, 3e38)],
              [(-0.999, 1), (-1e-3, 1e-3), (1, 1e308)], 1, 1),
    "sin": (mpmath.sin, [(-4, 4), (-1e4, 1e4), (-3e38, 3e38)], [(-4, 4), (-1e4, 1e4), (-1e308, 1e308)], 1.5, 2.5),
    "cos": (mpmath.cos, [(-4, 4), (-1e4, 1e4), (-3e38, 3e38)], [(-4, 4), (-1e4, 1e4), (-1e308, 1e308)], 1.5, 2.5),
    "tan": (mpmath.tan, [(-4, 4), (-1e4, 1e4), (-3e38, 3e38)], [(-4, 4), (-1e4, 1e4), (-1e308, 1e308)], 3, 4),
    "sinpi": (mpmath.sinpi, [(-4, 4), (-0.1, 0.1)], [(-4, 4), (-0.1, 0.1)], 2, 2),
    "cospi": (mpmath.cospi, [(-4, 4), (-0.1, 0.1)], [(-4, 4), (-0.1, 0.1)], 2, 2),
    "asin": (mpmath.asin, [(-1, 1), (-0.01, 0.01)], [(-1, 1), (-0.01, 0.01)], 2.5, 2.5),
    "acos": (mpmath.acos, [(-1, 1), (0.99, 1)], [(-1, 1), (0.99, 1)], 2.5, 2.5),
    "atan": (mpmath.atan, [(-10, 10), (-1, 1), (-3e38, 3e38)], [(-10, 10), (-1, 1), (-1e308, 1e308)], 2, 2),
    "sinh": (mpmath.sinh, [(-1, 1), (-89.4, 89.4)], [(-1, 1), (-710.4, 710.4)], 2.5, 2.5),
    "cosh": (mpmath.cosh, [(-1, 1), (-89.4, 89.4)], [(-1, 1), (-710.4, 710.4)], 2.5, 2.5),
    "tanh": (mpmath.tanh, [(-1, 1), (-10, 10)], [(-1, 1), (-20, 20)], 2.5, 2.5),
    "sigmoid": (lambda x: 1 / (1 + mpmath.exp(-x)), [(-1, 1), (-87, 87)], [(-1, 1), (-700, 700)], 2, 2),
    "erf": (mpmath.erf, [(-1, 1), (-4, 4)], [(-1, 1), (-6, 6)], 2.5, 2),
    "sqrt": (mpmath.sqrt, [(0, 5)], [(0, 5)], 0.5, 0.5),
    "rsqrt": (lambda x: 1 / mpmath.sqrt(x), [(0.001, 5)], [(0.001, 5)], 1.5, 1.5),
}
TWO = {
    "pow": (lambda a, b: a**b, [((0, 10), (-30, 30)), ((0.9, 1.1), (-500, 500))],
            [((0, 10), (-290, 290)), ((0.99, 1.01), (-5e3, 5e3))], 0.51, 5),
    "atan2": (mpmath.atan2, [((-1, 1), (-1, 1)), ((-1, 1), (-1e-3, 1e-3)), ((-3e38, 3e38), (-3e38, 3e38))],
              [((-1, 1), (-1, 1)), ((-1e308, 1e308), (-1e308, 1e308))], 2, 2),
    "hypot": (mpmath.hypot, [((-1, 1), (-1, 1)), ((0, 2e38), (0, 2e38))],
              [((-1, 1), (-1, 1)), ((0, 1e308), (0, 1e308))], 0.51, 2),
}


def worst_ulp(name, dtype, samples, seed=0):
    """The greatest error of a function over its ranges, in units of the last place of the true result."""
    exact, *ranges = ({k: v for k, v in ONE.items()} | TWO)[name][:3]
    rng = np.random.default_rng(seed)
    worst = 0.0
    for span in ranges[dtype == np.float64]:
        spans = [span] if name in ONE else span
        columns = [np.clip((low + (high - low) * rng.random(samples)), low, high).astype(dtype) for low, high in spans]
        for got, *args in zip(SCALARS[name].ref(*columns), *columns, strict=True):
            want = exact(*(mpmath.mpf(float(a)) for a in args))
            if isinstance(want, mpmath.mpc) or abs(want) > float(np.finfo(dtype).max):
                continue
            unit = max(float(np.spacing(dtype(abs(float(want))))), float(np.finfo(dtype).smallest_subnormal))
            worst = max(worst, float(abs(mpmath.mpf(float(got)) - want) / unit))
    return worst


@pytest.mark.parametrize("name", [*ONE, *TWO])
def test_accuracy(name):
    *_, single, double = (ONE | TWO)[name]
    assert worst_ulp(name, np.float32, 500) <= single
    assert worst_ulp(name, np.float64, 200) <= double


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_special_values(dtype):
    def f(name, *args):
        return float(SCALARS[name].ref(*(at(a, dtype) for a in args)))

    inf, nan = math.inf, math.nan
    table = {
        "exp": {-inf: 0, inf: inf, 1e9: inf, -1e9: 0}, "exp2": {-inf: 0, inf: inf, -1: 0.5},
        "expm1": {-inf: -1, inf: inf}, "log": {0: -inf, inf: inf}, "log2": {0: -inf, inf: inf, 1024: 10},
        "log10": {0: -inf, inf: inf, 1000: 3}, "log1p": {-1: -inf, inf: inf}, "tanh": {inf: 1, -inf: -1, 30: 1},
        "sinh": {inf: inf, -inf: -inf}, "cosh": {inf: inf, -inf: inf}, "sigmoid": {inf: 1, -inf: 0, 0: 0.5},
        "erf": {inf: 1, -inf: -1, 10: 1}, "atan": {inf: dtype(math.pi / 2), -inf: -dtype(math.pi / 2)},
        "sinpi": {0.5: 1, 1.5: -1}, "cospi": {0: 1, 0.5: 0, 1: -1}, "rsqrt": {0: inf, inf: 0},
        "asin": {1: dtype(math.pi / 2)}, "acos": {-1: dtype(math.pi), 1: 0},
    }
    for name, cases in table.items():
        for x, want in cases.items():
            assert f(name, x) == float(want), (name, x)
        assert math.isnan(f(name, nan)), name
    for name, xs in {"log": [-1, -inf], "log1p": [-2, -inf], "sin": [inf, -inf], "cos": [inf], "tan": [-inf], "asin": [1.5],
                     "acos": [-1.5], "sqrt": [-1], "sinpi": [inf]}.items():
        assert all(math.isnan(f(name, x)) for x in xs), name
    for name in ("expm1", "log1p", "sin", "tan", "asin", "atan", "sinh", "tanh", "erf", "sinpi", "sqrt", "round", "trunc"):
        assert math.copysign(1, f(name, -0.0)) == -1 and f(name, -0.0) == 0, name


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_pow_and_atan2_follow_c(dtype):
    values = [0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 3.0, -3.0, 0.5, -0.5, math.inf, -math.inf, math.nan]
    for a in values:
        for b in values:
            with np.errstate(all="ignore"):
                want = dtype(math.inf) if (a, b) == (-math.inf, 0.5) else np.power(dtype(a), dtype(b))
                angle = np.arctan2(dtype(a), dtype(b))
            power = SCALARS["pow"].ref(at(a, dtype), at(b, dtype))
            np.testing.assert_allclose(power, want, rtol=5e-16 if dtype == np.float64 else 1.2e-7, err_msg=f"{a} ^ {b}")
            assert np.isnan(power) or b == 0.5 or np.signbit(power) == np.signbit(want), (a, b)
            got = SCALARS["atan2"].ref(at(a, dtype), at(b, dtype))
            np.testing.assert_allclose(got, angle, rtol=5e-16 if dtype == np.float64 else 2.5e-7)
            assert np.isnan(got) or np.signbit(got) == np.signbit(angle), (a, b)


def test_whole_powers_of_small_numbers_are_exact():
    for dtype, bits in ((np.float32, 24), (np.float64, 53)):
        for a in range(-12, 13):
            for b in range(17):
                if abs(a) ** b < 2**bits:
                    assert SCALARS["pow"].ref(at(a, dtype), at(b, dtype)) == a**b


@pytest.mark.parametrize("name", [n for n, s in SCALARS.items() if s.interval and s.arity == 1])
def test_intervals_hold(name):
    rng = np.random.default_rng(2)
    xs = np.concatenate([SPECIAL, rng.normal(size=3000) * 10.0 ** rng.integers(-6, 9, 3000)]).astype(np.float32)
    xs = xs[~np.isnan(xs)]
    low, high = SCALARS[name].interval((float(xs.min()), float(xs.max())))
    got = SCALARS[name].ref(xs)
    got = got[~np.isnan(got)]
    assert got.min() >= low and got.max() <= high


def test_arrays_act_like_a_builder():
    assert ARRAYS.select(at([True, False], bool), at([1.0, 2.0]), 0).tolist() == [1.0, 0.0]
    assert ARRAYS.let(3).dtype == np.int64
