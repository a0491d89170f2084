"""`pipec doctor`: what this machine offers pipec, and what is missing and would help, on one screen in words."""
from __future__ import annotations

import argparse
import contextlib
import ctypes
import glob
import importlib
import importlib.metadata
import importlib.util
import os
import platform
import tempfile
import time
from collections.abc import Callable, Iterator

import numpy as np

from .. import __version__
from ..kernels import extensions, jpeg
from ..kernels.imagefile import read_header
from ..runtime import caches, extension, memory
from ..runtime.limits import available, show_size

# Package to import, what it is installed by, what it brings.
EXTRAS = (
    ("torch", "pipec[torch]", "tensors, and training loops of PyTorch"),
    ("pyarrow", "pipec[tables]", "sources parquet and arrow, zstd files"),
    ("tokenizers", "pipec[text]", "the operator tokenize"),
    ("lmdb", "pipec[lmdb]", "the source lmdb"),
    ("soundfile", "pipec[sound]", "sounds other than WAV"),
    ("fsspec", "pipec[remote]", "data on s3, gcs, http"),
    ("prometheus_client", "pipec[metrics]", "figures for Prometheus: serve --metrics"),
    ("cupy", "pipec[cuda]", "kernels on a GPU: device=\"cuda\""),
)
GOOD, LESS, BAD = "✓", "–", "✗"
REPEATS = 7


def doctor(arguments: argparse.Namespace) -> int:
    """Prints one line for each finding; returns 0 if programs can run, else 1."""
    parts = (("machine", _machine), ("JPEG", _decoders), ("tables", _tables), ("extras", _extras), ("memory", _memory),
             ("sharing", _ring), ("cache", _cache), ("GPU", _gpu))
    broken = False
    for title, part in parts:
        for k, (sign, text) in enumerate(part()):
            print(f"{'' if k else title:<9}{sign} {text}")
            broken = broken or sign == BAD
    return 1 if broken else 0


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _machine() -> Iterator[tuple[str, str]]:
    from ..runtime.objects import target

    yield GOOD, (f"pipec {__version__}, Python {platform.python_version()}, NumPy {_version('numpy')}, "
                 f"numba {_version('numba') or 'missing'}, llvmlite {_version('llvmlite')}")
    wide = [f for f in ("avx512f", "avx2", "sve", "neon") if f"+{f}" in target().features]
    cores = len(os.sched_getaffinity(0))
    cpu = ", ".join([target().cpu, *wide[:1]])
    yield GOOD, f"{cores} core{'s' if cores > 1 else ''} ({cpu}), Linux {platform.release()}"


# --- decoders -----------------------------------------------------------------------------------------------------------


