"""Operators on texts: changing, taking apart, reading numbers, tokenizers and tables of values. Texts are Python's str."""
from __future__ import annotations

import csv
import functools
import json
import os
import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from .ops import BadRecord, op
from .table import digits

INTEGER = re.compile(r"[+-]?0*[0-9]{1,19}")
DECIMAL = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
SPACE = " \t\r\n"


# --- one text -----------------------------------------------------------------------------------------------------


@op("length(value: text) -> i64")
class length:
    """How many characters (code points) a text has."""

    def ref(value: Any) -> Any:
        return np.int64(len(value))

    def cpu(alloc: Any, value: str) -> Any:
        return np.int64(len(value))

    def ranges(value: Any) -> Any:
        return (0, 2**40)

    examples = ((("aé",), 2),)


@op("lower(value: text) -> text")
class lower_:
    """The text in lower case, as Unicode has it for any language."""

    def ref(value: Any) -> Any:
        return value.lower()

    def cpu(alloc: Any, value: str) -> Any:
        return value.lower()

    examples = ((("ÄB c",), "äb c"),)


@op("upper(value: text) -> text")
class upper:
    """The text in upper case; some characters become two."""

    def ref(value: Any) -> Any:
        return value.upper()

    def cpu(alloc: Any, value: str) -> Any:
        return value.upper()

    examples = ((("aß",), "ASS"),)


@op("strip(value: text) -> text")
class strip:
    """The text without spaces, tabs and line ends at both ends."""

    def ref(value: Any) -> Any:
        return value.strip(SPACE)

    def cpu(alloc: Any, value: str) -> Any:
        return value.strip(SPACE)

    examples = (((" a b ",), "a b"),)


@op("replace(value: text, old: text, new: text) -> text")
class replace:
    """The text with every `old` replaced by `new`, from left to right; an empty `old` changes nothing."""

    def ref(value: Any, old: str, new: str) -> Any:
        return value.replace(old, new) if old else value

    def cpu(alloc: Any, value: str, old: str, new: str) -> Any:
        return value.replace(old, new) if old else value

    examples = ((("a-b-c", "-", " "), "a b c"),)


@op("contains(value: text, part: text) -> bool")
class contains:
    """Does `part` occur in the text."""

    def ref(value: Any, part: str) -> Any:
        return np.bool_(part in value)

    def cpu(alloc: Any, value: str, part: str) -> Any:
        return np.bool_(part in value)

    examples = ((("a cat", "cat"), True),)


@op('split(value: text, at: text = "") -> text[n]')
class split:
    """The parts of a text between each `at`; without it, its words: what lies between spaces, tabs and line ends."""

    def ref(value: Any, at: str) -> Any:
        return _parts(value, at)

    def cpu(alloc: Any, value: str, at: str) -> Any:
        return _parts(value, at)


def _parts(value: str, at: str) -> Any:
    found = value.split(at) if at else [w for w in re.split(f"[{SPACE}]+", value) if w]
    out = np.empty(len(found), object)
    out[:] = found
    return out


# --- numbers ------------------------------------------------------------------------------------------------------


def _integer(value: str) -> Any:
    written = value.strip(SPACE)
    number = int(written) if INTEGER.fullmatch(written) else 2**63
    return np.int64(number) if -(2**63) <= number < 2**63 else None


@op("parse_int(value: text) -> i64?")
class parse_int:
    """The whole number that a text writes in decimal, spaces around it; missing where it is none, or past i64."""

    def ref(value: Any) -> Any:
        return _integer(value)

    def cpu(alloc: Any, value: str) -> Any:
        return _integer(value)

    examples = (((" -12 ",), -12),)


def _float(value: str) -> Any:
    written = value.strip(SPACE)
    return np.float64(written) if DECIMAL.fullmatch(written) else None


@op("parse_float(value: text) -> f64?")
class parse_float:
    """The number that a text writes in decimal, nearest in f64; missing where it is none. `nan` and `inf` are none."""

    def ref(value: Any) -> Any:
        return _float(value)

    def cpu(alloc: Any, value: str) -> Any:
        return _float(value)

    examples = ((("1.5e3",), 1500.0),)


# --- tokenizers -----------------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=16)
def _tokenizer(path: str, most: int, stamp: tuple[int, int]) -> Any:
    try:
        import tokenizers
    except ImportError:
        raise BadRecord("E0801", "it needs the package tokenizers (pip install pipec[text])") from None
    try:
        made = tokenizers.Tokenizer.from_file(path)
    except Exception as error:  # the library raises bare Exception
        raise BadRecord("E0801", f"`{path}` is no tokenizer it can read", str(error)[:120]) from None
    made.no_padding()
    if most > 0:
        made.enable_truncation(most)
    else:
        made.no_truncation()
    return made


def _stamp(path: str) -> tuple[int, int]:
    try:
        status = os.stat(path)
    except OSError as error:
        raise BadRecord("E0801", f"`{path}` can't be read: {error.strerror}") from None
    return status.st_mtime_ns, status.st_size


