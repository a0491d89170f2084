"""Small data in the formats that the example programs read, and a compile cache of the tests' own."""
import io
import os
import signal
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from PIL import Image
from pipec.cli import main
from pipec.runtime import opening

# A slow machine is no failure, and a run tests what the last one did; PIPEC_RANDOM=1 looks elsewhere.
settings.register_profile("pipec", deadline=None, suppress_health_check=list(HealthCheck), database=None, print_blob=True,
                          derandomize="PIPEC_RANDOM" not in os.environ)
settings.load_profile("pipec")


# Else each of the hundreds of processes that a run starts would compile all of pipec's modules anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


def pytest_addoption(parser):
    parser.addoption("--update", action="store_true", help="rewrite generated files (tests/golden, docs/operators.md)")


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory):
    """Tests never read or fill the user's cache; one folder for all, so that kernels are compiled once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PIPEC_CACHE", str(tmp_path_factory.mktemp("pipec-cache")))
        yield


@pytest.fixture(scope="session", autouse=True)
def _interrupts():
    """Where whoever runs the tests ignores Ctrl-C, as a shell does for what is in the background, their processes would, too."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def runtime(tmp_path, monkeypatch):
    """Servers and who looks for them meet in a folder of this test's own."""
    monkeypatch.setenv("PIPEC_RUNTIME", str(tmp_path / "run"))


@pytest.fixture
def in_threads(monkeypatch):
    """Programs that this test opens have their producers here: to start a process takes half a second."""
    monkeypatch.setitem(opening.open.__kwdefaults__, "workers", "threads")


@pytest.fixture
def in_processes(monkeypatch):
    """As users have it; after `in_threads`."""
    monkeypatch.setitem(opening.open.__kwdefaults__, "workers", "process")


@pytest.fixture
def command(capfd):
    """A command as a user types it: its exit status and what it printed, which is never a mistake of pipec's own."""
    def run(*arguments):
        try:
            status = main([str(a) for a in arguments])
        except SystemExit as left:
            status = left.code
        out, err = capfd.readouterr()
        assert "Traceback" not in out + err and "a mistake in pipec" not in err, err
        return status, out, err

    return run


def picture(rng, height, width):
    """A smooth random photo, so that JPEG and resizing behave as on real ones."""
    small = rng.integers(0, 256, (max(2, height // 16), max(2, width // 16), 3), np.uint8)
    return Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC)


def encoded(image, form, **options):
    out = io.BytesIO()
    image.save(out, form, **options)
    return out.getvalue()


def write_tar(path, members):
    """Write (name, bytes) members."""
    with tarfile.open(path, "w") as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))


@pytest.fixture(scope="session")
def imagenet(tmp_path_factory):
    """train-00{0,1}.tar of 40 photos, val-000.tar of 12, classes 0 to 9."""
    root, rng = tmp_path_factory.mktemp("imagenet"), np.random.default_rng(3)
    for name, count in (("train-000", 20), ("train-001", 20), ("val-000", 12)):
        members = []
        for k in range(count):
            image = picture(rng, int(rng.integers(40, 120)), int(rng.integers(40, 120)))
            key = f"{name}/{k:04d}"
            members += [(f"{key}.jpg", encoded(image, "JPEG", quality=90)), (f"{key}.cls", str(k % 10).encode())]
        write_tar(root / f"{name}.tar", members)
    return root


@pytest.fixture(scope="session")
def cifar(tmp_path_factory):
    """cifar10.npz with 300 records."""
    path, rng = tmp_path_factory.mktemp("cifar") / "cifar10.npz", np.random.default_rng(4)
    np.savez(path, x_train=rng.integers(0, 256, (300, 32, 32, 3), np.uint8), y_train=rng.integers(0, 10, 300, np.uint8))
    return path


@pytest.fixture(scope="session")
def city(tmp_path_factory):
    """One tar of 10 photos with palette masks."""
    root, rng = tmp_path_factory.mktemp("city"), np.random.default_rng(5)
    members = []
    for k in range(10):
        height, width = int(rng.integers(60, 90)), int(rng.integers(80, 120))
        mask = Image.fromarray(rng.integers(0, 40, (height, width), np.uint8), "L").convert("P")
        members += [(f"{k:03d}.jpg", encoded(picture(rng, height, width), "JPEG")), (f"{k:03d}.png", encoded(mask, "PNG"))]
    write_tar(root / "a.tar", members)
    return root


@pytest.fixture(scope="session")
def spots(tmp_path_factory):
    """train.npz and val.npz of examples/torch."""
    place = str(Path(__file__).parent.parent / "examples" / "torch")
    sys.path.insert(0, place)
    try:
        from spots import make_data
    finally:
        sys.path.remove(place)
    folder = tmp_path_factory.mktemp("spots")
    make_data(folder, 403, 101)
    return folder
