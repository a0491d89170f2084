"""`tests/gpu/run` from start to end, with the host in place of a GPU."""
import subprocess
import sys
from pathlib import Path

from cuda_host import needs_compiler

ROOT = Path(__file__).parent.parent.parent


@needs_compiler
def test_everything_on_the_host():
    script = [sys.executable, str(ROOT / "tests" / "gpu" / "run"), "--fake"]
    done = subprocess.run(script, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0 and "no difference" in done.stdout, done.stdout[-4000:]
