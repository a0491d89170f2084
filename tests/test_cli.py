"""The commands as a user types them: what they print, and their exit status."""
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from conftest import encoded, picture
from PIL import Image
from pipec.cli.sheet import as_image, contact_sheet
from pipec.cli.show import apart, described

EXAMPLES = Path(__file__).parent.parent / "examples"
PHOTOS = str(EXAMPLES / "photos.pipe")


@pytest.fixture
def pipec(tmp_path, monkeypatch, command, in_threads):
    monkeypatch.chdir(tmp_path)
    return command


WRONG = '''\
param size = 64
param need: i64

seed 11

schema Photo
  jpg: bytes
  cls: i64

pipeline train
  from tar("data/*.tar") as Photo
  photo = decode_image(jgp)
  crop = random_resized_crop(photo, size, size)
  batch(4)
  emit crop, cls, y
'''


def test_check_tells_all_mistakes(pipec, tmp_path):
    (tmp_path / "p.pipe").write_text(WRONG)
    status, out, err = pipec("check", "p.pipe")
    assert status == 2 and out == ""
    assert re.findall(r"error\[(E\d+)\]", err) == ["E0101", "E0301", "E0101"]
    assert "photo = decode_image(jpg)" in err and err.endswith("3 problems; `pipec explain E0101` says more\n")
    assert "\x1b" not in err
    assert pipec("check", "--plain", "p.pipe")[2] == err


def test_check_as_json(pipec, tmp_path):
    (tmp_path / "p.pipe").write_text(WRONG)
    status, out, err = pipec("check", "p.pipe", "--format", "json")
    assert status == 2 and err == ""
    problems = json.loads(out)
    assert [(p["code"], p["line"], p["column"]) for p in problems] == [("E0101", 12, 24), ("E0301", 13, 8), ("E0101", 15, 19)]
    assert problems[0]["fixes"][0]["edits"][0]["text"] == "jpg"
    assert pipec("check", PHOTOS, "--format", "json")[:2] == (0, "[]\n")


def test_check_takes_files_with_several_pipelines(pipec):
    assert pipec("check", PHOTOS)[:2] == (0, f"{PHOTOS}: fine\n")
    assert pipec("check", PHOTOS + ":val")[0] == 0
    status, _, err = pipec("check", PHOTOS + ":vall")
    assert status == 2 and "`val` has a similar name" in err
    status, _, err = pipec("run", PHOTOS)
    assert status == 2 and "photos.pipe:train, photos.pipe:val" in err


def test_check_data(pipec, imagenet, cifar, tmp_path):
    status, out, _ = pipec("check", "--data", PHOTOS, f"root={imagenet}")
    assert status == 0 and "40 records" in out and "12 records" in out
    text = ('schema S\n  image: u8[32, 32, 4] from "x_train"\n  lable: u8\n\n'
            f'pipeline p\n  from npz("{cifar}") as S\n  emit image, lable\n')
    (tmp_path / "p.pipe").write_text(text)
    status, out, err = pipec("check", "--data", "p.pipe")
    assert status == 1 and out == ""
    assert re.findall(r"error\[(E\d+)\]", err) == ["E0602", "E0601"] and "p.pipe:2:3" in err and "p.pipe:3:3" in err
    assert "`x_train`, `y_train`" in err
    status, out, _ = pipec("check", "--data", "p.pipe", "--format", "json")
    assert status == 1 and [p["line"] for p in json.loads(out)] == [2, 3]
    status, _, err = pipec("run", "p.pipe")
    assert status == 1 and "p.pipe:2:3" in err


def test_fmt(pipec, tmp_path):
    good, bad = tmp_path / "good.pipe", tmp_path / "bad.pipe"
    good.write_text("let A = 1\n")
    bad.write_text("let A=1   # one\n")
    status, out, _ = pipec("fmt", "--check", "good.pipe", "bad.pipe")
    assert status == 1 and out == "bad.pipe: not formatted\n" and bad.read_text() == "let A=1   # one\n"
    assert pipec("fmt", "good.pipe", "bad.pipe")[:2] == (0, "bad.pipe: formatted\n")
    assert pipec("fmt", "--check", "good.pipe", "bad.pipe") == (0, "", "")
    (tmp_path / "wrong.pipe").write_text("let A = (1\n")
    bad.write_text("let A=1\n")
    status, out, err = pipec("fmt", "wrong.pipe", "bad.pipe", "missing.pipe")
    assert status == 2 and "bad.pipe: formatted" in out and "wrong.pipe:1:9" in err and "missing.pipe" in err


