"""The files that generated programs read, one .npz and one Parquet: their columns, and what is known of the values."""
from __future__ import annotations

from dataclasses import dataclass

import numpy as np

COUNT = 19            # records in the file
SAFE = 2**40          # integers beyond are brought back by `% 1009`


@dataclass(frozen=True)
class Kind:
    """What an expression is: "int" (at most `bound` from 0), "float", "bool" or "text", and its dims as it is written."""

    base: str
    dims: tuple[str, ...] = ()
    bound: int = 0


# The columns of the file: field → (type text, kind). `w` is a size that only the data tells.
COLUMNS: dict[str, tuple[str, Kind]] = {
    "n": ("i64", Kind("int", (), COUNT)),
    "b": ("u8", Kind("int", (), 255)),
    "x": ("f32", Kind("float")),
    "flag": ("bool", Kind("bool")),
    "size": ("i32", Kind("int", (), 6)),
    "few": ("i16", Kind("int", (), 3)),
    "big": ("u64", Kind("int", (), SAFE)),
    "d": ("f64", Kind("float")),
    "h": ("f16", Kind("float")),
    "v": ("f32[3]", Kind("float", ("3",))),
    "iv": ("i8[4]", Kind("int", ("4",), 128)),
    "mask": ("bool[4]", Kind("bool", ("4",))),
    "wave": ("f32[w]", Kind("float", ("w",))),
    "marks": ("i64[w]", Kind("int", ("w",), 50)),
    "m": ("f32[2, 3]", Kind("float", ("2", "3"))),
    "img": ("u8[4, 5, 3]", Kind("int", ("4", "5", "3"), 255)),
}
# Only the Parquet file has these. It has `w` from 0 to 5, and no array of more than one dimension.
GAPS: dict[str, tuple[str, Kind]] = {
    "gi": ("i32?", Kind("int", (), 1000)), "gf": ("f32?", Kind("float")), "gb": ("bool?", Kind("bool")),
    "gl": ("i16?[4]", Kind("int", ("4",), 300)), "gt": ("text?", Kind("text")), "t": ("text", Kind("text")),
}
TABLE = {name: of for name, of in COLUMNS.items() if len(of[1].dims) < 2} | GAPS
WORDS = ("", "a", "b c", "Ab", "12", "-7", " 3.5", "née", "a,b", "zebra", "x" * 40)


def write_data(path: str) -> None:
    """The files that the programs read, `path` and `path`.parquet; floats with -0, tiny, huge, infinite numbers and NaN."""
    rng = np.random.default_rng(8)

    def floats(*shape: int) -> np.ndarray:
        found = rng.normal(0, 3, (COUNT, *shape))
        odd = rng.random(found.shape) < 0.15
        found[odd] = rng.choice([0.0, -0.0, 1.0, 0.5, 2.5, -1.5, 1e-42, 3e38, np.inf, -np.inf, np.nan, 255.5, -7.0], odd.sum())
        return found

    arrays = {
        "n": np.arange(COUNT), "b": rng.integers(0, 256, COUNT, np.uint8), "x": floats(), "flag": rng.random(COUNT) < 0.5,
        "size": rng.integers(0, 7, COUNT, np.int32), "few": rng.choice([0, 0, 0, 1, 1, 2, 3], COUNT).astype(np.int16),
        "big": rng.integers(0, SAFE, COUNT, np.uint64), "d": floats(), "h": floats(), "v": floats(3),
        "iv": rng.integers(-128, 128, (COUNT, 4), np.int8), "mask": rng.random((COUNT, 4)) < 0.5, "wave": floats(5),
        "marks": rng.integers(-50, 51, (COUNT, 5)), "m": floats(2, 3), "img": rng.integers(0, 256, (COUNT, 4, 5, 3), np.uint8),
    }
    with np.errstate(over="ignore"):
        typed = {name: a.astype({"f32": np.float32, "f16": np.float16}.get(COLUMNS[name][0].split("[")[0], a.dtype))
                 for name, a in arrays.items()}
    np.savez(path, **typed)
    _write_table(f"{path}.parquet", typed, rng)


def _write_table(path: str, typed: dict[str, np.ndarray], rng: np.random.Generator) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    def gapped(values: list) -> list:
        return [None if rng.random() < 0.3 else v for v in values]

    found = {name: list(typed[name]) for name in TABLE if name in typed}
    lengths = rng.integers(0, 6, COUNT)
    for name in ("wave", "marks"):
        found[name] = [row[:n] for row, n in zip(typed[name], lengths)]
    columns = {name: pa.array(rows) for name, rows in found.items()}
    columns |= {
        "gi": pa.array(gapped(rng.integers(-1000, 1001, COUNT).tolist()), pa.int32()),
        "gf": pa.array(gapped(typed["x"].tolist()), pa.float32()),
        "gb": pa.array(gapped(typed["flag"].tolist()), pa.bool_()),
        "gl": pa.array([gapped(row) for row in rng.integers(-300, 301, (COUNT, 4)).tolist()], pa.list_(pa.int16(), 4)),
        "gt": pa.array(gapped(rng.choice(WORDS, COUNT).tolist()), pa.string()),
        "t": pa.array(rng.choice(WORDS, COUNT).tolist(), pa.string()),
    }
    parquet.write_table(pa.table(columns), path, row_group_size=7)
