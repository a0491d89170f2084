"""Plain C programs that do an image workload's work without a loader around it (`limit.c`): what can be reached at all."""
from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

from . import image_peers

MODES = {"W1": ("full", "region"), "W1u8": (), "W2": (), "W3": ("full", "scaled"), "W3full": ("full", "region")}


def plain_c(workload: str, threads: int, seconds: float) -> dict[str, list[str]]:
    """Commands by name, which run for so many seconds; none without a C compiler and libjpeg-turbo's headers."""
    modes = MODES.get(workload, ())
    if not modes:
        return {}
    folder = Path(tempfile.mkdtemp(prefix="pipec-limit-"))
    compiler = shutil.which("gcc") or shutil.which("cc")
    built = folder / "limit"
    flags = ["-O3", "-march=native", "-ffast-math", str(Path(__file__).parent / "limit.c"), "-o", str(built), "-ljpeg", "-lm",
             "-lpthread"]
    if compiler is None or subprocess.run([compiler, *flags], capture_output=True).returncode:
        print("  plain C: left out, it needs a C compiler and libjpeg-turbo's headers")
        return {}
    (folder / "files").write_text("".join(f"{f}\n" for f in image_peers.files(workload)))
    return {f"plain C, {m}": [str(built), str(folder / "files"), str(seconds), str(threads), m] for m in modes}
