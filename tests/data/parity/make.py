"""Expected values of the cases in a .toml beside this file, computed once by the libraries people come from.

A case says the same thing twice: `ours` is an expression of the language, `theirs` one of Python over the same inputs.
`kept` evaluates every `theirs` and writes what came out, with the inputs and the libraries' versions, to an .npz.
The scripts `make_*.py` say what the inputs are and run where the libraries are; the tests need only the .npz.
"""
from __future__ import annotations

import importlib.metadata
import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent


def kept(domain: str, inputs: Mapping[str, Any], names: Mapping[str, Any]) -> None:
    """Write `domain`.npz: `in.NAME` for each input, `out.NAME` for each case, and `versions` as JSON text."""
    read = tomllib.loads((HERE / f"{domain}.toml").read_text())
    arrays = {f"in.{name}": np.asarray(value) for name, value in inputs.items()}
    for name, case in read["case"].items():
        arrays[f"out.{name}"] = np.asarray(eval(case["theirs"], {"np": np, **inputs, **names}), order="C")
    versions = {p: importlib.metadata.version(p) for p in read["packages"]}
    arrays["versions"] = np.array(json.dumps(versions))
    np.savez_compressed(HERE / f"{domain}.npz", **arrays)
    print(domain, len(read["case"]), "cases,", (HERE / f"{domain}.npz").stat().st_size, "bytes", versions)
