"""Mistakes that people bring from other languages: each is named and repaired by an edit."""
from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from .layout import Line
from .problems import Problem, Span


@dataclass(frozen=True)
class Failure:
    """Token `at` of `line` (its length: the end) can't stand there; `expected` are the terminals that could."""

    file: str
    text: str
    line: Line
    rule: str
    at: int
    expected: frozenset[str]
    following: list[Line]

    def span(self, first: int, last: int | None = None) -> Span:
        tokens = self.line.tokens
        return Span(self.file, tokens[first].start_pos, tokens[first if last is None else last].end_pos)


def repair(stream: Iterable[Any], text: str, file: str, problems: list[Problem]) -> Iterator[Any]:
    yield from stream


def explain_failure(failure: Failure) -> Problem:
    tokens = failure.line.tokens
    if failure.at == len(tokens):
        return Problem("E0007", "this line ends too early", failure.span(-1))
    return Problem("E0006", f"`{tokens[failure.at]}` can't stand here", failure.span(failure.at))


def misplaced(head: Line | None, body: list[Line], text: str, file: str) -> Iterator[Problem]:
    for line in [head] if head is not None and head.first not in ("use", "param", "seed", "let", "extern") else []:
        yield Problem("E0009", "this is not a declaration", Span(file, line.tokens[0].start_pos, line.tokens[0].end_pos))
    for line in body[:1]:
        yield Problem("E0004", "this line belongs to no declaration",
                      Span(file, line.tokens[0].start_pos, line.tokens[-1].end_pos))


def no_body(head: Line, text: str, file: str) -> Problem:
    return Problem("E0005", f"this {head.first} has no lines", Span(file, head.tokens[0].start_pos, head.tokens[-1].end_pos))
