"""What a process of ours begins with: the paths of the process that starts it, and libraries that leave threads to us."""
from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys

# BLAS: the producer's threads are enough. Arrow's own pool gives memory back page by page, which costs more than it saves.
LIBRARIES = {"OPENBLAS_NUM_THREADS": "1", "ARROW_DEFAULT_MEMORY_POOL": "system"}


def code(main: str, paths: int) -> str:
    """Python text that runs `main` ("module: call"); `sys.argv[paths]` is `sys.path` as JSON. What the user has set stays."""
    module, _, call = main.partition(": ")
    return (f"import json, os, sys; [os.environ.setdefault(*kv) for kv in {LIBRARIES!r}.items()]; "
            f"sys.path[:] = json.loads(sys.argv[{paths}]); from {module} import main; {call}")


# The producer finds modules where this process does, and puts no folder of its own in front.
# What modules are made of stays, so looking for garbage among it is time lost: `serve` begins with that when all are loaded.
PRODUCER = "import gc; gc.disable(); " + code("pipec.runtime.serve: main(int(sys.argv[1]))", 2)


class Spawned:
    """A producer's process that waits for its plan, and our end of its socket."""

    def __init__(self, process: subprocess.Popen[bytes], near: socket.socket):   # no dataclass: that module takes long to load
        self.process, self.socket = process, near

    def close(self) -> None:
        """End it, whatever it is doing."""
        self.socket.close()
        self.process.kill()
        self.process.wait()


def producer() -> Spawned | None:
    """Start a producer's process; None where this Python doesn't know its own executable. Raises OSError."""
    if not sys.executable:
        return None
    path = json.dumps([os.path.abspath(p) for p in sys.path])
    with contextlib.ExitStack() as both:
        near, far = (both.enter_context(end) for end in socket.socketpair())
        process = subprocess.Popen([sys.executable, "-P", "-c", PRODUCER, str(far.fileno()), path], pass_fds=(far.fileno(),),
                                   stdin=subprocess.DEVNULL, process_group=0)
        both.pop_all()
        far.close()
    return Spawned(process, near)
