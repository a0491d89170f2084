"""Orders are permutations, computed anywhere, the same for any chunking."""
from collections import Counter
from math import factorial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pipec.runtime.order import Balanced, Chunked, InOrder, Permutation, Repeated, Shuffled, Taken, Windowed, child_ids, key

SIZES = (1, 2, 3, 5, 100, 9_999, 10_000, 10_001, 65_536, 70_003)


@pytest.mark.parametrize("n", SIZES)
def test_a_permutation_and_its_inverse(n):
    p = Permutation(n, key(1, 0, "train/shuffle"))
    there = p[np.arange(n)]
    assert (np.sort(there) == np.arange(n)).all()
    assert (p.inverse(there) == np.arange(n)).all()


def test_small_permutations_are_uniform():
    counts = Counter(tuple(Permutation(4, key(k, 0, "x"))[np.arange(4)]) for k in range(6_000))
    assert len(counts) == factorial(4)
    expected = 6_000 / factorial(4)
    assert sum((c - expected) ** 2 / expected for c in counts.values()) < 50   # chi square, 23 degrees of freedom


def test_large_permutations_leave_no_pattern():
    n = 100_003
    there = Permutation(n, 12345)[np.arange(n)]
    assert abs(np.corrcoef(np.arange(n), there)[0, 1]) < 0.02
    assert (np.abs(np.diff(there)) <= 1).mean() < 1e-3


def test_seed_epoch_and_path_change_the_order():
    orders = {tuple(Permutation(50, key(*k))[np.arange(50)]) for k in ((1, 0, "a"), (2, 0, "a"), (1, 1, "a"), (1, 0, "b"))}
    assert len(orders) == 4


@given(st.integers(1, 3_000), st.integers(1, 200), st.integers(1, 20), st.integers(0, 2**64 - 1))
@settings(max_examples=60, deadline=None)
def test_chunked_and_windowed_are_permutations_for_any_split(n, chunk, mix, k):
    for order in (Chunked(InOrder(n), chunk, mix, k), Windowed(InOrder(n), chunk, k)):
        whole, _ = order.at(np.arange(n))
        assert (np.sort(whole) == np.arange(n)).all()
        parts = [order.at(np.arange(a, min(a + 37, n)))[0] for a in range(0, n, 37)]
        assert (np.concatenate(parts) == whole).all()


def test_windows_stay_in_their_block():
    whole, _ = Windowed(InOrder(1_000), 100, 7).at(np.arange(1_000))
    assert (whole // 100 == np.arange(1_000) // 100).all()


def test_chunks_stay_together():
    whole, _ = Chunked(InOrder(4_096), 64, 1, 7).at(np.arange(4_096))
    assert all(len(set(whole[a : a + 64] // 64)) == 1 for a in range(0, 4_096, 64))


def test_repeat_gives_every_turn_an_id_of_its_own():
    order = Repeated(Shuffled(InOrder(10), Permutation(10, 3)), 3)
    indexes, turns = order.at(np.arange(30))
    assert Counter(indexes.tolist()) == Counter({i: 3 for i in range(10)})
    ids = child_ids(indexes.astype(np.uint64), turns)
    assert len(set(ids.tolist())) == 30
    assert set(ids[:10].tolist()) == set(range(10))   # the first turn keeps the record's own id


def test_take_ends():
    assert Taken(InOrder(10), 4).length == 4
    assert Taken(InOrder(10), 40).length == 10


def test_balance_gives_every_value_its_turn():
    values = [0] * 90 + [1] * 9 + [2]
    indexes, turns = Balanced(InOrder(100), values).at(np.arange(100))
    counts = Counter(values[i] for i in indexes)
    assert max(counts.values()) - min(counts.values()) <= 1
    assert len({(i, t) for i, t in zip(indexes.tolist(), turns.tolist())}) == 100


def test_a_billion_records_take_no_memory():
    p = Permutation(10**9, 5)
    assert ((p[np.arange(1000)] >= 0) & (p[np.arange(1000)] < 10**9)).all()
    assert p.table is None
