"""Operators beside the libraries people come from: what those gave is kept in `tests/data/parity`, with its scripts."""
from __future__ import annotations

import json
import re

import numpy as np
import parity
import pytest
from pipec.compiler.check import check
from running import assert_same, run_compiled, run_interpreted

WORDS = {"uint8": "u8", "float32": "f32", "int64": "i64"}
SLACK = 20   # a bound may be this many times what was found
GROUP = 9    # cases in one program: much larger kernels compile slower


def numbers(tmp_path, domain, cases, names, lines=""):
    """The program that says `ours` of these cases, over one record of the inputs; `names`: sizes that have one."""
    np.savez(tmp_path / "d.npz", **{k: v[None] for k, v in domain.inputs.items()})
    columns = ""
    for name, array in domain.inputs.items():
        dims = ", ".join(names.get(n, str(n)) for n in array.shape)
        columns += f"  {name}: {WORDS[str(array.dtype)]}[{dims}]\n"
    return program("npz", tmp_path / "d.npz", columns, cases, lines)


def program(kind, path, columns, cases, lines=""):
    lines += "".join(f"  o_{c.name} = {c.ours}\n" for c in cases)
    emitted = ", ".join(f"o_{c.name}" for c in cases)
    return f'schema S\n{columns}pipeline p\n  from {kind}("{path}") as S\n{lines}  emit {emitted}\n'


def images(tmp_path, domain, cases):
    return numbers(tmp_path, domain, cases, {29: "h", 37: "w"})


def sound(tmp_path, domain, cases):
    return numbers(tmp_path, domain, cases, {}, "  power = spectrogram(wave, 400, 160)\n"
                   "  bank = mel_bank(80, 201, 16_000)\n  bank40 = mel_bank(40, 201, 16_000)\n")


def tables(tmp_path, domain, cases):
    """Over a Parquet file, where gaps are nulls."""
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    maybe = [None if g else int(v) for v, g in zip(domain.inputs["counts"], domain.inputs["gone"])]
    parquet.write_table(pa.table({k: [v.tolist()] for k, v in domain.inputs.items()} | {"maybe": [maybe]}, pa.schema(
        [(k, pa.list_(pa.from_numpy_dtype(v.dtype))) for k, v in domain.inputs.items()] + [("maybe", pa.list_(pa.int64()))],
    )), tmp_path / "d.parquet")
    columns = "".join(f"  {k}: {WORDS[str(v.dtype)]}[{len(v)}]\n" for k, v in domain.inputs.items()) + "  maybe: i64?[10]\n"
    return program("parquet", tmp_path / "d.parquet", columns, cases)


def tokens(tmp_path, domain, cases):
    pytest.importorskip("tokenizers")
    (tmp_path / "d.jsonl").write_text(json.dumps({k: str(v) for k, v in domain.inputs.items()}) + "\n", encoding="utf-8")
    text = program("jsonl", tmp_path / "d.jsonl", "".join(f"  {k}: text\n" for k in domain.inputs), cases)
    return re.sub(r'"(\w+)\.json"', rf'"{parity.FOLDER}/\1.json"', text)


PROGRAMS = {"images": images, "sound": sound, "tables": tables, "tokens": tokens}


@pytest.mark.parametrize(("name", "first"), [(n, k) for n in PROGRAMS for k in range(0, len(parity.domain(n).cases), GROUP)])
def test_cases(tmp_path, name, first):
    domain = parity.domain(name)
    cases = domain.cases[first : first + GROUP]
    text = PROGRAMS[name](tmp_path, domain, cases)
    made = check(str(tmp_path / "p.pipe"), text=text)
    (reference,), code = run_interpreted(made)
    compiled, _ = run_compiled(made)
    assert code is None
    assert_same(compiled, [reference])
    assert not (wrong := "\n".join(filter(None, (judged(c, reference[f"o_{c.name}"], domain) for c in cases)))), wrong


def judged(case, got, domain):
    """What is wrong with a result beside the library's, or with the bound that is stated; None if nothing."""
    distance, share = case.apart(got, domain.expected[case.name])
    if not case.within(distance, share):
        return f"{case.name}: {distance:g} apart, {share:.4f} of the values; the bound is {case.bound}"
    if case.error > SLACK * max(distance, 5e-8) or case.levels > distance or case.share > SLACK * share:
        return f"{case.name}: {distance:g} apart, {share:.4f} of the values; the bound {case.bound} is loose"
    return None


def test_page_is_up_to_date():
    assert parity.PAGE.read_text(encoding="utf-8") == parity.page(), "run `python tests/parity.py`"


def test_data_is_small():
    assert sum(p.stat().st_size for p in parity.FOLDER.iterdir() if p.is_file()) < 1_000_000
