"""Reads a large sparse file through a program and says how much memory that took.

Run as a process of its own, whose memory after a first short run is the base. Pages of the file itself can be dropped at any
time and don't count. `flat.py KIND FILE BYTES` says what the process is told that it may take.
"""
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
from pipec.runtime import limits, source
from pipec.runtime.opening import open as open_loader

LIMIT = 200 << 20
PROGRAMS = {
    "bin": ("x: u8[65536]", "bin"), "csv": ("a: i64\n  b: i64", "csv"), "parquet": ('x: i64[16] from "x{0..15}"', "parquet"),
    "jsonl": ("a: i64", "jsonl"), "npy": ("x: u8[65536]", "npy"),
}


def program(kind, path):
    columns, source = PROGRAMS[kind]
    first = columns.split(":")[0]
    reduced = f"  y = sum(i64({first}[i]) for i)" if "[" in columns else f"  y = i64({first}) + 0"
    return (f'schema S\n  {columns}\npipeline p\n  from {source}("{path}") as S\n  skip_bad(at_most=0.5)\n{reduced}\n'
            f'  batch({4096 if kind in ("csv", "jsonl", "parquet") else 16})\n  emit y\n')


def write(kind, path, size):
    """A file of about `size` bytes, nearly all of it a hole; the number of its records that can be read."""
    if kind == "parquet":
        return write_parquet(path, size)
    if kind == "npy":
        np.lib.format.open_memmap(path, "w+", np.uint8, (size // 65536, 65536)).flush()
        return size // 65536
    lines = {"csv": (b"a,b\n", b"%d,2\n"), "jsonl": (b"", b'{"a": %d}\n'), "bin": (b"", b"")}[kind]
    with open(path, "wb") as file:
        if kind == "bin":
            file.truncate(size // 65536 * 65536)
            return size // 65536
        file.write(lines[0] + b"".join(lines[1] % n for n in range(20_000)))
        file.seek(size)   # one row that is a hole, refused by its length
        file.write(b"\n" + b"".join(lines[1] % n for n in range(20_000, 40_000)))
    return 40_000


class Sparse:
    """A file that leaves out blocks of zeros."""

    def __init__(self, path):
        self.file = open(path, "wb")  # noqa: SIM115
        self.closed = False

    def write(self, data):
        view = memoryview(data)
        for at in range(0, len(view), 1 << 13):
            part = bytes(view[at : at + (1 << 13)])
            if part.count(0) == len(part):
                self.file.seek(len(part), os.SEEK_CUR)
            else:
                self.file.write(part)
        return len(view)

    def tell(self):
        return self.file.tell()

    def flush(self):
        self.file.flush()

    def close(self):
        self.file.truncate(self.file.tell())
        self.file.close()
        self.closed = True


def write_parquet(path, size):
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = 1 << 16   # 8 MB a row group
    zeros = pa.table({f"x{k}": pa.array(np.zeros(rows, np.int64)) for k in range(16)})
    sink = Sparse(path)
    with pq.ParquetWriter(sink, zeros.schema, compression="none", use_dictionary=False, data_page_size=1 << 22) as out:
        for _ in range(size // (128 * rows)):
            out.write_table(zeros, row_group_size=rows)
    sink.close()
    return size // (128 * rows) * rows


def own():
    """Bytes of this process's own memory."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("RssAnon:")) << 10


def read(path):
    """The records that came, and the most memory of its own that the process had meanwhile."""
    count, peak = 0, 0
    with open_loader(str(path), as_="numpy", workers="threads", threads=2, memory="32MB") as loader:
        for batch in loader:
            count += len(batch.y)
            peak = max(peak, own())
    return count, peak


def main(kind, path, limit):
    folder = Path(path).parent
    small, large = folder / f"small.{kind}", folder / f"large.{kind}.pipe"
    write(kind, small, 24 << 20)
    (folder / f"small.{kind}.pipe").write_text(program(kind, small))
    large.write_text(program(kind, path))
    source.available = lambda: limits.Room(limit, "this test")   # as if a control group allowed no more
    read(folder / f"small.{kind}.pipe")
    before = own()
    count, peak = read(large)
    print(count, peak - before)


def grown(kind, tmp_path, size):
    """(records delivered, records written, bytes of its own that the process took for them at most)."""
    path = tmp_path / f"x.{kind}"
    written = write(kind, path, size)
    done = subprocess.run([sys.executable, __file__, kind, path, str(LIMIT)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    delivered, taken = map(int, done.stdout.split())
    return delivered, written, taken


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
