"""Lines of graph text as tokens, with the limits that make text from anywhere safe to read."""
from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

MOST_TEXT = 16_000_000
MOST_LINES = 200_000
MOST_TOKENS = 2_000_000  # of one line: a constant tensor is one line
DEEPEST = 12
LARGEST_INT = 2**64

TOKEN = re.compile(
    r"""
    (?P<space>[ \t]+)
  | (?P<text>"(?:[^"\\\x00-\x1f]|\\.)*")
  | (?P<number>-?(?:\d+\.\d*(?:e[+-]?\d+)?|\d+(?:e[+-]?\d+)?|inf)(?![\w.]))
  | (?P<name>[A-Za-z_][\w.]*)
  | (?P<mark>[()\[\]{},:=?])
    """,
    re.VERBOSE | re.ASCII,
)


class GraphTextError(ValueError):
    """This text is no graph: `line` (from 1) and `reason`."""

    def __init__(self, line: int, reason: str):
        self.line, self.reason = line, reason
        super().__init__(f"graph text, line {line}: {reason}")


def lines(text: str) -> Iterator[Line]:
    """The lines that aren't empty."""
    if len(text) > MOST_TEXT:
        raise GraphTextError(1, f"longer than {MOST_TEXT} characters")
    for number, line in enumerate(text.split("\n"), 1):
        if number > MOST_LINES:
            raise GraphTextError(number, f"more than {MOST_LINES} lines")
        if line.strip():
            yield Line(number, line)


class Line:
    """The tokens of one line and how far they are read."""

    def __init__(self, number: int, text: str):
        self.number = number
        self.tokens: list[str] = []
        self.at = 0
        place = 0
        while place < len(text):
            found = TOKEN.match(text, place)
            if found is None:
                if text[place:].strip() == "":
                    break
                raise self.error(f"unexpected character {text[place]!r}")
            if found.lastgroup != "space":
                self.tokens.append(found.group())
            if len(self.tokens) > MOST_TOKENS:
                raise self.error("too long")
            place = found.end()

    def error(self, reason: str) -> GraphTextError:
        return GraphTextError(self.number, reason)

    def peek(self, ahead: int = 0) -> str:
        return self.tokens[self.at + ahead] if self.at + ahead < len(self.tokens) else ""

    def take(self) -> str:
        token = self.peek()
        self.at += 1
        return token

    def accept(self, token: str) -> bool:
        if self.peek() != token:
            return False
        self.at += 1
        return True

    def expect(self, token: str) -> None:
        if not self.accept(token):
            raise self.error(f"expected `{token}`, found {self._found()}")

    def _found(self) -> str:
        return f"`{self.peek()[:40]}`" if self.peek() else "the line's end"

    def end(self) -> None:
        if self.peek():
            raise self.error(f"expected the line's end, found {self._found()}")

    def name(self, what: str) -> str:
        if not re.fullmatch(r"[A-Za-z_]\w*", self.peek(), re.ASCII):
            raise self.error(f"expected {what}, found {self._found()}")
        return self.take()

    def field_name(self) -> str:
        if self.peek().startswith('"'):
            return str(self.value())
        if not re.fullmatch(r"[A-Za-z_][\w.]*", self.peek(), re.ASCII):
            raise self.error(f"expected a field's name, found {self._found()}")
        return self.take()

    def value(self, depth: int = 0) -> Any:
        """A bool, number, text or tuple."""
        if depth > DEEPEST:
            raise self.error("tuples are nested too deeply")
        token = self.take()
        if token == "(":
            return self._tuple(depth)
        if token in ("true", "false"):
            return token == "true"
        if token in ("nan", "inf", "-inf"):
            return float(token)
        if token.startswith('"'):
            return self._text(token)
        if re.fullmatch(r"-?\d+", token):
            return self._int(token)
        if re.fullmatch(r"-?\d[\d.e+-]*", token):
            return float(token)
        self.at -= 1
        raise self.error(f"expected a value, found {self._found()}")

    def _int(self, token: str) -> int:
        if len(token) > 21 or abs(int(token)) > LARGEST_INT:
            raise self.error("an int beyond 64 bits")
        return int(token)

    def _text(self, token: str) -> str:
        try:
            return str(json.loads(token))
        except ValueError:
            raise self.error("a text with an unknown escape") from None

    def _tuple(self, depth: int) -> tuple[Any, ...]:
        values: list[Any] = []
        while not self.accept(")"):
            if values:
                self.expect(",")
                if self.accept(")"):
                    break
            values.append(self.value(depth + 1))
        return tuple(values)
