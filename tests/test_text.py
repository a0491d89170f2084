"""Texts in programs, operators on them, calendar functions; and calls that run only where they are asked for.

Programs run compiled and interpreted. Operators are compared with what pandas and tokenizers give.
"""
from __future__ import annotations

import datetime
import weakref
from pathlib import Path

import numpy as np
import pytest
from conftest import encoded, write_tar
from PIL import Image
from pipec.compiler.check import check
from pipec.compiler.evaluate import evaluate
from pipec.dsl.problems import PipeError
from pipec.kernels.ops import OPERATORS, BadRecord
from pipec.kernels.table import digest
from pipec.kernels.words import Words
from pipec.runtime.texts import Numbered
from running import assert_compiled_is_interpreted, delivered

EXAMPLES = Path(__file__).parent.parent / "examples"
HEAD = """\
param word: text = "hello"
seed 3

schema S
  a: text from "txt"
  b: text? from "alt"
  n: i64
  raw: bytes from "txt"

pipeline train
  from tar("{0}/a.tar") as S
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Four records; `alt` is missing in the second."""
    root = tmp_path_factory.mktemp("texts")
    rows = [(b"hello", b"x", b"3"), ("aé b".encode(), None, b"0"), (b"", b"zz", b"7"), (b"cat dog", b"cat", b"5")]
    members = [(f"{k:04}.{end}", data) for k, row in enumerate(rows)
               for end, data in zip(("txt", "alt", "n"), row, strict=True) if data is not None]
    write_tar(root / "a.tar", members)
    return root


@pytest.fixture
def same(folder, tmp_path):
    """Run lines compiled and interpreted: what each record gives."""

    def run(lines, head=HEAD, **params):
        path = tmp_path / "p.pipe"
        body = "\n".join(f"  {line.strip()}" for line in lines.strip().split("\n"))
        path.write_text(head.replace("{0}", str(folder)) + body + "\n")
        assert_compiled_is_interpreted(path, epochs=(0,), **params)
        return delivered(path, **params)

    return run


def lists(records, *names):
    return [tuple(np.asarray(r[n], object).tolist() for n in names) for r in records]


# --- texts in programs ------------------------------------------------------------------------------


def test_comparing_choosing_filling(same):
    got = same("""
        eq = a == "hello"
        less = a < "b"
        most = a >= word
        bytes_too = raw == raw
        chosen = if n > 2 then a else "none"
        filled = b ?? a
        lost = missing(b)
        deep = if (b ?? "") == "cat" or a == word then b ?? "none" else upper(a)
        emit eq, less, most, bytes_too, chosen, filled, lost, deep""")
    assert lists(got, "eq", "less", "most", "chosen", "filled", "lost", "deep") == [
        (True, False, True, "hello", "x", False, "x"), (False, True, False, "none", "aé b", True, "AÉ B"),
        (False, True, False, "", "zz", False, ""), (False, False, False, "cat dog", "cat", False, "cat")]


def test_texts_as_elements(same):
    got = same("""
        three = [a, b ?? "?", "k"]
        some = [if i < n then a else word for i < 4]
        kept = three[n] ?? "none"
        where_ = first(three == ["hello", "zz", "k"]) ?? -1
        joined = concat(three, ["z"])
        numbers = [hash(three[i], salt=i) % 100 for i]
        drawn ~ choice([a, "q"])
        emit three, some, kept, where_, joined, numbers, drawn""")
    assert got[1]["three"].tolist() == ["aé b", "?", "k"] and got[1]["some"].tolist() == ["hello"] * 4
    assert lists(got, "kept", "where_") == [("none", 0), ("aé b", 2), ("none", 1), ("none", 2)]
    assert got[3]["joined"].tolist() == ["cat dog", "cat", "k", "z"]


def test_texts_of_a_batch_and_through_the_ring(same):
    got = same("""
        c = b
        w = [a for i < n]
        share()
        batch(3, pad=true)
        filled = c ?? word
        lost = missing(c)
        words = w ?? "-"
        found = a == "hello"
        emit a, raw, filled, lost, words, found""", word="u")
    assert list(got[0]["a"]) == ["hello", "aé b", ""] and next(iter(got[0]["raw"])) == b"hello"
    assert list(got[0]["filled"]) == ["x", "u", "zz"] and got[0]["lost"].tolist() == [False, True, False]
    assert got[0]["words"][0].tolist() == ["hello"] * 3 + ["-"] * 4


def test_records_by_text_and_each(same):
    assert lists(same("where not missing(b)\nc = b ?? \"\"\nwhere c != word\nemit c"), "c") == [("x",), ("zz",), ("cat",)]
    assert len(same("w = split(a)\neach(w)\nbig = upper(w)\nemit big, n")) == 5


