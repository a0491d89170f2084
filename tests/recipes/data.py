"""Small data in the formats that the recipes of texts, tables and sound read."""
from __future__ import annotations

import io
import json
import wave
from pathlib import Path
from typing import Any

import numpy as np

WORDS = ["the", "a", "cat", "dog", "house", "garden", "sees", "finds", "takes", "old", "new", "red", "blue", "big", "small",
         "runs", "sleeps", "under", "over", "near"]


def sentences(rng: Any, count: int, longest: int = 14) -> list[str]:
    """Sentences of 0 to `longest` words."""
    return [" ".join(rng.choice(WORDS, int(rng.integers(0, longest + 1)))) for _ in range(count)]


def tokenizer(path: Path, start: str, end: str, at: int = 101) -> None:
    """A tokenizer.json of whole words that puts a start and an end token around a text, numbered `at` and `at` + 1."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    numbers = {"[UNK]": 0, start: at, end: at + 1} | {word: 1000 + 7 * k for k, word in enumerate(WORDS)}
    made = Tokenizer(models.WordLevel(numbers, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.post_processor = processors.TemplateProcessing(single=f"{start} $A {end}", special_tokens=[(start, at), (end, at + 1)])
    made.save(str(path))


def articles(path: Path, rng: Any, count: int = 11) -> None:
    """A JSON object with a `text` on every line."""
    path.write_text("".join(json.dumps({"text": s}) + "\n" for s in sentences(rng, count)))


def tone(rng: Any, samples: int, channels: int = 1, rate: int = 16_000) -> bytes:
    """A WAV file of a tone and noise."""
    time = np.arange(samples) / rate
    clip = 8000 * np.sin(2 * np.pi * rng.integers(100, 3000) * time)[:, None] + rng.normal(0, 900, (samples, channels))
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(clip.astype("<i2").tobytes())
    return out.getvalue()


def parquet(path: Path, **columns: Any) -> None:
    """A Parquet file of these columns (pyarrow arrays or lists), in row groups of 16."""
    import pyarrow
    from pyarrow import parquet as files

    files.write_table(pyarrow.table(columns), path, row_group_size=16)


def floats(rows: list[Any]) -> Any:
    """Lists of f32, with gaps."""
    import pyarrow

    return pyarrow.array(rows, pyarrow.list_(pyarrow.float32()))
