"""Text of a `.pipe` file to its tree, or every syntax problem of the file at once.

Each line is parsed by itself (nothing nests deeper than a body), so a mistake in one never hides those in others.
"""
from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from importlib.resources import files
from itertools import islice
from pathlib import Path
from typing import Any

from . import tree
from .builder import BadNumber, Builder, TooDeep, with_body
from .failure import Failure
from .habits import explain
from .layout import Line, Stop, lines_of, too_deep
from .misplaced import Group, declares, indented, like_a_line, no_body, stray
from .none import none
from .problems import PipeError, Problem, Span
from .slips import Repairs

MAX_CHARS = 1_000_000
MAX_TOKENS = 200_000
MAX_PROBLEMS = 50
_STARTS = ["declaration", "operator", "column", "step", "stage"]
_BODY = {"schema": "column", "fn": "step", "pipeline": "stage"}


class _Keep:
    """Keeps the terminals that no rule uses, and lets the layout see every token."""

    always_accept = ("HABIT", "QUOTED", "WRONG", "COMMENT")

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

        self._terminals = {t.pattern.value: t.name for t in self.lark.terminals if t.pattern.type == "str"}

    def terminal(self, text: str) -> str:
        """The name of the terminal that is written `text`."""
        return self._terminals[text]

    def line(self, tokens: list[Any], start: str, file: str) -> Any:
        """The node of one line. Raises lark's UnexpectedInput, TooDeep or BadNumber."""
        self.builder.file = file
        state = self.lark.parse_interactive(start=start)
        for token in tokens:
            state.feed_token(token)
        return state.feed_eof(tokens[-1])  # type: ignore[no-untyped-call]


    def expected(self, tokens: list[Any], start: str) -> frozenset[str]:
        """The terminals that may follow these tokens."""
        state = self.lark.parse_interactive(start=start)
        for token in tokens:
            state.feed_token(token)
        return frozenset(state.accepts())  # type: ignore[no-untyped-call]


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


def tokens(text: str) -> list[Any]:
    """All tokens of a normalised text, comments among them; lark tokens (`type`, `line`, `column`, `start_pos` …)."""
    parser = _parser()
    with parser.lock:
        return list(parser.lark.lex(text))


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
        stream = list(islice(self.parser.lark.lex(self.text), MAX_TOKENS + 1))
        if len(stream) > MAX_TOKENS:
            raise _unreadable(self.file, f"`{self.file}` is too long", f"more than {MAX_TOKENS:,} words and signs")
        repaired = Repairs(self.text, self.file, self.problems, self.parser.terminal, MAX_PROBLEMS)
        try:
            for line in lines_of(repaired(stream), self.file, self.problems):
                line.broken = line.broken or any(t.line in repaired.spoiled for t in line.tokens)
                yield line
        except Stop as stop:
            self.problems.append(stop.problem)

    def declarations(self) -> tuple[tree.Declaration, ...]:
        found: list[tree.Declaration] = []
        groups = _grouped(self.lines())
        for at in range(len(groups)):
            declared = self.declaration(groups, at)
            if declared is not None:
                found.append(declared)
            if len(self.problems) > MAX_PROBLEMS:
                break
        if not groups and not self.problems:
            self.problems.append(
                Problem("E0013", "this file declares nothing", Span(self.file, 0, 0), "no declaration",
                        notes=("a program has a `schema`, and a `pipeline` that reads it",))
            )
        return tuple(found)

    def declaration(self, groups: list[Group], at: int) -> tree.Declaration | None:
        head, body = groups[at]
        if head is not None and not declares(head):
            problem = None if head.broken else stray(groups, at, self.file)
            self.problems.extend([problem] if problem else [])
            return None
        before = len(self.problems)
        declared = self.parse_line(head, "declaration", after=body[0] if body else None) if head is not None else None
        rule = _BODY.get(head.tokens[0].type.lower()) if head is not None else None
        if rule is None:
            if body and len(self.problems) == before and not (head and head.broken):
                self.problems.append(indented(head, body, self.file))
            return declared
        following = groups[at + 1][0] if at + 1 < len(groups) else None
        outdented = following is not None and not declares(following) and like_a_line(following)
        if not body and head is not None and declared is not None and not outdented:
            self.problems.append(no_body(head, self.file))
        lines = self.body(body, rule)
        return None if declared is None or None in lines else with_body(declared, lines)

    def body(self, body: list[Line], rule: str) -> list[Any]:
        found: list[Any] = []
        failed: Line | None = None
        for i, line in enumerate(body):
            if len(self.problems) > MAX_PROBLEMS:
                break
            if failed is not None and line.indent > failed.indent:
                continue        # the rest of a line that is reported already
            node = self.parse_line(line, rule, body[i - 1] if i else None, body[i + 1] if i + 1 < len(body) else None)
            failed = line if node is None else None
            found.append(node)
        return found

    def parse_line(self, line: Line, rule: str, before: Line | None = None, after: Line | None = None) -> Any:
        """The node of a line, or None with a problem reported."""
        from lark.exceptions import UnexpectedInput

        if line.broken:
            return None
        nothing = none(Failure(self.file, self.text, line, rule, 0, frozenset()))
        if nothing is not None:
            self.problems.append(nothing)
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
            self.problems.append(explain(self._failure(line, rule, error, before, after)))
        else:
            if isinstance(node, tree.Param) and line.comment is not None:
                return replace(node, help=str(line.comment).lstrip("#").strip())
            return node
        return None

    def _failure(self, line: Line, rule: str, error: Any, before: Line | None, after: Line | None) -> Failure:
        """Where the parse of a line stopped and what could have stood there."""
        token = getattr(error, "token", None)
        at = next((i for i, t in enumerate(line.tokens) if t is token), len(line.tokens))
        expected = self.parser.expected(line.tokens[:at], rule)
        return Failure(self.file, self.text, line, rule, at, expected, before, after)


def _grouped(lines: Iterator[Line]) -> list[Group]:
    """Declarations: a line in column 1 (None if the file starts indented) and the indented lines below it."""
    groups: list[Group] = []
    for line in lines:
        if line.indent == 0:
            groups.append((line, []))
        elif groups:
            groups[-1][1].append(line)
        else:
            groups.append((None, [line]))
    return groups
