"""Our loader of objects: it places what LLVM places, and refuses what it doesn't know or what isn't whole, without a crash."""
from __future__ import annotations

import ctypes
import os
import struct
import subprocess
import sys
from functools import cache
from typing import Any

import llvmlite.binding as llvm
import pytest
from pipec.runtime import elf, objects

# A table of constants, a jump table, calls outside: what kernels have.
TEXT = """
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
declare i64 @{outside}(i64)
@table = internal constant [8 x i64] [i64 3, i64 1, i64 4, i64 1, i64 5, i64 9, i64 2, i64 6]
define i64 @at(i64 %i) {{
  %m = and i64 %i, 7
  %p = getelementptr [8 x i64], ptr @table, i64 0, i64 %m
  %v = load i64, ptr %p
  ret i64 %v
}}
define double @scaled(double %x) {{
  %y = fmul double %x, 0x400921FB54442D18
  ret double %y
}}
define void @clear(ptr %p, i64 %n) {{
  call void @llvm.memset.p0.i64(ptr %p, i8 7, i64 %n, i1 false)
  ret void
}}
define i64 @choose(i64 %i, i64 %a) {{
  switch i64 %i, label %other [i64 0, label %l0 i64 1, label %l1 i64 2, label %l2 i64 3, label %l3 i64 4, label %l4]
l0:
  %r0 = add i64 %a, 17
  ret i64 %r0
l1:
  %r1 = mul i64 %a, 5
  ret i64 %r1
l2:
  %r2 = sub i64 100, %a
  ret i64 %r2
l3:
  %r3 = xor i64 %a, 255
  ret i64 %r3
l4:
  %r4 = shl i64 %a, 3
  ret i64 %r4
other:
  ret i64 {other}
}}
"""
NAMES = ("at", "scaled", "clear", "choose")
HERE = elf.MACHINES[os.uname().machine]


@cache
def made(triple: str = "", outside: str = "", data: str = "") -> bytes:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    machine = llvm.Target.from_triple(triple or llvm.get_process_triple()).create_target_machine(
        opt=2, reloc="pic", codemodel="default")
    text = TEXT.format(outside=outside or "abs", other="-1" if not outside else "%r5")
    if outside:
        text = text.replace("other:\n", f"other:\n  %r5 = call i64 @{outside}(i64 %a)\n")
    module = llvm.parse_assembly(text + data)
    module.triple = triple or llvm.get_process_triple()
    module.verify()
    return bytes(machine.emit_object(module))


def called(at: dict[str, int]) -> list[Any]:
    word = ctypes.c_int64
    one = ctypes.CFUNCTYPE(word, word)(at["at"])
    choose = ctypes.CFUNCTYPE(word, word, word)(at["choose"])
    scaled = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_double)(at["scaled"])
    memory = ctypes.create_string_buffer(b"x" * 1000, 1001)
    ctypes.CFUNCTYPE(None, ctypes.c_void_p, word)(at["clear"])(ctypes.addressof(memory), 900)
    return [[one(i) for i in range(8)], [choose(i, 9) for i in range(6)], scaled(2.0), memory.raw]


def test_it_does_what_was_written() -> None:
    table, chosen, scaled, memory = called(elf.load(made(), NAMES))
    assert table == [3, 1, 4, 1, 5, 9, 2, 6]
    assert chosen == [26, 45, 91, 246, 72, -1]
    assert scaled == 2 * 3.141592653589793
    assert memory == b"\7" * 900 + b"x" * 100 + b"\0"


def test_memory_is_never_writable_and_executable() -> None:
    at = elf.load(made(), NAMES)["at"]
    with open("/proc/self/maps") as maps:
        for line in maps:
            place, rights = line.split()[:2]
            first, last = (int(n, 16) for n in place.split("-"))
            if first <= at < last:
                assert rights == "r-xp"
                return
    raise AssertionError("not mapped")


@pytest.mark.parametrize("data", ["@counter = global i64 5\n", "@counter = common global i64 0\n",
                                  "@counter = thread_local global i64 3\n"], ids=["data", "common", "thread"])
def test_memory_that_changes_is_unfit(data: str) -> None:
    data += "define i64 @count() {\n  %v = load i64, ptr @counter\n  ret i64 %v\n}\n"
    with pytest.raises(elf.Unfit):
        elf.load(made(data=data), NAMES)


def test_functions_it_does_not_know_are_llvms() -> None:
    code = made(outside="labs")
    with pytest.raises(elf.Unfit, match="`labs`"):
        elf.load(code, NAMES)
    library, at = objects.placed("test_elf labs", code, NAMES)
    assert library is not None and called(at)[1][-1] == 9


