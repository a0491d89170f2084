"""Work on graphs that are deeper than Python usually goes: it is done again in a thread with a larger stack.

Most walks over values are recursive. A chain of some eighty lines, each computed from the one before, is too deep for Python's
own limit, so what ran into that is begun anew with room for more.
"""
from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

Result = TypeVar("Result")
FRAMES = 12_000         # Python's limit on calls within calls, in that thread: a chain of about 600 lines
STACK = 256 << 20       # bytes, of which only what is used becomes memory
_inside = threading.local()


def deep(work: Callable[[], Result]) -> Result:
    """What `work` returns or raises; RecursionError only where there is no end to it, or nearly. `work` may begin twice."""
    try:
        return work()
    except RecursionError:
        if getattr(_inside, "deep", False):
            raise
    done: Future[Result] = Future()
    before, size = sys.getrecursionlimit(), threading.stack_size(STACK)
    try:
        threading.Thread(target=_run, args=(work, done), daemon=True).start()
    finally:
        threading.stack_size(size)
    sys.setrecursionlimit(max(before, FRAMES))
    try:
        return done.result()
    finally:
        sys.setrecursionlimit(before)


def _run(work: Callable[[], Result], done: Future[Result]) -> None:
    _inside.deep = True
    try:
        done.set_result(work())
    except BaseException as error:
        done.set_exception(error)
