"""Text of a `.pipe` file to its tree, or every syntax problem of the file at once.

Each line is parsed by itself (nothing nests deeper than a body), so a mistake in one never hides those in others.
"""
from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from . import tree
from .builder import BadNumber, Builder, TooDeep, with_body
from .layout import DECLARE, Line, Stop, lines_of, too_deep
from .problems import PipeError, Problem, Span
from .slips import Failure, explain_failure, misplaced, no_body, repair

MAX_CHARS = 1_000_000
MAX_PROBLEMS = 50
_STARTS = ["declaration", "operator", "column", "step", "stage"]
_BODY = {"schema": "column", "fn": "step", "pipeline": "stage"}


class _Keep:
    """Keeps the terminals that no rule uses, and lets the layout see every token."""

    always_accept = ("HABIT", "WRONG", "COMMENT")

    def process(self, stream: Iterator[Any]) -> Iterator[Any]:
        return stream


class _Parser:
    """Lark with the callbacks that build the tree. Used by one thread at a time."""

    def __init__(self) -> None:
        from lark import Lark

        self.builder = Builder()
        self.lock = threading.RLock()
        self.lark = Lark(
            files(__package__).joinpath("grammar.lark").read_text(encoding="utf-8"),
            start=_STARTS, parser="lalr", lexer="basic", postlex=_Keep(),
            transformer=self.builder, keep_all_tokens=True, maybe_placeholders=False,
        )  # fmt: skip

    def line(self, tokens: list[Any], start: str, file: str) -> Any:
        """The node of one line. Raises lark's UnexpectedInput, TooDeep or BadNumber."""
        self.builder.file = file
        state = self.lark.parse_interactive(start=start)
        for token in tokens:
            state.feed_token(token)
        return state.feed_eof(tokens[-1])


@cache
def _parser() -> _Parser:
    return _Parser()


# --- reading ----------------------------------------------------------------------------------


def read(path: str | Path) -> str:
    """The text of a program: decoded, without BOM, with `\\n` at line ends. Raises PipeError where it can't be."""
    name = str(path)
    try:
        with open(path, "rb") as file:
            data = file.read(4 * MAX_CHARS + 1)
    except (OSError, ValueError) as error:
        raise _unreadable(name, f"`{name}` can't be read", _reason(error)) from None
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        if len(data) > 4 * MAX_CHARS:
            raise _unreadable(name, f"`{name}` is too long", f"more than {MAX_CHARS:,} characters") from None
        row = data.count(b"\n", 0, error.start) + 1
        what = f"byte {error.start:,} (line {row}) is 0x{data[error.start]:02x}"
        raise _unreadable(name, f"`{name}` is not UTF-8 text", what, "save it as UTF-8") from None
    text = normalise(text)
    _refuse(text, name)
    return text


def normalise(text: str) -> str:
    """Without a byte order mark and with `\\n` at line ends: what spans count in."""
    return text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")


def _reason(error: Exception) -> str:
    match error:
        case FileNotFoundError():
            return "no such file"
        case IsADirectoryError():
            return "this is a folder"
        case PermissionError():
            return "permission denied"
        case OSError():
            return (error.strerror or type(error).__name__).lower()
    return "no file can have this name"


def _unreadable(name: str, title: str, label: str, *notes: str) -> PipeError:
    problem = Problem("E0012", title, Span(name, 0, 0), label, notes=notes)
    return PipeError((problem,), {})


def _refuse(text: str, name: str) -> None:
    """Texts that aren't worth a parse."""
    if len(text) > MAX_CHARS:
        raise _unreadable(name, f"`{name}` is too long", f"{len(text):,} characters; at most {MAX_CHARS:,}")
    nul = text.find("\0")
    if nul >= 0:
        row = text.count("\n", 0, nul) + 1
        raise _unreadable(name, f"`{name}` is not text", f"a NUL byte in line {row}", "is it a data file?")


# --- parsing ----------------------------------------------------------------------------------


def parse(text: str, path: str = "<text>") -> tree.File:
    """The tree of a whole file. Raises PipeError with all its syntax problems, in file order."""
    text = normalise(text)
    _refuse(text, path)
    parser = _parser()
    with parser.lock:
        reader = _Reader(parser, text, path)
        declarations = reader.declarations()
    if reader.problems:
        ordered = sorted(reader.problems, key=lambda p: (p.span.start, p.code))
        raise PipeError(tuple(ordered[:MAX_PROBLEMS]), {path: text})
    return tree.File(path, text, declarations)


