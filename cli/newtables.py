"""What `pipec new` finds in tables: the source's call and its columns, with types read off headers or the first rows."""
from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from ..kernels.arrow import MAGIC, files_in
from ..kernels.arrowtypes import is_list, is_struct, library, readable
from ..kernels.imagefile import IMAGE_KINDS, sniff
from ..kernels.ops import BadRecord
from ..kernels.sources import SourceError, open_source
from . import UsageError

ENDINGS = {".csv": "csv", ".tsv": "tsv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet", ".pq": "parquet",
           ".arrow": "arrow", ".feather": "arrow", ".ipc": "arrow", ".lmdb": "lmdb", ".mdb": "lmdb", ".txt": "lines"}
PACKED = (".gz", ".zst", ".bz2", ".xz")
ROWS = 1000         # that are looked at
MOST = 200          # columns of a program
DELIMITERS = ",;\t|"
Typed = tuple[str, str]   # name in the data, type


def kind_of(path: Path) -> str | None:
    """The source that reads such a file or folder, by its name and by what a folder holds."""
    if path.is_dir():
        if (path / "data.mdb").exists():
            return "lmdb"
        if _dataset(path):
            return "arrow"
        kinds = {k for p in path.iterdir() if not p.name.startswith((".", "_")) and (k := kind_of(p)) and p.is_file()}
        return kinds.pop() if len(kinds) == 1 and kinds != {"lines"} else None
    name = path.with_suffix("") if path.suffix in PACKED else path
    return ENDINGS.get(name.suffix.lower())


def columns_of(kind: str, path: Path) -> tuple[str, str, list[Typed], str | None]:
    """(options of the call, pattern below a folder or "", columns, the one that holds images). Raises UsageError."""
    pattern, first = "", path
    if path.is_dir() and kind != "lmdb" and not _dataset(path):
        inside = sorted(p for p in path.iterdir() if p.is_file() and kind_of(p) == kind)
        first = inside[0]
        pattern = f"*{''.join(first.suffixes[-2:]) if first.suffix in PACKED else first.suffix}"
    try:
        options, found = _FOUND[kind](first)
        usable = [(n, t) for n, t in found if not set(n) & set("{|\"\\\n") and n][:MOST]
        if not usable:
            raise UsageError(f"`{first}` holds no columns that can be read")
        image = _image(kind, first, usable)
        return options, pattern, [(n, "bytes" if n == image else t) for n, t in usable], image   # without one: a bad record
    except SourceError as error:
        raise UsageError("; ".join((error.title, *error.notes))) from None
    except BadRecord as bad:
        raise UsageError(f"`{first}` can't be read: {bad.reason}") from None
    except (OSError, ValueError) as error:
        raise UsageError(f"`{first}` can't be read: {(str(error).splitlines() or ['?'])[0][:120]}") from None


def _dataset(path: Path) -> bool:
    return (path / "state.json").exists() or (path / "dataset_dict.json").exists()


def _rows(kind: str, path: Path, options: dict[str, Any], columns: Sequence[Typed]) -> Iterable[dict[str, Any]]:
    """The first rows that can be read, by the columns' places as texts."""
    source = open_source(kind, (str(path),), options, [(f"c{k}", ((n,),), t) for k, (n, t) in enumerate(columns)])
    for number in range(min(ROWS, len(source))):
        try:
            yield source.read(number)
        except BadRecord:
            continue


def _image(kind: str, path: Path, columns: Sequence[Typed]) -> str | None:
    """The first column of bytes of which a row begins as an image does."""
    for name, type in columns:
        if type.rstrip("?") != "bytes":
            continue
        for row in islice(_rows(kind, path, {}, [(name, "bytes?" if kind != "lmdb" else "bytes")]), 3):
            if row["c0"] and sniff(row["c0"][:64]) in IMAGE_KINDS:
                return name
    return None


# --- texts ----------------------------------------------------------------------------------------------------------


def _table(path: Path) -> tuple[str, list[Typed]]:
    line = next((r["c0"] for r in _rows("lines", path, {}, [("line", "text")]) if r["c0"].strip()), "")
    kind = "tsv" if kind_of(path) == "tsv" else "csv"
    delimiter = "\t" if kind == "tsv" else max(DELIMITERS, key=line.count)
    cells = [c[1:-1] if len(c) > 1 and c[0] == c[-1] == '"' else c for c in line.split(delimiter)]
    header = not any(_is(c, float) for c in cells)
    names = cells if header else [str(k) for k in range(len(cells))]
    names = [n for n in dict.fromkeys(names) if names.count(n) == 1]
    options = {"header": header} | ({} if kind == "tsv" else {"delimiter": delimiter})
    rows = list(_rows(kind, path, options, [(n, "text?") for n in names]))
    shown = delimiter.replace("\t", "\\t")
    said = "" if kind == "tsv" or delimiter == "," else f', delimiter="{shown}"'
    return said + ("" if header else ", header=false"), [(n, _word([r[f"c{k}"] for r in rows])) for k, n in enumerate(names)]


