"""Bad programs and bad data: a message that says where and why, status 2 or 1, never a traceback, in bounded time and memory."""
import io
import os
import re
import resource
import struct
import tarfile
import zlib
from pathlib import Path

import numpy as np
import pytest
from conftest import encoded, picture, write_tar
from hypothesis import given, settings
from hypothesis import strategies as st
from pipec.compiler.check import check
from pipec.compiler.sources import KINDS
from pipec.dsl.problems import PipeError
from pipec.dsl.render import render, to_json
from pipec.kernels.sources import READABLE

GOOD = '''\
param root: path = "data"
param size = 16
param batch_size = 4

seed 3

schema Photo
  jpg: bytes
  cls: i64

pipeline train
  from tar("{root}/*.tar") as Photo
  shuffle()
  photo = decode_image(jpg)
  crop ~ random_resized_crop(photo, size, size)
  share()
  batch(batch_size)
  emit crop, cls
'''


@pytest.fixture
def pipec(tmp_path, monkeypatch, command, in_threads):
    """Run a command in a folder of its own; (status, stdout, stderr), which hold no traceback."""
    monkeypatch.chdir(tmp_path)
    return command


def write(path, content):
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        path.write_text(content)
    return path


# --- programs -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("content", "said"), [
    (b"", "declares nothing"),
    (b"\n  \n# nothing\n", "declares nothing"),
    (b"seed 1\0\n", "NUL"),
    (b"seed \xff\xfe\n", "not UTF-8"),
    (b"\xff\xfes\0e\0e\0d\0", "UTF-8"),
    (b"\x89PNG\r\n\x1a\n" + bytes(200), "not UTF-8"),
    (b"pipeline p\n\tfrom tar(\"x\") as S\n", "no schema `S`"),
    (b"(" * 10_000_000, "too long"),
    (b"let x = " + b"(" * 10_000 + b"1" + b")" * 10_000 + b"\n", "deep"),
    (b"let x = " + b"-" * 10_000 + b"1\n", "deep"),
    (b"let x = " + b"[" * 10_000 + b"\n", ""),
    (b"let x = " + b"if true then 1 else " * 10_000 + b"1\n", ""),
    (b"let x = 1" + b" + 1" * 20_000 + b"\n", ""),
    (b"let x = " + b"9" * 100_000 + b"\n", ""),
    (b"seed " + b"9" * 100 + b"\n", ""),
    (b"pipeline " + b"p" * 100_000 + b"\n", ""),
    (b"fn f(x: f32) -> f32\n  f(x)\n", ""),
], ids=range(17))
def test_programs(pipec, tmp_path, content, said):
    status, _, err = pipec("check", write(tmp_path / "p.pipe", content))
    assert status == 2
    assert "error[E0" in err and said in err, err[:500]
    assert len(err) < 20_000


def test_a_file_that_cannot_be_read(pipec, tmp_path):
    for path in ("missing.pipe", tmp_path, "a" * 300 + ".pipe", "missing/p.pipe"):
        for command in ("check", "run", "fmt", "dump", "show"):
            status, _, err = pipec(command, path)
            assert status == 2 and "can't be read" in err, (path, command, err)
    for command in ("check", "run", "explain", "serve"):
        status, _, err = pipec(command, "train.py:val")
        assert status == 2 and "`train.py` is Python: name a program" in err, (command, err)


@pytest.mark.parametrize("change", [lambda t: t.replace("\n", "\r\n"), lambda t: "\ufeff" + t, lambda t: t.rstrip("\n")])
def test_line_ends_and_marks_of_other_systems_are_fine(pipec, tmp_path, change):
    path = tmp_path / "p.pipe"
    path.write_bytes(change(GOOD).encode())
    assert pipec("check", path)[0] == 0
    assert pipec("fmt", path)[0] == 0
    assert path.read_bytes() == GOOD.encode()


@pytest.mark.parametrize(("setting", "said"), [
    ("size=abc", "no whole number"), ("size=1.5", "no whole number"), ("size=", "no whole number"),
    ("size=" + "9" * 400, "size"), ("sise=3", "`size`"), ("size", "name=value"), ("=3", "name=value"),
    ("size=[1,2]", "size"), ("batch_size=0", "batch"), ("batch_size=-4", "batch"), ("size=-1", ""),
])
def test_params(pipec, tmp_path, imagenet, setting, said):
    status, _, err = pipec("run", write(tmp_path / "p.pipe", GOOD), f"root={imagenet}", setting)
    assert status in (1, 2) and said in err, err


