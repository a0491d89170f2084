"""LLVM IR to relocatable objects, here or in a process beside this one: while LLVM compiles a kernel, the next is read.

`python -m pipec.compiler.optimise` is that process: texts come on its standard input, objects leave on its output, each
behind its length (8 bytes, little-endian). A length of 0 says that a text can't be compiled.
"""
from __future__ import annotations

import contextlib
import functools
import json
import os
import queue
import subprocess
import sys
import threading
from typing import IO, Any

from ..runtime import objects

LARGEST_TEXT = 1 << 30
CODE = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from pipec.compiler.optimise import main; main()"


@functools.cache
def machine() -> Any:
    """The target machine for this CPU, at full optimisation, for code that may lie anywhere."""
    binding, t = objects.llvm(), objects.target()
    return binding.Target.from_triple(t.triple).create_target_machine(
        cpu=t.cpu, features=t.features, opt=3, reloc="pic", codemodel="default"
    )


def object_of(text: str) -> bytes:
    """The object of an LLVM module."""
    binding = objects.llvm()
    module = binding.parse_assembly(text)
    module.triple, module.data_layout = objects.target().triple, str(machine().target_data)
    module.verify()
    tuning = binding.create_pipeline_tuning_options(speed_level=3)
    tuning.loop_vectorization = tuning.slp_vectorization = tuning.loop_interleaving = tuning.loop_unrolling = True
    builder = binding.create_pass_builder(machine(), tuning)
    builder.getModulePassManager().run(module, builder)
    return bytes(machine().emit_object(module))


class Beside:
    """The process beside this one. What it can't do, or where it can't be started, is done here."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        self.waiting: queue.Queue[str | None] = queue.Queue()
        if sys.executable and len(os.sched_getaffinity(0)) > 1:
            path = json.dumps([os.path.abspath(p) for p in sys.path])
            with contextlib.suppress(OSError):
                # Ctrl-C is ours: it ends when its input does.
                self.process = subprocess.Popen([sys.executable, "-P", "-c", CODE, path], process_group=0, stdin=subprocess.PIPE,
                                                stdout=subprocess.PIPE)
        self.made: queue.Queue[bytes | None] = queue.Queue()
        # A pipe holds less than one text, or object: neither process is to wait for the other to take it.
        self.threads = [threading.Thread(target=work, daemon=True) for work in (self._feed, self._fetch)]
        for thread in self.threads:
            thread.start()

    def _feed(self) -> None:
        while (text := self.waiting.get()) is not None:
            if self.process is not None and self.process.stdin is not None:
                with contextlib.suppress(OSError, ValueError):
                    _put(self.process.stdin, text.encode())

    def _fetch(self) -> None:
        made: bytes | None = b""
        while made is not None:
            with contextlib.suppress(OSError, ValueError):
                made = None if self.process is None or self.process.stdout is None else _get(self.process.stdout)
            self.made.put(made)

    def send(self, text: str) -> None:
        self.waiting.put(text)

    def receive(self, text: str) -> bytes:
        """The object of the text that was sent first of those that weren't received yet."""
        made = None if self.process is None else self.made.get()
        if made is None:
            self.close()
        return made or object_of(text)

    def close(self) -> None:
        self.waiting.put(None)
        process, self.process = self.process, None
        if process is not None:
            process.kill()
            process.wait()
        for thread in self.threads:
            thread.join()
        if process is not None and process.stdin is not None and process.stdout is not None:
            with contextlib.suppress(OSError):
                process.stdin.close()
            process.stdout.close()


def _put(file: IO[bytes], content: bytes) -> None:
    file.write(len(content).to_bytes(8, "little") + content)
    file.flush()


def _get(file: IO[bytes]) -> bytes | None:
    """None where there is nothing more, or not all of it."""
    head = file.read(8)
    size = int.from_bytes(head, "little")
    if len(head) < 8 or size > LARGEST_TEXT:
        return None
    content = file.read(size)
    return content if len(content) == size else None


def main() -> None:
    """The process: compiles until its input ends."""
    machine()
    while (text := _get(sys.stdin.buffer)) is not None:
        made = b""
        with contextlib.suppress(RuntimeError):   # the other side meets it, too, and says so
            made = object_of(text.decode())
        _put(sys.stdout.buffer, made)
