"""What a `from` line may read: the kinds of sources with their options, and the columns that a schema asks of them.

In: the call `tar("{root}/*.tar", …)` and a schema. Out: a `source` node (compiler.stages says what it holds).
"""
from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from ..dsl import tree
from ..dsl.problems import Edit, Fix, Label, Problem, Span
from ..dsl.types import DTYPES, INTS, NUMBERS, Type
from .scope import Context, Scope
from .words import listed, similar

MOST_NAMES = 100_000  # that one `{a..b}` may stand for


@dataclass(frozen=True)
class Kind:
    """A kind of source. `names`: the only columns it has (None: the data's own). `tensors`: may a column have dims.
    `stacks`: may a field be several columns of single values, one dimension."""

    doc: str
    dtypes: tuple[str, ...]
    tensors: bool = True
    stacks: bool = False
    gaps: bool = False
    options: dict[str, Type] = field(default_factory=dict)
    names: tuple[str, ...] | None = None
    columns: int = 10_000
    note: str = ""

    def holds(self, dims: int, columns: int) -> bool:
        """May a field of as many dims be made of as many columns."""
        return self.tensors or not dims or (self.stacks and dims == 1 and columns > 1)


PLAIN = (*NUMBERS, "bool")
TABLE = (*PLAIN, "bytes", "text", "path")
_TEXT, _INT, _BOOL, _TEXTS = Type("text"), Type("i64"), Type("bool"), Type("text", ("_",))
_STREAM = {"stream": _BOOL}  # read front to back only: packed files aren't unpacked onto the disk

KINDS: dict[str, Kind] = {
    "tar": Kind("WebDataset shards: members with one key are one record, a column is a member's suffix",
                TABLE, gaps=True, options=_STREAM,
                note="numbers are read from text (a `.cls` member), tensors from `.npy` members"),
    "folder": Kind("a folder per class, `root/class/file`", ("bytes", "text", "path", *INTS), tensors=False,
                   options={"extensions": _TEXTS, "allow_empty": _BOOL}, names=("file", "class", "class_name", "path"),
                   note="bytes are the file, an integer is the class's number in bytewise order, text its name,"
                        " path the file's path"),
    "files": Kind("one record per file", ("bytes", "text", "path"), tensors=False, names=("file", "name", "path"),
                  note="bytes and text are the file, a path its path"),
    "audio": Kind("one record per audio file", ("bytes", "text", "path"), tensors=False, names=("file", "name", "path"),
                  note="bytes and text are the file, a path its path"),
    "npz": Kind("arrays of an .npz file, their first dimension counts the records", PLAIN),
    "npy": Kind("one array, its first dimension counts the records", PLAIN, columns=1),
    "bin": Kind("records of fixed size back to back, memory-mapped, little-endian", PLAIN,
                options={"skip": _INT},
                note="a record is the schema's fields one after the other; `skip` bytes at each file's start are passed over"),
    "parquet": Kind("Parquet files", TABLE, gaps=True, note="`from \"s.a\"` is a field of a struct"),
    "arrow": Kind("Arrow IPC and Feather files, Hugging Face datasets on disk", TABLE, gaps=True,
                  note="`from \"s.a\"` is a field of a struct"),
    "csv": Kind("text tables with a header line", (*PLAIN, "text", "path"), tensors=False, stacks=True, gaps=True,
                options={"delimiter": _TEXT, "header": _BOOL, "nulls": _TEXTS, "nulls_of": _TEXTS, **_STREAM},
                note="`header=false` names columns by number, from 0; `nulls` lists spellings of missing values,"
                     " `nulls_of` those of one column (\"age=-1\");"
                     " `f32[3] from \"x{1..3}\"` is three columns as one field"),
    "tsv": Kind("text tables with a header line and tabs between fields", (*PLAIN, "text", "path"), tensors=False, stacks=True,
                gaps=True, options={"header": _BOOL, "nulls": _TEXTS, "nulls_of": _TEXTS, **_STREAM},
                note="`csv` with tabs"),
    "jsonl": Kind("one JSON object per line", (*PLAIN, "text", "path"), gaps=True, options=_STREAM,
                  note="`from \"a.b\"` is b of the object a"),
    "lines": Kind("one record per line of a text file", ("text", "bytes"), tensors=False, columns=1, options=_STREAM),
    "lmdb": Kind("an LMDB database", ("bytes", "text"), tensors=False, names=("key", "value")),
}
ELSEWHERE = {  # what other tools call these
    "webdataset": "tar", "wds": "tar", "imagefolder": "folder", "image_folder": "folder", "numpy": "npz", "memmap": "bin",
    "feather": "arrow", "json": "jsonl", "text": "lines", "txt": "lines", "tars": "tar",
}


