"""tables.npz: what pandas, pyarrow, polars and torch make of small columns (needs all four)."""
from __future__ import annotations

import datetime

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import torch
from make import kept

DAYS = [datetime.date(y, m, d) for y in (1600, 1899, 1900, 1969, 1970, 1972, 2000, 2004, 2009, 2015, 2020, 2021, 2100, 2400)
        for m, d in ((1, 1), (1, 4), (2, 28), (3, 1), (12, 28), (12, 31))]
rng = np.random.default_rng(8)
micros = [(d - datetime.date(1970, 1, 1)).days * 86_400_000_000 + s for d in DAYS for s in (0, 86_399_999_999)]
times = np.array([*micros, *rng.integers(-62_135_596_800_000_000, 253_402_300_799_999_999, 40)], np.int64)
reals = np.array([0.5, -0.5, 1.5, 2.5, -2.5, 254.5, 255.5, 300, -7.25, 1e-9, 3e9], np.float32)
counts = np.array([3, -1, 0, 7, 7, 2, 100, 4, 0, 1], np.int64)
gone = np.array([0, 1, 0, 0, 1, 0, 0, 1, 0, 0], np.int64)
floats = np.array([1.5, -2.25, 0.125, 1e8, -1e8, 3.0, 0.1, 0.2], np.float32)
inputs = {"times": times, "reals": reals, "counts": counts, "gone": gone, "floats": floats}
nullable = pa.array(counts, mask=gone.astype(bool))
kept("tables", inputs, {
    "pd": pd, "pl": pl, "pa": pa, "pc": pc, "torch": torch, "T": pd.Series(times.astype("datetime64[us]")).dt,
    "P": pl.Series(times).cast(pl.Datetime("us")).dt, "A": pa.array(times, pa.timestamp("us")), "C": nullable,
    "D": pd.Series(nullable.to_pandas(integer_object_nulls=True), dtype="Int64"), "L": pl.from_arrow(nullable)})
