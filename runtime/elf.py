"""Relocatable ELF objects of kernels into memory that runs: bytes go in, addresses of functions come out, without LLVM.

Only what kernels are made of is known: code and constants, references between them, calls of a few memory functions. An
object with anything else, or that isn't whole, is `Unfit`, and LLVM may link it. What is laid out doesn't depend on where it
comes to lie: it is written into fresh pages, which then become readable and executable, and never writable again.
The format: System V ABI, chapter 4, and the processors' supplements.
"""
from __future__ import annotations

import ctypes
import mmap
import os
import struct
from collections.abc import Sequence
from typing import NamedTuple

LARGEST = 64 << 20                     # bytes laid out
MOST = 1 << 20                         # symbols, and relocations of a section
PAGE = 4096                            # what aarch64's `adrp` counts in; pages of memory are this size or a multiple
X86, ARM = 62, 183
MACHINES = {"x86_64": X86, "aarch64": ARM}
HEADER, SECTION = struct.Struct("<16sHHIQQQIHHHHHH"), struct.Struct("<IIQQQQIIQQ")
SYMBOL, RELOCATION = struct.Struct("<IBBHQQ"), struct.Struct("<QQq")
IDENT = b"\x7fELF\x02\x01\x01"         # 64 bits, little-endian, version 1
NULL, CONTENT, SYMBOLS, STRINGS, RELOCATIONS, NOTE, UNWIND, ADDRESSES = 0, 1, 2, 3, 4, 7, 0x70000001, 0x6FFF4C03
PASSED_OVER = (NULL, STRINGS, NOTE, UNWIND, ADDRESSES)
LAID, RUNS, PLAIN = 0x2, 0x4, 0x2 | 0x4 | 0x10 | 0x20   # flags: in memory, code; with those of constants that may be merged
OUTSIDE = ("memset", "memcpy", "memmove", "memcmp", "bcmp")   # of the C library
# A call of one of them goes by way of a jump to the address behind it, since it may lie further than a call reaches.
JUMPS = {X86: b"\xff\x25\x02\0\0\0\x0f\x0b", ARM: b"\x50\0\0\x58\0\x02\x1f\xd6"}   # jmp [rip+2]; ldr x16, 8 and br x16
PC32, PLT32 = 2, 4
PREL32, ADR_PAGE, ADD_LOW, JUMP26, CALL26 = 261, 275, 277, 282, 283
LOAD_LOW = {278: 0, 284: 1, 285: 2, 286: 3, 299: 4}      # the low 12 bits, counted in 1 << n bytes
CALLS = {X86: (PC32, PLT32), ARM: (JUMP26, CALL26)}

libc = ctypes.CDLL(None, use_errno=True)
libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


class Unfit(Exception):
    """This object can't be loaded here."""


class Section(NamedTuple):
    kind: int
    flags: int
    offset: int
    size: int
    link: int
    about: int
    step: int
    entry: int

    @property
    def laid(self) -> bool:
        return bool(self.flags & LAID) and self.kind == CONTENT


class Symbol(NamedTuple):
    name: int
    info: int
    section: int
    value: int


class Image(NamedTuple):
    """Code and constants as they are to lie at the start of a page; `at`: offset of each function asked for."""

    content: bytearray
    at: dict[str, int]


def laid_out(code: bytes, names: Sequence[str], machine: int) -> Image:
    """An object for `machine` (X86 or ARM), its references put in. Raises Unfit."""
    sections = _sections(code, machine)
    content, bases = _contents(code, sections)
    tables = [s for s in sections if s.kind == SYMBOLS]
    if len(tables) != 1:
        raise Unfit("not one table of symbols")
    symbols, texts = _symbols(code, tables[0]), _strings(code, sections, tables[0].link)
    jumps: dict[int, int] = {}
    for section in sections:
        if section.kind == RELOCATIONS and _at(sections, section.about).laid:
            if _at(sections, section.link) is not tables[0]:
                raise Unfit("relocations by another table of symbols")
            _relocate(code, section, sections, symbols, texts, content, bases, jumps, machine)
    found = {}
    for symbol in symbols:
        if symbol.info == 0x12 and (name := _name(texts, symbol.name)) in names:   # global functions
            section = _at(sections, symbol.section)
            if name in found or not section.laid or not section.flags & RUNS or symbol.value >= section.size:
                raise Unfit(f"`{name}` isn't one function")
            found[name] = bases[symbol.section] + symbol.value
    if set(found) != set(names):
        raise Unfit("lacks " + ", ".join(sorted(set(names) - set(found))))
    return Image(content, found)


