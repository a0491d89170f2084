"""Loop IR that weights rows of memory, and turns sixteen rows into columns and back; every loop becomes vector code.

All of it reads and writes memory in order, for which there are vector instructions on every machine.
"""
from __future__ import annotations

from typing import Any

BLOCK, FOUR = 16, 4     # rows that are turned together: FOUR × FOUR


def weigh(k: Any, into: Any, at: Any, length: Any, source: Any, begin: Any, step: Any, weights: Any, i: Any,
          count: Any) -> None:
    """into[at + t] = the weighted sum over taps n of source[begin + n × step + t], for t < length.

    Two taps go at once, always added from the first to the last, so that sums are stored half as often.
    """
    at, begin, count = k.let(at, "at"), k.let(begin, "begin"), k.let(count, "count")

    def add(n: Any, group: int, fresh: bool) -> None:
        w = [k.let(weights[i, n + g], "w") for g in range(group)]
        place = [k.let(begin + (n + g) * step, "there") for g in range(group)]
        with k.loop(length, "t") as t:
            terms = [w[g] * as_f32(k, source, place[g] + t) for g in range(group)]
            total = terms[0] if fresh else into.at(at + t) + terms[0]
            for term in terms[1:]:
                total = total + term
            k.put(into, at + t, total)

    done = k.let(2, "done")
    with k.when(count >= 2):
        add(k.let(0, "n"), 2, True)
    with k.otherwise():
        add(k.let(0, "n"), 1, True)
        k.set(done, 1)
    with k.loop((count - done) // 2, "pair", usual=1) as pair:
        add(done + pair * 2, 2, False)
    with k.when(((count - done) % 2).eq(1)):
        add(count - 1, 1, False)


def element(source: Any, position: Any) -> Any:
    """An element in its own dtype; by way of i64 a conversion wouldn't become one vector instruction."""
    loaded = source.at(position)
    return getattr(loaded, "value", loaded)


def as_f32(k: Any, source: Any, position: Any) -> Any:
    return k.cast(element(source, position), "f32")


def interleave(k: Any, into: Any, at: Any, source: Any, count: Any) -> None:
    """Four parts of `source`, `count` elements each, one element of each in turn. Done twice to sixteen rows that lie one
    after the other it turns them: their columns lie one after the other then.
    """
    at = k.let(at, "at")
    with k.loop(count, "t") as t:
        for part in range(FOUR):
            k.put(into, at + (t * FOUR + part), element(source, t + count * part))


def apart(k: Any, into: Any, source: Any, count: Any) -> None:
    """The opposite of `interleave`: twice done, columns become rows."""
    count = k.let(count, "count")
    with k.loop(count, "t") as t:
        for part in range(FOUR):
            k.put(into, t + count * part, element(source, t * FOUR + part))
