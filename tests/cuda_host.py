"""CUDA texts compiled by g++ and run on the host: many kernels in one translation unit, kept from run to run."""
from __future__ import annotations

import ctypes
import hashlib
import os
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from pipec.compiler.emit_cuda import prelude

ROOT = Path(__file__).parent.parent
COMPILER = shutil.which("g++")
needs_compiler = pytest.mark.skipif(COMPILER is None, reason="no g++ here, so CUDA texts can't be run on the host")
FLAGS = ("-std=c++17", "-O1", "-w", "-shared", "-fPIC", "-ffp-contract=off", "-fno-strict-aliasing", "-fvisibility=hidden")
EXPORT = 'extern "C" __attribute__((visibility("default")))'
LAUNCH = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint, ctypes.c_uint, ctypes.c_int, ctypes.c_int64,
                          ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
SCRATCH = (1 << 16, 1 << 20, 1 << 24)


def host_text(texts):
    """One translation unit of them all, each in a namespace of its own; symbols get the number of their text behind."""
    shim = (ROOT / "kernels" / "cuda_host.h").read_text()
    parts = [shim, prelude()]
    for k, text in enumerate(texts):
        exported = re.sub(r'extern "C" __global__ void (\w+)\(', rf"{EXPORT} void \1_{k}(", text)
        parts.append(f"namespace text_{k} {{\n{exported}\n}}")
    return "\n".join(parts)


def library(texts):
    """The texts as a loaded library."""
    source = host_text(texts)
    folder = Path(os.environ.get("PIPEC_TEST_CACHE") or ROOT / ".pytest_cache" / "cuda")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / (hashlib.blake2b((source + repr(FLAGS)).encode(), digest_size=16).hexdigest() + ".so")
    if not path.exists():
        made = path.with_suffix(f".{os.getpid()}.so")
        done = subprocess.run([COMPILER, *FLAGS, "-x", "c++", "-", "-o", made], input=source, text=True, capture_output=True)
        if done.returncode:
            places = [int(n) for n in re.findall(r"<stdin>:(\d+):\d+: error", done.stderr)[:3]]
            near = [f"{n + 1:5} {source.splitlines()[n]}" for at in places for n in range(at - 4, at)]
            raise AssertionError("g++ refuses a kernel:\n" + "\n".join([done.stderr[:1500], *near]))
        os.replace(made, path)
    return ctypes.CDLL(str(path))


def load(kernels, **how):
    """Device kernels as functions of the host, by their text."""
    different = list({k.text: k for k in kernels}.values())
    found = library([k.text for k in different])
    return {k.text: HostKernel(found, k, n, **how) for n, k in enumerate(different)}


class HostKernel:
    """Called like a compiled kernel, `kernel(n, table, status, arena)`; its threads run one after the other."""

    def __init__(self, found, kernel, number, blocks=2, threads=3, backwards=False):
        self.kernel, self.blocks, self.threads, self.backwards = kernel, blocks, threads, backwards
        self.launch = LAUNCH(("pipec_launch", found))
        self.functions = [ctypes.cast(found[f"{symbol}_{number}"], ctypes.c_void_p).value for symbol, _ in kernel.launches]
        self.stride = 8 * max(1, kernel.text.split("// one record: ")[-1].split("\n")[0].count(" of "))
        self.escapes = "escape_end" in kernel.text

    def run(self, n, table, status, arena):
        for function, (_, kind) in zip(self.functions, self.kernel.launches):
            rows = min(n, 5) if kind == "all" else 1
            self.launch(function, self.blocks, rows, self.threads, self.backwards, n, table, status, arena)

    def __call__(self, n, table, status, arena):
        given = np.frombuffer((ctypes.c_int64 * 4).from_address(arena), np.int64)
        statuses = np.frombuffer((ctypes.c_int64 * n).from_address(status), np.int64)
        step = 1 if self.escapes else n
        for first in range(0, n, step):
            for size in SCRATCH:
                before = statuses[first : first + step].copy()
                memory = np.full(step * size + 64, 0xA5, np.uint8)
                begin = (memory.ctypes.data + 63) // 64 * 64 + size * np.arange(step)
                arenas = np.stack([np.full(step, given[0]), np.full(step, given[1]), begin, begin + size,
                                   np.full(step, given[0])], 1)
                self.run(step, table + self.stride * first, status + 8 * first, arenas.ctypes.data)
                short = statuses[first : first + step] == -1
                if not short.any():
                    given[0] = arenas[-1, 4] if self.escapes and statuses[first] == 0 else given[0]
                    break
                if size != SCRATCH[-1]:
                    statuses[first : first + step] = before
            if (statuses[first : first + step] == -1).any():
                return