@pytest.mark.parametrize(("names", "why"), [(("at", "nothing"), "nothing"), (("table",), "table")])
def test_names_that_are_no_functions(names: tuple[str, ...], why: str) -> None:
    with pytest.raises(elf.Unfit, match=why):
        elf.load(made(), names)


@pytest.mark.parametrize("triple", ["x86_64-pc-linux-gnu", "aarch64-unknown-linux-gnu"])
def test_objects_for_the_other_machine_are_refused(triple: str) -> None:
    ours = elf.X86 if triple.startswith("x86") else elf.ARM
    image = elf.laid_out(made(triple), NAMES, ours)
    assert len(set(image.at.values())) == len(NAMES)
    with pytest.raises(elf.Unfit, match="for this machine"):
        elf.laid_out(made(triple), NAMES, elf.X86 + elf.ARM - ours)


# Where a reference of aarch64 leads, read back from the instructions (Arm's manual, C6.2: ADD, ADRP, B, BL, LDR).


def _words(image: elf.Image) -> list[int]:
    return list(struct.unpack_from(f"<{len(image.content) // 4}I", image.content))


def test_what_aarch64_refers_to() -> None:
    image = elf.laid_out(made("aarch64-unknown-linux-gnu"), NAMES, elf.ARM)
    words = _words(image)
    table = image.content.index(struct.pack("<8q", 3, 1, 4, 1, 5, 9, 2, 6))
    pi = image.content.find(struct.pack("<d", 3.141592653589793))
    targets, pages = set(), {}
    for n, word in enumerate(words[: max(image.at.values()) // 4 + 40]):
        if word & 0x9F000000 == 0x90000000:                    # adrp
            away = (word >> 29 & 3) | (word >> 5 & 0x7FFFF) << 2
            pages[word & 31] = (4 * n // 4096 + (away ^ 1 << 20) - (1 << 20)) * 4096
        elif word & 0xFF800000 == 0x91000000 and word >> 5 & 31 in pages:   # add x, x, #low
            targets.add(pages[word >> 5 & 31] + (word >> 10 & 0xFFF))
        elif word & 0xFFC00000 == 0xFD400000 and word >> 5 & 31 in pages:   # ldr d, [x, #low]
            targets.add(pages[word >> 5 & 31] + 8 * (word >> 10 & 0xFFF))
    assert table in targets and (pi < 0 or pi in targets)
    calls = [4 * n + 4 * ((word & 0x3FFFFFF ^ 1 << 25) - (1 << 25)) for n, word in enumerate(words)
             if word & 0x7C000000 == 0x14000000]
    jump = image.content.index(elf.JUMPS[elf.ARM])
    assert jump in calls
    assert int.from_bytes(image.content[jump + 8 : jump + 16], "little") == ctypes.cast(elf.libc.memset, ctypes.c_void_p).value


DAMAGE = """
import random, sys
from pipec.runtime import elf
code, seed = open(sys.argv[1], "rb").read(), int(sys.argv[2])
names = sys.argv[4].split()
machine = int(sys.argv[3])
draw, refused = random.Random(seed), 0


def tried(damaged):
    global refused
    try:
        elf.laid_out(damaged, names, machine)
    except elf.Unfit:
        refused += 1


for n in range(len(code)):
    if n < 200 or n % 7 == 0:
        tried(code[:n])
at_least = refused
for n in range(len(code)):
    for value in (code[n] ^ 1 << draw.randrange(8), 255, draw.randrange(256)):
        tried(code[:n] + bytes([value]) + code[n + 1:])
for _ in range(2000):
    at, width = draw.randrange(len(code)), draw.choice((2, 4, 8))
    value = draw.choice((0, 1, -1, 1 << 31, 1 << 62, -(1 << 40), draw.randrange(1 << 16), len(code), len(code) - 1))
    tried(code[:at] + (value % (1 << 8 * width)).to_bytes(width, "little") + code[at + width:])
print(at_least, refused)
"""


@pytest.mark.parametrize("triple", ["x86_64-pc-linux-gnu", "aarch64-unknown-linux-gnu"])
def test_damaged_objects(tmp_path: Any, triple: str) -> None:
    """Whatever is wrong with an object is said so: no other exception, no crash, in bounded memory."""
    code = made(triple)
    (tmp_path / "object").write_bytes(code)
    machine = elf.X86 if "x86" in triple else elf.ARM
    done = subprocess.run([sys.executable, "-c", DAMAGE, str(tmp_path / "object"), "7", str(machine), " ".join(NAMES)],
                          capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    cut, refused = (int(n) for n in done.stdout.split())
    assert cut == len([n for n in range(len(code)) if n < 200 or n % 7 == 0]) and refused > cut + 500
