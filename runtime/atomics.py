"""Machine words read and written with sequentially consistent order, and pages made private by a touch.

In: addresses of shared memory. The functions are a few lines of LLVM text, linked once per process. Those that a reader
calls for every batch do all that one moment asks for, since each call from Python costs more than what it does.
"""
from __future__ import annotations

import ctypes
import re
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

from .layout import ENDS, HEAD, HEAP_WANTED, HOLDER, POSITION, RELEASED, ROOM_WANTED, RUN, SINCE, TAKEN, WAITED, WANTED
from .objects import functions

WAKE_ROOM, WAKE_HEAP = 1, 2            # bits of what `publish` returns
TEXT = """
define i64 @pipec_load(ptr %p) {
  %v = load atomic i64, ptr %p seq_cst, align 8
  ret i64 %v
}
define void @pipec_store(ptr %p, i64 %v) {
  store atomic i64 %v, ptr %p seq_cst, align 8
  fence seq_cst
  ret void
}
define void @pipec_touch(ptr %start, i64 %count, i64 %step, i8 %nothing) {
entry:
  %any = icmp sgt i64 %count, 0
  br i1 %any, label %loop, label %out
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
  %at = mul i64 %i, %step
  %p = getelementptr i8, ptr %start, i64 %at
  %old = atomicrmw volatile add ptr %p, i8 %nothing seq_cst
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %count
  br i1 %more, label %loop, label %out
out:
  ret void
}
define i64 @pipec_there(ptr %header, i64 %run, i64 %ends) {
  %ends_at = getelementptr i8, ptr %header, i64 ENDS
  %head_at = getelementptr i8, ptr %header, i64 HEAD
  %run_at = getelementptr i8, ptr %header, i64 RUN
  %e = load atomic i64, ptr %ends_at seq_cst, align 8
  %h = load atomic i64, ptr %head_at seq_cst, align 8
  %r = load atomic i64, ptr %run_at seq_cst, align 8
  %same_ends = icmp eq i64 %e, %ends
  %same_run = icmp eq i64 %r, %run
  %same = and i1 %same_ends, %same_run
  %found = select i1 %same, i64 %h, i64 -1
  ret i64 %found
}
define i64 @pipec_publish(ptr %header, ptr %page, i64 %position, i64 %released, i64 %number) {
  %position_at = getelementptr i8, ptr %page, i64 POSITION
  %released_at = getelementptr i8, ptr %page, i64 RELEASED
  %room_at = getelementptr i8, ptr %header, i64 ROOM_WANTED
  %holder_at = getelementptr i8, ptr %header, i64 HOLDER
  %heap_at = getelementptr i8, ptr %header, i64 HEAP_WANTED
  store atomic i64 %position, ptr %position_at release, align 8
  store atomic i64 %released, ptr %released_at release, align 8
  fence seq_cst
  %room = load atomic i64, ptr %room_at seq_cst, align 8
  %holder = load atomic i64, ptr %holder_at seq_cst, align 8
  %heap = load atomic i64, ptr %heap_at seq_cst, align 8
  %asked = icmp ne i64 %room, 0
  %passed = icmp sge i64 %released, %room
  %anybody = icmp eq i64 %holder, 0
  %me = icmp eq i64 %holder, %number
  %mine = or i1 %anybody, %me
  %due = and i1 %asked, %passed
  %room_due = and i1 %due, %mine
  %heap_due = icmp ne i64 %heap, 0
  %room_bit = zext i1 %room_due to i64
  %heap_one = zext i1 %heap_due to i64
  %heap_bit = shl i64 %heap_one, 1
  %bits = or i64 %room_bit, %heap_bit
  ret i64 %bits
}
define void @pipec_took(ptr %page, i64 %position, i64 %taken) {
  %position_at = getelementptr i8, ptr %page, i64 POSITION
  %taken_at = getelementptr i8, ptr %page, i64 TAKEN
  store atomic i64 %position, ptr %position_at release, align 8
  store atomic i64 %taken, ptr %taken_at release, align 8
  ret void
}
define void @pipec_sleeps(ptr %page, i64 %wanted, i64 %since) {
  %wanted_at = getelementptr i8, ptr %page, i64 WANTED
  %since_at = getelementptr i8, ptr %page, i64 SINCE
  store atomic i64 %since, ptr %since_at release, align 8
  store atomic i64 %wanted, ptr %wanted_at seq_cst, align 8
  fence seq_cst
  ret void
}
define void @pipec_wakes(ptr %page, i64 %waited) {
  %wanted_at = getelementptr i8, ptr %page, i64 WANTED
  %since_at = getelementptr i8, ptr %page, i64 SINCE
  %waited_at = getelementptr i8, ptr %page, i64 WAITED
  store atomic i64 0, ptr %wanted_at release, align 8
  store atomic i64 0, ptr %since_at release, align 8
  store atomic i64 %waited, ptr %waited_at release, align 8
  ret void
}
"""
OFFSETS = {"ENDS": ENDS, "HEAD": HEAD, "RUN": RUN, "ROOM_WANTED": ROOM_WANTED, "HOLDER": HOLDER, "HEAP_WANTED": HEAP_WANTED,
           "POSITION": POSITION, "RELEASED": RELEASED, "TAKEN": TAKEN, "WANTED": WANTED, "SINCE": SINCE, "WAITED": WAITED}


