"""Types of Arrow tables against the schema's, before a record is read; pyarrow is imported when it is needed.

Numbers keep their type; decimals are read as f64, times as i64. A path `s.a` goes into structs, also through lists.
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .columns import Wanted, absent, unlike
from .sources import SourceError

WORDS = {"uint8": "u8", "int8": "i8", "uint16": "u16", "int16": "i16", "uint32": "u32", "int32": "i32", "uint64": "u64",
         "int64": "i64", "halffloat": "f16", "float": "f32", "double": "f64", "bool": "bool"}


def library(what: str) -> Any:
    """pyarrow; a SourceError says how to get it."""
    try:
        import pyarrow
    except ImportError:
        raise SourceError("E0810", f"{what} files are read with the package pyarrow, which isn't installed",
                          ("pip install 'pipec[tables]'",)) from None
    return pyarrow


def paths_of(schema: Any) -> list[str]:
    """Names of all columns that can be asked for, with the paths of fields in structs."""
    out: list[str] = []
    for field in schema:
        out += _paths(field.name, field.type)
    return out


def _paths(name: str, type: Any) -> list[str]:
    inner = _stripped(type)
    while is_list(inner):
        inner = _stripped(inner.value_type)
    if not is_struct(inner):
        return [name]
    return [p for field in inner for p in _paths(f"{name}.{field.name}", field.type)]


def resolve(path: str, schema: Any, names: tuple[str, ...], w: Wanted) -> tuple[str, ...]:
    """The steps to the first of the alternatives that the file has; its type must be the schema's. Raises SourceError."""
    for name in names:
        steps = _steps(schema, name)
        if steps is not None:
            _check(path, schema.field(steps[0]).type, steps[1:], name, w)
            return steps
    raise absent(path, "column", names, paths_of(schema), w.field)


def _steps(fields: Any, name: str) -> tuple[str, ...] | None:
    """A name as steps through structs; a column whose own name has dots counts first."""
    known = [f.name for f in fields]
    if name in known:
        if known.count(name) > 1:
            raise SourceError("E0602", f"the data has two columns `{name}`")
        return (name,)
    for dot in (i for i, c in enumerate(name) if c == "."):
        if known.count(name[:dot]) == 1:
            inner = _stripped(next(f.type for f in fields if f.name == name[:dot]))
            while is_list(inner):
                inner = _stripped(inner.value_type)
            rest = _steps(inner, name[dot + 1 :]) if is_struct(inner) else None
            if rest is not None:
                return (name[:dot], *rest)
    return None


def _stripped(type: Any) -> Any:
    """A type without what only changes how it is stored."""
    import pyarrow as pa

    while True:
        if isinstance(type, pa.BaseExtensionType):
            type = type.storage_type
        elif pa.types.is_dictionary(type) or pa.types.is_run_end_encoded(type):
            type = type.value_type
        else:
            return type


def is_list(type: Any) -> bool:
    import pyarrow as pa

    t = pa.types
    return bool(t.is_list(type) or t.is_large_list(type) or t.is_fixed_size_list(type) or t.is_list_view(type)
                or t.is_large_list_view(type))


def is_struct(type: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_struct(type))


def _check(path: str, type: Any, steps: Sequence[str], name: str, w: Wanted) -> None:
    """E0602 where the type of a column isn't what the schema says."""
    found, rest, dims = _stripped(type), list(steps), 0
    while is_list(found) or rest:
        if is_list(found):
            dims, found = dims + 1, _stripped(found.value_type)
        else:
            found = _stripped(found.field(rest.pop(0)).type)
    word = word_of(found)
    texts = {"bytes": ("bytes", "text"), "text": ("text", "bytes"), "path": ("text", "bytes")}
    fits = (word == "null" and w.missing) or word == w.word or word in texts.get(w.word, ())
    if not fits:
        if word is None and is_struct(found):
            inner = ", ".join(f"`{name}.{f.name}`" for f in found)
            raise unlike(path, name, "structs", w, f"ask for one of their fields: {inner}")
        becomes = f" (read as {word})" if word in ("i64", "f64") and str(found) not in WORDS else ""
        raise unlike(path, name, f"{found}{becomes}" if word else f"{found}, which can't be read", w)
    if dims != len(w.element):
        raise unlike(path, name, f"lists in {dims} dimensions" if dims else "single values", w)


def readable(schema: Any) -> list[tuple[str, str, list[str]]]:
    """The columns that can be read: path, dtype word, and dims (`_` where rows may differ)."""
    out = []
    for path in dict.fromkeys(paths_of(schema)):
        try:
            steps = _steps(schema, path)
        except SourceError:   # two columns of that name
            continue
        if steps is None:
            continue
        found, rest, dims = _stripped(schema.field(steps[0]).type), list(steps[1:]), []
        while is_list(found) or rest:
            if is_list(found):
                dims.append(str(getattr(found, "list_size", "_")))
                found = _stripped(found.value_type)
            else:
                found = _stripped(found.field(rest.pop(0)).type)
        word = word_of(found)
        if word not in (None, "null"):
            out.append((path, str(word), dims))
    return out


def word_of(type: Any) -> str | None:
    """The dtype word that a type is read as; None for one that can't be."""
    import pyarrow as pa

    t = pa.types
    if t.is_null(type):
        return "null"
    if str(type) in WORDS:
        return WORDS[str(type)]
    if t.is_string(type) or t.is_large_string(type) or t.is_string_view(type):
        return "text"
    if t.is_binary(type) or t.is_large_binary(type) or t.is_fixed_size_binary(type) or t.is_binary_view(type):
        return "bytes"
    if t.is_decimal(type):
        return "f64"
    if t.is_timestamp(type) or t.is_date(type) or t.is_time(type) or t.is_duration(type):
        return "i64"
    return None