def test_functions_of_texts(same):
    got = same("""
        w = split("1 x -5 99999999999999999999 1.5 nan .5e1")
        i = parse_int(w) ?? -1
        f = [parse_float(w[k]) ?? -1.0 for k]
        gone = missing(parse_int(a))
        up = [upper(strip(w[k] ?? "")) for k < 2]
        z = replace(a, "l", "L")
        size = length(a)
        has = contains(a, "t d")
        low = lower(a)
        parts = split(a, "a")
        emit i, f, gone, up, z, size, has, low, parts""")
    assert got[0]["i"].tolist() == [1, -1, -5, -1, -1, -1, -1]
    assert got[0]["f"].tolist() == [1, -1, -5, 1e20, 1.5, -1, 5]
    assert lists(got, "z", "size", "has", "parts")[3] == ("cat dog", 7, True, ["c", "t dog"])
    assert got[0]["up"].tolist() == ["1", "X"]


def test_numbers_of_texts_begin_again_with_each_chunk():
    texts = Numbered()
    texts.number("m")
    texts.keep()
    for values in (["b", "z"], ["z", "b"], [None, "a", b"a"]):
        cells = texts.cells(values, len(values))
        assert texts.array(cells).tolist() == values
        order = texts.places()[cells]
        assert order.tolist() == sorted(order.tolist(), reverse=values == ["z", "b"])
        texts.clear()


def test_what_no_kernel_holds_is_told(same):
    with pytest.raises(PipeError) as e:
        same('w = [a, "bcd"]\nx = [sum(utf8(w[i])) for i]\nemit x')
    assert e.value.problems[0].code == "E0513"


# --- calls run where they are asked for -------------------------------------------------------------

BAD = """\
schema S
  img: bytes from "png"
  alt: bytes
  n: i64

pipeline train
  from tar("{0}/bad.tar") as S
"""


def test_calls_run_only_where_asked_for(same, folder):
    def png(v):
        return encoded(Image.fromarray(np.full((4, 5, 3), v, np.uint8)), "PNG")

    write_tar(folder / "bad.tar", [m for i in range(6) for m in (
        (f"{i}.png", png(10 + i) if i % 2 else b"broken"), (f"{i}.alt", png(30 + i)), (f"{i}.n", str(i).encode()))])
    got = same("""
        odd = n % 2 == 1
        x = if odd then sum(decode_image(img)) else -1
        y = odd and sum(decode_image(img)) > 700
        a = resize(decode_image(img), [0, 0, 4, 4], 2, 2)
        z = if odd then a else resize(decode_image(alt), [0, 0, 4, 4], 2, 2)
        m = n % 2
        scaled = if m != 0 then hash("a", salt=4 // m) % 10 else 0
        each_ = [if (i + n) % 2 == 1 and odd then sum(decode_image(img)) * i else i for i < 3]
        w = ["5", "x", "7"]
        some = [if i != n then hash(w[i]) % 10 else 0 for i]
        emit x, y, z, scaled, each_, some""", BAD)
    assert [int(r["x"]) for r in got] == [-1, 660, -1, 780, -1, 900]
    assert [int(r["z"][0, 0, 0]) for r in got] == [30, 11, 32, 13, 34, 15]
    got = same("""
        check(if n % 2 == 0 then true else sum(decode_image(img)) > 0)
        where n % 2 == 1
        x = sum(decode_image(img))
        emit x""", BAD)
    assert [int(r["x"]) for r in got] == [660, 780, 900]


# --- tokenizers and tables ----------------------------------------------------------------------------


@pytest.fixture
def vocabulary(tmp_path):
    """A tokenizer.json with special tokens at both ends."""
    tokenizers = pytest.importorskip("tokenizers")
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(
        {"[UNK]": 0, "hello": 1, "cat": 2, "dog": 3, "[CLS]": 4, "[SEP]": 5}, unk_token="[UNK]"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 4), ("[SEP]", 5)])
    made.save(str(tmp_path / "tokenizer.json"))
    return str(tmp_path / "tokenizer.json"), made


def test_tokenize_is_the_librarys(same, vocabulary):
    path, library = vocabulary
    got = same(f"""
        all = tokenize(a, "{path}")
        few = tokenize(a, "{path}", most=3)
        bare = tokenize(a, "{path}", special=false)
        row = [all[i] ?? 0 for i < 6]
        emit all, few, bare, row""")
    for text, record in zip(("hello", "aé b", "", "cat dog"), got, strict=True):
        assert record["all"].tolist() == library.encode(text).ids
        assert record["bare"].tolist() == library.encode(text, add_special_tokens=False).ids
        assert record["row"].tolist() == (library.encode(text).ids + [0] * 6)[:6]
    assert [len(r["few"]) for r in got] == [3, 3, 2, 3] and got[3]["few"].tolist() == [4, 2, 5]


