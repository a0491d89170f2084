"""Problems to text for people (the program's lines with what is wrong under them) or to JSON; edits to a text."""
from __future__ import annotations

import json
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .problems import Edit, Fix, Label, Problem, Span

MAX_WIDTH = 140
_TAB = "    "
_LEAD = 24      # columns shown before the first mark where a line is cut
_COLORS = {"error": "1;31", "frame": "1;34", "plain": "1", "help": "1;36", "-": "31", "+": "32"}


class _Paint:
    """ANSI colours, or none."""

    def __init__(self, color: bool):
        self.color = color

    def __call__(self, text: str, style: str) -> str:
        return f"\x1b[{_COLORS[style]}m{text}\x1b[0m" if self.color and text else text


# --- places -----------------------------------------------------------------------------------


def _place(text: str, offset: int) -> tuple[int, int]:
    offset = max(0, min(offset, len(text)))
    return text.count("\n", 0, offset) + 1, offset - (text.rfind("\n", 0, offset) + 1) + 1


def location(span: Span, texts: Mapping[str, str]) -> tuple[int, int]:
    """Line and column of a span's start, both counted from 1, in characters."""
    return _place(texts.get(span.file, ""), span.start)


def apply_edits(text: str, edits: Iterable[Edit]) -> str:
    """`text` with all edits carried out; they must not overlap. Insertions at one place keep their order."""
    out, at = [], 0
    for edit in sorted(edits, key=lambda e: (e.span.start, e.span.end)):
        if edit.span.start < at:
            raise ValueError(f"edits overlap at {edit.span.start}")
        out += [text[at : edit.span.start], edit.text]
        at = edit.span.end
    return "".join([*out, text[at:]])


# --- characters -------------------------------------------------------------------------------


def _shown(char: str) -> str:
    """A character as a terminal may show it: no tabs, no control characters."""
    if char == "\t":
        return _TAB
    if unicodedata.category(char) in ("Cc", "Cf", "Zl", "Zp", "Cs"):
        return f"<{ord(char):02x}>"
    return char


def _width(shown: str) -> int:
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in shown)


def _clean(text: str) -> str:
    return text if text.isprintable() else "".join(_shown(c) for c in text)


@dataclass(frozen=True)
class _Row:
    """A line of a program, cut to the columns that matter; `column[i]` is where character i is shown."""

    shown: str
    column: list[int]

    @staticmethod
    def of(line: str, first: int, last: int) -> _Row:
        """The line with characters `first` to `last` in view."""
        head = tail = ""
        start = 0
        if len(line) > MAX_WIDTH:
            start = max(0, min(first - _LEAD, len(line) - MAX_WIDTH)) if last > MAX_WIDTH else 0
            head = "…" if start else ""
            tail = "…" if start + MAX_WIDTH < len(line) else ""
        kept = [_shown(c) for c in line[start : start + MAX_WIDTH]] if head or tail else [_shown(c) for c in line]
        column, at = [0] * min(start, len(line)), _width(head)
        for piece in kept:
            column.append(at)
            at += _width(piece)
        return _Row(head + "".join(kept) + tail, [*column, at])

    def at(self, character: int) -> int:
        return self.column[min(character, len(self.column) - 1)]


# --- a problem --------------------------------------------------------------------------------


def render(problems: Sequence[Problem], texts: Mapping[str, str], color: bool = False) -> str:
    """All problems as text, a blank line between two."""
    return "\n\n".join(_problem(p, texts, _Paint(color)) for p in problems)


def reached(epoch: int | None, position: int | None) -> list[str]:
    """How far a stream got, if anywhere, where no record is named."""
    if not position and (not epoch or position is None):
        return []
    of = "" if epoch is None else f" of epoch {epoch}"
    return [f"every record before position {position or 0:,}{of} was delivered"]