def test_a_number_that_params_make_too_small(pipec, tmp_path, imagenet):
    path = write(tmp_path / "p.pipe", GOOD.replace("batch(batch_size)", "batch(batch_size // 4)"))
    for flag in ((), ("--interpret",)):
        status, _, err = pipec("run", path, f"root={imagenet}", "batch_size=3", *flag)
        assert status == 1 and "E0804" in err and "p.pipe:17:" in err, err


def test_a_param_that_must_be_set(pipec, tmp_path):
    path = write(tmp_path / "p.pipe", GOOD.replace("param size = 16", "param size: i64"))
    status, out, _ = pipec("check", path)
    assert status == 0 and "size=…" in out
    status, _, err = pipec("run", path)
    assert status == 2 and "E0701" in err


@pytest.mark.parametrize(("line", "said"), [
    ("  where token > 3\n  window(4)\n  shuffle()\n", "E0513"), ("  mix(a, b)\n", "error"), ("  frobnicate(3)\n", "error"),
])
def test_stages_that_do_not_run(pipec, tmp_path, line, said):
    np.save(tmp_path / "t.npy", np.arange(40))
    text = f'schema T\n  token: i64\n\npipeline train\n  from npy("t.npy") as T\n{line}  y = token + 0\n  emit y\n\nseed 1\n'
    status, _, err = pipec("run", write(tmp_path / "p.pipe", text))
    last = 5 + line.count("\n")
    assert status == 2 and said in err and f"p.pipe:{last}:3" in err


def test_every_source_that_checks_can_be_read():
    assert set(KINDS) == set(READABLE)


EXTERN = '''\
schema T
  token: i64

extern fn twice(x: i64) -> i64 from "own_module:twice"

pipeline train
  from npy("t.npy") as T
  y = twice(token)
  batch(4)
  emit y
'''


def test_user_code_runs_only_where_it_may(pipec, tmp_path):
    np.save(tmp_path / "t.npy", np.arange(40))
    path = write(tmp_path / "p.pipe", EXTERN)
    for command in (("run",), ("run", "--interpret"), ("show",), ("show", "--record", 3)):
        status, _, err = pipec(*command, path)
        assert status == 2 and "E0811" in err and "--allow-extern" in err and "p.pipe:8:7" in err
    status, _, err = pipec("run", path, "--allow-extern")
    assert status == 1 and "E0811" in err and "own_module" in err and "p.pipe:8:7" in err
    write(tmp_path / "own_module.py", "def twice(x):\n    import numpy\n    return numpy.int64(2 * x)\n")
    status, out, _ = pipec("run", path, "--allow-extern")
    assert status == 0 and "40 records" in out


# --- data -----------------------------------------------------------------------------------------


