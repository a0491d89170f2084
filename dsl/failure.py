"""Where the parse of one line stopped, and what the explanations need to know about the tokens around."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .layout import Line
from .problems import Edit, Fix, Problem, Span

# The type that repairs write where none was given.
PLACEHOLDER = "f32"
KEYWORDS = frozenset(["from", "as", "for", "if", "then", "else", "and", "or", "not", "true", "false", "where", "emit"])
# What an expression can't reach over, at its own bracket depth, looking left and looking right.
_LEFT_STOPS = frozenset((",", "=", "~", ":", "where", "from", "for", "then", "else", "if"))
_RIGHT_STOPS = frozenset((",", "=", "~", ":", "for", "then", "as"))


@dataclass(frozen=True)
class Failure:
    """Token `at` of `line` (its length: the end) can't stand there; `expected` are the terminals that could."""

    file: str
    text: str
    line: Line
    rule: str
    at: int
    expected: frozenset[str]
    before: Line | None = None      # the neighbours in the same body
    after: Line | None = None

    @property
    def tokens(self) -> list[Any]:
        return self.line.tokens

    def word(self, i: int) -> str:
        """The text of token i, "" outside the line."""
        return str(self.tokens[i]) if 0 <= i < len(self.tokens) else ""

    def kind(self, i: int) -> str:
        return str(self.tokens[i].type) if 0 <= i < len(self.tokens) else ""

    def span(self, first: int, last: int | None = None) -> Span:
        last = first if last is None else last
        return Span(self.file, self.tokens[first].start_pos, self.tokens[last].end_pos)

    def source(self, first: int, last: int) -> str:
        span = self.span(first, last)
        return self.text[span.start : span.end]

    def touching(self, i: int) -> bool:
        """Does token i stand right behind the one before it?"""
        return 0 < i < len(self.tokens) and self.tokens[i - 1].end_pos == self.tokens[i].start_pos

    def insert(self, i: int, text: str) -> Edit:
        """Put text before token i (its length: behind the last)."""
        at = self.tokens[i].start_pos if i < len(self.tokens) else self.tokens[-1].end_pos
        return Edit(Span(self.file, at, at), text)

    def append(self, i: int, text: str) -> Edit:
        """Put text right behind token i."""
        at = self.tokens[i].end_pos
        return Edit(Span(self.file, at, at), text)

    def replace(self, first: int, last: int, text: str) -> Edit:
        return Edit(self.span(first, last), text)

    def remove(self, first: int, last: int) -> Edit:
        """Take tokens out together with the space in front of them (behind them at the line's start)."""
        start = self.tokens[first - 1].end_pos if first else self.tokens[0].start_pos
        follows = self.tokens[last + 1].start_pos if first == 0 and last + 1 < len(self.tokens) else None
        return Edit(Span(self.file, start, follows or self.tokens[last].end_pos), "")

    def left(self, i: int) -> int:
        """The first token of the expression that ends before token i."""
        depth = 0
        while i > 0:
            word = self.word(i - 1)
            depth += (word in (")", "]")) - (word in ("(", "["))
            if depth < 0 or (depth == 0 and word in _LEFT_STOPS):
                break
            i -= 1
        return i

    def right(self, i: int, stops: frozenset[str] = _RIGHT_STOPS) -> int:
        """The token behind the expression that starts at token i."""
        depth = 0
        while i < len(self.tokens):
            word = self.word(i)
            depth += (word in ("(", "[")) - (word in (")", "]"))
            if depth < 0 or (depth == 0 and word in stops):
                break
            i += 1
        return i

    def find(self, word: str, i: int) -> int | None:
        """The next `word` from token i on, at the same bracket depth."""
        at = self.right(i, frozenset((word,)))
        return at if self.word(at) == word else None

    def opener(self, i: int) -> int | None:
        """The bracket that token i stands in."""
        depth = 0
        for j in range(i - 1, -1, -1):
            word = self.word(j)
            depth += (word in (")", "]")) - (word in ("(", "["))
            if depth < 0:
                return j
        return None

    def closer(self, opener: int) -> int:
        """The bracket that closes the one at `opener`."""
        return self.right(opener + 1, frozenset())

    def postfix(self, end: int) -> int:
        """The first token of the name, part, call or index that ends at token `end`."""
        i = end
        while i > 0:
            if self.word(i) in (")", "]"):
                i = self.opener(i) or 0
                if self.kind(i - 1) != "NAME" and self.word(i - 1) not in (")", "]"):
                    return i
                i -= 1
            elif self.kind(i) == "NAME" and self.word(i - 1) == ".":
                i -= 2
            else:
                return i
        return i

    @property
    def indent(self) -> str:
        return " " * self.line.indent

    def problem(
        self, code: str, title: str, span: Span, label: str, fix: str = "", edits: tuple[Edit, ...] = (), *notes: str
    ) -> Problem:
        fixes = (Fix(fix, edits),) if fix else ()
        return Problem(code, title, span, label, notes=notes, fixes=fixes)
