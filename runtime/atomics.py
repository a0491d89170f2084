"""Machine words read and written with sequentially consistent order, and pages made private by a touch.

In: addresses of shared memory. The three functions are a few lines of LLVM text, linked once per process.
"""
from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

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
"""


class Atomics(NamedTuple):
    """`store` is followed by a full fence, so a load after it is never older: both sides of a wake-up need that."""

    load: Callable[[int], int]
    store: Callable[[int, int], None]
    touch: Callable[[int, int, int, int], None]
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
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine(opt=2, reloc="pic")
    module = llvm.parse_assembly(TEXT)
    module.verify()
    builder = llvm.JITLibraryBuilder().add_object_img(machine.emit_object(module))
    for name in ("pipec_load", "pipec_store", "pipec_touch"):
        builder.export_symbol(name)
    library = builder.link(llvm.create_lljit_compiler(), "pipec_atomics")
    word, pointer = ctypes.c_int64, ctypes.c_void_p
    return Atomics(
        ctypes.PYFUNCTYPE(word, pointer)(library["pipec_load"]),
        ctypes.PYFUNCTYPE(None, pointer, word)(library["pipec_store"]),
        ctypes.CFUNCTYPE(None, pointer, word, word, ctypes.c_int8)(library["pipec_touch"]),
        library,
    )
