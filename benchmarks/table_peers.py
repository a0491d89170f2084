"""W6, a click log in Parquet as its users read it: gaps filled, logarithms, hashes, buckets, batches of 8,192.

All read the row groups one after the other (torch's workers take turns) and deliver f32[13] and i64[26]. Each hashes texts
and integers with what its library has.
"""
from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from . import data

HERE = Path(__file__).parent
ROWS, GROUP = 2_000_000, 131_072
EDGES = [0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 128, 512, 4096]
COUNTS = [f"I{i}" for i in range(1, 14)]
CATS = [f"S{i}" for i in range(1, 14)] + [f"N{i}" for i in range(1, 14)]
Epochs = Callable[[int], Iterable[Any]]


def path() -> str:
    return str(data.FOLDER / "clicks" / "clicks.parquet")


def prepare() -> None:
    """`FOLDER/clicks/clicks.parquet`: two million rows, with about the gaps and different values that Criteo's log has."""
    if Path(path()).exists():
        return
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng = np.random.default_rng(777)
    columns = {}
    for i, gone in enumerate((.45, 0, .22, .22, .03, .22, .04, .0005, .04, .45, .04, .77, .22)):
        values = np.floor(np.exp(rng.normal(1.5 + 0.2 * i, 2.0, ROWS))).clip(0, 2e6).astype(np.int32)
        columns[f"I{i + 1}"] = pa.array(values - (rng.random(ROWS) < 0.02), pa.int32(), mask=rng.random(ROWS) < gone)
    different = (1460, 1_000_000, 305, 12_517, 3, 5683, 3194, 14_992, 10, 2173, 800_000, 15, 105,
                 583, 800_000, 24, 633, 93_145, 900_000, 27, 700_000, 5652, 4, 18, 286_181, 142_572)
    gaps = (0, .03, 0, 0, 0, 0, 0, 0, 0, .44, .03, 0, .44, 0, .03, .12, 0, 0, .03, 0, .03, 0, .44, .76, .03, .44)
    for i, (name, most, gone) in enumerate(zip(CATS, different, gaps)):
        ids = np.minimum((rng.pareto(1.05, ROWS) * max(1, most / 200)).astype(np.int64), most - 1)
        keys = (ids.astype(np.uint64) * np.uint64(2654435761) + np.uint64(i * 97)) & np.uint64(0xFFFFFFFF)
        mask = rng.random(ROWS) < gone
        if name.startswith("N"):
            columns[name] = pa.array(keys.astype(np.int64), mask=mask)
            continue
        unique, places = np.unique(keys, return_inverse=True)
        texts = pa.array([f"{k:08x}" for k in unique.tolist()])
        columns[name] = pa.DictionaryArray.from_arrays(pa.array(places.astype(np.int32), mask=mask), texts).cast(pa.string())
    Path(path()).parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path(), row_group_size=GROUP, compression="snappy")


def ours(workload: str, threads: int) -> Epochs:
    import pipec

    loader = pipec.open(str(HERE / "W6.pipe"), threads=threads, root=str(Path(path()).parent))
    return lambda _: iter(loader)


def batches(parts: Iterable[Any]) -> Iterator[Any]:
    size = BATCH["W6"]
    for dense, cats in parts:
        for i in range(0, len(dense) - size + 1, size):   # 16 to a row group
            yield dense[i : i + size], cats[i : i + size]


def polars(workload: str, threads: int) -> Epochs:
    os.environ["POLARS_MAX_THREADS"] = str(threads)
    import warnings

    import polars as pl

    warnings.simplefilter("ignore")
    made = [pl.col(k).fill_null(0).clip(0).cast(pl.Float32).log1p().alias(k) for k in COUNTS]
    made += [pl.when(pl.col(k).is_null()).then(0).otherwise(pl.col(k).hash(0) % (1000 if k == "N13" else 100_000))
             .cast(pl.Int64).alias(k) for k in CATS]
    age = pl.col("I1").fill_null(0).cut([float(e) for e in EDGES], left_closed=False).to_physical().cast(pl.Int64)
    made.append(age.alias("age"))

    def part(first: int) -> Any:
        frame = pl.scan_parquet(path()).slice(first, GROUP).select(made)
        done = frame.with_columns(N13=pl.col("N13") * 16 + pl.col("age")).collect()
        return done.select(COUNTS).to_numpy(order="c"), done.select(CATS).to_numpy(order="c")

    return lambda _: batches(map(part, range(0, ROWS, GROUP)))


