"""The recipes of texts, tables and sound: compiled = interpreted, and both equal to a plain script with the same draws."""
from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from conftest import encoded, picture, write_tar
from recipes import data, images, sound, tables, texts
from recipes.seen import assert_alike, seen
from running import assert_same, delivered, interpreted

EXAMPLES = Path(__file__).parent.parent / "examples"


def both(name, **params):
    """What a recipe delivers, compiled and interpreted alike."""
    found = delivered(EXAMPLES / f"{name}.pipe", run="train", **params)
    assert_same(found, interpreted(EXAMPLES / f"{name}.pipe", run="train", **params))
    return found


@pytest.mark.parametrize("name", ["bert", "t5", "pack", "clip", "history", "noisy_speech", "forecast"])
def test_short(name):
    assert len((EXAMPLES / f"{name}.pipe").read_text().splitlines()) < 45


def test_bert(tmp_path):
    pytest.importorskip("tokenizers")
    data.tokenizer(tmp_path / "tokenizer.json", "[CLS]", "[SEP]")
    data.articles(tmp_path / "a.jsonl", np.random.default_rng(1), 40)
    params = {"data": f"{tmp_path}/*.jsonl", "tokenizer": f"{tmp_path}/tokenizer.json", "longest": 10, "rate": 0.5,
              "batch_size": 6}
    found = both("bert", **params)
    assert_alike(found, texts.bert(seen(EXAMPLES / "bert.pipe", **params), tmp_path / "tokenizer.json", 10, 0.5, 6))
    hidden = np.concatenate([b["input"][b["target"] >= 0] for b in found])
    assert len(hidden) > 60 and 0.6 < (hidden == 103).mean() < 0.95


def test_t5(tmp_path):
    np.random.default_rng(2).integers(2, 32_000, 640).astype(np.uint16).tofile(tmp_path / "a.bin")
    params = {"corpus": f"{tmp_path}/*.bin", "length": 60, "batch_size": 3}
    assert_alike(both("t5", **params), texts.t5(seen(EXAMPLES / "t5.pipe", **params), 60, 0.15, 3.0, 3))


def test_pack(tmp_path):
    rng = np.random.default_rng(3)
    documents = [rng.integers(0, 50_000, int(rng.integers(0, 40))).astype(np.int32) for _ in range(30)]
    data.parquet(tmp_path / "a.parquet", tokens=documents)
    params = {"data": f"{tmp_path}/*.parquet", "length": 16, "batch_size": 4}
    found = both("pack", **params)
    assert_alike(found, texts.packed(seen(EXAMPLES / "pack.pipe", "each", **params), 16, 4))
    tokens = sum(int((b["segment"] > 0).sum()) for b in found)
    assert tokens == sum(len(d) + 1 for d in documents)     # no token is lost


def test_clip(tmp_path):
    rng = np.random.default_rng(4)
    data.tokenizer(tmp_path / "tokenizer.json", "[START]", "[END]", 49_406)
    members = []
    for k, sentence in enumerate(data.sentences(rng, 9)):
        image = picture(rng, *(int(n) for n in rng.integers(40, 90, 2)))
        members += [(f"{k}.jpg", encoded(image, "JPEG")), (f"{k}.txt", sentence.encode())]
    write_tar(tmp_path / "a.tar", members)
    params = {"root": str(tmp_path), "tokenizer": f"{tmp_path}/tokenizer.json", "size": 32, "context": 8, "batch_size": 4}
    expected = images.clip(seen(EXAMPLES / "clip.pipe", **params), tmp_path / "tokenizer.json", 32, 8, 4)
    assert_alike(both("clip", **params), expected, image=4 / 255 / 0.26)    # Pillow's bicubic clips between its passes


def test_history(tmp_path):
    rng = np.random.default_rng(5)
    count = 40
    some = lambda *words: [None if rng.random() < 0.2 else str(rng.choice(words)) for _ in range(count)]    # noqa: E731
    data.parquet(
        tmp_path / "a.parquet", label=rng.integers(0, 2, count).astype(np.int8), item=rng.integers(0, 30, count),
        country=some("de", "fr", "us"), device=some("phone", "desk"), time=rng.integers(-(2**50), 2**51, count),
        price=[None if k % 7 == 3 else float(k - 3) for k in range(count)],
        history=[rng.integers(0, 30, int(rng.integers(0, 20))) for _ in range(count)])
    params = {"root": str(tmp_path), "buckets": 1000, "longest": 8, "batch_size": 16}
    expected = tables.history(seen(EXAMPLES / "history.pipe", **params), 1000, 8, 16)
    assert_alike(both("history", **params), expected, cost=1e-6)


def test_forecast(tmp_path):
    rng = np.random.default_rng(6)
    series = [rng.normal(5, 2, int(n)).astype(np.float32).tolist() for n in rng.integers(20, 90, 8)]
    for values in series[::2]:
        values[3::5] = [None] * len(values[3::5])
    data.parquet(tmp_path / "a.parquet", begin=rng.integers(0, 500_000, 8) * 3_600_000_000,
                 values=data.floats(series))
    params = {"data": f"{tmp_path}/*.parquet", "context": 24, "horizon": 6, "stride": 10, "batch_size": 5}
    expected = tables.forecast(seen(EXAMPLES / "forecast.pipe", "each", **params), 24, 6, 10, 5)
    assert_alike(both("forecast", **params), expected, past=1e-5, future=1e-5, scale=1e-5, calendar=1e-5)


def test_noisy_speech(tmp_path):
    rng = np.random.default_rng(7)
    for name, count in (("speech", 9), ("noise", 3)):
        members = []
        for k in range(count):
            rate, channels = (16_000, 22_050, 48_000)[k % 3], 1 + k % 2
            clip = data.tone(rng, int(rng.integers(3000, 9000)) * rate // 16_000, channels, rate)
            members += [(f"{k}.wav", clip), (f"{k}.txt", data.WORDS[k].encode())]
        write_tar(tmp_path / f"{name}.tar", members)
    params = {"speech": f"{tmp_path}/speech.tar", "noise": f"{tmp_path}/noise.tar", "mels": 20, "budget": 150}
    found = both("noisy_speech", **params)
    assert_alike(found, sound.noisy_speech(seen(EXAMPLES / "noisy_speech.pipe", **params), 16_000, 20, 150), mel=2e-3)
    assert all(b["mel"].shape[0] * b["mel"].shape[1] <= 150 for b in found)


TABLE = """
schema Row
  counts: i32?[3] from "I{1..3}"
  words: text?[2] from "C{1..2}"
pipeline p
  from csv("%s") as Row
  where not all(missing(counts))
  counts = counts ?? -1
  words = words ?? "none"
  emit counts, words
"""


def test_columns_of_a_text_table_as_one_field(tmp_path):
    (tmp_path / "a.csv").write_text('C1,I1,I2,I3,C2\na,1,,3,\n"b, c",,,,d\n,7,8,9,"e ""f"""\n')
    path = tmp_path / "p.pipe"
    path.write_text(TABLE % f"{tmp_path}/a.csv")
    found = delivered(path)
    assert [b["counts"].tolist() for b in found] == [[1, -1, 3], [7, 8, 9]]
    assert [list(b["words"]) for b in found] == [["a", "none"], ["none", 'e "f"']]
    assert_same(found, interpreted(path))
