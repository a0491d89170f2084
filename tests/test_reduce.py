"""Reductions: the order of the lanes, identities, NaN and overflow."""
from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pipec.kernels.reduce import identity, reference
from pipec.kernels.scalar import NUMPY


def by_hand(values):
    """The sum as the header of kernels/reduce.py says it, one number at a time."""
    lane = [values.dtype.type(0)] * 16
    for k, v in enumerate(values):
        lane[k % 16] += v
    for half in (8, 4, 2, 1):
        for j in range(half):
            lane[j] += lane[j + half]
    return lane[0]


@pytest.mark.parametrize("count", [0, 1, 15, 16, 17, 100, 1003])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_sums_keep_the_order_of_the_lanes(count, dtype):
    values = np.random.default_rng(count).normal(size=(3, count)).astype(dtype)
    got, bad = reference("sum", values)
    assert got.dtype == dtype and got.tolist() == [by_hand(v) for v in values] and not bad.any()


def test_of_nothing():
    empty, none = np.zeros((2, 0)), np.zeros((2, 0), bool)
    assert reference("sum", empty)[0].tolist() == [0, 0] and reference("prod", empty)[0].tolist() == [1, 1]
    assert reference("any", none)[0].tolist() == [False, False] and reference("all", none)[0].tolist() == [True, True]
    for kind in ("min", "max", "argmax", "argmin"):
        assert reference(kind, empty)[1].tolist() == [True, True]
    assert reference("first", none)[1].tolist() == [True, True]


def test_places_are_the_first_of_equals_and_nan_wins():
    values = np.array([[1, 3, 3, 0, 0], [2, np.nan, 9, np.nan, 0]])
    assert reference("argmax", values)[0].tolist() == [1, 1] and reference("argmin", values)[0].tolist() == [3, 1]
    assert np.isnan(reference("max", values)[0][1]) and np.isnan(reference("min", values)[0][1])
    first, none = reference("first", np.array([[False, True, True], [False, False, False]]))
    assert first[0] == 1 and none.tolist() == [False, True]


@given(st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(-9, 9), max_size=40))
def test_integers_are_exact_or_reported(values):
    for kind, exact in (("sum", sum(values)), ("prod", int(np.prod(np.array(values, object))) if values else 1)):
        got, bad = reference(kind, np.array(values, np.int64))
        if not bad:
            assert int(got) == exact
        if not -(2**63) <= exact < 2**63:
            assert bad


def test_halves_round_once():
    values = np.full(3000, 0.1, np.float16)
    got, _ = reference("sum", values)
    assert got.dtype == np.float16 and got == np.float16(by_hand(values.astype(np.float32)))
    assert reference("max", values.astype(NUMPY["bf16"]))[0].dtype == NUMPY["bf16"]


def test_identities():
    assert identity("sum", "i64") == 0 and isinstance(identity("sum", "f32"), float) and identity("all", "bool") is True
    assert identity("min", "i64") == 2**63 - 1 and identity("max", "f64") == -np.inf
