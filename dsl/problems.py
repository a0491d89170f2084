"""Problems as values: what is wrong, where, why, and the edit that repairs it.

A `Problem` is made by whoever finds the mistake and is never printed there; `dsl.render` turns
problems into text, plain text or JSON. Spans are offsets into the text of one file.
"""
from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, order=True)
class Span:
    """Characters `start` up to (not including) `end` of the text of `file`."""

    file: str
    start: int
    end: int

    def to(self, other: Span) -> Span:
        """The span from the start of this one to the end of `other`."""
        return Span(self.file, min(self.start, other.start), max(self.end, other.end))


@dataclass(frozen=True)
class Label:
    """A reason: a place in a program and what it says there, e.g. `f32[3]`."""

    span: Span
    text: str


@dataclass(frozen=True)
class Edit:
    """Replace the text under `span` by `text`."""

    span: Span
    text: str


@dataclass(frozen=True)
class Fix:
    """A repair: a sentence in lower case ("draw it") and the edits that carry it out."""

    title: str
    edits: tuple[Edit, ...] = ()


@dataclass(frozen=True)
class Problem:
    """One mistake: `code` is `E` and four digits, `title` stands alone, in lower case."""

    code: str
    title: str
    span: Span
    label: str = ""
    reasons: tuple[Label, ...] = ()
    notes: tuple[str, ...] = ()
    fixes: tuple[Fix, ...] = ()


class PipeError(Exception):
    """A program can't be compiled. `problems` holds every mistake that was found, in file order.

    `texts` maps each file named by a span to its text, so that the problems can be shown.
    """

    def __init__(self, problems: tuple[Problem, ...], texts: dict[str, str]):
        self.problems = tuple(problems)
        self.texts = dict(texts)
        super().__init__(self.problems[0].title if self.problems else "no problem")

    def __str__(self) -> str:
        from .render import render

        return render(self.problems, self.texts)