@dataclass(frozen=True)
class Columns:
    """A schema against a kind: the attr `columns` of the source node, and the fields it gives (dims by name)."""

    attr: tuple[tuple[str, tuple[tuple[str, ...], ...], str], ...]
    fields: tuple[tuple[str, Type, Span], ...]  # dims are ints or names ("_" for a size without one)


def report_kind(context: Context, name: str, span: Span, pipelines: list[str]) -> None:
    """E0509: no such kind of source."""
    alike = ELSEWHERE.get(name.lower()) or similar(name, [*KINDS, *pipelines])
    fixes = (Fix(f"`{alike}` reads such data" if name.lower() in ELSEWHERE else "there is a similar name",
                 (Edit(span, alike),)),) if alike else ()
    known = ", ".join(KINDS)
    context.report(Problem("E0509", f"there is no source `{name}`", span, "not known", (), (f"sources: {known}",), fixes))


# --- texts with `{…}` -------------------------------------------------------------------------

AS_PATTERN = "a pattern finds the files that are there: `train-*.tar`"
_RANGE = re.compile(r"\{(\d+)\.\.(\d+)\}")


class TextError(Exception):
    """What is wrong with the `{…}` of a text, and what to do."""

    def __init__(self, title: str, *notes: str):
        super().__init__(title)
        self.notes = notes


def expanded(text: str) -> tuple[str, ...]:
    """`a{0..2}` as a0, a1, a2, with leading zeros where the first bound has them. Raises TextError."""
    match = _RANGE.search(text)
    if match is None:
        return (text,)
    low, high = int(match.group(1)), int(match.group(2))
    width = len(match.group(1)) if match.group(1).startswith("0") else 0
    if high < low:
        raise TextError(f"`{match.group(0)}` is an empty range",
                        f"both ends count, the lower one comes first: `{{{match.group(2)}..{match.group(1)}}}`")
    if high - low >= MOST_NAMES:
        raise TextError(f"`{match.group(0)}` stands for more than {MOST_NAMES:,} names", AS_PATTERN)
    rest = expanded(text[match.end():])
    if (high - low + 1) * len(rest) > MOST_NAMES:
        raise TextError(f"this text stands for more than {MOST_NAMES:,} names", AS_PATTERN)
    return tuple(f"{text[: match.start()]}{n:0{width}}{r}" for n in range(low, high + 1) for r in rest)


# --- schemas ----------------------------------------------------------------------------------


