"""Spelling of kernels' texts, whatever the language: names and places go in, words that mean one thing each come out."""
from __future__ import annotations

import keyword
from collections.abc import Callable, Iterable

STORED = {"f16": "u16", "bf16": "u16", "bool": "u8"}   # how a dtype lies in memory where that differs


def clean(name: str) -> str:
    text = "".join(c if c.isascii() and (c.isalnum() or c == "_") else "_" for c in name)
    return text if text and not text[0].isdigit() and not keyword.iskeyword(text) else "_" + text


def wrap(part: tuple[str, int], level: int) -> str:
    """A part of an expression, in parentheses where it binds less than `level`."""
    return part[0] if part[1] >= level else f"({part[0]})"


class Names:
    """Names of a text's own, each once and none of `taken`.

    None begins with `never`: that is the compiler's, so `front` is put before it. None has `_to_` in it, as casts do.
    """

    def __init__(self, taken: Iterable[str], never: str, front: str, plain: Callable[[str], str] = clean):
        self.taken, self.never, self.front, self.plain = set(taken), never, front, plain
        self.given: dict[str, str] = {}
        self.temporaries = 0

    def __getitem__(self, raw: str) -> str:
        found = self.given.get(raw)
        if found is None:
            found = self.plain(raw)
            while found in self.taken or found.startswith(self.never) or "_to_" in found:
                found = f"{self.front}{found}" if found.startswith(self.never) else found.replace("_to_", "_") + "_"
            self.taken.add(found)
            self.given[raw] = found
        return found

    def temporary(self) -> str:
        while True:
            name = f"t{self.temporaries}"
            self.temporaries += 1
            if name not in self.taken:
                self.taken.add(name)
                return name
