"""One way to lay out a program: `format_text` for whole files, `expr_text` for an expression of the tree.

Only space changes, never a token, so the tree stays the same. Row breaks inside brackets and before `then` and `else` stay
where they are; such a word stands below the first `if` of its line.
"""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from . import tree
from .layout import goes_on, soften
from .parse import normalise, parse, tokens

INDENT = 2
_OPERANDS = frozenset(["NAME", "INT", "FLOAT", "STRING", "TRUE", "FALSE", "RPAR", "RSQB", "MISSING"])


@dataclass
class _Row:
    """One row of the result; `at` is the column in which its comment stood."""

    indent: int
    code: str = ""
    comment: str = ""
    at: int = 0


@dataclass
class _Open:
    """An open bracket: where rows in it start, where its closing bracket does if that opens a row, and whether
    a `:` stood since the last comma in it."""

    bracket: str
    inner: int
    outer: int
    typed: bool = False


def format_text(text: str, path: str = "<text>") -> str:
    """The same program, laid out. Raises PipeError where it doesn't parse."""
    text = normalise(text)
    parse(text, path)
    rows = _aligned(list(_rows(tokens(text))))
    return "".join(f"{row}\n" for row in rows)


# --- rows -------------------------------------------------------------------------------------


def _rows(stream: list[Any]) -> Iterator[_Row]:
    """Rows with their code spaced, blank ones (at most one in a row) as empty rows."""
    opened: list[_Open] = []
    before: list[Any] = []      # code tokens of the row before
    choice = INDENT             # where the first `if` of the line stands
    last = stream[0].line if stream else 0
    at = 0
    while at < len(stream):
        line = stream[at].line
        row = []
        while at < len(stream) and stream[at].line == line:
            row.append(stream[at])
            at += 1
        if line > last + 1:
            yield _Row(0)
        last = line
        code = [t for t in row if t.type != "COMMENT"]
        comment = next((t for t in row if t.type == "COMMENT"), None)
        note = str(comment).rstrip() if comment is not None else ""
        if not code:
            yield _Row(_comment_indent(comment, stream[at:], bool(before), opened), "", note)
            continue
        more = bool(opened) or goes_on(code[0], before)
        for i, token in enumerate(code):
            soften(token, [None] * more + code[:i])
        indent = choice if more and not opened else _indent(code[0], opened)
        written = _spaced(code, opened, indent, continues=more, before=before)
        if not more:
            choice = _first_choice(code, written, indent)
        before = code
        yield _Row(indent, written, note, comment.column - 1 if comment is not None else 0)


def _comment_indent(comment: Any, rest: list[Any], after_code: bool, opened: list[_Open]) -> int:
    """A comment on a row of its own stands as the code below it; at the end of a body it stays in the body."""
    if opened:
        return opened[-1].inner
    following = next((t for t in rest if t.type != "COMMENT"), None)
    if following is not None and following.column > 1:
        return INDENT
    return INDENT if comment.column > 1 and after_code else 0


def _indent(first: Any, opened: list[_Open]) -> int:
    if opened:
        closes = str(first) in (")", "]")
        return opened[-1].outer if closes else opened[-1].inner
    return 0 if first.column == 1 else INDENT


def _first_choice(code: list[Any], written: str, indent: int) -> int:
    """The column of the first `if` outside of brackets in a row that opens a line."""
    depth = at = 0
    for token in code:
        at = written.index(str(token), at)
        if token.type == "IF" and depth == 0:
            return indent + at
        depth += (token.type in ("LPAR", "LSQB")) - (token.type in ("RPAR", "RSQB"))
        at += len(str(token))
    return INDENT


def _aligned(rows: list[_Row]) -> Iterator[str]:
    """Rows as text; the comments of neighbouring rows start in one column, the rightmost that one of them had."""
    at = 0
    while at < len(rows):
        run = at
        while run < len(rows) and rows[run].code and rows[run].comment:
            run += 1
        if run == at:
            row = rows[at]
            yield " " * row.indent * bool(row.code or row.comment) + row.code + row.comment
            at += 1
            continue
        widest = max(row.indent + len(row.code) + 2 for row in rows[at:run])
        column = max(widest, *(row.at for row in rows[at:run]))
        for row in rows[at:run]:
            yield (" " * row.indent + row.code).ljust(column) + row.comment
        at = run


# --- spaces -----------------------------------------------------------------------------------


def _spaced(code: list[Any], opened: list[_Open], indent: int, continues: bool, before: list[Any]) -> str:
    """The tokens of one row with the space that belongs between them; keeps track of `opened`."""
    out: list[str] = []
    previous = before[-1] if continues else None
    unary = False       # is `previous` a sign?
    for i, token in enumerate(code):
        word = str(token)
        if i and _space(previous, token, opened[-1] if opened else None, unary):
            out.append(" ")
        unary = word == "-" and (previous is None or previous.type not in _OPERANDS)
        out.append(word)
        if token.type in ("LPAR", "LSQB"):
            at = indent + sum(map(len, out))
            hangs = i == len(code) - 1      # else the rows below are aligned with what follows the bracket
            opened.append(_Open(word, indent + INDENT if hangs else at, indent if hangs else at - 1))
        elif token.type in ("RPAR", "RSQB"):
            opened.pop()
        elif opened and token.type in ("COMMA", "COLON"):
            opened[-1].typed = token.type == "COLON"
        previous = token
    return "".join(out)


