"""What a process of ours begins with: the paths of the process that starts it, and libraries that leave threads to us."""
from __future__ import annotations

# BLAS: the producer's threads are enough. Arrow's own pool gives memory back page by page, which costs more than it saves.
LIBRARIES = {"OPENBLAS_NUM_THREADS": "1", "ARROW_DEFAULT_MEMORY_POOL": "system"}


def code(main: str, paths: int) -> str:
    """Python text that runs `main` ("module: call"); `sys.argv[paths]` is `sys.path` as JSON. What the user has set stays."""
    module, _, call = main.partition(": ")
    return (f"import json, os, sys; [os.environ.setdefault(*kv) for kv in {LIBRARIES!r}.items()]; "
            f"sys.path[:] = json.loads(sys.argv[{paths}]); from {module} import main; {call}")