def _word(cells: list[str | None]) -> str:
    """The narrowest type that all cells have."""
    there = [c.strip() for c in cells if c is not None]
    gaps = "?" if len(there) < len(cells) else ""
    if there and all(c.lower() in ("true", "false") for c in there):
        return "bool" + gaps
    for word, make in (("i64", int), ("f64", float)):
        if there and all(_is(c, make) for c in there):
            return word + gaps
    return "text"   # an empty cell is the empty text


def _is(cell: str, make: Any) -> bool:
    try:
        value = make(cell)
    except ValueError:
        return False
    return "_" not in cell and cell.isascii() and (make is float or -(2**63) <= value < 2**63)


def _objects(path: Path) -> tuple[str, list[Typed]]:
    import msgspec

    seen: dict[str, list[Any]] = {}
    count = 0
    for row in _rows("lines", path, {}, [("line", "bytes")]):
        try:
            value = msgspec.json.decode(row["c0"]) if row["c0"].strip() else None
        except (msgspec.DecodeError, RecursionError):
            continue
        if isinstance(value, dict):
            count += 1
            _collect(seen, "", value)
    found = ((name, _json_word(values, count)) for name, values in seen.items())
    return "", [(name, word) for name, word in found if word]


def _collect(seen: dict[str, list[Any]], path: str, value: Any) -> None:
    """Values by path; those of a list of objects as lists."""
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            _collect(seen, f"{path}.{key}" if path else key, inner)
    elif isinstance(value, list) and value and all(isinstance(v, dict) for v in value):
        for key in dict.fromkeys(k for v in value for k in v):
            inner = [v.get(key) for v in value]
            if not any(isinstance(i, dict | list) for i in inner):
                seen.setdefault(f"{path}.{key}", []).append(inner)
    else:
        seen.setdefault(path, []).append(value)


def _json_word(values: list[Any], count: int) -> str:
    """The type of these values; "" where they have none in common."""
    there, depth = [v for v in values if v is not None], 0
    gaps = len(there) < count
    while there and all(isinstance(v, list) for v in there):
        depth, there, gaps = depth + 1, [x for v in there for x in v if x is not None], any(None in v for v in there)
    if any(isinstance(v, dict | list) for v in there):
        return ""
    types = {type(v) for v in there}
    word = {bool: "bool", int: "i64", str: "text"}.get(next(iter(types))) if len(types) == 1 else None
    word = word or ("f64" if types and types <= {int, float} else "")
    if not word and not there and depth:
        return ""
    return word and word + ("?" if gaps else "") + (f"[{', '.join('_' * depth)}]" if depth else "")


def _lines(path: Path) -> tuple[str, list[Typed]]:
    return "", [("line", "text")]


# --- binary ---------------------------------------------------------------------------------------------------------


def _parquet(path: Path) -> tuple[str, list[Typed]]:
    library("Parquet")
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        schema, metadata = file.schema_arrow, file.metadata
        groups = [metadata.row_group(g) for g in range(metadata.num_row_groups)]
        stored = [file.schema.column(c).path for c in range(metadata.num_columns)]
    full = {_plain(p) for c, p in enumerate(stored)
            if all(g.column(c).is_stats_set and g.column(c).statistics.null_count == 0 for g in groups)}
    return "", _typed(schema, full)


def _plain(stored: str) -> str:
    """A leaf's path without what Parquet puts between a list and its elements."""
    return ".".join(s for s in stored.split(".") if s not in ("list", "element", "item", "array"))


def _arrow(path: Path) -> tuple[str, list[Typed]]:
    pa = library("Arrow")
    first = files_in(str(path))[0]
    with open(first, "rb") as data:
        form = pa.ipc.open_file if data.read(len(MAGIC)) == MAGIC else pa.ipc.open_stream
    with pa.memory_map(first) as source:
        table = form(source).read_all()
        chunks = [(name, chunk) for name, column in zip(table.column_names, table.columns) for chunk in column.chunks]
        gaps = {path for name, chunk in chunks for path in _gaps(name, chunk)}
        return "", _typed(table.schema, {p for p, _, _ in readable(table.schema)} - gaps)


def _gaps(path: str, array: Any) -> Iterator[str]:
    """The paths in a column where something is missing."""
    if is_list(array.type):
        yield from _gaps(path, array.flatten())
    elif is_struct(array.type):
        for field, inner in zip(array.type, array.flatten()):   # with the nulls of the struct
            yield from _gaps(f"{path}.{field.name}", inner)
    elif array.null_count:
        yield path


def _typed(schema: Any, full: set[str]) -> list[Typed]:
    """Columns that can be read, with `?` where something may be missing."""
    return [(path, word + ("" if path in full else "?") + (f"[{', '.join(dims)}]" if dims else ""))
            for path, word, dims in readable(schema)]


def _lmdb(path: Path) -> tuple[str, list[Typed]]:
    return "", [("key", "text"), ("value", "bytes")] if all(_texts(path)) else [("key", "bytes"), ("value", "bytes")]


def _texts(path: Path) -> Iterator[bool]:
    for row in islice(_rows("lmdb", path, {}, [("key", "bytes")]), 100):
        yield row["c0"].isascii() and row["c0"].decode("ascii").isprintable()


_FOUND = {"csv": _table, "tsv": _table, "jsonl": _objects, "lines": _lines, "parquet": _parquet, "arrow": _arrow, "lmdb": _lmdb}
