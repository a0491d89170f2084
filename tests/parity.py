"""The cases of `tests/data/parity`: what each library says beside what ours says, and how far apart they may be.

`python tests/parity.py` writes `docs/parity.md` again.
"""
from __future__ import annotations

import json
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "tests" / "data" / "parity"
PAGE = ROOT / "docs" / "parity.md"
DOMAINS = ("images", "sound", "tables", "tokens")


@dataclass(frozen=True)
class Case:
    """One comparison. `levels`: of u8, in at most `share` of the values; `error`: of floats, in units of the largest."""

    name: str
    operator: str
    ours: str
    theirs: str
    says: str = ""
    levels: int = 0
    share: float = 0.0
    error: float = 0.0

    def apart(self, got: Any, want: Any) -> tuple[float, float]:
        """How far two results are apart, and in which share of their values; raises where they can't be compared."""
        got, want = np.asarray(got), np.asarray(want)
        assert got.shape == want.shape, f"{self.name}: {got.shape} beside {want.shape}"
        if got.dtype.kind in "OUS" or want.dtype.kind in "US":
            return float(got.tolist() != want.tolist()), 1.0
        one, other = got.astype(np.float64), want.astype(np.float64)
        same = (one == other) | (np.isnan(one) & np.isnan(other))
        if got.dtype.kind in "iub" and want.dtype.kind in "iub":
            same = got == want
        difference = np.abs(np.where(same, 0.0, one - other))
        if self.error:
            difference = difference / max(float(np.abs(other[np.isfinite(other)]).max(initial=0.0)), 1e-30)
        return float(difference.max(initial=0.0)), float((~same).mean()) if same.size else 0.0

    def within(self, distance: float, share: float) -> bool:
        if self.error:
            return distance <= self.error
        return distance <= self.levels and share <= self.share

    @property
    def bound(self) -> str:
        if self.error:
            return f"{self.error:g} of the largest value"
        if not self.levels:
            return "equal"
        where = f"{100 * self.share:g} % of the values"
        return f"{self.levels} level{'s' if self.levels > 1 else ''}, {where}" if self.levels < 255 else f"{where} differ"


@dataclass(frozen=True)
class Domain:
    """The cases about one kind of data, their inputs and what the libraries made of them."""

    name: str
    title: str
    library: str
    text: str
    differs: tuple[str, ...]
    cases: tuple[Case, ...]
    inputs: Mapping[str, Any]
    expected: Mapping[str, Any]
    versions: Mapping[str, str]


def domain(name: str) -> Domain:
    read = tomllib.loads((FOLDER / f"{name}.toml").read_text(encoding="utf-8"))
    stored = np.load(FOLDER / f"{name}.npz")
    parts = {kind: {k[len(kind) + 1 :]: stored[k] for k in stored.files if k.startswith(kind + ".")} for kind in ("in", "out")}
    cases = tuple(Case(k, **v) for k, v in read["case"].items())
    return Domain(name, read["title"], read["library"], read["text"].strip(), tuple(read.get("differs", ())), cases, parts["in"],
                  parts["out"], json.loads(str(stored["versions"])))


def page() -> str:
    """The text of `docs/parity.md`."""
    parts = [HEAD]
    for name in DOMAINS:
        if not (FOLDER / f"{name}.toml").exists():
            continue
        d = domain(name)
        parts.append(f"\n## {d.title}\n\n{d.text}\n\n{', '.join(f'{k} {v}' for k, v in d.versions.items())}.\n\n"
                     "| | ours | theirs | apart at most |\n|---|---|---|---|\n")
        parts += [f"| {c.operator}{': ' + c.says if c.says else ''} | `{_cell(c.ours)}` | `{_cell(c.theirs)}` | {c.bound} |\n"
                  for c in d.cases]
        parts += ["\nWhat differs, and why:\n\n" if d.differs else "", *(f"- {line}\n" for line in d.differs)]
    return "".join(parts)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


HEAD = """# Beside other libraries

Where libraries disagree, the default here is what PyTorch users have (torchvision v2, torchaudio), and a named argument picks
another convention. Each line below is a test: the middle columns are the same thing said in pipec and in Python, run over
the same small inputs, compiled and interpreted; the last says how far the results may be apart. What the libraries gave is
kept in `tests/data/parity`, with the scripts that made it. This page is generated: `python tests/parity.py` writes it again.
"""

if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    sys.stdout.write(f"{PAGE} written\n")
