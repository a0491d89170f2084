"""`pipec new` on tables: a first program with the types of headers or of the first rows."""
import json
import re

import numpy as np
import pytest
from conftest import encoded, picture
from pipec.cli import UsageError, main
from pipec.cli.new import program_for
from pipec.compiler.check import check
from running import assert_compiled_is_interpreted


@pytest.fixture
def tables(tmp_path):
    (tmp_path / "t.csv").write_text("n;price;word;on\n;1;;false\n" + "".join(f'{k};{k / 4};"a;{k}";true\n' for k in range(9)))
    (tmp_path / "t.tsv").write_text("".join(f"{k}\tx\n" for k in range(9)))
    rows = [{"id": k, "s": {"x": k / 2 if k % 3 else None}, "tokens": [k] * (k % 4), "boxes": [{"w": 1, "of": "a"}] * (k % 2),
             "odd": [1, "a"][k % 2]} for k in range(20)]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    return tmp_path


def test_types_off_the_rows(tables):
    texts = {kind: program_for(str(tables / f"t.{kind}")) for kind in ("csv", "tsv", "jsonl")}
    assert "  n: i64?\n  price: f64\n  word: text\n  on: bool\n" in texts["csv"] and ', delimiter=";") as' in texts["csv"]
    assert '  m_0: i64 from "0"\n  m_1: text from "1"\n' in texts["tsv"] and 'tsv("{root}/t.tsv", header=false)' in texts["tsv"]
    assert "  id: i64\n" in texts["jsonl"] and '  s_x: f64? from "s.x"\n  tokens: i64[_]\n' in texts["jsonl"]
    assert 'boxes_of: text[_] from "boxes.of"' in texts["jsonl"] and "odd" not in texts["jsonl"]


def test_types_off_headers(tmp_path):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    photo = encoded(picture(np.random.default_rng(1), 20, 30), "JPEG")
    table = pa.table({"photo": pa.array([{"bytes": photo, "path": None}] * 3), "n": pa.array([1, None, 3], pa.int16()),
                      "at": pa.array([1, 2, 3], pa.timestamp("s")), "v": pa.array([[1.0, 2.0]] * 3, pa.list_(pa.float32(), 2)),
                      "tokens": [[1], [], [2, 3]], "m": pa.array([[("a", 1)]] * 3, pa.map_(pa.string(), pa.int64()))})
    (tmp_path / "parts").mkdir()
    pq.write_table(table, tmp_path / "parts" / "a.parquet")
    with pa.OSFile(str(tmp_path / "a.arrow"), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as out:
        out.write_table(table)
    for data, call in (("parts", 'parquet("{root}/*.parquet")'), ("a.arrow", 'arrow("{root}/a.arrow")')):
        text = program_for(str(tmp_path / data))
        assert f"from {call} as Record" in text and "image = decode_image(photo_bytes)" in text
        assert '  photo_bytes: bytes from "photo.bytes"\n' in text and "  n: i16?\n  at: i64\n  v: f32[2]\n" in text
        assert re.search(r"  tokens: i64\??\[_\]\n", text) and " m: " not in text and "batch(batch_size, pad=true)" in text


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_what_is_written_runs(tables, kind, capsys):
    program = tables / "new.pipe"
    assert main(["new", str(tables / f"t.{kind}"), "-o", str(program)]) == 0
    assert main(["check", "--data", str(program)]) == 0 and main(["fmt", "--check", str(program)]) == 0, capsys.readouterr()
    assert_compiled_is_interpreted(program, epochs=(0,))


def test_names_with_spaces_around_them(tables):
    (tables / "x.csv").write_text("a, b\n1, 2\n")
    (tables / "p.pipe").write_text(program_for(str(tables / "x.csv")))
    assert '  b: i64 from " b"\n' in (tables / "p.pipe").read_text()
    assert_compiled_is_interpreted(tables / "p.pipe", epochs=(0,))


def test_databases_lines_and_what_is_none(tables):
    lmdb = pytest.importorskip("lmdb")
    with lmdb.open(str(tables / "db"), map_size=1 << 20) as made, made.begin(write=True) as writer:
        writer.put(b"k", b"v")
    (tables / "x.txt").write_text("a line\n")
    for data, line in (("db", 'lmdb("{root}/db")'), ("x.txt", 'lines("{root}/x.txt")')):
        (tables / "p.pipe").write_text(program_for(str(tables / data)))
        assert f"from {line} as Record" in (tables / "p.pipe").read_text() and check(str(tables / "p.pipe"), {}, None)
    for name, content, said in (("e.csv", "", "is empty"), ("e.jsonl", "7\n", "holds no columns"),
                                ("e.parquet", "x", "can't be read"), ("e.bin", "x", "write a schema")):
        (tables / name).write_text(content)
        with pytest.raises(UsageError, match=said):
            program_for(str(tables / name))
