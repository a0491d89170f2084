"""`pipec doctor`: every part of the machine has its line, and what is missing says what it would bring."""
from __future__ import annotations

import os

import pytest
from pipec.cli import doctor, main
from pipec.kernels import extensions, jpeg
from pipec.runtime import extension, memory


@pytest.fixture
def told(capsys):
    def run():
        status = main(["doctor"])
        return status, capsys.readouterr().out

    return run


def test_one_screen(told):
    status, text = told()
    assert status == 0
    lines = text.splitlines()
    titles = [line.split()[0] for line in lines if line[0] != " "]
    assert titles == ["machine", "JPEG", "tables", "extras", "memory", "sharing", "cache", "GPU"]
    assert len(lines) < 24 and all(len(line) < 160 and line[9] in "✓–" for line in lines)
    assert "simplejpeg" in text and "mapped twice works" in text and os.environ["PIPEC_CACHE"] in text


def test_decoders_that_are_not_there(told, monkeypatch):
    monkeypatch.setattr(jpeg, "providers", lambda: (jpeg.Absent("C extension _jpegregion", "not built"),))
    text = told()[1]
    assert "– C extension _jpegregion: not built\n" in text and "images are decoded whole; each of these would" in text


def test_decoders_that_are_there_are_timed(told, monkeypatch):
    def quick(data, header, shrink, window, out):
        return True

    monkeypatch.setattr(jpeg, "providers", lambda: (jpeg.Provider("quick", "1.0", quick),))
    assert "✓ quick (1.0) decodes parts: the middle quarter of a photo in 0% of a whole one's time" in told()[1]


@pytest.mark.parametrize(("there", "line"), [
    (object(), "✓ C extension _parquetpages decodes columns of Parquet"),
    (None, "– C extension _parquetpages: not built: when pipec is installed, it needs a C compiler; pyarrow")])
def test_the_extension_of_tables(told, monkeypatch, there, line):
    monkeypatch.setattr(extensions, "extension", lambda: there)
    status, text = told()
    assert status == 0 and line in text


def test_the_extension_of_sound(told, monkeypatch):
    monkeypatch.setattr(extensions, "sound", lambda: None)
    status, text = told()
    assert status == 0 and "– C extension _sound: not built: when pipec is installed, it needs a C compiler" in text


def test_the_extension_of_sharing(told, monkeypatch):
    monkeypatch.setattr(extension, "handover", lambda: None)
    status, text = told()
    assert status == 0 and "– C extension _handover: not built: when pipec is installed, it needs a C compiler" in text


def test_extras_that_are_missing(told, monkeypatch):
    monkeypatch.setattr(doctor, "EXTRAS", (("no_such_package", "pipec[none]", "nothing"),))
    assert "– no_such_package isn't installed: pip install 'pipec[none]' brings nothing" in told()[1]


def test_without_shared_memory_programs_cannot_run(told, monkeypatch):
    def refused(*_):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(memory, "create", refused)
    status, text = told()
    assert status == 1 and "✗ shared memory can't be made here: Operation not permitted" in text


def test_a_cache_that_cannot_be_written(told, monkeypatch):
    monkeypatch.setenv("PIPEC_CACHE", "/proc/nowhere")
    assert "PIPEC_CACHE names another folder" in told()[1]
