"""The walk of `order.Permutation` over many positions at once, as machine code: same keys in, same indexes out.

A few lines of LLVM text, linked once per process; the NumPy form in `order` is what it is tested against. Positions are
walked in groups, in vector registers: those that have left the range go on in the next round, closer together.
"""
from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from typing import Any

from .objects import functions

ROUNDS = 10
GROUP = 32   # positions: four vectors of AVX-512, whose multiplications don't wait for one another

_ROUND = """
  %t{r} = add <W x i64> %right{p}, %key{r}
  %a{r} = lshr <W x i64> %t{r}, %by30
  %b{r} = xor <W x i64> %t{r}, %a{r}
  %c{r} = mul <W x i64> %b{r}, %first
  %d{r} = lshr <W x i64> %c{r}, %by27
  %e{r} = xor <W x i64> %c{r}, %d{r}
  %f{r} = mul <W x i64> %e{r}, %second
  %g{r} = lshr <W x i64> %f{r}, %by31
  %h{r} = xor <W x i64> %f{r}, %g{r}
  %m{r} = and <W x i64> %h{r}, %mask
  %right{r} = xor <W x i64> %left{p}, %m{r}
  %left{r} = or <W x i64> %right{p}, zeroinitializer"""

_TEXT = """
define void @pipec_permute(ptr noalias %out, ptr noalias %places, i64 %count, i64 %n, i64 %half_1, ptr noalias %keys) {
entry:
  %group = alloca <W x i64>, align 64
  %bit = shl i64 1, %half_1
  %mask_1 = sub i64 %bit, 1CONSTANTS
  store <W x i64> zeroinitializer, ptr %group
  br label %round
round:
  %left = phi i64 [ %count, %entry ], [ %stay, %after ]
  %some = icmp sgt i64 %left, 0
  br i1 %some, label %take, label %done
take:
  %start = phi i64 [ 0, %round ], [ %further, %after ]
  %kept = phi i64 [ 0, %round ], [ %stay, %after ]
  %rest = sub i64 %left, %start
  %few = icmp slt i64 %rest, W
  %size = select i1 %few, i64 %rest, i64 W
  br label %gather
gather:
  %i = phi i64 [ 0, %take ], [ %i_next, %gather ]
  %i_from = add i64 %start, %i
  %i_at = getelementptr i64, ptr %places, i64 %i_from
  %i_place = load i64, ptr %i_at
  %i_value_at = getelementptr i64, ptr %out, i64 %i_place
  %i_value = load i64, ptr %i_value_at
  %i_lane = getelementptr i64, ptr %group, i64 %i
  store i64 %i_value, ptr %i_lane
  %i_next = add i64 %i, 1
  %i_more = icmp slt i64 %i_next, %size
  br i1 %i_more, label %gather, label %walk
walk:
  %x = load <W x i64>, ptr %group
  %left0 = lshr <W x i64> %x, %half
  %right0 = and <W x i64> %x, %maskROUNDS
  %high = shl <W x i64> %leftLAST, %half
  %y = or <W x i64> %high, %rightLAST
  store <W x i64> %y, ptr %group
  br label %scatter
scatter:
  %j = phi i64 [ 0, %walk ], [ %j_next, %scatter ]
  %stays = phi i64 [ %kept, %walk ], [ %stay, %scatter ]
  %j_from = add i64 %start, %j
  %j_at = getelementptr i64, ptr %places, i64 %j_from
  %j_place = load i64, ptr %j_at
  %j_lane = getelementptr i64, ptr %group, i64 %j
  %j_value = load i64, ptr %j_lane
  %j_value_at = getelementptr i64, ptr %out, i64 %j_place
  store i64 %j_value, ptr %j_value_at
  %j_again = getelementptr i64, ptr %places, i64 %stays
  store i64 %j_place, ptr %j_again
  %outside = icmp uge i64 %j_value, %n
  %one_more = zext i1 %outside to i64
  %stay = add i64 %stays, %one_more
  %j_next = add i64 %j, 1
  %j_more = icmp slt i64 %j_next, %size
  br i1 %j_more, label %scatter, label %after
after:
  %further = add i64 %start, W
  %more = icmp slt i64 %further, %left
  br i1 %more, label %take, label %round
done:
  ret void
}
"""


def _splat(name: str, value: str) -> str:
    return (f"\n  %{name}_s = insertelement <W x i64> undef, i64 {value}, i32 0"
            f"\n  %{name} = shufflevector <W x i64> %{name}_s, <W x i64> undef, <W x i32> zeroinitializer")


def _text() -> str:
    constants = "".join(_splat(name, value) for name, value in (
        ("half", "%half_1"), ("mask", "%mask_1"), ("by30", "30"), ("by27", "27"), ("by31", "31"),
        ("first", "-4658895280553007687"), ("second", "-7723592293110705685")))
    for r in range(1, ROUNDS + 1):
        constants += f"\n  %k{r} = getelementptr i64, ptr %keys, i64 {r - 1}\n  %key{r}_1 = load i64, ptr %k{r}"
        constants += _splat(f"key{r}", f"%key{r}_1")
    rounds = "".join(_ROUND.format(r=r, p=r - 1) for r in range(1, ROUNDS + 1))
    text = _TEXT.replace("CONSTANTS", constants).replace("ROUNDS", rounds).replace("LAST", str(ROUNDS))
    return text.replace("<W x", f"<{GROUP} x").replace(" W\n", f" {GROUP}\n")


_linked: list[tuple[Callable[..., None], Any]] = []
_lock = threading.Lock()


def permute() -> Callable[..., None]:
    """`(out, places, count, n, half, keys)`: addresses and numbers; drops the GIL.

    `out` holds positions that become indexes; `places` the numbers 0 … count - 1, written over.
    """
    if not _linked:
        with _lock:
            if not _linked:
                _linked.append(_link())
    return _linked[0][0]


def _link() -> tuple[Callable[..., None], Any]:
    library, at = functions(_text(), ("pipec_permute",))
    word, pointer = ctypes.c_int64, ctypes.c_void_p
    call = ctypes.CFUNCTYPE(None, pointer, pointer, word, word, word, pointer)(at["pipec_permute"])
    return call, library