def _space(a: Any, b: Any, inside: _Open | None, unary: bool) -> bool:
    """Is there a space between neighbours a and b?"""
    first, second = str(a.type), str(b.type)
    if unary or first in ("LPAR", "LSQB", "DOT") or second in ("RPAR", "RSQB", "COMMA", "DOT", "MISSING"):
        return False
    if first == "COMMA":
        return True
    if first == "COLON" or second == "COLON":
        return first == "COLON" and not (inside is not None and inside.bracket == "[")
    if "EQUAL" in (first, second) and inside is not None and inside.bracket == "(":
        return inside.typed
    if second == "LPAR":
        return first != "NAME"
    if second == "LSQB":
        return first not in _OPERANDS
    return True


# --- expressions ------------------------------------------------------------------------------

_IF, _OR, _AND, _NOT, _COMPARE, _SUM, _PRODUCT, _SIGN, _POWER, _FILLED, _POSTFIX = range(11)
_LEVELS = {"or": _OR, "and": _AND, "+": _SUM, "-": _SUM, "*": _PRODUCT, "/": _PRODUCT, "//": _PRODUCT, "%": _PRODUCT}


def expr_text(expr: tree.Expr | tree.Slice, level: int = _IF) -> str:
    """The canonical text of an expression, with no more brackets than needed where it binds at `level` or tighter."""
    own, text = _written(expr)
    return text if own >= level else f"({text})"


def _written(expr: tree.Expr | tree.Slice) -> tuple[int, str]:
    match expr:
        case tree.Number(value=value):
            return _POSTFIX, repr(value)
        case tree.String(value=value):
            return _POSTFIX, quoted(value)
        case tree.Truth(value=value):
            return _POSTFIX, "true" if value else "false"
        case tree.Name(id=name):
            return _POSTFIX, name
        case tree.Array(items=items):
            return _POSTFIX, f"[{', '.join(expr_text(item) for item in items)}]"
        case tree.Build(body=body, binders=binders):
            return _POSTFIX, f"[{expr_text(body)} for {_binders(binders)}]"
        case tree.Reduce(fn=fn, body=body, binders=binders):
            return _POSTFIX, f"{fn}({expr_text(body)} for {_binders(binders)})"
        case tree.Call(fn=fn, args=args):
            return _POSTFIX, f"{fn}({', '.join(_argument(arg) for arg in args)})"
        case tree.At(value=value, indexes=indexes):
            return _POSTFIX, f"{expr_text(value, _POSTFIX)}[{', '.join(expr_text(i) for i in indexes)}]"
        case tree.Part(value=value, name=name):
            return _POSTFIX, f"{expr_text(value, _POSTFIX)}.{name}"
        case tree.Slice(start=start, stop=stop):
            return _POSTFIX, f"{expr_text(start) if start else ''}:{expr_text(stop) if stop else ''}"
        case tree.If(condition=condition, then=then, other=other):
            return _IF, f"if {expr_text(condition)} then {expr_text(then)} else {expr_text(other)}"
        case tree.Unary(op="not", value=value):
            return _NOT, f"not {expr_text(value, _NOT)}"
        case tree.Unary(value=value):
            return _SIGN, f"-{expr_text(value, _SIGN)}"
        case tree.Compare(operands=operands, ops=ops):
            terms = [expr_text(operand, _SUM) for operand in operands]
            return _COMPARE, terms[0] + "".join(f" {op} {term}" for op, term in zip(ops, terms[1:], strict=True))
        case tree.Filled(value=value, default=tree.Unary(op="-", value=tree.Number(value=number))):
            return _FILLED, f"{expr_text(value, _FILLED)} ?? -{number!r}"
        case tree.Filled(value=value, default=default):
            return _FILLED, f"{expr_text(value, _FILLED)} ?? {expr_text(default, _POSTFIX)}"
        case tree.Binary(op="^", left=left, right=right):
            return _POWER, f"{expr_text(left, _FILLED)} ^ {expr_text(right, _SIGN)}"
        case tree.Binary(op=op, left=left, right=right):
            level = _LEVELS[op]
            return level, f"{expr_text(left, level)} {op} {expr_text(right, level + 1)}"
    raise TypeError(f"not an expression: {type(expr).__name__}")


def _argument(arg: tree.Argument) -> str:
    return expr_text(arg.value) if arg.name is None else f"{arg.name}={expr_text(arg.value)}"


def _binders(binders: tuple[tree.Binder, ...]) -> str:
    return ", ".join(b.name if b.limit is None else f"{b.name} < {expr_text(b.limit, _SUM)}" for b in binders)


def quoted(value: str) -> str:
    """A text as a literal."""
    for char, escape in (("\\", "\\\\"), ('"', '\\"'), ("\n", "\\n"), ("\t", "\\t")):
        value = value.replace(char, escape)
    return f'"{value}"'