def load(code: bytes, names: Sequence[str]) -> dict[str, int]:
    """Addresses of these functions of an object that is trusted; they stay for the life of the process. Raises Unfit."""
    machine = MACHINES.get(os.uname().machine)
    if machine is None:
        raise Unfit("for processors that aren't known")
    content, at = laid_out(code, names, machine)
    size = -(-len(content) // mmap.PAGESIZE) * mmap.PAGESIZE
    try:
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise Unfit(f"no memory: {error}") from error
    memory[:len(content)] = bytes(content)
    first = ctypes.c_char.from_buffer(memory)
    address = ctypes.addressof(first)
    if libc.mprotect(address, size, mmap.PROT_READ | mmap.PROT_EXEC) != 0:
        raise Unfit(f"memory can't be made executable: {os.strerror(ctypes.get_errno())}")
    if machine == ARM:
        _see_code(address, size)
    _kept.append(first)
    return {name: address + offset for name, offset in at.items()}


_kept: list[object] = []


def _see_code(address: int, size: int) -> None:
    """Have the processor's instruction cache look at what was written."""
    try:
        clear = ctypes.CDLL("libgcc_s.so.1").__clear_cache
    except (OSError, AttributeError) as error:
        raise Unfit("no way to clear the cache of instructions") from error
    clear(ctypes.c_void_p(address), ctypes.c_void_p(address + size))


# --- reading ---


def _part(code: bytes, offset: int, size: int) -> bytes:
    if offset + size > len(code):
        raise Unfit("cut short")
    return code[offset : offset + size]


def _sections(code: bytes, machine: int) -> list[Section]:
    ident, kind, made_for, _, _, _, start, _, _, _, _, each, count, _ = HEADER.unpack(_part(code, 0, HEADER.size))
    if not ident.startswith(IDENT) or kind != 1 or made_for != machine or each != SECTION.size:
        raise Unfit("not a relocatable object for this machine")
    found = []
    for _, kind, flags, _, offset, size, link, about, step, entry in SECTION.iter_unpack(_part(code, start, each * count)):
        section = Section(kind, flags, offset, size, link, about, step, entry)
        if flags & LAID and (kind != UNWIND and (kind != CONTENT or flags & ~PLAIN)):
            raise Unfit(f"a section of kind {kind:#x} with flags {flags:#x}")
        if not flags & LAID and kind not in (CONTENT, SYMBOLS, RELOCATIONS, *PASSED_OVER):
            raise Unfit(f"a section of kind {kind:#x}")
        found.append(section)
    return found


def _contents(code: bytes, sections: Sequence[Section]) -> tuple[bytearray, dict[int, int]]:
    """What is laid, one section after the other, and where each begins."""
    content, bases = bytearray(), {}
    for number, section in enumerate(sections):
        if not section.laid:
            continue
        step = section.step or 1
        if step & (step - 1) or step > PAGE:
            raise Unfit(f"a section at multiples of {step}")
        content += bytes(-len(content) % step)
        bases[number] = len(content)
        content += _part(code, section.offset, section.size)
        if len(content) > LARGEST:
            raise Unfit("too large")
    return content, bases


def _at(sections: Sequence[Section], number: int) -> Section:
    if not 0 < number < len(sections):   # 0 and reserved numbers: undefined, absolute, common
        raise Unfit(f"no section {number}")
    return sections[number]


def _symbols(code: bytes, table: Section) -> list[Symbol]:
    if table.entry != SYMBOL.size or table.size % SYMBOL.size or table.size > MOST * SYMBOL.size:
        raise Unfit("a table of symbols of another size")
    read = SYMBOL.iter_unpack(_part(code, table.offset, table.size))
    return [Symbol(name, info, section, value) for name, info, _, section, value, _ in read]


def _strings(code: bytes, sections: Sequence[Section], number: int) -> bytes:
    section = _at(sections, number)
    if section.kind != STRINGS:
        raise Unfit("symbols without names")
    return _part(code, section.offset, section.size)


def _name(texts: bytes, at: int) -> str:
    end = texts.find(b"\0", at)
    if end < 0:
        raise Unfit("a name without an end")
    return texts[at:end].decode("ascii", "replace")


# --- references ---


def _relocate(code: bytes, section: Section, sections: Sequence[Section], symbols: Sequence[Symbol], texts: bytes,
              content: bytearray, bases: dict[int, int], jumps: dict[int, int], machine: int) -> None:
    """Put in the references of one section. `jumps`: those to functions outside, by symbol."""
    if section.entry != RELOCATION.size or section.size % RELOCATION.size or section.size > MOST * RELOCATION.size:
        raise Unfit("a table of relocations of another size")
    base, room = bases[section.about], sections[section.about].size
    put = _put_x86 if machine == X86 else _put_arm
    for offset, about, addend in RELOCATION.iter_unpack(_part(code, section.offset, section.size)):
        number, kind = about >> 32, about & 0xFFFFFFFF
        if offset + 4 > room or number >= len(symbols):
            raise Unfit("a relocation out of bounds")
        symbol = symbols[number]
        if symbol.section == 0:
            if number not in jumps:
                jumps[number] = _jump(_name(texts, symbol.name), content, machine)
            if kind not in CALLS[machine]:
                raise Unfit(f"a reference of kind {kind} to what lies outside")
            target = jumps[number]
        elif symbol.section in bases and symbol.value <= sections[symbol.section].size:
            target = bases[symbol.section] + symbol.value
        else:
            raise Unfit(f"a symbol in section {symbol.section}")
        if not -LARGEST < addend < LARGEST:
            raise Unfit("a relocation out of bounds")
        put(content, base + offset, target + addend, kind)


def _jump(name: str, content: bytearray, machine: int) -> int:
    """Where the way to a function of the C library begins."""
    if name not in OUTSIDE:
        raise Unfit(f"calls `{name[:60]}`")
    content += bytes(-len(content) % 16)
    at = len(content)
    address = ctypes.cast(getattr(libc, name), ctypes.c_void_p).value
    content += JUMPS[machine] + struct.pack("<Q", address)
    return at


def _put_x86(content: bytearray, at: int, target: int, kind: int) -> None:
    if kind not in (PC32, PLT32):
        raise Unfit(f"a relocation of kind {kind}")
    struct.pack_into("<i", content, at, target - at)     # both are less than LARGEST


def _put_arm(content: bytearray, at: int, target: int, kind: int) -> None:
    word = int.from_bytes(content[at : at + 4], "little")
    away = target - at
    if kind == PREL32:
        struct.pack_into("<i", content, at, away)
        return
    if at % 4 or target < 0:
        raise Unfit("a relocation out of bounds")
    if kind == ADR_PAGE:
        pages = target // PAGE - at // PAGE
        word = word & ~(3 << 29 | 0x7FFFF << 5) | (pages & 3) << 29 | (pages >> 2 & 0x7FFFF) << 5
    elif kind == ADD_LOW:
        word = word & ~(0xFFF << 10) | target % PAGE << 10
    elif kind in LOAD_LOW:
        if target % (1 << LOAD_LOW[kind]):
            raise Unfit("a load from between its multiples")
        word = word & ~(0xFFF << 10) | target % PAGE >> LOAD_LOW[kind] << 10
    elif kind in CALLS[ARM]:
        if away % 4:
            raise Unfit("a jump between instructions")
        word = word & ~0x3FFFFFF | away >> 2 & 0x3FFFFFF   # 128 MB either way
    else:
        raise Unfit(f"a relocation of kind {kind}")
    struct.pack_into("<I", content, at, word)
