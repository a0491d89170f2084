"""Remainders by constants: machine code by a reciprocal is what the reference says, next to multiples and at i64's ends."""
from __future__ import annotations

import numpy as np
from running import delivered, interpreted

DIVISORS = (4095, 4096, 4097, 4099, 65_537, 100_000, 999_983, 2**30, 2**31 - 2, 2**31 - 1, 2**31)


def numbers(rng):
    low, high = -(2**63), 2**63 - 1
    found = {low, low + 1, high, high - 1, 0, 1, -1, 2**53, 2**53 + 1, -(2**53) - 1}
    for d in DIVISORS:
        for q in (1, -1, high // d, low // d + 1, *rng.integers(low // d + 1, high // d, 60).tolist()):
            found |= {d * q + e for e in (-1, 0, 1, d // 2) if low <= d * q + e <= high}
    return np.array(sorted(found), np.int64)


def test_remainders_by_constants(tmp_path):
    values = numbers(np.random.default_rng(3))
    values = np.resize(values, (-(-len(values) // 40), 40))
    np.savez(tmp_path / "d.npz", x=values)
    lines = [f"  r{d} = [x[i] % {d} for i]" for d in DIVISORS]
    path = tmp_path / "p.pipe"
    path.write_text("schema Row\n  x: i64[40]\n\npipeline p\n" + f'  from npz("{tmp_path / "d.npz"}") as Row\n'
                    + "\n".join(lines) + f"\n  batch({len(values)})\n  emit " + ", ".join(f"r{d}" for d in DIVISORS) + "\n")
    (compiled,), (meant,) = delivered(path), interpreted(path)
    for d in DIVISORS:
        exact = [[v % d for v in row] for row in values.tolist()]
        assert np.asarray(compiled[f"r{d}"]).tolist() == exact == np.asarray(meant[f"r{d}"]).tolist(), d
