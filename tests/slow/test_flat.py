"""Memory stays flat over files of 5 GB, nearly all holes, read where 200 MB are allowed (minutes)."""
from __future__ import annotations

import pytest
from flat import LIMIT, PROGRAMS, grown


@pytest.mark.parametrize("kind", PROGRAMS)
def test_five_gigabytes(tmp_path, kind):
    if kind == "parquet":
        pytest.importorskip("pyarrow")
    delivered, written, taken = grown(kind, tmp_path, 5 << 30)
    assert delivered == written and taken < LIMIT