def _arrow(file: Any, group: int, threaded: bool) -> Any:
    """A row group by pyarrow and NumPy: integers mixed by a multiplication, texts hashed once for each different one."""
    import zlib

    import numpy as np
    import pyarrow as pa

    table = file.read_row_group(group, use_threads=threaded)
    dense, cats = np.empty((table.num_rows, 13), np.float32), np.empty((table.num_rows, 26), np.int64)
    for j, name in enumerate(COUNTS):
        values = table[name].combine_chunks().fill_null(0).to_numpy(zero_copy_only=False)
        dense[:, j] = np.log1p(np.maximum(values, 0))
        if j == 0:
            age = np.searchsorted(EDGES, values)
    for j, name in enumerate(CATS):
        column, most = table[name].combine_chunks(), 1000 if j == 25 else 100_000
        if pa.types.is_string(column.type):
            coded = column.dictionary_encode()
            hashed = np.array([zlib.crc32(t.encode()) % most for t in coded.dictionary.to_pylist()] + [0])
            cats[:, j] = hashed[coded.indices.fill_null(len(hashed) - 1).to_numpy(zero_copy_only=False)]
        else:
            bits = column.fill_null(0).to_numpy(zero_copy_only=False).astype(np.uint64)
            bits = (bits ^ bits >> np.uint64(33)) * np.uint64(0xFF51AFD7ED558CCD)
            cats[:, j] = (bits ^ bits >> np.uint64(33)) % np.uint64(most)
    cats[:, 25] = cats[:, 25] * 16 + age
    return dense, cats


def arrow(workload: str, threads: int) -> Epochs:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pa.set_cpu_count(threads)
    file = pq.ParquetFile(path())
    return lambda _: batches(_arrow(file, g, True) for g in range(file.num_row_groups))


def pandas(workload: str, threads: int) -> Epochs:
    import numpy as np
    import pandas as pd
    import pyarrow as pa
    import pyarrow.parquet as pq

    pa.set_cpu_count(threads)
    file = pq.ParquetFile(path())

    def part(group: int) -> Any:
        frame = file.read_row_group(group).to_pandas()
        dense = np.log1p(frame[COUNTS].fillna(0).clip(lower=0)).to_numpy(np.float32)
        cats = np.empty((len(frame), 26), np.int64)
        for j, name in enumerate(CATS):
            hashed = pd.util.hash_array(frame[name].to_numpy()) % np.uint64(1000 if j == 25 else 100_000)
            cats[:, j] = np.where(frame[name].isna(), 0, hashed)
        cats[:, 25] = cats[:, 25] * 16 + np.searchsorted(EDGES, frame["I1"].fillna(0).to_numpy())
        return dense, cats

    return lambda _: batches(map(part, range(file.num_row_groups)))


def torch_arrow(workload: str, threads: int) -> Epochs:
    """A DataLoader whose workers take row groups in turn, each with the code of the pyarrow peer."""
    import pyarrow.parquet as pq
    import torch
    from torch.utils.data import DataLoader, IterableDataset, get_worker_info

    torch.set_num_threads(1)

    class Groups(IterableDataset):  # type: ignore[type-arg]
        def __iter__(self) -> Iterator[Any]:
            worker, file = get_worker_info(), pq.ParquetFile(path())
            mine = range(worker.id, file.num_row_groups, worker.num_workers)
            for dense, cats in batches(_arrow(file, g, False) for g in mine):
                yield torch.from_numpy(dense), torch.from_numpy(cats)

    loader = DataLoader(Groups(), batch_size=None, num_workers=threads, persistent_workers=True, prefetch_factor=4)
    return lambda _: loader


BATCH = {"W6": 8192}
PREPARE = {"W6": prepare}
MODULE = {"polars": "polars", "pyarrow": "pyarrow", "pandas": "pandas", "torch-arrow": "torch"}
PEERS: dict[str, dict[str, Callable[[str, int], Epochs]]] = {
    "W6": {"pipec": ours, "polars": polars, "pyarrow": arrow, "pandas": pandas, "torch-arrow": torch_arrow}}
DIFFERS = {"W6": {"polars": "its own hash, which another version may change", "pyarrow": "CRC-32 of texts",
                  "torch-arrow": "CRC-32 of texts"}}