def png_bomb(side):
    """A valid PNG of side × side pixels, all black, that is small because zlib packs zeros well."""
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    packer, body = zlib.compressobj(9), []
    line = bytes(1 + side // 8 + 1)
    for _ in range(side):
        body.append(packer.compress(line[: 1 + -(-side // 8)]))
    body.append(packer.flush())
    header = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", b"".join(body)) + chunk(b"IEND", b"")


def shard(path, bad, at=3, count=8):
    """A tar of photos of which number `at` holds `bad` bytes instead."""
    rng = np.random.default_rng(1)
    members = []
    for k in range(count):
        photo = bad if k == at else encoded(picture(rng, 40, 50), "JPEG")
        members += [(f"{k:03d}.jpg", photo), (f"{k:03d}.cls", b"3")]
    write_tar(path, members)


@pytest.fixture
def data(tmp_path):
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


def run_both(pipec, tmp_path, said):
    """The program as it is stops at the bad record; with skip_bad it leaves it out."""
    path = write(tmp_path / "p.pipe", GOOD)
    status, _, err = pipec("run", path)
    assert status == 1 and said in err, err
    assert "003 of a.tar, position 2 of epoch 0" in err and "p.pipe:" in err and "skip_bad" in err, err
    status, shown, err = pipec("run", path, "--interpret")
    assert status == 1 and said in err and "003 of a.tar, position 2 of epoch 0" in err and "p.pipe:" in err, err
    write(path, GOOD.replace("  shuffle()", "  skip_bad(at_most=0.2)\n  shuffle()"))
    status, shown, err = pipec("run", path, "--bad")
    assert status == 0 and "7 records" in shown and "1 bad record was left out" in shown and "003 of a.tar" in shown, shown
    write(path, GOOD.replace("  shuffle()", "  skip_bad(at_most=0.01)\n  shuffle()"))
    status, _, err = pipec("run", path)
    assert status == 1 and "E0806" in err and "003 of a.tar" in err, err


JPEG = encoded(picture(np.random.default_rng(0), 60, 60), "JPEG")


@pytest.mark.parametrize(("bad", "said"), [
    (b"", "empty"), (JPEG[: len(JPEG) // 2], "ends"), (b"<html>no photo</html>", ""), (JPEG[:2], ""), (os.urandom(5000), ""),
], ids=["empty", "cut", "html", "two", "noise"])
def test_bad_members(pipec, tmp_path, data, bad, said):
    shard(data / "a.tar", bad)
    run_both(pipec, tmp_path, said)


def test_too_many_pixels(pipec, in_processes, tmp_path, data):
    bomb = png_bomb(30_000)
    assert len(bomb) < 2 << 20
    shard(data / "a.tar", bomb)
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    run_both(pipec, tmp_path, "pixels")
    after = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    assert before < 2 << 20 and after <= max(before, 600 << 10)   # KiB; decoded it would be 2.7 GB


def test_a_number_that_is_none(pipec, in_processes, tmp_path, data):
    shard(data / "a.tar", JPEG)
    for text, said in ((b"cat", "i64"), (b"", "i64"), (b"9" * 5_000_000, "i64"), (b"\xff\xfe", "UTF-8")):
        write_tar(data / "a.tar", [("003.jpg", JPEG), ("003.cls", text)])
        status, _, err = pipec("run", write(tmp_path / "p.pipe", GOOD))
        assert status == 1 and said in err and "003 of a.tar" in err and "p.pipe:12:3" in err and len(err) < 2000, err


def test_a_gap_that_the_schema_has_not(pipec, tmp_path):
    write(tmp_path / "t.csv", "a\n1\nNA\n")
    write(tmp_path / "p.pipe", f'schema R\n  a: i64\npipeline p\n  from csv("{tmp_path}/t.csv", nulls=["NA"]) as R\n  emit a\n')
    status, _, err = pipec("run", str(tmp_path / "p.pipe"))
    assert status == 1 and "lets values be missing" in err and "skip_bad" in err, err


def test_shards_that_are_none(pipec, tmp_path, data):
    path = write(tmp_path / "p.pipe", GOOD)
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w") as tar:
        for name, content in (("0.jpg", JPEG), ("0.cls", b"1"), ("1.jpg", JPEG), ("1.cls", b"1")):
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    for content in (b"", b"no tar", whole.getvalue()[:3000], whole.getvalue()[:700], os.urandom(4000),
                    zlib.compress(whole.getvalue())):
        (data / "a.tar").write_bytes(content)
        status, out, err = pipec("run", path)
        assert status == 1 and "a.tar" in out + err, (content[:10], status, out, err)


def test_an_empty_tar(pipec, tmp_path, data):
    (data / "a.tar").write_bytes(bytes(10240))
    status, out, _ = pipec("run", write(tmp_path / "p.pipe", GOOD))
    assert status == 0 and "no records" in out


def test_a_shard_that_goes_away(pipec, tmp_path, data, imagenet):
    """Between index and read: the record's error, not the process's."""
    from pipec.kernels.ops import BadRecord
    from pipec.kernels.sources import open_source

    shard(data / "a.tar", JPEG)
    source = open_source("tar", [str(data / "a.tar")], {}, [("jpg", (("jpg",),), "bytes")])
    (data / "a.tar").unlink()
    with pytest.raises(BadRecord, match="can't be read"):
        source.read(2)


@pytest.mark.parametrize("content", [b"", b"PK", b"no zip", "cut", "pickled", "scalar", "unlike"])
def test_arrays_that_are_none(pipec, tmp_path, content):
    arrays = {"x": np.zeros((20, 4), np.float32), "y": np.arange(20)}
    path = tmp_path / "a.npz"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        if content == "pickled":
            arrays["x"] = np.array([{}, None] * 10, object)
        if content == "scalar":
            arrays["x"] = np.float32(3)
        if content == "unlike":
            arrays["x"] = arrays["x"][:10]
        np.savez(path, **arrays)
        if content == "cut":
            path.write_bytes(path.read_bytes()[:-300])
    text = 'schema S\n  x: f32[4]\n  y: i64\n\npipeline p\n  from npz("a.npz") as S\n  batch(4)\n  emit x, y\n'
    program = write(tmp_path / "p.pipe", text)
    for command in (("run",), ("check", "--data"), ("run", "--interpret"), ("show", "--record", "0")):
        status, _, err = pipec(*command, program)
        assert status == 1 and "a.npz" in err and "p.pipe:" in err, (command, err)
    assert pipec("new", path)[0] in (0, 2)


def test_sources_that_are_not_there(pipec, tmp_path, data):
    path = write(tmp_path / "p.pipe", GOOD)
    for command in (("run",), ("check", "--data"), ("run", "--interpret"), ("show",)):
        status, _, err = pipec(*command, path)
        assert status == 1 and "E0810" in err and "p.pipe:12:3" in err, err
        status, _, err = pipec(*command, path, "root=/nowhere/at/all")
        assert status == 1 and "/nowhere/at/all/*.tar" in err


def test_too_little_memory(pipec, tmp_path, imagenet):
    path = write(tmp_path / "p.pipe", GOOD)
    status, _, err = pipec("run", path, f"root={imagenet}", "--memory", "1KB")
    assert status == 1 and "E0809" in err and "1,000 bytes" in err
    status, _, err = pipec("run", path, f"root={imagenet}", "--memory", "900TB")
    assert status == 1 and "E0809" in err


def test_outputs_that_cannot_be_written(pipec, tmp_path, imagenet):
    path = write(tmp_path / "p.pipe", GOOD)
    for output in ("/nowhere/sheet.png", tmp_path, "p.pipe/sheet.png"):
        status, _, err = pipec("show", path, f"root={imagenet}", "-o", output)
        assert status == 2 and ("can't be written" in err or "is a folder" in err)
        status, _, err = pipec("new", imagenet, "-o", output)
        assert status == 2 and err


# --- fuzz -----------------------------------------------------------------------------------------

PROGRAMS = [GOOD, EXTERN, *(path.read_text() for path in sorted((Path(__file__).parent.parent / "examples").glob("*.pipe")))]
WORDS = sorted({word for text in PROGRAMS for word in re.findall(r'"[^"\n]*"|\w+|[^\w\s]|\n +|\n', text)} | {
    "?", "??", "~", "<", "<=", "^", "//", "%", "in", "if", "then", "else", "not", "and", "or", "sum(", "[", "]", "mean(", "u8",
    "...", "missing(", "each(", "pack(", "zip(", "window(", "balance(", "sample(", "repeat()", "take(3)", "check(", "index",
    "epoch", "\t"})


def checked(text):
    """Only PipeError may come out, and it can be shown."""
    try:
        check("p.pipe", {}, None, text, complete=False)
    except PipeError as error:
        assert error.problems
        assert render(error.problems, error.texts)
        to_json(error.problems, error.texts)


@settings(max_examples=70)
@given(st.lists(st.sampled_from(WORDS), max_size=80), st.booleans())
def test_token_soup(words, spaced):
    checked((" " if spaced else "").join(words))


@settings(max_examples=100)
@given(st.sampled_from(PROGRAMS), st.data())
def test_mutated_programs(text, data):
    """Tokens of a valid program left out, doubled, exchanged or replaced."""
    tokens = re.findall(r'"[^"\n]*"|\w+|[^\w\s]|\s+', text)
    for _ in range(data.draw(st.integers(1, 4))):
        at, other = (data.draw(st.integers(0, len(tokens) - 1)) for _ in range(2))
        match data.draw(st.sampled_from(("drop", "double", "swap", "replace", "copy", "cut"))):
            case "drop":
                tokens[at] = ""
            case "double":
                tokens[at] += " " + tokens[at]
            case "swap":
                tokens[at], tokens[other] = tokens[other], tokens[at]
            case "replace":
                tokens[at] = data.draw(st.sampled_from(WORDS))
            case "copy":
                tokens[at] = tokens[other]
            case _:
                tokens = tokens[: max(1, at)]
    checked("".join(tokens))


@settings(max_examples=70)
@given(st.sampled_from(PROGRAMS), st.integers(0, 10_000), st.text(max_size=3), st.integers(0, 5))
def test_mutated_characters(text, at, new, length):
    at %= len(text)
    checked(text[:at] + new + text[at + length :])
