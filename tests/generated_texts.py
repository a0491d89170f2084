"""Expressions of texts and of values that may be missing, drawn like those of `generated_lines`; only tables have them."""
from __future__ import annotations

from typing import TYPE_CHECKING

from generated_data import GAPS, Kind

if TYPE_CHECKING:
    from generated_lines import Writer

FILLED = {"int": "3", "float": "0.5", "bool": "true"}


def text_of(w: Writer, depth: int) -> str:
    leaves = ["t", '(gt ?? "none")', '"a"', '"12"', *w.texts]
    if depth <= 0 or w.chance(3):
        return w.pick(leaves)
    match w.number(0, 5):
        case 0 | 1:
            return f"{w.pick(('lower', 'upper', 'strip'))}({text_of(w, depth - 1)})"
        case 2:
            return f'replace({text_of(w, depth - 1)}, "{w.pick(("a", "b c", "1"))}", "{w.pick(("", "zz"))}")'
        case 3:
            return f"(if {w.truth(depth - 1)} then {text_of(w, depth - 1)} else {text_of(w, 0)})"
        case 4:
            return f'(split({text_of(w, depth - 1)})[{w.number(0, 1)}] ?? "-")'
    return f'(split({text_of(w, depth - 1)}, at=",")[0] ?? "")'


def number_of_text(w: Writer, depth: int) -> tuple[str, int]:
    """An integer that a text gives, and its bound."""
    text = text_of(w, depth - 1)
    return w.pick(((f"length({text})", 400), (f"hash({text}) % 1000", 1000), (f"(parse_int({text}) ?? -1) % 1009", 1009),
                   (f"cross({text}, t) % 1000", 1000)))


def truth_of_text(w: Writer, depth: int) -> str:
    if w.chance(3):
        return f'contains({text_of(w, depth - 1)}, "{w.pick(("a", "b", "1"))}")'
    return f"({text_of(w, depth - 1)} {w.pick(('==', '!=', '<', '<=', '>', '>='))} {text_of(w, 0)})"


def filled(base: str) -> list[tuple[str, int]]:
    """Values that may be missing, filled, or asked for."""
    found = [(f"({name} ?? {FILLED[base]})", max(k.bound, 3)) for name, (_, k) in GAPS.items() if k.base == base and not k.dims]
    if base == "int":
        found += [("(gl[1] ?? -7)", 300)]
    if base == "bool":
        found += [(f"missing({name})", 0) for name in ("gi", "gf", "gt", "gl[2]")]
    return found


def filled_line(w: Writer, depth: int) -> tuple[str, str, Kind]:
    """A line that fills a whole column, says where it is missing, or makes a text: (name, text, kind)."""
    match w.number(0, 3):
        case 0:
            return w.fresh("g"), f"gl ?? {w.number(-2, 2)}", Kind("int", ("4",), 300)
        case 1:
            return w.fresh("g"), "missing(gl)", Kind("bool", ("4",))
        case 2:
            return w.fresh("g"), "[if missing(gl[i]) then n else gl[i] ?? 0 for i]", Kind("int", ("4",), 300)
    return w.fresh("g"), text_of(w, depth), Kind("text")
