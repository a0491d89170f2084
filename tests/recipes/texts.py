"""The recipes of texts in plain Python and NumPy: BERT's masks, T5's spans, packed documents."""
from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from .seen import Seen, chunks, padded


def bert(records: list[Seen], tokenizer: Path, longest: int, rate: float, size: int) -> list[dict[str, Any]]:
    """Draws used: chance, way, other."""
    encoder = Tokenizer.from_file(str(tokenizer))
    encoder.enable_truncation(longest)
    rows = []
    for r in records:
        ids = encoder.encode(r["text"]).ids
        source, target = list(ids), [-100] * len(ids)
        for i, token in enumerate(ids):
            if token in (101, 102) or r.draw("chance.uniform")[i] >= np.float32(rate):
                continue
            target[i] = token
            way = r.draw("way.uniform")[i]
            if way < np.float32(0.8):
                source[i] = 103
            elif way < np.float32(0.9):
                source[i] = int(r.draw("other.integers")[i])
        rows.append((source, target))
    return [{"input": padded([s for s, _ in part], 0), "attention": padded([[1] * len(s) for s, _ in part], 0),
             "target": padded([t for _, t in part], -100)} for part in chunks(rows, size)]


def _lengths(order: Any, n: int, parts: int) -> list[int]:
    """T5's random segmentation: of the n - 1 places between n things the first `parts` - 1 of a random order are cut."""
    cuts = sorted(i + 1 for i in range(n - 1) if order[i] < parts - 1)
    return np.diff([0, *cuts, n]).tolist()


def t5(records: list[Seen], length: int, density: float, span: float, size: int) -> list[dict[str, Any]]:
    """Draws used: the two orders of `divided`."""
    gone, parts = round(length * density), round(length * density / span)
    rows = []
    for r in records:
        kept = _lengths(r.draw("kept.divided/order.permutation"), length - gone, parts)
        lost = _lengths(r.draw("lost.divided/order.permutation"), gone, parts)
        tokens, source, target = r["id"].tolist(), [], []
        for number, (keep, lose) in enumerate(zip(kept, lost)):
            sentinel = 32_099 - number
            source += [*tokens[:keep], sentinel]
            target += [sentinel, *tokens[keep : keep + lose]]
            tokens = tokens[keep + lose :]
        assert not tokens
        rows.append(([*source, 1], [*target, 1]))
    return [{"input": np.array([s for s, _ in part]), "target": np.array([t for _, t in part])}
            for part in chunks(rows, size, whole=True)]


def packed(records: list[Seen], length: int, size: int) -> list[dict[str, Any]]:
    """First fit, as the recipe's `pack`, of parts of at most `length` tokens."""
    rows: list[list[list[tuple[int, int]]]] = []    # windows of parts of (token, the one after it)
    full: list[list[list[tuple[int, int]]]] = []
    for r in records:
        ids = [*r["tokens"].tolist(), 50_256]
        pairs = list(zip(ids, [*ids[1:], -100]))
        for part in (pairs[i : i + length] for i in range(0, len(pairs), length)):
            row = next((row for row in rows if sum(map(len, row)) + len(part) <= length), None)
            if row is None:
                row = []
                rows.append(row)
            row.append(part)
            if sum(map(len, row)) == length:
                rows = [other for other in rows if other is not row]
                full.append(row)
    made = []
    for row in full + rows:
        rest = length - sum(map(len, row))
        made.append({
            "input": [a for part in row for a, _ in part] + [0] * rest,
            "target": [b for part in row for _, b in part] + [-100] * rest,
            "segment": [k + 1 for k, part in enumerate(row) for _ in part] + [0] * rest,
            "position": [i for part in row for i in range(len(part))] + [0] * rest,
        })
    return [{name: np.array([row[name] for row in part]) for name in part[0]} for part in chunks(made, size)]


def lines(path: Path) -> list[Any]:
    """The objects of a JSON Lines file."""
    return [json.loads(line) for line in path.read_text().split("\n") if line]
