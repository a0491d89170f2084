"""The walk of `order.Permutation` over many positions at once, as machine code: same keys in, same indexes out.

A few lines of LLVM text, linked once per process; the NumPy form in `order` is what it is tested against.
"""
from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from typing import Any

ROUNDS = 10

_ROUND = """
  %t{r} = add i64 %right{p}, %key{r}
  %a{r} = lshr i64 %t{r}, 30
  %b{r} = xor i64 %t{r}, %a{r}
  %c{r} = mul i64 %b{r}, -4658895280553007687
  %d{r} = lshr i64 %c{r}, 27
  %e{r} = xor i64 %c{r}, %d{r}
  %f{r} = mul i64 %e{r}, -7723592293110705685
  %g{r} = lshr i64 %f{r}, 31
  %h{r} = xor i64 %f{r}, %g{r}
  %m{r} = and i64 %h{r}, %mask
  %right{r} = xor i64 %left{p}, %m{r}
  %left{r} = add i64 %right{p}, 0"""


def _text() -> str:
    keys = "".join(f"\n  %k{r} = getelementptr i64, ptr %keys, i64 {r - 1}\n  %key{r} = load i64, ptr %k{r}"
                   for r in range(1, ROUNDS + 1))
    rounds = "".join(_ROUND.format(r=r, p=r - 1) for r in range(1, ROUNDS + 1))
    return f"""
define void @pipec_permute(ptr noalias %out, ptr noalias %in, i64 %count, i64 %n, i64 %half, ptr noalias %keys) {{
entry:
  %one = shl i64 1, %half
  %mask = sub i64 %one, 1{keys}
  %some = icmp sgt i64 %count, 0
  br i1 %some, label %begin, label %done
begin:
  %i = phi i64 [ 0, %entry ], [ %next, %stored ]
  %from = getelementptr i64, ptr %in, i64 %i
  %start = load i64, ptr %from
  br label %walk
walk:
  %x = phi i64 [ %start, %begin ], [ %y, %walk ]
  %left0 = lshr i64 %x, %half
  %right0 = and i64 %x, %mask{rounds}
  %high = shl i64 %left{ROUNDS}, %half
  %y = or i64 %high, %right{ROUNDS}
  %inside = icmp ult i64 %y, %n
  br i1 %inside, label %stored, label %walk
stored:
  %to = getelementptr i64, ptr %out, i64 %i
  store i64 %y, ptr %to
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %count
  br i1 %more, label %begin, label %done
done:
  ret void
}}
"""


_linked: list[tuple[Callable[..., None], Any]] = []
_lock = threading.Lock()


def permute() -> Callable[..., None]:
    """`(out, in, count, n, half, keys)`: addresses and numbers; drops the GIL."""
    if not _linked:
        with _lock:
            if not _linked:
                _linked.append(_link())
    return _linked[0][0]


def _link() -> tuple[Callable[..., None], Any]:
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine(opt=3, reloc="pic")
    module = llvm.parse_assembly(_text())
    module.verify()
    builder = llvm.JITLibraryBuilder().add_object_img(machine.emit_object(module)).export_symbol("pipec_permute")
    library = builder.link(llvm.create_lljit_compiler(), "pipec_permute")
    word, pointer = ctypes.c_int64, ctypes.c_void_p
    call = ctypes.CFUNCTYPE(None, pointer, pointer, word, word, word, pointer)(library["pipec_permute"])
    return call, library