def render_data_error(error: Any, texts: Mapping[str, str], color: bool = False) -> str:
    """A `DataError` of the runtime (by its attributes) in the look of a problem."""
    notes = []
    if error.record:
        place = "" if error.position is None else f"position {error.position:,} of "
        notes.append(f"record {error.record}" + ("" if error.epoch is None else f", {place}epoch {error.epoch}"))
    else:
        notes += reached(error.epoch, error.position)
    where = error.where
    span = Span("", 0, 0) if where is None else Span(where.file, where.start, where.end)
    problem = Problem(error.code, error.title, span, error.label, notes=(*notes, *error.notes))
    return _problem(problem, texts, _Paint(color))


def _problem(problem: Problem, texts: Mapping[str, str], paint: _Paint) -> str:
    primary = Label(problem.span, problem.label)
    labels = [primary, *problem.reasons]
    known = [label for label in labels if label.span.file in texts]
    hunks = [_hunks(fix, texts) for fix in problem.fixes]
    rows = [_place(texts[label.span.file], label.span.start)[0] for label in known]
    rows += [number for fix in hunks for hunk in fix for number in hunk.numbers]
    gutter = len(str(max(rows, default=1)))
    out = [paint(f"error[{problem.code}]", "error") + paint(f": {_clean(problem.title)}", "plain")]
    notes = list(problem.notes)
    files = list(dict.fromkeys(label.span.file for label in labels))
    for file in files:
        here = [label for label in labels if label.span.file == file]
        if file in texts and any(label.text or label.span.end for label in here):
            arrow = "-->" if file == problem.span.file else ":::"
            out += _snippet(file, texts[file], here, primary, arrow, gutter, paint)
        elif file:
            out.append(" " * gutter + paint("--> ", "frame") + _clean(file))
            notes = [label.text for label in here if label.text] + notes
        else:
            notes = [label.text for label in here if label.text] + notes
    bar = " " * (gutter + 1) + paint("|", "frame")
    if known and (notes or problem.fixes):
        out.append(bar)
    out += [" " * (gutter + 1) + paint("=", "frame") + paint(" note", "plain") + f": {_clean(note)}" for note in notes]
    for fix, changes in zip(problem.fixes, hunks, strict=True):
        out.append(paint("help", "help") + f": {_clean(fix.title)}")
        out += _changes(changes, problem.span.file, gutter, paint)
    return "\n".join(out)


def _snippet(
    file: str, text: str, labels: list[Label], primary: Label, arrow: str, gutter: int, paint: _Paint
) -> Iterator[str]:
    """The lines that `labels` point at, each label on a line below its own."""
    line, column = _place(text, labels[0].span.start)
    yield " " * gutter + paint(f"{arrow} ", "frame") + f"{_clean(file)}:{line}:{column}"
    yield " " * (gutter + 1) + paint("|", "frame")
    lines = text.split("\n")
    marks: dict[int, list[tuple[int, int, Label]]] = {}
    for label in labels:
        row, column = _place(text, label.span.start)
        length = min(label.span.end - label.span.start, len(lines[row - 1]) - column + 1)
        marks.setdefault(row, []).append((column - 1, column - 1 + max(length, 1), label))
    before = None
    for number in sorted(marks):
        if before is not None and number > before + 1:
            yield "..."
        before = number
        here = marks[number]
        shown = _Row.of(lines[number - 1], min(m[0] for m in here), max(m[1] for m in here))
        yield f"{paint(f'{number:>{gutter}} |', 'frame')} {shown.shown}".rstrip()
        for start, end, label in here:
            sign, style = ("^", "error") if label is primary else ("-", "frame")
            width = max(shown.at(end) - shown.at(start), 1)
            mark = sign * width + (f" {_clean(label.text)}" if label.text else "")
            yield " " * (gutter + 1) + paint("|", "frame") + " " * (shown.at(start) + 1) + paint(mark, style)


