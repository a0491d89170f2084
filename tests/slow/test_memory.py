"""Memory doesn't grow over a hundred epochs, neither the training process's nor the producer's (about a minute)."""
from __future__ import annotations

import gc

import numpy as np
import psutil
import pytest
from conftest import encoded, picture, write_tar
from pipec import open as open_loader

EPOCHS, WARM, ALLOWED = 100, 20, 6 << 20     # bytes that allocators may keep after the first epochs

PROGRAMS = {
    "photos": """schema Sample
  jpg: bytes
  cls: i64
pipeline p
  from tar("{0}") as Sample
  shuffle()
  crop ~ random_resized_crop(decode_image(jpg), 32, 32)
  share()
  lam ~ uniform(0, 1)
  image = [f32(crop[y, x, c]) * lam for c, y, x]
  batch(7)
  emit image, cls
""",
    "arrays": """schema Row
  x: u8[32, 32, 3]
pipeline p
  from npz("{1}") as Row
  shuffle()
  r ~ uniform(0, 1)
  y = [x[i, j, c] * r for c, i, j]
  batch(16)
  emit y
""",
    "sizes that differ": """schema Row
  n: i64
pipeline p
  from npz("{1}") as Row
  where n % 3 != 0
  seq = [i + n for i < n % 40]
  batch(8, pad=true)
  seq = seq ?? -1
  emit seq
""",
}


def used(process: psutil.Process) -> int:
    """Private memory of a process tree: what is shared (the ring) has a size of its own."""
    total = 0
    for p in (process, *process.children(recursive=True)):
        with open(f"/proc/{p.pid}/smaps_rollup") as file:
            total += sum(int(line.split()[1]) << 10 for line in file if line.startswith(("Private_Dirty:", "Private_Clean:")))
    return total


@pytest.mark.parametrize("name", PROGRAMS)
def test_no_growth(name: str, tmp_path) -> None:
    rng = np.random.default_rng(0)
    photos = [(f"{k:03}.{e}", d) for k in range(60)
              for e, d in (("jpg", encoded(picture(rng, 80, 100), "JPEG")), ("cls", str(k % 5).encode()))]
    write_tar(tmp_path / "p.tar", photos)
    np.savez(tmp_path / "d.npz", x=rng.integers(0, 256, (400, 32, 32, 3), np.uint8), n=np.arange(400))
    program = "seed 1\n" + PROGRAMS[name].replace("{0}", str(tmp_path / "p.tar")).replace("{1}", str(tmp_path / "d.npz"))
    (tmp_path / "p.pipe").write_text(program)
    process, seen = psutil.Process(), []
    with open_loader(str(tmp_path / "p.pipe"), as_="numpy", threads=2) as loader:
        for epoch in range(EPOCHS):
            kept = None
            for batch in loader:
                kept = batch if kept is None else kept       # an old lease in every epoch
            if epoch + 1 in (WARM, EPOCHS):
                del kept, batch
                gc.collect()
                seen.append(used(process))
    assert seen[1] - seen[0] < ALLOWED, f"{(seen[1] - seen[0]) >> 10:,} KiB more after {EPOCHS} epochs than after {WARM}"