def test_tokenizers_that_cannot_be_read(tmp_path, vocabulary):
    (tmp_path / "no.json").write_text("{}")
    for path in (tmp_path / "absent.json", tmp_path / "no.json"):
        with pytest.raises(BadRecord):
            OPERATORS["tokenize"].ref("a", str(path), 0, True)


def test_lookup(same, tmp_path):
    (tmp_path / "t.csv").write_text("word,id,score,name\nhello,5,0.5,Hi\ncat dog,9,x,\n3,77,1e3,\"a, b\"\n3,78,,\n")
    (tmp_path / "t.jsonl").write_text('{"k": "x", "id": 4}\n\n{"k": "cat", "id": null}\n')
    got = same(f"""
        id = lookup(a, "{tmp_path}/t.csv", key="word", column="id") ?? -1
        number = lookup(n, "{tmp_path}/t.csv", "word", "id") ?? -1
        name = lookup_text(n, "{tmp_path}/t.csv", "word", "name") ?? "none"
        score = lookup_float(a, "{tmp_path}/t.csv", "word", "score") ?? -1.0
        w = [b ?? "", "x"]
        many = lookup(w, "{tmp_path}/t.jsonl", "k", "id") ?? 0
        emit id, number, name, score, many""")
    assert lists(got, "id", "number", "name", "score", "many") == [
        (5, 77, "a, b", 0.5, [4, 4]), (-1, -1, "none", -1, [0, 4]), (-1, -1, "none", -1, [0, 4]), (9, -1, "none", -1, [0, 4])]
    for args, reason in (((tmp_path / "t.csv", "word", "nil"), "no column `nil`"),
                         ((tmp_path / "t.txt", "a", "b"), "can't be read")):
        with pytest.raises(BadRecord, match=reason):
            OPERATORS["lookup"].ref("x", str(args[0]), *args[1:])


def test_lookup_in_parquet(tmp_path):
    parquet, arrow = pytest.importorskip("pyarrow.parquet"), pytest.importorskip("pyarrow")
    parquet.write_table(arrow.table({"k": [7, 8], "v": [70, None]}), tmp_path / "t.parquet")
    values = [OPERATORS["lookup"].ref(v, str(tmp_path / "t.parquet"), "k", "v") for v in (7, "7", 8, 9)]
    assert values == [70, 70, None, None]


def test_hash_and_cross(same):
    of = OPERATORS["hash"].ref
    assert int(of(12, 0)) == int(of(np.uint8(12), 0)) != int(of("12", 0)) and int(of(True, 4)) == int(of(1, 4))
    pairs = [("a", "bc"), ("ab", "c"), ("", "abc"), ("abc", ""), (1, 23), (12, 3)]
    assert len({int(OPERATORS["cross"].ref(a, b, 0)) for a, b in pairs}) == len(pairs)
    assert int(OPERATORS["cross"].ref("a", "b", 0)) == int(of("a", int(of("b", 0))))
    with pytest.raises(BadRecord):
        of(1.5, 0)
    got = same('x = hash(n) % 1000\ny = [cross(["x", "y"][i], a) % 50 for i < 2]\nz = cross(n, 5)\nemit x, y, z')
    assert [int(r["x"]) for r in got] == [int(of(n, 0)) % 1000 for n in (3, 0, 7, 5)]


# --- times --------------------------------------------------------------------------------------------


def test_calendar_as_python_and_pandas(tmp_path):
    rng = np.random.default_rng(5)
    edges = [datetime.date(y, m, d) for y in (1600, 1699, 1900, 1969, 1970, 2000, 2004, 2020, 2100, 2400)
             for m, d in ((1, 1), (2, 28), (3, 1), (12, 31))]
    days = [(e - datetime.date(1970, 1, 1)).days for e in edges]
    times = np.array([d * 86_400_000_000 + s for d in days for s in (0, 86_399_999_999)] +
                     list(rng.integers(-62_135_596_800_000_000, 253_402_300_799_999_999, 300)), np.int64)
    np.savez(tmp_path / "t.npz", t=times)
    names = ["year", "month", "day", "hour", "minute", "weekday", "day_of_year", "week"]
    lines = "".join(f"  {n}_ = {n}(t)\n" for n in names) + f"  emit {', '.join(n + '_' for n in names)}\n"
    (tmp_path / "p.pipe").write_text(f'schema S\n  t: i64\n\npipeline p\n  from npz("{tmp_path}/t.npz") as S\n{lines}')
    assert_compiled_is_interpreted(tmp_path / "p.pipe", epochs=(0,))
    got = delivered(tmp_path / "p.pipe")
    for t, record in zip(times, got, strict=True):
        m = datetime.datetime(1970, 1, 1) + datetime.timedelta(microseconds=int(t))
        want = [m.year, m.month, m.day, m.hour, m.minute, m.weekday(), m.timetuple().tm_yday, m.isocalendar()[1]]
        assert [int(record[n + "_"]) for n in names] == want, m
    pandas = pytest.importorskip("pandas")
    dates = pandas.Series(times.astype("datetime64[us]")).dt
    for name, column in (("weekday", dates.day_of_week), ("day_of_year", dates.day_of_year), ("week", dates.isocalendar().week)):
        assert [int(r[name + "_"]) for r in got] == column.tolist()


