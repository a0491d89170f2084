"""The recipes of tables in plain Python and NumPy: a click model with histories, forecasting windows."""
from __future__ import annotations

import hashlib
import math
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np

from .seen import Seen, chunks, padded


def hashed(value: Any, salt: int = 0) -> int:
    """The language's documented `hash`."""
    digest = hashlib.blake2b(str(value).encode(), digest_size=8, salt=salt.to_bytes(8, "little")).digest()
    return int.from_bytes(digest, "little") // 2


def crossed(a: Any, b: Any, salt: int) -> int:
    return hashed(f"{len(str(a))}:{a}{b}", salt)


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