def _tokens(value: str, path: str, most: int, special: bool) -> Any:
    if most < 0:
        raise BadRecord("E0801", "`most` must be 0 or more", str(most))
    tokenizer = _tokenizer(path, int(most), _stamp(path))
    try:
        return np.asarray(tokenizer.encode(value, add_special_tokens=bool(special)).ids, np.int64)
    except Exception as error:  # the library raises bare Exception
        raise BadRecord("E0801", "its tokenizer can't take this text", str(error)[:120]) from None


@op("tokenize(value: text, path: path, most: i64 = 0, special: bool = true) -> i64[n]")
class tokenize:
    """The numbers of a text's tokens, by a Hugging Face `tokenizer.json`; the same as its library gives.

    At most `most` of them where that isn't 0, cut as the tokenizer cuts, so that its special tokens stay;
    `special=false` adds none. Nothing is padded: `[ids[i] ?? 0 for i < 77]` is. Needs the package tokenizers.
    """

    def ref(value: Any, path: str, most: int, special: bool) -> Any:
        return _tokens(value, path, most, special)

    def cost(args: Any, results: Any) -> Any:
        return 25_000 + 300 * args[0][0]

    def cpu(alloc: Any, value: str, path: str, most: int, special: bool) -> Any:
        ids = _tokens(value, path, most, special)
        out = alloc(ids.shape, np.int64)
        out[...] = ids
        return out

    def ranges(value: Any, path: Any, most: Any, special: Any) -> Any:
        return (0, 2**32 - 1)


# --- tables ---------------------------------------------------------------------------------------------------------


def _rows(path: str) -> Iterator[dict[str, Any]]:
    ending = os.path.splitext(path)[1].lower()
    if ending == ".parquet":
        try:
            from pyarrow import parquet
        except ImportError:
            raise BadRecord("E0801", "a Parquet table needs the package pyarrow") from None
        yield from parquet.read_table(path).to_pylist()
    elif ending in (".jsonl", ".ndjson"):
        with open(path, encoding="utf-8-sig", newline="\n") as file:
            yield from (json.loads(line) for line in file if line.strip())
    elif ending in (".csv", ".tsv"):
        with open(path, encoding="utf-8-sig", newline="") as file:
            yield from csv.DictReader(file, delimiter="\t" if ending == ".tsv" else ",")
    else:
        raise BadRecord("E0801", "a table is a .csv, .tsv, .jsonl or .parquet file", path)


@functools.lru_cache(maxsize=32)
def _table(path: str, key: str, column: str, stamp: tuple[int, int]) -> dict[str, Any]:
    """The column by key, both as texts; the first row of a key counts."""
    found: dict[str, Any] = {}
    try:
        for row in _rows(path):
            if key not in row or column not in row:
                lacking = key if key not in row else column
                raise BadRecord("E0801", f"`{path}` has no column `{lacking}`", f"it has {', '.join(map(str, row))}"[:120])
            if row[key] is not None:
                found.setdefault(str(row[key]), None if row[column] is None else str(row[column]))
    except (OSError, ValueError, csv.Error, AttributeError, TypeError, RecursionError) as error:
        raise BadRecord("E0801", f"the table `{path}` can't be read", str(error)[:120]) from None
    return found


def _found(value: Any, table: str, key: str, column: str) -> Any:
    return _table(table, key, column, _stamp(table)).get(value if isinstance(value, str) else digits(value))


@op("lookup(value: any, table: path, key: text, column: text) -> i64?")
class lookup:
    """The whole number in `column` of the row of a table whose `key` is the value, an integer or a text.

    The table is a .csv, .tsv, .jsonl or .parquet file, read once. Missing where no row has the key, or no number
    stands there; of several rows the first counts.
    """

    def ref(value: Any, table: str, key: str, column: str) -> Any:
        found = _found(value, table, key, column)
        return None if found is None else _integer(found)

    def cpu(alloc: Any, value: Any, table: str, key: str, column: str) -> Any:
        found = _found(value, table, key, column)
        return None if found is None else _integer(found)


@op("lookup_float(value: any, table: path, key: text, column: text) -> f64?")
class lookup_float:
    """As `lookup`, of a column of decimal numbers."""

    def ref(value: Any, table: str, key: str, column: str) -> Any:
        found = _found(value, table, key, column)
        return None if found is None else _float(found)

    def cpu(alloc: Any, value: Any, table: str, key: str, column: str) -> Any:
        found = _found(value, table, key, column)
        return None if found is None else _float(found)


@op("lookup_text(value: any, table: path, key: text, column: text) -> text?")
class lookup_text:
    """As `lookup`, of a column of texts."""

    def ref(value: Any, table: str, key: str, column: str) -> Any:
        return _found(value, table, key, column)

    def cpu(alloc: Any, value: Any, table: str, key: str, column: str) -> Any:
        return _found(value, table, key, column)
