"""The page of an error code: what the rule is, a program that breaks it and the same program repaired."""
from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

_CODE = re.compile(r"E\d{4}")
_HEADING = re.compile(r"^## (Wrong|Right|Program)\s*\n+```pipe\n(.*?)^```", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Page:
    """`text` is the whole page (Markdown). `program` is set instead of `wrong` and `right` where checking alone
    can't show the error, because it depends on data or on how the program is run."""

    code: str
    title: str
    rule: str
    wrong: str = ""
    right: str = ""
    program: str = ""
    text: str = ""


def codes() -> list[str]:
    """Every code that has a page."""
    folder = files(__package__).joinpath("pages")
    if not folder.is_dir():
        return []
    names = (entry.name for entry in folder.iterdir())
    return sorted(name[:-3] for name in names if _CODE.fullmatch(name[:-3]) and name.endswith(".md"))


@cache
def page(code: str) -> Page | None:
    """The page of a code, in any case of its letter; None if there is none."""
    code = code.strip().upper()
    source = files(__package__).joinpath("pages", f"{code}.md")
    if not _CODE.fullmatch(code) or not source.is_file():
        return None
    text = source.read_text(encoding="utf-8")
    heading, _, rest = text.partition("\n")
    title = heading.removeprefix("#").strip().removeprefix(code).lstrip(": ")
    rule = rest.split("\n## ", 1)[0].strip()
    parts = {name.lower(): program for name, program in _HEADING.findall(text)}
    return Page(code, title, rule, **parts, text=text)