def test_explain(pipec):
    status, out, _ = pipec("explain", "e0203")
    assert status == 0 and out.startswith("E0203: shapes differ\n") and "Wrong:" in out and "\n    pipeline p\n" in out
    assert "```" not in out
    status, out, _ = pipec("explain")
    assert status == 0 and len(out.splitlines()) > 60
    assert pipec("explain", "E9999")[0] == 2 and pipec("explain", "../x")[0] == 2


@pytest.mark.parametrize("after", ["check", "simplify", "prune", "fuse", "plan", "numba", "cuda"])
def test_dump(pipec, after):
    status, out, _ = pipec("dump", PHOTOS + ":val", "--after", after, "size=32")
    assert status == 0 and len(out) > 500
    if after == "plan":
        assert json.loads(out)["name"] == "val"


def test_dump_without_a_pass(pipec):
    assert pipec("dump", PHOTOS + ":val", "--without", "simplify")[1] != pipec("dump", PHOTOS + ":val")[1]
    for wrong in (("--after", "melt"), ("--without", "plan")):
        status, _, err = pipec("dump", PHOTOS + ":val", *wrong)
        assert status == 2 and "there are: " in err


def test_run(pipec, imagenet):
    status, out, err = pipec("run", "--threads", 2, PHOTOS + ":train", f"root={imagenet}", "--epochs", 2, "size=16",
                             "batch_size=8")
    assert status == 0 and err == ""
    assert re.match(rf"{PHOTOS}: 80 records in 10 batches, [\d,.]+ records/s, [\d,.]+ MB/s after the first\n"
                    r"first batch after [\d.]+ s\n$", out), out
    status, out, _ = pipec("run", PHOTOS + ":val", f"root={imagenet}", "batch_size=5", "size=16", "--batches", 2)
    assert status == 0 and "10 records in 2 batches" in out
    status, out, _ = pipec("run", PHOTOS + ":val", f"root={imagenet}", "batch_size=5", "size=16", "--interpret")
    assert status == 0 and "12 records in 3 batches" in out


def test_command_lines_that_are_wrong(pipec):
    for line, said in ((["frob"], "invalid choice"), (["run"], "FILE"), (["run", PHOTOS, "--fast"], "`--fast`"),
                       (["run", PHOTOS, "--memory", "lots"], '"500MB"'), (["run", PHOTOS, "--threads", "0"], "from 1 on"),
                       (["run", PHOTOS, "--epochs", "x"], "from 1 on"), (["run", PHOTOS, "size"], "name=value"),
                       (["run", PHOTOS, "size=3", "size=4"], "twice"), (["show", PHOTOS, "-n", "-1"], "from 1 on"),
                       (["show", PHOTOS + ":train", "--field", "x"], "--record"),
                       (["check", PHOTOS, "--form", "json"], "--form")):
        status, out, err = pipec(*line)
        assert status == 2 and said in err and out == "", (line, err)


def test_params_have_to_be_known(pipec):
    status, _, err = pipec("check", PHOTOS, "sise=3")
    assert status == 2 and "`size` is a param with a similar name" in err and f"--> {PHOTOS}\n" in err


def test_show(pipec, imagenet, city, tmp_path, monkeypatch):
    status, out, _ = pipec("show", PHOTOS + ":train", f"root={imagenet}", "-n", 9, "size=32", "batch_size=4")
    assert status == 0 and out == "sheet.png: 9 records\n"
    sheet = Image.open(tmp_path / "sheet.png")
    assert sheet.mode == "RGB" and sheet.width > 500 and sheet.height > 500
    status, _, err = pipec("show", EXAMPLES / "segment.pipe", f"root={city}", "-n", 1, "-o", "x.png")
    assert status == 2 and "--allow-extern" in err
    status, out, _ = pipec("show", EXAMPLES / "segment.pipe", f"root={city}", "-n", 2, "-o", "x.png", "size=32", "batch_size=2",
                           "--allow-extern")
    assert status == 0 and out == "x.png: 2 records\n"


def test_show_a_record(pipec, imagenet, tmp_path):
    status, out, _ = pipec("show", PHOTOS + ":train", f"root={imagenet}", "--record", 5, "size=32")
    assert status == 0 and re.match(r"position 5 of epoch 0: train-00\d/\d+ of train-00\d.tar\n", out)
    assert re.search(r"^  crop   u8\[32, 32, 3\]  \d+ to \d+, mean [\d.]+: \d+, ", out, re.M), out
    status, again, _ = pipec("show", PHOTOS + ":train", f"root={imagenet}", "--record", 5, "size=32", "--epoch", 1)
    assert again != out
    status, out, _ = pipec("show", PHOTOS + ":train", f"root={imagenet}", "--record", 5, "--field", "crop", "-o", "c.png",
                           "size=32")
    assert status == 0 and "c.png" in out and Image.open(tmp_path / "c.png").size == (32, 32)
    status, _, err = pipec("show", PHOTOS + ":train", f"root={imagenet}", "--record", 5, "--field", "cop")
    assert status == 2 and "crop" in err
    status, _, err = pipec("show", PHOTOS + ":train", f"root={imagenet}", "--record", 500)
    assert status == 2 and "no record at position 500" in err


