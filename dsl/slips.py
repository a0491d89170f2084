"""Single tokens of other languages (`**`, `'x'`, `True`, `def` …): reported with an edit, then read as what was meant."""
from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator
from typing import Any

from .problems import Edit, Fix, Problem, Span

_MEANT = {
    "**": "^", "&&": "and", "&": "and", "||": "or", "|": "or", "!": "not", ":=": "=", "=>": "->", "→": "->",
    "<>": "!=", "≠": "!=", "!==": "!=", "===": "==", "≤": "<=", "≥": ">=", "×": "*", "÷": "/", "−": "-",
}  # fmt: skip
_TITLES = {
    "^": "a power is written `^`", "and": "conditions are joined by `and`", "or": "conditions are joined by `or`",
    "not": "a condition is negated by `not`", "=": "a name is set by `=`", "->": "a result follows `->`",
}  # fmt: skip
_DECLARE = {
    "def": "fn", "func": "fn", "function": "fn", "fun": "fn", "const": "let", "var": "let", "val": "let",
    "class": "schema", "struct": "schema",
}  # fmt: skip
_TRUTH = {"True": "true", "False": "false", "TRUE": "true", "FALSE": "false"}
_STRING = re.compile(r'"(?:\\.|[^"\\\n])*"')
_BAD_ESCAPE = re.compile(r'\\(?![nt"\\])')
_ODD_NAMES = re.compile(r"\w+")