class SchemaReader:
    """Reads the columns of schemas; `elaborator` gives dtypes and constants."""

    def __init__(self, context: Context, elaborator: Any):
        self.context, self.elaborator = context, elaborator

    def read(self, scope: Scope, schema: tree.Schema, kind: str | None) -> Columns:
        """The columns of a schema; `kind` None: only what holds for every source."""
        attr, fields = [], []
        seen: dict[str, Span] = {}
        for column in schema.columns:
            if column.name in seen:
                self.context.report(Problem("E0113", f"`{column.name}` is declared twice", column.name_span,
                                            "a second time", (Label(seen[column.name], "first here"),),
                                            ("fields have unlike names; two may read one column: `second: i64 from \"y\"`",)))
                continue
            seen[column.name] = column.name_span
            made = self._column(scope, column, kind)
            fields.append((column.name, made[1] if made else Type("unknown"), column.name_span))
            if made:
                attr.append((column.name, *made[0]))
        if kind and len(schema.columns) > KINDS[kind].columns:
            self._bad(schema.columns[1].name_span, f"`{kind}` has one column", KINDS[kind].doc,
                      "leave one field, or read several arrays with `npz`, or with `zip` of pipelines")
        return Columns(tuple(attr), tuple(fields))

    def _bad(self, span: Span, title: str, *notes: str, fixes: tuple[Fix, ...] = ()) -> None:
        self.context.report(Problem("E0511", title, span, "", (), tuple(n for n in notes if n), fixes))

    def _column(self, scope: Scope, column: tree.Column, kind: str | None) -> Any:
        expr = column.type
        if expr.dtype not in DTYPES:
            bare = tree.TypeExpr(expr.dtype, False, (), False, expr.dtype_span, expr.dtype_span)
            if self.elaborator.type_of(scope, bare).dtype != "unknown":
                self._bad(expr.dtype_span, f"`{expr.dtype}` stands for any of several types, and a column has one")
            return None
        if expr.rest:
            self._bad(expr.span, "a column says how many dimensions it has, so `...` can't stand here",
                      "write `_` for each dimension of any size")
            return None
        dims = [self._dim(scope, d) for d in expr.dims]
        names = self._names(scope, column)
        if names is None or None in dims:
            return None
        if len(names) > 1 and not self._stacks(column, names, dims):
            return None
        shown = expr.dtype + ("?" if expr.missing else "") + (f"[{', '.join(map(str, dims))}]" if dims else "")
        if kind is not None and not self._delivers(column, kind, shown, names):
            return None
        return (names, shown), Type(expr.dtype, tuple(dims), expr.missing)

    def _dim(self, scope: Scope, dim: tree.Expr) -> int | str | None:
        """A number, or the name of a size that the data has."""
        if isinstance(dim, tree.Name) and scope.file.value(dim.id) is None:
            return dim.id
        value = self.elaborator.constant(scope, dim)
        if value is None:
            return None
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            self._bad(dim.span, "a size is a whole number, 0 or more")
            return None
        return value

    def _names(self, scope: Scope, column: tree.Column) -> tuple[tuple[str, ...], ...] | None:
        if column.source is None:
            return ((column.name,),)
        text = self.elaborator.constant(scope, column.source)
        if not isinstance(text, str):
            return None
        try:
            names = tuple(tuple(n.strip() for n in one.split("|")) if "|" in one else (one,) for one in expanded(text))
        except TextError as error:
            self._bad(column.source.span, str(error))
            return None
        if any(not n for alternatives in names for n in alternatives):
            self._bad(column.source.span, "a column's name is empty")
            return None
        return names

    def _stacks(self, column: tree.Column, names: tuple[Any, ...], dims: list[Any]) -> bool:
        if dims and dims[0] == len(names):
            return True
        assert column.source is not None
        first = column.type.dims[0].span if dims else None
        fixes = (Fix("say so", (Edit(first, str(len(names))),)),) if first else (
            Fix("say so", (Edit(Span(column.type.span.file, column.type.span.end, column.type.span.end),
                                f"[{len(names)}]"),)),)
        self._bad(column.type.span, f"{len(names)} columns make a first dimension of {len(names)}",
                  f"{column.source.value} is {names[0][0]} … {names[-1][0]}", fixes=fixes)
        return False

    def _delivers(self, column: tree.Column, kind: str, shown: str, names: tuple[Any, ...]) -> bool:
        row = KINDS[kind]
        if column.type.dtype not in row.dtypes:
            self._bad(column.type.span, f"`{kind}` can't give `{shown}`", f"{kind}: {row.doc}", row.note,
                      f"its types: {', '.join(row.dtypes)}" if len(row.dtypes) <= 13 else "")
        elif not row.holds(len(column.type.dims), len(names)):
            self._bad(column.type.span, f"`{kind}` gives single values, not `{shown}`", f"{kind}: {row.doc}", row.note)
        elif column.type.missing and not row.gaps:
            at = Span(column.type.span.file, column.type.dtype_span.end, column.type.dtype_span.end + 1)
            self._bad(column.type.span, f"`{kind}` has no gaps, so `{shown}` needs no `?`", f"{kind}: {row.doc}",
                      fixes=(Fix("leave it out", (Edit(at, ""),)),))
        else:
            return row.names is None or self._named(column, kind, row, names)
        return False

    def _named(self, column: tree.Column, kind: str, row: Kind, names: tuple[Any, ...]) -> bool:
        """Kinds with set columns take a field without `from` by its type."""
        assert row.names is not None
        name = "|".join(names[0])
        if len(names) == 1 and (name in row.names or column.source is None):
            return True
        assert column.source is not None
        alike = similar(name, row.names)
        fixes = (Fix("there is a similar name", (Edit(column.source.span, f'"{alike}"'),)),) if alike else ()
        self._bad(column.source.span, f"`{kind}` has no `{name}`", f"it has: {listed(row.names)}", row.note, fixes=fixes)
        return False
