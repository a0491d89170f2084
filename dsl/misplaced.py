"""Lines that stand where they can't: in column 1 without being a declaration, or indented below nothing."""
from __future__ import annotations

import re
from difflib import get_close_matches
from typing import Any

from .layout import DECLARE, Line
from .problems import Edit, Fix, Problem, Span

_BODIES = ("schema", "fn", "pipeline")
Group = tuple[Line | None, list[Line]]


def _span(line: Line, file: str, whole: bool = True) -> Span:
    last = line.tokens[-1] if whole else line.tokens[0]
    return Span(file, line.tokens[0].start_pos, last.end_pos)


def _word(line: Line, i: int) -> str:
    return str(line.tokens[i]) if i < len(line.tokens) else ""


def declares(line: Line) -> bool:
    """Does this line in column 1 open a declaration?"""
    return line.tokens[0].type in {word.upper() for word in DECLARE}


def like_a_line(line: Line) -> bool:
    """Does it look like a line of a body?"""
    types: list[Any] = [t.type for t in line.tokens[:2]]
    if _word(line, 0) == "import" or (_word(line, 0) == "from" and "import" in map(str, line.tokens)):
        return False
    return _word(line, 0) in ("from", "where", "emit", "for", "if", "return") or (
        types[0] == "NAME" and _word(line, 1) in ("=", "~", "(", ":", ",")
    )


def stray(groups: list[Group], at: int, file: str) -> Problem | None:
    """The problem of a line in column 1 that declares nothing; None where the line before has reported it."""
    head = groups[at][0]
    assert head is not None
    before = [group[0] for group in groups[:at]]
    last = before[-1] if before else None
    owner = next((line for line in reversed(before) if line is not None and declares(line)), None)
    fits = owner is not None and owner.first in _BODIES
    if like_a_line(head) and fits:
        if last is not None and not declares(last) and like_a_line(last):
            return None
        return _outdented(groups, at, file)
    return _imported(head, file) or _misspelt(head, file) or _constant(head, file)


def _outdented(groups: list[Group], at: int, file: str) -> Problem:
    edits = []
    for line, _ in groups[at:]:
        if line is None or declares(line) or not like_a_line(line):
            break
        edits.append(Edit(Span(file, line.tokens[0].start_pos, line.tokens[0].start_pos), "  "))
    head = groups[at][0]
    assert head is not None
    return Problem("E0004", "a line of a body is indented", _span(head, file, whole=False), "stands in column 1",
                   notes=("only declarations start in column 1: " + ", ".join(DECLARE),),
                   fixes=(Fix("indent it" if len(edits) == 1 else "indent them", tuple(edits)),))  # fmt: skip


def _imported(head: Line, file: str) -> Problem | None:
    words = [str(t) for t in head.tokens]
    if "import" not in words[:1] and not (words[0] == "from" and "import" in words):
        return None
    if words[0] == "import":
        module, names = words[1:2], words[-1:]
    else:
        module, names = words[1 : words.index("import")][-1:], [w for w in words[words.index("import") + 1 :] if w.isidentifier()]
    fixes: tuple[Fix, ...] = ()
    if module and names and all(re.fullmatch(r"[A-Za-z_]\w*", n) for n in (*names, *module)):
        new = f'use {", ".join(names)} from "{module[0]}.pipe"'
        fixes = (Fix("write `use`", (Edit(_span(head, file), new),)),)
    return Problem("E0027", "names of other files are brought in by `use`", _span(head, file, whole=False),
                   'write `use name from "file.pipe"`', notes=("`extern fn` declares a Python function",),
                   fixes=fixes)  # fmt: skip


def _misspelt(head: Line, file: str) -> Problem | None:
    word = _word(head, 0)
    close = get_close_matches(word, DECLARE, 1, 0.7)
    if not close or len(head.tokens) < 2 or head.tokens[1].type not in ("NAME", "INT"):
        return None
    span = _span(head, file, whole=False)
    return Problem("E0009", f"`{word}` declares nothing", span, f"perhaps `{close[0]}`",
                   fixes=(Fix("a word with a similar name exists", (Edit(span, close[0]),)),))  # fmt: skip


def _constant(head: Line, file: str) -> Problem:
    span = _span(head, file, whole=False)
    fixes: tuple[Fix, ...] = ()
    if head.tokens[0].type == "NAME" and _word(head, 1) == "=":
        fixes = (Fix("declare a constant", (Edit(Span(file, span.start, span.start), "let "),)),)
    return Problem("E0009", "this is no declaration", span, "stands in column 1",
                   notes=("a declaration starts with one of: " + ", ".join(DECLARE),), fixes=fixes)  # fmt: skip


def indented(head: Line | None, body: list[Line], file: str) -> Problem:
    """Indented lines where no body can be: at the start of a file or below a declaration of one line."""
    first = body[0]
    start = first.tokens[0].start_pos
    fixes: tuple[Fix, ...] = ()
    if first.first in DECLARE:
        row = [line for line in body if line.first in DECLARE]
        fixes = (Fix("start it in column 1", tuple(
            Edit(Span(file, line.tokens[0].start_pos - line.indent, line.tokens[0].start_pos), "") for line in row)),)
    elif head is not None:
        at = next((i for i, t in enumerate(head.tokens) if str(t) == "="), None)
        if at is not None and head.comment is None and first.tokens[0].type != "NAME":
            opened = head.tokens[at].end_pos + 1
            end = first.tokens[-1].end_pos
            fixes = (Fix("put it in brackets", (Edit(Span(file, opened, opened), "("), Edit(Span(file, end, end), ")"))),)
    title = f"`{head.first}` has no body" if head is not None else "this line belongs to no declaration"
    return Problem("E0004", title, Span(file, start, first.tokens[-1].end_pos), "indented below nothing", fixes=fixes)


def no_body(head: Line, file: str) -> Problem:
    """A schema, fn or pipeline without lines."""
    kind = head.first
    what = {"schema": "its columns stand", "fn": "its value stands", "pipeline": "`from` and the other lines stand"}[kind]
    example = {"schema": "\n  image: bytes", "fn": "\n  0", "pipeline": '\n  from tar("data.tar") as Sample'}[kind]
    end = (head.comment or head.tokens[-1]).end_pos
    return Problem("E0005", f"this {kind} has no lines", _span(head, file), f"{what} indented below it",
                   fixes=(Fix("begin it", (Edit(Span(file, end, end), example),)),))  # fmt: skip
