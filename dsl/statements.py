"""Statements, loops, lambdas and comments of other languages, in lines that can't be parsed; see `habits`."""
from __future__ import annotations

import re

from .failure import PLACEHOLDER, Failure
from .problems import Edit, Problem, Span

_STATEMENTS = frozenset(
    ("return", "assert", "pass", "yield", "del", "print", "raise", "with", "try", "while", "global", "break", "continue")
)


def return_and_others(f: Failure) -> Problem | None:
    word = f.word(0)
    if f.rule not in ("stage", "step") or word not in _STATEMENTS or (f.word(1) in ("=", "~", ":", "(") and word != "assert"):
        return None
    span = f.span(0)
    rest = f.source(1, len(f.tokens) - 1) if len(f.tokens) > 1 else ""
    if word == "return" and rest:
        note = "the last line of a function is its value" if f.rule == "step" else "`emit` says what leaves a pipeline"
        edit = f.replace(0, 0, "emit") if f.rule == "stage" else f.remove(0, 0)
        return f.problem("E0031", "there is no `return`", span, note, "write it so", (edit,))
    if word == "assert" and rest and f.rule == "stage":
        condition = f.source(1, f.right(1) - 1)
        return f.problem("E0031", "there is no `assert`", span, "`check(…)` calls a record bad where it is false",
                         "check it", (f.replace(0, len(f.tokens) - 1, f"check({condition})"),))
    label = "there are no loops" if word in ("while", "break", "continue") else "a line sets a name, draws, or is a stage"
    return f.problem("E0031", f"there is no `{word}`", span, label)


def if_statement(f: Failure) -> Problem | None:
    word = f.word(0)
    if word not in ("if", "elif", "else") or f.rule == "column" or (word == "if" and f.rule == "step"):
        return None
    return f.problem("E0031", f"there is no statement `{word}`", f.span(0), "write `name = if … then … else …`", "", (),
                     "`where` keeps some records")


def docstring(f: Failure) -> Problem | None:
    if f.rule not in ("stage", "step", "column") or any(t.type != "STRING" for t in f.tokens):
        return None
    end = len(f.tokens) - 1
    inner = f.source(0, end).strip('"').strip()
    return f.problem("E0038", "a comment starts with `#`", f.span(0, end), "a text alone does nothing", "write `#`",
                     (f.replace(0, end, f"# {inner}"),))


def loop(f: Failure) -> Problem | None:
    """`for x in xs:` as a statement: wrap the line below it into a build."""
    if f.word(0) != "for" or f.rule not in ("stage", "step"):
        return None
    edits: tuple[Edit, ...] = ()
    binder = _python_binder(f, 1, f.right(1, frozenset((":",))))
    body = f.after
    if binder and body is not None and len(body.tokens) > 2 and str(body.tokens[1]) == "=" and not body.broken:
        limit, swap = binder
        first, last = body.tokens[2].start_pos, body.tokens[-1].end_pos
        value = _renamed(f.text[first:last], swap)
        line_start = f.text.rfind("\n", 0, f.tokens[0].start_pos) + 1
        body_start = body.tokens[0].start_pos
        edits = (Edit(Span(f.file, line_start, body_start), f.indent), Edit(Span(f.file, first, last), f"[{value} for {limit}]"))
    return f.problem(
        "E0029", "there are no loops", f.span(0, f.right(1, frozenset((":",))) - 1),
        "`[… for i < n]` builds a tensor", "build it" if edits else "", edits,
        "every record passes every line; `sum(… for i)` adds up",
    )


def comprehension(f: Failure) -> Problem | None:
    if f.word(f.at) != "in" or f.word(f.at - 2) not in ("for", ","):
        return None
    opener = f.opener(f.at)
    end = f.right(f.at, frozenset((",", "if", "for")))
    binder = _python_binder(f, f.at - 1, end)
    edits: tuple[Edit, ...] = ()
    if binder and opener is not None and f.word(f.at - 2) == "for" and f.word(end) in ("]", ")"):
        limit, swap = binder
        body = _renamed(f.source(opener + 1, f.at - 3), swap)
        edits = (f.replace(opener + 1, end - 1, f"{body} for {limit}"),)
    return f.problem("E0029", "a binder has no `in`", f.span(f.at), "write `i`, or `i < n`",
                     "count the places" if edits else "", edits, "`i` alone runs over the dimension that it indexes")


def lambda_(f: Failure) -> Problem | None:
    at = next((i for i in (f.at, f.at - 1) if f.word(i) == "lambda"), None)
    colon = f.find(":", at + 1) if at is not None else None
    if at is None:
        return None
    edits: tuple[Edit, ...] = ()
    if colon is not None:
        formals = ", ".join(f"{f.word(i)}: {PLACEHOLDER}" for i in range(at + 1, colon) if f.kind(i) == "NAME")
        end = f.right(colon + 1)
        if end > colon + 1:
            body = f.source(colon + 1, end - 1)
            declared = f.text.rfind("\n\n", 0, f.tokens[0].start_pos)
            place = 0 if declared < 0 else declared + 2
            new = f"fn step({formals}) -> {PLACEHOLDER}\n  {body}\n\n"
            edits = (Edit(Span(f.file, place, place), new), f.replace(at, end - 1, "step"))
    return f.problem("E0028", "there is no `lambda`", f.span(at), "a function is declared with `fn`, by name",
                     "declare it" if edits else "", edits,
                     "functions aren't values: call the function, or build with `[… for i]`")


def slashes(f: Failure) -> Problem | None:
    if f.at == 0 and f.word(0) == "//":
        return f.problem("E0038", "a comment starts with `#`", f.span(0), "not with `//`", "write `#`",
                         (f.replace(0, 0, "#"),))
    return None


def _python_binder(f: Failure, first: int, end: int) -> tuple[str, dict[str, str]] | None:
    """For `x in xs` or `i in range(n)`: the binder, and what its name stands for in the body."""
    name = f.word(first)
    if f.kind(first) != "NAME" or f.word(first + 1) != "in" or end <= first + 2:
        return None
    over = f.source(first + 2, end - 1)
    counted = re.fullmatch(r"range\(\s*([^,()]*(?:\([^()]*\))?[^,()]*)\)", over)
    if counted:
        return f"{name} < {counted[1].strip()}", {}
    if not re.fullmatch(r"[A-Za-z_]\w*(\.\w+)*", over):
        return None
    index = "i" if name != "i" else "j"
    return index, {name: f"{over}[{index}]"}


def _renamed(text: str, swap: dict[str, str]) -> str:
    for old, new in swap.items():
        text = re.sub(rf"(?<![\w.\"]){re.escape(old)}(?!\w)", new.replace("\\", r"\\"), text)
    return text