def test_calendar_far_away(tmp_path):
    """Beyond Python's dates: 400 years are 146,097 days, always."""
    ages = np.array([0, 86_400_000_000 * 146_097 * 700, -86_400_000_000 * 146_097 * 700], np.int64)
    np.savez(tmp_path / "t.npz", t=ages)
    text = f'schema S\n  t: i64\n\npipeline p\n  from npz("{tmp_path}/t.npz") as S\n'
    text += "  x = [year(t), month(t), week(t), weekday(t)]\n  emit x\n"
    got = [r["x"].tolist() for r in evaluate(check("p.pipe", text=text))]
    assert got == [[1970, 1, 1, 3], [281_970, 1, 1, 3], [-278_030, 1, 1, 3]]


# --- the click example -----------------------------------------------------------------------------------


def test_clicks(tmp_path):
    parquet, arrow = pytest.importorskip("pyarrow.parquet"), pytest.importorskip("pyarrow")
    rng = np.random.default_rng(2)

    def column(values):
        return [None if rng.random() < 0.2 else v for v in values]

    for day in range(23):
        columns = {"label": arrow.array(rng.integers(0, 2, 9).astype(np.int8))}
        columns |= {f"I{k}": arrow.array(column(rng.integers(-2, 300, 9).tolist()), arrow.int32()) for k in range(1, 14)}
        columns |= {f"C{k}": arrow.array(column([f"{v:x}" for v in rng.integers(0, 2**32, 9).tolist()])) for k in range(1, 27)}
        parquet.write_table(arrow.table(columns), tmp_path / f"day_{day}.parquet")
    assert_compiled_is_interpreted(EXAMPLES / "clicks.pipe", epochs=(0,), root=str(tmp_path), batch_size=64)
    batch = delivered(EXAMPLES / "clicks.pipe", root=str(tmp_path), batch_size=207)[0]
    assert batch["rows"].shape == (207, 26) and batch["dense"].shape == (207, 13)
    of = OPERATORS["hash"].ref
    seen = {int(of("", j)) % 1_000_000 for j in range(26)}
    assert sum(int(v) in seen for v in batch["rows"].reshape(-1)) > 207 * 26 * 0.15


def test_tokens(tmp_path):
    """Two corpora of two files each: windows, mixed."""
    rng = np.random.default_rng(0)
    for name in ("web", "books"):
        for part in range(2):
            ids = rng.integers(0, 50_257, 300).astype(np.uint16)
            ids[rng.random(300) < 0.05] = 50_256
            ids.tofile(tmp_path / f"{name}{part}.bin")
    options = {"web": str(tmp_path / "web*.bin"), "books": str(tmp_path / "books*.bin"), "length": 32, "batch_size": 4}
    assert_compiled_is_interpreted(EXAMPLES / "tokens.pipe", epochs=(0, 1), **options)
    for batch in delivered(EXAMPLES / "tokens.pipe", **options):
        np.testing.assert_array_equal(batch["input"][:, 1:], batch["target"][:, :-1])
        ends = batch["input"] == 50_256
        np.testing.assert_array_equal(batch["doc"], np.cumsum(ends, 1) - ends)
        starts = np.concatenate([np.ones((4, 1), bool), ends[:, :-1]], 1)
        last = np.maximum.accumulate(np.where(starts, np.arange(32), 0), 1)
        np.testing.assert_array_equal(batch["position"], np.arange(32) - last)


def test_what_kernels_read_of_texts_is_kept():
    """Kernels get addresses of it: of a block's words, and of texts that were made of them."""
    pa = pytest.importorskip("pyarrow")
    texts = Numbered()
    texts.cells(["of the program"], 1)
    texts.keep()
    assert texts.attach(Words(pa.array(["Bern", "Oslo"])))
    texts.cells(["bern", "oslo"], 2)
    digests, places = weakref.ref(texts.digests()), weakref.ref(texts.places())
    assert digests() is not None and places() is not None
    assert digests().tolist() == [digest(t) for t in ("", "of the program", "Bern", "Oslo", "bern", "oslo")]