def parse_head(text: str) -> tree.Head:
    """The head of an operator, e.g. `flip(img: u8[h, w]) -> u8[h, w]`."""
    parser = _parser()
    with parser.lock:
        reader = _Reader(parser, text, "<head>")
        lines = list(reader.lines())
        heads = [reader.parse_line(line, "operator") for line in lines]
    if len(heads) != 1 and not reader.problems:
        reader.problems.append(Problem("E0006", "a head is one line", Span("<head>", 0, len(text))))
    if reader.problems:
        raise PipeError(tuple(reader.problems), {"<head>": text})
    head: tree.Head = heads[0]
    return head


class _Reader:
    """One pass over one file."""

    def __init__(self, parser: _Parser, text: str, file: str):
        self.parser, self.text, self.file = parser, text, file
        self.problems: list[Problem] = []

    def lines(self) -> Iterator[Line]:
        """The lines, slips that are single tokens repaired (and reported)."""
        stream = repair(self.parser.lark.lex(self.text), self.text, self.file, self.problems)
        try:
            for line in lines_of(stream, self.file, self.problems):
                yield line
                if len(self.problems) > MAX_PROBLEMS:
                    return
        except Stop as stop:
            self.problems.append(stop.problem)

    def declarations(self) -> tuple[tree.Declaration, ...]:
        found: list[tree.Declaration] = []
        groups = _grouped(self.lines())
        empty = True
        for head, body in groups:
            empty = False
            declared = self.declaration(head, body)
            if declared is not None:
                found.append(declared)
        if empty and not self.problems:
            self.problems.append(
                Problem("E0013", "this file declares nothing", Span(self.file, 0, 0), "no declaration",
                        notes=("a program has a `schema`, and a `pipeline` that reads it",))
            )
        return tuple(found)

    def declaration(self, head: Line | None, body: list[Line]) -> tree.Declaration | None:
        kind = head.first if head is not None else ""
        rule = _BODY.get(kind) if head is not None and head.tokens[0].type == kind.upper() else None
        if head is None or kind not in DECLARE or rule is None:
            declared = self.parse_line(head, "declaration") if head is not None and kind in DECLARE else None
            self.problems.extend(misplaced(head, body, self.text, self.file))
            return declared
        declared = self.parse_line(head, "declaration")
        lines = self.body(body, rule)
        if not body and declared is not None:
            self.problems.append(no_body(head, self.text, self.file))
        if declared is None or any(line is None for line in lines):
            return None
        return with_body(declared, lines)

    def body(self, body: list[Line], rule: str) -> list[Any]:
        found: list[Any] = []
        unfinished: Line | None = None
        for i, line in enumerate(body):
            if unfinished is not None and line.indent > unfinished.indent:
                continue        # the rest of a line that is reported already
            unfinished = None
            before = len(self.problems)
            found.append(self.parse_line(line, rule, body[i + 1:]))
            if len(self.problems) > before:
                unfinished = line
        return found

    def parse_line(self, line: Line, rule: str, following: list[Line] = []) -> Any:  # noqa: B006
        """The node of a line, or None with a problem reported."""
        from lark.exceptions import UnexpectedInput

        if line.broken:
            return None
        try:
            node = self.parser.line(line.tokens, rule, self.file)
        except TooDeep as deep:
            self.problems.append(too_deep(Span(self.file, deep.start, deep.end)))
        except BadNumber as number:
            self.problems.append(
                Problem("E0010", "no type holds a number this large", Span(self.file, number.start, number.end),
                        "at most 18446744073709551615, or 1.7e308 with a point")
            )
        except UnexpectedInput as error:
            self.problems.append(explain_failure(self._failure(line, rule, error, following)))
        else:
            if isinstance(node, tree.Param) and line.comment is not None:
                return replace(node, help=str(line.comment).lstrip("#").strip())
            return node
        return None

    def _failure(self, line: Line, rule: str, error: Any, following: list[Line]) -> Failure:
        """Where the parse of a line stopped and what could have stood there."""
        token = getattr(error, "token", None)
        at = next((i for i, t in enumerate(line.tokens) if t is token), len(line.tokens))
        expected = frozenset(error.accepts or error.expected or ())
        return Failure(self.file, self.text, line, rule, at, expected, following)


def _grouped(lines: Iterator[Line]) -> Iterator[tuple[Line | None, list[Line]]]:
    """Declarations: a line in column 1 (None if the file starts indented) and the indented lines below it."""
    head: Line | None = None
    body: list[Line] = []
    for line in lines:
        if line.indent == 0:
            if head is not None or body:
                yield head, body
            head, body = line, []
        else:
            body.append(line)
    if head is not None or body:
        yield head, body