@pytest.fixture(scope="module")
def places(tmp_path_factory, imagenet, cifar):
    root, rng = tmp_path_factory.mktemp("places"), np.random.default_rng(8)
    for name in ("cat", "dog"):
        (root / "classes" / name).mkdir(parents=True)
        for k in range(3):
            (root / "classes" / name / f"{k}.jpg").write_bytes(encoded(picture(rng, 40, 50), "JPEG"))
    np.save(root / "tokens.npy", rng.integers(0, 1000, (20, 16)))
    # names that are words of the language, taken by the program, or no names at all
    np.savez(root / "odd.npz", **{"if": np.arange(9), "train": np.arange(9.0), "a b": np.zeros((9, 3), bool), "a_b": np.arange(9),
                                  "7": np.arange(9), "seed": np.arange(9), "Größe": np.arange(9), "root": np.arange(9)})
    return {"tars": imagenet, "tar": imagenet / "val-000.tar", "pattern": f"{imagenet}/train-*.tar", "folder": root / "classes",
            "npy": root / "tokens.npy", "npz": cifar, "odd": root / "odd.npz"}


@pytest.mark.parametrize("kind", ["tars", "tar", "pattern", "folder", "npy", "npz", "odd"])
def test_new(pipec, places, kind):
    status, out, _ = pipec("new", places[kind], "-o", "new.pipe")
    assert status == 0 and "pipec show new.pipe" in out
    assert pipec("fmt", "--check", "new.pipe")[0] == 0
    assert pipec("check", "--data", "new.pipe")[0] == 0
    settings = ("size=16",) if kind in ("tars", "tar", "pattern", "folder") else ()
    status, out, err = pipec("run", "new.pipe", *settings)
    assert status == 0 and "records in" in out, err
    assert pipec("show", "new.pipe", "-n", 2, *settings)[0] == 0
    status, _, err = pipec("new", places[kind], "-o", "new.pipe")
    assert status == 2 and "exists already" in err


def test_new_of_nothing(pipec, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "x.bin").write_text("x")
    for data in ("empty", "x.bin", "missing", "*.tar", "missing.npz"):
        status, out, err = pipec("new", data)
        assert status == 2 and out == "" and data in err


def test_a_path_with_quotes_and_braces(pipec, tmp_path):
    for name, settings in (('a "b" \\c', ()), ("{c}", (f"root={tmp_path}/{{c}}",))):
        folder = tmp_path / name
        folder.mkdir()
        np.save(folder / "t.npy", np.arange(6))
        assert pipec("new", folder / "t.npy", "-o", f"{len(name)}.pipe")[0] == 0
        assert pipec("check", "--data", f"{len(name)}.pipe", *settings)[0] == 0
    np.save(tmp_path / "{t}.npy", np.arange(6))
    status, _, err = pipec("new", tmp_path / "{t}.npy")
    assert status == 2 and "brace" in err


# --- processes ------------------------------------------------------------------------------------


def children(pid):
    return {int(c) for c in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()}


def until(condition):
    end = time.monotonic() + 120
    while not (value := condition()):
        assert time.monotonic() < end
        time.sleep(0.02)
    return value


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_interrupted(imagenet):
    """Ctrl-C: status 130, what was done so far, no process left."""
    command = [sys.executable, "-m", "pipec", "run", PHOTOS + ":train", f"root={imagenet}", "size=16", "batch_size=8",
               "--epochs", "100000"]
    run = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, process_group=0)
    producers = until(lambda: children(run.pid))
    time.sleep(1)                                     # anywhere after that
    os.killpg(run.pid, signal.SIGINT)
    out, err = run.communicate(timeout=120)
    assert run.returncode == 130 and err == ""
    until(lambda: not any(map(alive, producers)))
    assert out == "" or out.startswith("stopped early: ")


def test_interrupted_in_a_text_that_python_runs(tmp_path):
    """A module that was run would end by a signal then."""
    (tmp_path / "interrupted.py").write_text("import sys\nfrom pipec import cli\n"
                                             "cli._dispatch = lambda _: exec('raise KeyboardInterrupt')\n"
                                             "sys.exit(cli.main(['doctor']))\n")
    assert subprocess.run([sys.executable, "-m", "interrupted"], cwd=tmp_path).returncode == 130


