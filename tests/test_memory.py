"""Memory stays flat: files of hundreds of megabytes, nearly all holes, read where 200 MB are allowed."""
import pytest
from flat import LIMIT, grown


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_memory_is_flat(tmp_path, kind):
    if kind == "parquet":
        pytest.importorskip("pyarrow")
    delivered, written, taken = grown(kind, tmp_path, 160 << 20)
    assert delivered == written and taken < LIMIT // 2
