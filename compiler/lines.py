"""Which line of a pipeline each value of a frame belongs to: graph nodes and their places go in, lines come out."""
from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from ..dsl.problems import Span
from .graph import STREAM_OPS, Node, children, walk

DECLARED = re.compile(r"^pipeline\b", re.M)
COLUMN_ONE = re.compile(r"^[^\s#]", re.M)


@dataclass(frozen=True, order=True)
class Line:
    """One line of a pipeline; `number` counts from 1."""

    file: str
    number: int
    text: str = ""

    def __str__(self) -> str:
        return f"{self.file}:{self.number}"


class Lines:
    """The lines of all pipelines of a program's texts (path → text)."""

    def __init__(self, texts: Mapping[str, str]):
        self.texts = texts

    @cached_property
    def bodies(self) -> list[tuple[str, int, int]]:
        """(file, start, end) of every pipeline's lines."""
        found = []
        for file, text in self.texts.items():
            for declared in DECLARED.finditer(text):
                end = COLUMN_ONE.search(text, declared.end())
                found.append((file, declared.start(), end.start() if end else len(text)))
        return found

    def at(self, span: Span) -> Line | None:
        """The pipeline's line in which a place begins; None for places in functions, schemas and the like."""
        if not any(file == span.file and start <= span.start < end for file, start, end in self.bodies):
            return None
        text = self.texts[span.file]
        begin = text.rfind("\n", 0, span.start) + 1
        end = text.find("\n", span.start)
        return Line(span.file, text.count("\n", 0, begin) + 1, text[begin : len(text) if end < 0 else end].strip())

    def first(self, spans: Sequence[Span]) -> Line | None:
        return next((line for span in spans if (line := self.at(span)) is not None), None)


def lines_of(roots: Sequence[Node], spans: Mapping[Node, Sequence[Span]], lines: Lines,
             given: Mapping[Node, Line] | None = None) -> dict[Node, Line]:
    """The line of every node below `roots`: the first that names it, else that of what uses it (the earliest).

    `given`: lines of nodes that no place tells, such as conditions.
    """
    ordered: dict[Node, None] = {}
    stack = [(r, False) for r in roots]
    while stack:
        n, done = stack.pop()
        if done:
            ordered[n] = None
        elif n not in ordered:
            stack.append((n, True))
            stack.extend((c, False) for c in children(n) if c not in ordered)
    found: dict[Node, Line] = {}
    asked: dict[Node, Line] = dict(given or {})
    for n in reversed(ordered):
        line = lines.first(spans.get(n, ())) or asked.get(n)
        if line is None:
            continue
        found[n] = line
        for c in children(n):
            if c not in asked or line < asked[c]:
                asked[c] = line
    return found


def placed(emit: Node, spans: Mapping[Node, Sequence[Span]], lines: Lines) -> dict[Node, tuple[Span, ...]]:
    """`spans`, and behind the places of what stands only in functions those of the line that calls them.

    Done before the passes, which join what different lines make.
    """
    found = {n: tuple(places) for n, places in spans.items()}
    asked: dict[Node, Span] = {}
    known: dict[Span, Line | None] = {}
    for n in reversed(list(walk(emit))):
        places = found.get(n, ())
        own = None
        for span in places:
            if span not in known:
                known[span] = lines.at(span)
            if known[span] is not None:
                own = span
                break
        if own is None and n in asked and n.op not in STREAM_OPS:
            own = asked[n]
            if places:
                found[n] = (*places, own)
        if own is None:
            continue
        for c in n.args:
            before = asked.get(c)
            if before is None or (own.file, own.start) < (before.file, before.start):
                asked[c] = own
    return found