def _decoders() -> Iterator[tuple[str, str]]:
    yield GOOD, f"simplejpeg {_version('simplejpeg')} decodes whole images"
    data = _photo()
    header = read_header(data)
    window = jpeg.Window(header.height // 4, header.width // 4, header.height // 2, header.width // 2)
    out = np.empty((window.rows, window.columns, 3), np.uint8)

    def seconds(*chosen: jpeg.Provider) -> float:
        with jpeg.only(*chosen):
            return _least(lambda: jpeg.decode_window(data, header, 1, window, out))

    whole = seconds()
    found = [p for p in jpeg.providers() if isinstance(p, jpeg.Provider)]
    for provider in found:
        gain = whole / seconds(jpeg.Provider(provider.name, "", provider.decode, fixed=-1e12))
        yield GOOD, (f"{provider.name} ({provider.version}) decodes parts: the middle quarter of a photo in {1 / gain:.0%} "
                     "of a whole one's time")
    for absent in jpeg.providers():
        if isinstance(absent, jpeg.Absent):
            yield LESS, f"{absent.name}: {absent.reason}"
    if not found:
        yield LESS, "so images are decoded whole; each of these would decode only the part that a crop needs"


def _photo() -> bytes:
    """A picture with detail, of the size that ImageNet's have."""
    import simplejpeg

    rng = np.random.default_rng(0)
    waves = 90 + 60 * np.sin(np.arange(500)[None, :] / 11) * np.cos(np.arange(375)[:, None] / 17)
    pixels = np.clip(waves[:, :, None] + rng.normal(0, 12, (375, 500, 3)), 0, 255).astype(np.uint8)
    encoded: bytes = simplejpeg.encode_jpeg(pixels, 92, "RGB", "420")
    return encoded


def _least(work: Callable[[], None]) -> float:
    times = []
    for _ in range(REPEATS):
        start = time.thread_time_ns()
        work()
        times.append(time.thread_time_ns() - start)
    return float(min(times))


def _tables() -> Iterator[tuple[str, str]]:
    if extensions.extension() is not None:
        yield GOOD, "C extension _parquetpages decodes columns of Parquet, turns texts into codes and hashes them"
    else:
        yield _not_built("_parquetpages", "pyarrow and NumPy do its work")
    if extensions.sound() is not None:
        yield GOOD, "C extension _sound makes spectra, mels among them, and resamples"
    else:
        yield _not_built("_sound", "NumPy does its work")


def _not_built(name: str, instead: str) -> tuple[str, str]:
    return LESS, f"C extension {name}: not built: when pipec is installed, it needs a C compiler; {instead}, more slowly"


# --- the rest -----------------------------------------------------------------------------------------------------------


def _extras() -> Iterator[tuple[str, str]]:
    found = [p for p in EXTRAS if importlib.util.find_spec(p[0]) is not None]
    if found:
        yield GOOD, ", ".join(f"{name} {_version(name)}".strip() for name, _, _ in found)
    for name, extra, brings in EXTRAS:
        if (name, extra, brings) not in found:
            yield LESS, f"{name} isn't installed: pip install '{extra}' brings {brings}"


def _memory() -> Iterator[tuple[str, str]]:
    room = available()
    yield (GOOD if room.free > 1 << 30 else LESS), f"{show_size(room.free)} can still be taken ({room.source})"


def _ring() -> Iterator[tuple[str, str]]:
    try:
        fd = memory.create("pipec-doctor", 2 * memory.PAGE)
        try:
            mapping = memory.Mapping(fd, 0, 2 * memory.PAGE, double=True, write=True)
            memory.seal(fd)
            view = (ctypes.c_ubyte * mapping.length).from_address(mapping.address)
            view[0] = 7
            twice = view[mapping.size] == 7
            del view
            mapping.close()
        finally:
            os.close(fd)
    except OSError as error:
        yield BAD, f"shared memory can't be made here: {error.strerror or error}"
        return
    if twice:
        yield GOOD, "batches are shared without copies: memory that is mapped twice works here"
    else:
        yield BAD, "memory can't be mapped twice here"
    if extension.handover() is None:
        yield _not_built("_handover", "Python writes and takes batches without it")
    try:
        with open("/proc/self/pagemap", "rb") as file:
            file.read(8)
    except OSError:
        yield LESS, "/proc/self/pagemap can't be read: whole batches, not single pages, are restored after writes into them"


def _cache() -> Iterator[tuple[str, str]]:
    folder = caches.folder()
    total = sum((a.size for a in caches.contents().values()), 0)
    place = folder
    while place and not os.path.isdir(place) and os.path.dirname(place) != place:
        place = os.path.dirname(place)
    try:
        with tempfile.TemporaryFile(dir=place or "."):   # root may write anywhere, it is told, and can't
            yield GOOD, f"{folder}: {show_size(total)} of {show_size(caches.limit())}"
    except OSError:
        yield LESS, f"{folder} can't be written to, so every start compiles anew; PIPEC_CACHE names another folder"


def _gpu() -> Iterator[tuple[str, str]]:
    if not glob.glob("/dev/nvidia[0-9]*"):
        yield LESS, "no NVIDIA GPU: everything runs on the CPU"
        return
    if importlib.util.find_spec("cupy") is None:
        yield LESS, "there is an NVIDIA GPU, and no CuPy to use it: pip install 'pipec[cuda]'"
        return
    with contextlib.suppress(Exception):   # what a driver that doesn't fit raises
        cupy = importlib.import_module("cupy")
        name = cupy.cuda.runtime.getDeviceProperties(0)["name"].decode()
        yield GOOD, f"{name}, CuPy {cupy.__version__}: `device=\"cuda\"` runs what stands below share() there"
        return
    yield LESS, "there is an NVIDIA GPU, but CuPy can't use it (see `python -c \"import cupy; cupy.show_config()\"`)"
