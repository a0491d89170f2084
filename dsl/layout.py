"""Tokens to lines: what stands in column 1, what is indented, and what runs over several rows of text: brackets, and
choices of which a row begins with `then` or `else`."""
from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from .problems import Edit, Fix, Label, Problem, Span

DECLARE = ("use", "param", "seed", "let", "schema", "fn", "extern", "pipeline")
OPEN_LINE = ("where", "emit")
MAX_BRACKETS = 64
_CLOSER = {"(": ")", "[": "]"}


class Token(Protocol):
    """The part of a lark token that the layout and slips need; `str(token)` is its text."""

    type: str
    start_pos: Any
    end_pos: Any
    line: Any
    column: Any


@dataclass
class Line:
    """One line of the program: its tokens, whether it is indented, and the comment at its end."""

    tokens: list[Any] = field(default_factory=list)
    comment: Any = None
    broken: bool = False    # a problem in it has been reported

    @property
    def indent(self) -> int:
        return int(self.tokens[0].column) - 1

    @property
    def first(self) -> str:
        return str(self.tokens[0])


class Stop(Exception):
    """Nothing sensible can be read beyond this point; the problem says why."""

    def __init__(self, problem: Problem):
        self.problem = problem


def lines_of(stream: Iterable[Any], file: str, problems: list[Problem]) -> Iterator[Line]:
    """The lines of a token stream. Brackets that don't match are reported here and their lines are broken."""
    line = Line()
    opened: list[Any] = []
    row = 0
    pending: list[Line] = []
    for token in stream:
        text = str(token)
        if token.type == "COMMENT":
            if token.line == row and not opened:
                line.comment = token
            continue
        fresh = token.line > row
        if fresh and opened and token.column == 1 and token.type in _DECLARE_TYPES:
            pending = _unclosed(line, opened, token, file, problems)
            yield from pending[:-1]
            line, opened = pending[-1], []
        if fresh and not opened and not goes_on(token, line.tokens):
            if line.tokens:
                yield line
            line = Line()
        row = token.end_line
        soften(token, line.tokens)
        line.tokens.append(token)
        if text in _CLOSER and token.type != "STRING":
            opened.append(token)
            if len(opened) > MAX_BRACKETS:
                raise Stop(too_deep(Span(file, token.start_pos, token.end_pos)))
        elif text in (")", "]"):
            _close(line, opened, token, file, problems)
    if opened:
        pending = _unclosed(line, opened, None, file, problems)
        yield from pending[:-1]
        line = pending[-1]
    if line.tokens:
        yield line


_DECLARE_TYPES = {word.upper() for word in DECLARE}
_OPEN_TYPES = {word.upper() for word in OPEN_LINE}


def soften(token: Any, before: list[Any]) -> None:
    """Words that are keywords only where they open a declaration or a line are names elsewhere.

    `before` are the tokens of the line before this one.
    """
    first = not before
    if token.type in _DECLARE_TYPES:
        after_extern = len(before) == 1 and before[0] is not None and before[0].type == "EXTERN"
        if not (first and token.column == 1) and not after_extern:
            token.type = "NAME"
    elif token.type in _OPEN_TYPES and not (first and token.column > 1):
        token.type = "NAME"


def goes_on(token: Any, before: list[Any]) -> bool:
    """Does a row of text that begins with this token go on with the line of the tokens before it."""
    return bool(before) and token.type in ("THEN", "ELSE")


def too_deep(span: Span) -> Problem:
    return Problem(
        "E0011",
        "this is nested too deeply",
        span,
        f"more than {MAX_BRACKETS} levels",
        notes=("give an inner part a line of its own and use its name",),
    )


def _close(line: Line, opened: list[Any], token: Any, file: str, problems: list[Problem]) -> None:
    span = Span(file, token.start_pos, token.end_pos)
    if not opened:
        if not line.broken:
            fix = Fix("leave it out", (Edit(span, ""),))
            problems.append(Problem("E0003", f"this `{token}` closes nothing", span, "no bracket is open here",
                                    fixes=(fix,)))
        line.broken = True
        return
    opener = opened[-1]
    if _CLOSER[str(opener)] == str(token):
        opened.pop()
        return
    wanted = _CLOSER[str(opener)]
    inner = any(_CLOSER[str(o)] == str(token) for o in opened)
    fix = (
        Fix(f"close the `{opener}` first", (Edit(Span(file, token.start_pos, token.start_pos), wanted),)) if inner
        else Fix(f"close it with `{wanted}`", (Edit(span, wanted),))
    )
    if not line.broken:
        opens = Label(Span(file, opener.start_pos, opener.end_pos), "opened here")
        problems.append(Problem("E0003", f"`{opener}` is closed by `{token}`", span, f"`{wanted}` is due",
                                (opens,), fixes=(fix,)))
    line.broken = True
    while inner and _CLOSER[str(opened[-1])] != str(token):
        opened.pop()
    opened.pop()


def _unclosed(line: Line, opened: list[Any], token: Any, file: str, problems: list[Problem]) -> list[Line]:
    """Report the innermost open bracket and cut the swallowed lines off again.

    The bracket is taken to end before the first line that looks like a line of its own.
    """
    opener = opened[0]
    at = next(i for i, t in enumerate(line.tokens) if t is opener)
    cut = next((i for i in range(at + 1, len(line.tokens)) if _starts_line(line.tokens, i)), len(line.tokens))
    held = [o for o in opened if any(o is t for t in line.tokens[:cut])]
    opener = held[-1]
    last = line.tokens[cut - 1]
    closers = "".join(_CLOSER[str(o)] for o in reversed(held))
    reasons: tuple[Label, ...] = ()
    if token is not None and cut == len(line.tokens):
        reasons = (Label(Span(file, token.start_pos, token.end_pos), "a new declaration starts before it ends"),)
    elif cut < len(line.tokens):
        following = line.tokens[cut]
        reasons = (Label(Span(file, following.start_pos, following.end_pos), "a new line starts before it ends"),)
    if not line.broken:
        span = Span(file, opener.start_pos, opener.end_pos)
        end = Span(file, last.end_pos, last.end_pos)
        fix = Fix("close it" if len(held) == 1 else "close them", (Edit(end, closers),))
        problems.append(Problem("E0002", f"this `{opener}` is never closed", span, "opened here", reasons, fixes=(fix,)))
    rest = line.tokens[cut:]
    line.tokens, line.broken = line.tokens[:cut], True
    return [line, *_split(rest)]


def _starts_line(tokens: list[Any], i: int) -> bool:
    """Does token i open a row of text as the lines of a body do: `name =`, `name ~`, `from`, `where`, `emit`?"""
    token, before = tokens[i], tokens[i - 1]
    if token.line == before.end_line or token.column > tokens[0].column:
        return False
    follows = str(tokens[i + 1]) if i + 1 < len(tokens) and tokens[i + 1].line == token.line else ""
    word = str(token)
    return word in ("from", "where", "emit") or (token.type == "NAME" and follows in ("=", "~", ":", "("))


def _split(tokens: list[Any]) -> list[Line]:
    """Lines again, of tokens that an open bracket had swallowed; brackets in them are not looked at twice."""
    found: list[Line] = []
    depth = 0
    for token in tokens:
        fresh = bool(found) and depth <= 0 and token.line > found[-1].tokens[-1].end_line
        if not found or (fresh and not goes_on(token, found[-1].tokens)):
            found.append(Line())
            depth = 0
            if str(token) in OPEN_LINE and token.column > 1:
                token.type = str(token).upper()
        found[-1].tokens.append(token)
        depth += (str(token) in _CLOSER) - (str(token) in (")", "]"))
    return found