class Atomics(NamedTuple):
    """`store` is followed by a full fence, so a load after it is never older: both sides of a wake-up need that.

    The others are a reader's, of the ring's header and its own page, see `layout`. `there(header, run, ends)`: the head, -1
    where the run or the number of ended epochs is another. `publish(header, page, position, released, number)`: says which
    rows are free; WAKE_ROOM and WAKE_HEAP: the producer waits for just that. `took(page, position, taken)` counts,
    `sleeps(page, wanted, since)` asks to be woken, `wakes(page, waited)` no longer does.
    """

    load: Callable[[int], int]
    store: Callable[[int, int], None]
    touch: Callable[[int, int, int, int], None]
    there: Callable[[int, int, int], int]
    publish: Callable[[int, int, int, int, int], int]
    took: Callable[[int, int, int], None]
    sleeps: Callable[[int, int, int], None]
    wakes: Callable[[int, int], None]
    keep: Any


_linked: list[Atomics] = []
_lock = threading.Lock()


def atomics() -> Atomics:
    """The functions, linked at the first call and never unloaded."""
    if not _linked:
        with _lock:
            if not _linked:
                _linked.append(_link())
    return _linked[0]


def _link() -> Atomics:
    """Tiny functions keep the GIL (dropping and retaking it costs more than they do), `touch` drops it.

    `touch` adds a number, zero, that the compiler can't see to be zero: an addition of a constant zero would be
    turned into a load, and the page would stay shared.
    """
    text = re.sub(r"(?<=i64 )[A-Z_]+(?=\n)", lambda name: str(OFFSETS[name[0]]), TEXT)
    library, at = functions(text, [f"pipec_{name}" for name in Atomics._fields[:-1]])
    word, pointer = ctypes.c_int64, ctypes.c_void_p

    def quick(name: str, result: Any, *takes: Any) -> Any:
        return ctypes.PYFUNCTYPE(result, *takes)(at[f"pipec_{name}"])

    return Atomics(
        quick("load", word, pointer), quick("store", None, pointer, word),
        ctypes.CFUNCTYPE(None, pointer, word, word, ctypes.c_int8)(at["pipec_touch"]),
        quick("there", word, pointer, word, word), quick("publish", word, pointer, pointer, word, word, word),
        quick("took", None, pointer, word, word), quick("sleeps", None, pointer, word, word),
        quick("wakes", None, pointer, word), library)