class Repairs:
    """The token stream of one file with such tokens replaced. `names` gives the terminal of a text."""

    def __init__(self, text: str, file: str, problems: list[Problem], names: Callable[[str], str], limit: int):
        self.text, self.file, self.problems, self.names, self.limit = text, file, problems, names, limit
        self.spoiled: set[int] = set()      # rows that can't be repaired: one problem is enough for each

    def __call__(self, tokens: list[Any]) -> Iterator[Any]:
        i = 0
        while i < len(tokens) and len(self.problems) <= self.limit:
            token = tokens[i]
            i += 1
            match token.type:
                case "HABIT":
                    yield self._habit(token, tokens[i - 2] if i > 1 else None, tokens[i:])
                case "QUOTED":
                    yield self._quoted(token)
                case "WRONG":
                    made, end = self._wrong(token, tokens, i)
                    while i < len(tokens) and tokens[i].start_pos < end:
                        i += 1
                    if made is not None:
                        yield made
                case "NAME":
                    yield self._name(token, tokens[i] if i < len(tokens) else None)
                case _:
                    yield token

    def _report(self, code: str, title: str, token: Any, label: str, *fixes: Fix, end: int | None = None) -> None:
        span = Span(self.file, token.start_pos, token.end_pos if end is None else end)
        self.problems.append(Problem(code, title, span, label, fixes=fixes))

    def _edit(self, start: int, end: int, text: str) -> Edit:
        return Edit(Span(self.file, start, end), text)

    def _as(self, token: Any, text: str) -> Any:
        return token.update(type=self.names(text), value=text)

    def _habit(self, token: Any, before: Any, after: list[Any]) -> Any:
        written = str(token)
        meant = _MEANT.get(written)
        if meant is None:       # `+=` and its like
            return self._assigned(token, before, after)
        new = meant
        if meant.isalpha():
            left = self.text[token.start_pos - 1 : token.start_pos]
            right = self.text[token.end_pos : token.end_pos + 1]
            new = (" " if left.isalnum() or left in (")", "]") else "") + meant
            new += " " if right and not right.isspace() else ""
        title = _TITLES.get(meant, f"this is written `{meant}`")
        fix = Fix(f"write `{meant}`", (self._edit(token.start_pos, token.end_pos, new),))
        self._report("E0020", f"{title}, not `{written}`", token, f"write `{meant}`", fix)
        return self._as(token, meant)

    def _assigned(self, token: Any, before: Any, after: list[Any]) -> Any:
        op = str(token)[:-1]
        op = {"&": "and", "|": "or"}.get(op, op)
        fixes: tuple[Fix, ...] = ()
        if before is not None and before.type == "NAME":
            rest = [t for t in after if t.line == token.line and t.type != "COMMENT"]
            edits = [self._edit(token.start_pos, token.end_pos, f"= {before} {op}")]
            if len(rest) > 1:
                edits += [self._edit(rest[0].start_pos, rest[0].start_pos, "("),
                          self._edit(rest[-1].end_pos, rest[-1].end_pos, ")")]
            fixes = (Fix("write both names", tuple(edits)),)
        self._report("E0020", f"there is no `{token}`", token, "only `=` sets a name", *fixes)
        return self._as(token, "=")

    def _quoted(self, token: Any) -> Any:
        inner = str(token)[1:-1].replace("\\'", "'")
        inner = _BAD_ESCAPE.sub(r"\\\\", re.sub(r'(?<!\\)"', r"\"", inner))
        new = f'"{inner}"'
        fix = Fix('use `"`', (self._edit(token.start_pos, token.end_pos, new),))
        self._report("E0021", 'a text stands between two `"`', token, f"not between two `{str(token)[0]}`", fix)
        return token.update(type="STRING", value=new if _STRING.fullmatch(new) else '""')

    def _name(self, token: Any, after: Any) -> Any:
        word = str(token)
        if word in _TRUTH and str(after) not in ("=", ":"):
            meant = _TRUTH[word]
            fix = Fix("write it small", (self._edit(token.start_pos, token.end_pos, meant),))
            self._report("E0023", f"`{word}` is written `{meant}`", token, f"write `{meant}`", fix)
            return self._as(token, meant)
        declares = word in _DECLARE and token.column == 1 and after is not None and after.type == "NAME"
        if declares and after.line == token.line:
            meant = _DECLARE[word]
            kind = {"fn": "a function", "let": "a constant", "schema": "a record's type"}[meant]
            fix = Fix(f"write `{meant}`", (self._edit(token.start_pos, token.end_pos, meant),))
            self._report("E0027", f"{kind} is declared by `{meant}`, not `{word}`", token, f"write `{meant}`", fix)
            return self._as(token, meant)
        return token

    def _wrong(self, token: Any, tokens: list[Any], i: int) -> tuple[Any, int]:
        """What to read instead of a character that no rule takes, and up to where the text is dealt with."""
        char = str(token)
        if char in "\"'":
            return self._open_text(token)
        if char == "\\" and self.text[token.end_pos : token.end_pos + 1] in ("\n", ""):
            return self._continued(token, tokens, i)
        if char.isalnum():
            return self._odd_name(token, tokens, i)
        left_out = Fix("leave it out", (self._edit(token.start_pos, token.end_pos, ""),))
        if unicodedata.category(char) in ("Zs", "Cf", "Cc"):
            name = unicodedata.name(char, f"U+{ord(char):04X}").lower()
            space = Fix("put a plain space", (self._edit(token.start_pos, token.end_pos, " "),))
            self._report("E0001", f"an invisible character: {name}", token, f"U+{ord(char):04X}", space)
        elif token.line in self.spoiled:
            pass
        elif char in "{}@":
            label = "`sum(a[i, k] * b[k, j] for k)` multiplies matrices" if char == "@" else "no blocks, no dictionaries"
            self._report("E0001", f"the language has no `{char}`", token, label)
            self.spoiled.add(token.line)
        elif char == ";":
            self._report("E0001", "a line ends without `;`", token, "one line, one step", left_out)
        else:
            self._report("E0001", f"the language has no `{char}`", token, "not part of any expression", left_out)
        return None, token.end_pos

    def _open_text(self, token: Any) -> tuple[Any, int]:
        start = token.start_pos
        row_end = self.text.find("\n", start)
        row_end = len(self.text) if row_end < 0 else row_end
        whole = _STRING.match(self.text, start)
        if whole:
            bad = _BAD_ESCAPE.search(self.text, start + 1, whole.end())
            at = bad.start() if bad else start
            fix = Fix("double the backslash", (self._edit(at, at, "\\"),))
            span = Span(self.file, at, at + 2)
            self.problems.append(
                Problem("E0014", f"`{self.text[at:at + 2]}` means nothing in a text", span,
                        "only `\\n`, `\\t`, `\\\"` and `\\\\` do", fixes=(fix,))
            )
            return token.update(type="STRING", value='""'), whole.end()
        row = self.text[start:row_end]
        body = row.split(")", 1)[0] if ")" in row else row.rstrip(" \t],")
        end = start + max(len(body), 1)
        fix = Fix('close it with `"`', (self._edit(start, start + 1, '"'), self._edit(end, end, '"')) if str(token) == "'"
                  else (self._edit(end, end, '"'),))
        self._report("E0014", "this text is never closed", token, "opened here; a text ends on its own line", fix)
        return token.update(type="STRING", value='""'), end

    def _continued(self, token: Any, tokens: list[Any], i: int) -> tuple[Any, int]:
        """A backslash at the end of a row: the next row is read as the rest of this one."""
        following = tokens[i] if i < len(tokens) else None
        end = following.start_pos if following is not None and following.line == token.line + 1 else token.end_pos
        fix = Fix("join the lines, or put the expression in brackets", (self._edit(token.start_pos, end, ""),))
        self._report("E0001", "a `\\` doesn't continue a line", token, "only brackets do", fix)
        for other in tokens[i:]:
            if other.line != token.line + 1 or end == token.end_pos:
                break
            other.line = other.end_line = token.line
        return None, token.end_pos

    def _odd_name(self, token: Any, tokens: list[Any], i: int) -> tuple[Any, int]:
        """A name with letters beyond a to z."""
        before = tokens[i - 2] if i > 1 else None
        match = _ODD_NAMES.match(self.text, token.start_pos)
        end = match.end() if match else token.end_pos
        start = token.start_pos
        joined = before is not None and before.end_pos == start and before.type in ("NAME", "INT")
        if before is not None and joined:
            start = before.start_pos
        written = self.text[start:end]
        plain = re.sub(r"\W", "", unicodedata.normalize("NFKD", written).encode("ascii", "ignore").decode())
        fixes = (Fix("spell it so", (self._edit(start, end, plain),)),) if plain.isidentifier() else ()
        self.problems.append(
            Problem("E0001", f"`{written}` can't be a name", Span(self.file, start, end),
                    "names are made of a to z, A to Z, digits and `_`", fixes=fixes)
        )
        return None if joined else token.update(type="NAME", value="odd"), end
