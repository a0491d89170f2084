"""Wrong programs and the messages they give.

Each `errors/*.pipe` holds cases: whole programs after a line `#---- what it shows`. Under a line at fault stands
`#  ^^^^ E0401 part of the title`, the carets under its place (a `#` in column 1 counts as one where the place starts
there); `#! E0115 part of the title` is a message about the file as a whole. A case gives these messages and no others,
and after each of their fixes the message is gone.
"""
from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest
from pipec.compiler.check import check
from pipec.dsl.problems import PipeError, Problem
from pipec.dsl.render import apply_edits, render

FOLDER = Path(__file__).parent / "errors"
MARKER = re.compile(r"^#(?P<gap> *)(?P<carets>\^*) ?(?P<code>E\d{4}) ?(?P<text>.*)$")
WHOLE = re.compile(r"^#! (?P<code>E\d{4}) ?(?P<text>.*)$")


@dataclass(frozen=True)
class Expected:
    line: int      # 0: the file as a whole
    start: int
    end: int
    code: str
    text: str


def cases() -> list[tuple[str, str]]:
    found = []
    for path in sorted(FOLDER.glob("*.pipe")):
        for part in re.split(r"^#---- ", path.read_text(encoding="utf-8"), flags=re.M)[1:]:
            name, _, text = part.partition("\n")
            found.append((f"{path.stem}: {name.strip()}", text))
    return found


def expectations(text: str) -> list[Expected]:
    out, last = [], 0
    for number, line in enumerate(text.split("\n"), 1):
        if whole := WHOLE.match(line):
            out.append(Expected(0, 0, 0, whole["code"], whole["text"]))
        elif marker := MARKER.match(line):
            start = 2 + len(marker["gap"])
            out.append(Expected(last, start, start + len(marker["carets"]), marker["code"], marker["text"]))
        elif not line.startswith("#"):
            last = number
    return out


def problems(text: str) -> tuple[Problem, ...]:
    try:
        check("case.pipe", text=text, complete=False)
    except PipeError as error:
        return error.problems
    return ()


def place(text: str, offset: int) -> tuple[int, int]:
    return text.count("\n", 0, offset) + 1, offset - (text.rfind("\n", 0, offset) + 1) + 1


def agrees(problem: Problem, expected: Expected, text: str) -> bool:
    if problem.code != expected.code or expected.text not in problem.title:
        return False
    if expected.line == 0:
        return problem.span.start == problem.span.end == 0
    line, column = place(text, problem.span.start)
    width = problem.span.end - problem.span.start
    starts = {expected.start, 1} if expected.start == 2 else {expected.start}
    return line == expected.line and column in starts and column + width == expected.end


@pytest.mark.parametrize(("name", "text"), cases(), ids=[n for n, _ in cases()])
def test_case(name: str, text: str) -> None:
    found = problems(text)
    expected = expectations(text)
    shown = render(found, {"case.pipe": text}) if found else "no problem"
    assert expected, "a case needs a marker"
    assert len(found) == len(expected), shown
    for problem, wanted in zip(found, expected, strict=True):
        assert agrees(problem, wanted, text), f"{wanted}\n{shown}"
        for fix in problem.fixes:
            repaired = apply_edits(text, fix.edits)
            assert repaired != text, fix.title
            again = problems(repaired)
            assert not any((p.code, p.title) == (problem.code, problem.title) for p in again), (
                f"`{fix.title}` leaves it:\n{repaired}\n{render(again, {'case.pipe': repaired})}")
            assert not any(p.code.startswith("E00") for p in again), f"`{fix.title}` breaks the syntax:\n{repaired}"
