"""`make demo` in small: it runs, trains on what it should, and ends with its line."""
import importlib.util
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

DEMO = Path(__file__).parent.parent / "examples" / "demo.py"
pytest.importorskip("torch")
pytest.importorskip("skimage")


@pytest.fixture(scope="module")
def demo():
    spec = importlib.util.spec_from_file_location("demo", DEMO)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_small_demo(demo, tmp_path):
    command = [sys.executable, DEMO, "--data", tmp_path, "--train", "264", "--val", "44", "--epochs", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert re.fullmatch(r"held-out accuracy: \d+\.\d %", lines[-1])
    assert "264 training and 44 held-out crops of 11 photos" in lines[0]
    for part in ("first batch after", "waiting for data", "training", "records/s", "MB", "sheet.png: 25 records"):
        assert part in done.stdout
    assert (tmp_path / "sheet.png").stat().st_size > 10_000
    before = (tmp_path / "train-000.tar").stat().st_mtime_ns
    demo.make_shards(tmp_path, 264, 44)                   # as it would again
    assert (tmp_path / "train-000.tar").stat().st_mtime_ns == before


def test_shards_are_made_anew_where_others_are_asked_for(demo, tmp_path):
    demo.make_shards(tmp_path, 22, 11)
    demo.make_shards(tmp_path, 33, 11)
    with tarfile.open(tmp_path / "train-000.tar") as tar:
        assert len(tar.getnames()) == 66


def test_training_never_sees_what_is_held_out(demo):
    places = [(r, c) for r in range(demo.GRID) for c in range(demo.GRID)]
    held = [p for p in places if demo.held_out(*p)]
    assert 0 < len(held) < len(places) / 2
    photo, rng = PhotoThatNotes(), __import__("numpy").random.default_rng(0)
    for val in (False, True):
        photo.boxes.clear()
        for _ in range(300):
            demo._crop([photo], 0, val, rng)
        high, wide = photo.height // demo.GRID, photo.width // demo.GRID
        for left, top, right, bottom in photo.boxes:
            assert demo.held_out(top // high, left // wide) == val
            assert top // high == (bottom - 1) // high and left // wide == (right - 1) // wide


class PhotoThatNotes:
    """Stands in for a photo of 600 × 800 pixels and notes which boxes are cut out of it."""

    width, height = 800, 600

    def __init__(self):
        self.boxes = []

    def crop(self, box):
        from PIL import Image

        self.boxes.append(box)
        return Image.new("RGB", (box[2] - box[0], box[3] - box[1]))
