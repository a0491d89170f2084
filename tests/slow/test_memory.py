"""Memory stays flat on files of 5 GB. `python -m pytest tests/slow/test_memory.py --timeout 3600 -s` prints what was taken."""
import pytest
from test_memory import LIMIT, grown


@pytest.mark.parametrize("kind", ["bin", "csv", "jsonl", "npy", "parquet"])
def test_memory_is_flat(tmp_path, kind):
    delivered, written, taken = grown(kind, tmp_path, 5_000_000_000)
    print(f"{kind}: {delivered:,} records, {taken / 1e6:.1f} MB")
    assert delivered == written and taken < LIMIT
