"""The .npz file that generated programs read: its columns, and what is known of their values."""
from __future__ import annotations

from dataclasses import dataclass

import numpy as np

COUNT = 19            # records in the file
SAFE = 2**40          # integers beyond are brought back by `% 1009`


@dataclass(frozen=True)
class Kind:
    """What an expression is: "int" (at most `bound` from 0), "float" or "bool", and its dims as the program writes them."""

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


def write_data(path: str) -> None:
    """The file that the programs read; floats with -0, tiny, huge, infinite numbers and NaN among them."""
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
