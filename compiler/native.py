"""Kernels to machine code: loop IR goes in, verified objects lie in the compile cache afterwards.

A kernel's text goes through Numba, gets the loop over records around it and becomes a relocatable object for this CPU.
Numba is imported only when there is something to compile.
"""
from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from ..runtime import caches, objects
from ..runtime.plan import KernelText
from .deep import deep
from .emit_numba import kernel_text
from .inward import inward
from .loops import Kernel
from .optimise import Beside, object_of

# Every record whose status is 0 on entry; -1 (too little memory) ends the kernel.
LOOP = """
define void @{symbol}(i64 %n, i64 %table, i64 %status, i64 %arena) {{
entry:
  %statuses = inttoptr i64 %status to i64*
  %some = icmp sgt i64 %n, 0
  br i1 %some, label %loop, label %done
loop:
  %r = phi i64 [ 0, %entry ], [ %next, %again ]
  %place = getelementptr i64, i64* %statuses, i64 %r
  %before = load i64, i64* %place
  %active = icmp eq i64 %before, 0
  br i1 %active, label %work, label %again
work:
  %offset = mul i64 %r, {stride}
  %row = add i64 %table, %offset
  %now = call i64 @{record}(i64 %row, i64 %arena)
  store i64 %now, i64* %place
  %short = icmp eq i64 %now, -1
  br i1 %short, label %done, label %again
again:
  %next = add i64 %r, 1
  %more = icmp slt i64 %next, %n
  br i1 %more, label %loop, label %done
done:
  ret void
}}
"""


def ir_of(kernel: Kernel, symbol: str) -> str:
    """The LLVM module of a kernel; `symbol` is the only name in it that is visible."""
    from .through_numba import module_text

    record: str = module_text(kernel_text(kernel), symbol)
    return record + LOOP.format(record=f"{symbol}_record", symbol=symbol, stride=8 * len(kernel.arguments))


def object_code(kernel: Kernel, symbol: str) -> bytes:
    """The relocatable object of a kernel."""
    return object_of(ir_of(kernel, symbol))


def build(kernels: Sequence[Kernel]) -> list[KernelText]:
    """Texts of the kernels; afterwards the cache holds an object for each."""
    return deep(partial(_build, kernels))


def _build(kernels: Sequence[Kernel]) -> list[KernelText]:
    texts, kernels = [], [inward(k) for k in kernels]
    for kernel in kernels:
        text = kernel_text(kernel)
        texts.append(KernelText(kernel.name, text, objects.key_of(text)))
    missing = {t.key: (k, t) for k, t in zip(kernels, texts, strict=True) if not objects.holds(t.key)}
    _compile([(k, t) for k, t in missing.values()])
    caches.bound()
    return texts


def _compile(missing: list[tuple[Kernel, KernelText]]) -> None:
    """Put an object of each into the cache. Long ones come first, so that little is left to wait for."""
    if len(missing) < 2:
        for kernel, text in missing:
            objects.store(text.key, object_code(kernel, objects.symbol_of(text.text)))
        return
    missing.sort(key=lambda both: len(both[1].text), reverse=True)
    beside = Beside()
    try:
        modules = []
        for kernel, text in missing:
            modules.append(ir_of(kernel, objects.symbol_of(text.text)))
            beside.send(modules[-1])
        for (_, text), module in zip(missing, modules, strict=True):
            objects.store(text.key, beside.receive(module))
    finally:
        beside.close()
