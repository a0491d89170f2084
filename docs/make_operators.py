"""Writes docs/operators.md from the operators' own heads and texts: `python docs/make_operators.py`."""
from __future__ import annotations

import inspect
import re
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from pipec import dsl
from pipec.kernels.ops import OPERATORS, Registry
from pipec.kernels.random import DRAWS
from pipec.kernels.scalar import SCALARS

TARGET = Path(__file__).parent / "operators.md"
TITLES = {"decode": "Images: decoding", "resize": "Images: resizing", "warp": "Images: reading between pixels",
          "filters": "Images: filters and counts", "audio": "Sound", "text": "Texts", "table": "Columns and rows of numbers"}
SIGNS = {"add": "a + b", "sub": "a - b", "mul": "a * b", "div": "a / b", "floordiv": "a // b", "mod": "a % b", "pow": "a ^ b",
         "neg": "-a", "eq": "a == b", "ne": "a != b", "lt": "a < b", "le": "a <= b", "gt": "a > b", "ge": "a >= b",
         "and": "a and b", "or": "a or b", "not": "not a"}
START = """# Functions and operators

Everything that a program can call, from the definitions themselves. This file is generated: `python docs/make_operators.py`
writes it again. [language.md](language.md) explains heads and types; `pipec explain CODE` explains errors.

In a head, a name after `:` is the type an argument must have, `= value` is what it has when it isn't given, and the part
after `->` is the result. `any`, `num`, `int` and `float` stand for a dtype, the same one wherever the word recurs. Arguments
are given in order or by name: `resize(img, box, 64, 64, filter="area")`.

- [The language's own](#the-languages-own)
- [Draws](#draws)
- [The library](#the-library)
- [Operators](#operators)
- [Scalar functions](#scalar-functions)

## The language's own

- `sum prod mean std var min max`: of all places of a tensor, `sum(x)`, or of an expression over binders,
  `sum(x[i] * w[i] for i)`. `std` and `var` divide by n - 1; `std(x, correction=0)` divides by n.
- `any all`: of bools, likewise.
- `argmax argmin first`: the place of the greatest, the least, the first true one, as i64. They run over one dimension or
  one binder.
- `concat(a, b, …)`: tensors one after the other along the first dimension.
- `missing(x)`: is there no value; of a tensor a bool for each place.
- `u8(x)` and so on to `f64(x)` and `bool(x)`: numbers as that dtype. To integers they are rounded half to even and kept in
  range, but `i64(x)` cuts towards zero.

Of nothing, `sum prod any all` are 0, 1, false and true. `mean std var min max argmax argmin` of what may be empty may be
missing, and so may `first`: write `?? value`.

## Draws

Written with `~`, these and every function of the library that uses them.

| | |
|---|---|
"""
LIBRARY = """
## The library

Written in the language itself: `dsl/std.pipe` is readable, and a function of yours with the same name takes its place.

"""
SCALAR = """
## Scalar functions

They apply to tensors of equal sizes element by element. Integers are computed in i64; a function with the result `float`
makes them f32.

"""


def library() -> str:
    """The functions of std.pipe with the comments above them, in its own sections."""
    text = Path(dsl.__file__).with_name("std.pipe").read_text(encoding="utf-8")
    out: list[str] = []
    comment: list[str] = []
    lines = iter(text.split("\n"))
    for line in lines:
        if section := re.match(r"# --- (.+?) -+$", line):
            out.append(f"### {section[1][0].upper()}{section[1][1:]}\n")
            comment = []
        elif line.startswith("# "):
            comment.append(line[2:])
        elif line.startswith("fn "):
            head = line[3:]
            while head.count("(") > head.count(")"):
                head += " " + next(lines).strip()
            out.append(f"```text\n{head}\n```\n\n" + "\n".join(comment) + "\n")
            comment = []
        else:
            if comment and not line and out and out[-1].startswith("### "):
                out.append("\n".join(comment) + "\n")
            comment = []
    return "\n".join(out)


def operators() -> str:
    out = []
    for module in Registry.modules:
        loaded = import_module(f"pipec.kernels.{module}")
        out.append(f"### {TITLES[module]}\n")
        for operator in OPERATORS.values():
            if operator.ref.__module__ == loaded.__name__:
                examples = "".join(f"\n`{operator.name}({', '.join(map(shown, args))})` is `{shown(result)}`.\n"
                                   for args, result in operator.examples)
                out.append(f"```text\n{operator.head}\n```\n\n{inspect.cleandoc(operator.doc)}\n{examples}")
    return "\n".join(out)


def scalars() -> str:
    rows = ["| | | for example |", "|---|---|---|"]
    for scalar in SCALARS.values():
        args, result = scalar.example
        sign = SIGNS.get(scalar.name)
        call = f"{scalar.name}({', '.join(map(shown, args))})"
        if sign:
            places = {"a": shown(args[0]), "b": shown(args[-1])}
            call = " ".join(places.get(word, word) for word in sign.split(" ")) if " " in sign else f"-{places['a']}"
        rows.append(f"| `{sign or scalar.head}` | {scalar.doc} | `{call}` is `{shown(result)}` |")
    return "\n".join(rows) + "\n"


def shown(value: Any) -> str:
    """A value as a program writes it."""
    match value:
        case np.ndarray():
            return shown(value.tolist())
        case bool() | np.bool_():
            return "true" if value else "false"
        case str():
            return f'"{value}"'
        case list():
            return f"[{', '.join(map(shown, value))}]"
    return f"{value}"


def text() -> str:
    """The whole file."""
    draws = "".join(f"| `{d.head}` | {d.doc} |\n" for d in DRAWS.values())
    return f"{START}{draws}{LIBRARY}{library()}\n## Operators\n\n{operators()}{SCALAR}{scalars()}"


if __name__ == "__main__":
    TARGET.write_text(text(), encoding="utf-8")
