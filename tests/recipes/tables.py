"""The recipes of tables in plain Python and NumPy: a click model with histories, forecasting windows."""
from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np

from .seen import Seen, chunks, padded


def murmur(data: bytes) -> int:
    """MurmurHash64A with the seed 0, as its author wrote it."""
    m, h = 0xC6A4A7935BD1E995, len(data) * 0xC6A4A7935BD1E995 % 2**64
    whole = len(data) // 8 * 8
    for at in range(0, whole, 8):
        k = int.from_bytes(data[at : at + 8], "little") * m % 2**64
        h = (h ^ (k ^ k >> 47) * m % 2**64) * m % 2**64
    if whole < len(data):
        h = (h ^ int.from_bytes(data[whole:], "little")) * m % 2**64
    h = (h ^ h >> 47) * m % 2**64
    return h ^ h >> 47


def hashed(value: Any, salt: int = 0) -> int:
    """The language's `hash`: SplitMix64's finalizer, its last bit left out."""
    bits = murmur(value.encode()) if isinstance(value, str) else value
    z = (bits + salt * 0x9E3779B97F4A7C15) % 2**64
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ z >> 27) * 0x94D049BB133111EB % 2**64
    return (z ^ z >> 31) >> 1


def crossed(a: Any, b: Any, salt: int) -> int:
    return hashed(a, hashed(b, salt))


def moment(microseconds: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=microseconds)


def history(records: list[Seen], buckets: int, longest: int, size: int) -> list[dict[str, Any]]:
    rows = []
    for r in records:
        recent = r["history"].tolist()[-longest:]
        country, device = (None if np.ma.is_masked(r[name]) else r[name] for name in ("country", "device"))
        time, price = moment(int(r["time"])), 0.0 if np.ma.is_masked(r["price"]) else float(r["price"])
        rows.append({
            "before": [hashed(item) % buckets for item in recent], "mask": [True] * len(recent), "count": len(recent),
            "seen": int(r["item"]) in recent, "row": hashed(int(r["item"])) % buckets,
            "place": hashed(country or "unknown", 1) % buckets,
            "place_device": crossed(country or "unknown", device or "unknown", 2) % buckets,
            "item_hour": crossed(int(r["item"]), time.hour, 3) % buckets, "day": time.weekday(),
            "cost": math.log1p(max(price, 0)), "click": float(r["label"]),
        })
    return [{name: padded([row[name] for row in part], 0) if name in ("before", "mask") else np.array([row[name] for row in part])
             for name in rows[0]} for part in chunks(rows, size)]


def forecast(records: list[Seen], context: int, horizon: int, stride: int, size: int) -> list[dict[str, Any]]:
    rows = []
    for r in records:
        values = np.ma.filled(r["values"].astype(np.float64), np.nan)
        for start in range(0, len(values) - context - horizon + 1, stride):
            past, future = np.split(values[start : start + context + horizon], [context])
            scale = max(np.abs(np.nan_to_num(past)).mean(), 1e-3)
            hours = [moment(int(r["begin"])) + timedelta(hours=start + i) for i in range(context + horizon)]
            turns = [(t.hour / 24, t.weekday() / 7, t.timetuple().tm_yday / 366) for t in hours]
            rows.append({"past": np.nan_to_num(past) / scale, "known": ~np.isnan(past), "future": np.nan_to_num(future) / scale,
                         "scale": scale, "calendar": np.sin(2 * np.pi * np.array(turns))})
    return [{name: np.array([row[name] for row in part]) for name in rows[0]} for part in chunks(rows, size)]
