"""Memory stays flat: files of hundreds of megabytes, nearly all holes, read where 200 MB are allowed."""
import subprocess
import sys
from pathlib import Path

import flat
import pytest

LIMIT = 200 << 20


def grown(kind, tmp_path, size):
    """(records delivered, records written, bytes of its own that the process took for them at most)."""
    path = tmp_path / f"x.{kind}"
    written = flat.write(kind, path, size)
    done = subprocess.run([sys.executable, Path(flat.__file__), kind, path, str(LIMIT)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    delivered, taken = map(int, done.stdout.split())
    return delivered, written, taken


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_memory_is_flat(tmp_path, kind):
    if kind == "parquet":
        pytest.importorskip("pyarrow")
    delivered, written, taken = grown(kind, tmp_path, 160 << 20)
    assert delivered == written and taken < LIMIT // 2
