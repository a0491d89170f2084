"""Generated programs: what the reference delivers = what machine code delivers, whatever passes, threads, tasks and epochs.

`make test` runs a few; PIPEC_GENERATED=500 runs that many, `generate.py` thousands. Below stand those
that once differed, shortened.
"""
import os
from dataclasses import replace

import pytest
from generated_data import write_data
from hypothesis import HealthCheck, given, settings
from pipec.compiler.check import check
from programs import Case, cases, programs
from running import assert_same, run_compiled, run_interpreted

EXAMPLES = int(os.environ.get("PIPEC_GENERATED", "60"))


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("generated") / "d.npz"
    write_data(str(path))
    return path


def compare(text, data, case=Case()):
    """Run a program by the reference and as `case` says, and compare; the records of the reference."""
    program = check("p.pipe", text=text.replace("{data}", str(data)), run="p")
    reference, code = run_interpreted(program, case.epoch)
    if "skip_bad" in text:   # how many records were bad before isn't part of a state
        case = replace(case, resumed=None)
    got, got_code = run_compiled(program, case.without, case.threads, case.epoch, case.chunk, case.resumed, narrow=case.narrow)
    assert got_code == code
    assert_same(got, reference)
    return reference


@settings(max_examples=EXAMPLES, deadline=None, database=None, print_blob=False, derandomize="PIPEC_GENERATED" not in os.environ,
          suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture])
@given(text=programs(), case=cases())
def test_compiled_is_interpreted(data, text, case):
    compare(text, data, case)


# --- found by generated programs ------------------------------------------------------------------

HEAD = """seed 11
schema Row
  n: i64
  h: f16
  size: i32
  flag: bool
  mask: bool[4]
  marks: i64[w]
  v: f32[3]
pipeline q
  from npz("{data}") as Row
  t = [3 * i for i < 9]
pipeline p
  from npz("{data}") as Row
"""
FOUND = {
    "a size that only the data tells": ["s = sum(marks[i] for i)", "emit s"],
    "a fraction beside f16 is rounded to f16": ["s = 0.1 ^ h", "t = if mask then 0.1 * h else 0.3", "emit s, t"],
    "nothing of the data is needed": ["batch(1)", "s = 0", "emit s"],
    "nothing of the data is needed above share": ["share()", "s = 0", "emit s"],
    "a field that can't be stacked and nothing needs": ["t = [n for i < size]", "batch(2)", "emit n"],
    "a batch's count, not its longest field": [
        "batch(4)", "t = [3 * i for i < 9]", "share()", "y = [n[b] + 1 for b]", "emit y, t"],
    "a sample that nothing needs": ["seq = [n + i for i < size]", "o ~ sample(q)", "where sum(seq[i] for i) < 30",
                                    "long = [seq[i] * 2 for i]", "each(long)", "emit long, n"],
    "a line that is never true proves nothing": [
        "where is_nan(0.5) or n > 3", "where is_nan(0.5)", "r ~ [integers(-i, 2 * i + 1) for i < 3]", "emit n, r"],
    "a side that is never asked for proves nothing": ["s = is_nan(sin(0.5)) and (mask[n % 11 - 2] ?? false)", "emit s"],
    "a computed size below sample": [
        "t = [n + i > 3 for i < size]", "o ~ sample(q)", "y = o.t", "s = [not t[i] for i < size]", "emit y, s"],
    "a computed size below each": ["t = [n + i > 3 for i < size]", "each(v)", "s = [not t[i] for i < size]", "emit v, s"],
    "a condition that is always true before take": ["where n <= n", "take(5)", "emit n"],
    "take between conditions": ["where n <= n", "where n % 3 != 1", "take(5)", "check(n == n)", "emit n"],
    "a batch's count beside a sample": ["batch(4)", "o ~ sample(q)", "t = o.t", "y = [n[b] + 1 for b]", "emit y, t"],
}

TABLE = """seed 11
schema Row
  n: i64
  b: u8
  size: i32
  t: text
  gt: text?
  gl: i16?[4]
pipeline p
  from parquet("{data}.parquet") as Row
"""
FOUND_IN_TABLES = {
    "words of a text on one side of a choice": ['s = lower(if n < b then split(t, at=",")[0] ?? "" else t)', "emit s"],
}


@pytest.mark.parametrize("name", FOUND_IN_TABLES)
def test_found_in_tables(data, name):
    assert compare(TABLE + "".join(f"  {line}\n" for line in FOUND_IN_TABLES[name]), data)


@pytest.mark.parametrize("name", FOUND)
@pytest.mark.parametrize("without", [(), ("prune",), ("simplify", "fuse")], ids=lambda w: "without " + " ".join(w))
def test_found(data, name, without):
    found = compare(HEAD + "".join(f"  {line}\n" for line in FOUND[name]), data, Case(without=without))
    assert bool(found) == ("never true" not in name)