# --- fixes ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Hunk:
    """Consecutive lines before and after a fix."""

    file: str
    start: int
    old: list[str]
    new: list[str]

    @property
    def numbers(self) -> range:
        return range(self.start, self.start + max(len(self.old), len(self.new)))


def _hunks(fix: Fix, texts: Mapping[str, str]) -> list[_Hunk]:
    found: list[_Hunk] = []
    by_file: dict[str, list[Edit]] = {}
    for edit in sorted(fix.edits, key=lambda e: e.span):
        if edit.span.file in texts:
            by_file.setdefault(edit.span.file, []).append(edit)
    for file, edits in by_file.items():
        text = texts[file]
        groups: list[list[Edit]] = []
        for edit in edits:
            touching = groups and _place(text, edit.span.start)[0] <= _place(text, groups[-1][-1].span.end)[0] + 1
            if touching:
                groups[-1].append(edit)
            else:
                groups.append([edit])
        found += [_hunk(file, text, group) for group in groups]
    return found


def _hunk(file: str, text: str, edits: list[Edit]) -> _Hunk:
    start = text.rfind("\n", 0, edits[0].span.start) + 1
    end = text.find("\n", max(e.span.end for e in edits))
    end = len(text) if end < 0 else end
    shifted = [Edit(Span(file, e.span.start - start, e.span.end - start), e.text) for e in edits]
    old, new = text[start:end].split("\n"), apply_edits(text[start:end], shifted).split("\n")
    number = text.count("\n", 0, start) + 1
    while old and new and old[-1] == new[-1]:
        old, new = old[:-1], new[:-1]
    while old and new and old[0] == new[0]:
        old, new, number = old[1:], new[1:], number + 1
    return _Hunk(file, number, old, new)


def _changes(hunks: list[_Hunk], file: str, gutter: int, paint: _Paint) -> Iterator[str]:
    before: _Hunk | None = None
    for hunk in hunks:
        if hunk.file != (before.file if before else file):
            yield " " * gutter + paint("--> ", "frame") + f"{_clean(hunk.file)}:{hunk.start}"
        if before is None or hunk.file != before.file:
            yield " " * (gutter + 1) + paint("|", "frame")
        else:
            yield "..."
        before = hunk
        first = _first_difference(hunk.old, hunk.new)
        for sign, lines in (("-", hunk.old), ("+", hunk.new)):
            for i, line in enumerate(lines):
                shown = _Row.of(line, first, min(first + MAX_WIDTH // 2, len(line))).shown
                number = paint(f"{hunk.start + i:>{gutter}}", "frame")
                yield f"{number} {paint(f'{sign} {shown}'.rstrip(), sign)}"


def _first_difference(old: list[str], new: list[str]) -> int:
    if not old or not new:
        return 0
    pairs = zip(old[0], new[0], strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(old[0]), len(new[0])))


# --- JSON -------------------------------------------------------------------------------------


def to_json(problems: Sequence[Problem], texts: Mapping[str, str]) -> str:
    """A JSON list of problems; places are `file line column end.line end.column`, counted from 1, end not included."""
    return json.dumps([_object(p, texts) for p in problems], indent=2, ensure_ascii=False)


def _object(problem: Problem, texts: Mapping[str, str]) -> dict[str, Any]:
    return {
        "code": problem.code,
        "title": problem.title,
        **_where(problem.span, texts),
        "label": problem.label,
        "reasons": [{**_where(r.span, texts), "text": r.text} for r in problem.reasons],
        "notes": list(problem.notes),
        "fixes": [
            {"title": fix.title, "edits": [{**_where(e.span, texts), "text": e.text} for e in fix.edits]}
            for fix in problem.fixes
        ],
    }


def _where(span: Span, texts: Mapping[str, str]) -> dict[str, Any]:
    text = texts.get(span.file, "")
    line, column = _place(text, span.start)
    end_line, end_column = _place(text, span.end)
    return {"file": span.file, "line": line, "column": column, "end": {"line": end_line, "column": end_column}}