def test_a_closed_pipe(imagenet):
    command = f"'{sys.executable}' -m pipec dump '{PHOTOS}:val' --after numba | head -n 1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0 and done.stderr == "" and done.stdout.count("\n") == 1


def test_on_a_terminal(imagenet):
    """The bar has a rate, an ETA, the time to the first batch; errors have colours unless NO_COLOR or --plain."""
    text = terminal("run", PHOTOS + ":train", f"root={imagenet}", "size=16", "batch_size=8", "--epochs", "40")
    for part in ("records/s", "MB/s", "ETA", "first batch", "1,600 records in 200 batches"):
        assert part in text, text[-600:]
    assert "\x1b[1;31merror" in terminal("check", "missing.pipe")
    assert "\x1b" not in terminal("check", "--plain", "missing.pipe")
    assert "\x1b" not in terminal("check", "missing.pipe", NO_COLOR="1")


def terminal(*arguments, **environment):
    """What a command writes on a terminal of its own."""
    master, slave = pty.openpty()
    command = [sys.executable, "-m", "pipec", *arguments]
    set_here = os.environ | {"COLUMNS": "100", "TERM": "xterm"} | environment
    run = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, env=set_here)
    os.close(slave)
    written, end = b"", time.monotonic() + 240
    while time.monotonic() < end:
        if select.select([master], [], [], 0.1)[0]:
            try:
                piece = os.read(master, 1 << 16)
            except OSError:
                break
            if not piece:
                break
            written += piece
        elif run.poll() is not None:
            break
    run.wait(120)
    os.close(master)
    return written.decode()


# --- pictures of values ---------------------------------------------------------------------------


def test_images_look_natural():
    photo = np.random.default_rng(0).integers(0, 256, (40, 50, 3), np.uint8)
    assert (np.asarray(as_image(photo)) == photo).all()
    assert (np.asarray(as_image(photo.transpose(2, 0, 1))) == photo).all()
    unit = (photo / 255).astype(np.float32)
    assert (np.asarray(as_image(unit)) == photo).all()
    normal = (unit - np.array([0.485, 0.456, 0.406], np.float32)) / np.array([0.229, 0.224, 0.225], np.float32)
    assert (np.asarray(as_image(normal.transpose(2, 0, 1))) == photo).all()
    spread = np.asarray(as_image(normal * 100))
    assert spread.min() == 0 and spread.max() == 255
    assert (np.asarray(as_image(np.zeros((8, 8, 3), np.float32))) == 0).all()
    for odd in (np.full((8, 8), np.nan), np.zeros((2, 2)), np.zeros(8), np.zeros((8, 8, 5))):
        assert as_image(odd) is None


def test_masks_have_colours():
    mask = np.zeros((8, 8), np.uint8)
    mask[2:], mask[4:], mask[6:] = 1, 2, 255
    colours = np.asarray(as_image(mask))
    assert len({tuple(c) for c in colours[:, 0]}) == 4 and tuple(colours[0, 0]) == (0, 0, 0)
    assert (np.asarray(as_image(mask.astype(np.int64))) == colours).all()


def test_sheet_of_everything():
    record = {"image": np.zeros((3, 8, 8), np.float32), "hot": np.eye(10, dtype=np.float32)[3],
              "mixed": np.array([0, .3, 0, .7, 0, 0]), "wave": np.sin(np.arange(100.0)), "tokens": np.arange(50),
              "name": "läng\n" * 50, "raw": b"abc", "yes": np.True_,
              "none": np.zeros((0, 3)), "x": np.float32(2.5), "words": np.array(["a", "b"], object)}
    sheet = contact_sheet([record] * 3)
    assert sheet.width < 500 and 500 < sheet.height < 1500


def test_batches_come_apart():
    batch = {"x": np.zeros((3, 5)), "n": np.int64(7), "names": ["a", "b", "c"], "all": np.zeros(9)}
    records = list(apart(batch))
    assert len(records) == 3 and records[1]["names"] == "b" and records[1]["n"] == 7 and records[1]["all"].shape == (9,)


def test_values_in_one_line():
    assert described(b"\xff\xd8abc") == "5 bytes: ff d8 61 62 63"
    assert described(np.arange(3)) == "i64[3]  0, 1, 2"
    assert described(np.array([1.5, 2.5], np.float16)) == "f16[2]  1.5, 2.5"
    assert described(np.zeros((0, 4), np.uint8)) == "u8[0, 4]"
    assert described(np.ma.MaskedArray([1, 2], [False, True])) == "i64[2]  1, ?"
    assert described(np.bool_(True)) == "bool true"
    assert described("é") == "'é'"
