"""Every stage that runs, compiled and interpreted with equal results; nothing lost, nothing doubled."""
from collections import Counter

import numpy as np
import pytest
from conftest import encoded, picture, write_tar
from pipec.runtime.errors import DataError
from running import assert_compiled_is_interpreted, delivered, interpreted

COUNT = 57


@pytest.fixture(scope="module")
def numbers(tmp_path_factory):
    """57 records: n = 0, 1, …; x f32[3]; size 1 to 7; few: one of four values, unevenly."""
    path, rng = tmp_path_factory.mktemp("numbers") / "n.npz", np.random.default_rng(1)
    few = np.array([0] * 40 + [1] * 10 + [2] * 5 + [3] * 2)
    np.savez(path, n=np.arange(COUNT), x=rng.normal(size=(COUNT, 3)).astype(np.float32), size=rng.integers(1, 8, COUNT), few=few)
    return path


def program(tmp_path, numbers, body):
    path = tmp_path / "p.pipe"
    if not body or not body[0].startswith("from "):
        body = [f'from npz("{numbers}") as Row', *body]
    path.write_text(f'''param step = 3
seed 4
schema Row
  n: i64
  x: f32[3]
  size: i64
  few: i64
pipeline other
  from npz("{numbers}") as Row
  where n % 2 == 0
  y = 10 * n
  emit y, n
pipeline a
  from npz("{numbers}") as Row
  take(21)
  shuffle()
  u ~ uniform(0, 1)
  y = n + u
  emit n, y
pipeline b
  from npz("{numbers}") as Row
  take(9)
  repeat(2)
  u ~ uniform(0, 1)
  y = n - u
  emit n, y
pipeline c
  from npz("{numbers}") as Row
  take(5)
  y = f32(100 * n)
  emit n, y
pipeline w
  from npz("{numbers}") as Row
  take(24)
  shuffle()
  where n % 3 == 0
  u ~ uniform(0, 1)
  y = 10 * n + u
  emit n, y
pipeline mixed
  from mix(a, b, weights=[0.5, 0.5], until="first")
pipeline streams
  from mix(w, c, weights=[0.5, 0.5], until="all")
pipeline win(width: i64)
  from npz("{numbers}") as Row
  window(width)
  shuffle()
  emit n, x
pipeline plain
  from npz("{numbers}") as Row
  y = 10 * n
pipeline p
''' + "".join(f"  {line}\n" for line in body))
    return path


RAGGED = ["seq = [n + i for i < size]"]
SIZED = ["seq: i64[k] = [n + i for i < size]"]
BODIES = {
    "nothing": ["emit n, x"],
    "every field": [],
    "shuffle": ["shuffle()", "emit n"],
    "shuffle chunks": ["shuffle(chunk=5, mix=3)", "emit n"],
    "shuffle windows": ["shuffle(window=10)", "emit n"],
    "where": ["where n % 3 == 0", "shuffle()", "emit n, x"],
    "where on a draw": ["u ~ uniform(0, 1)", "where u < 0.5", "emit n, u"],
    "take": ["take(10)", "emit n"],
    "take after where": ["where n % 3 == 0", "take(5)", "emit n"],
    "where after take": ["take(20)", "where n % 3 == 0", "emit n"],
    "two wheres and a take between": ["where n % 2 == 0", "take(9)", "where n % 3 == 0", "emit n"],
    "repeat": ["repeat(3)", "u ~ uniform(0, 1)", "emit n, u"],
    "repeat and shuffle": ["repeat(2)", "shuffle()", "u ~ integers(0, 1000)", "emit n, u"],
    "shuffle and repeat": ["shuffle()", "repeat(2)", "emit n"],
    "balance": ["balance(few)", "u ~ uniform(0, 1)", "emit n, few, u"],
    "balance and shuffle": ["balance(few)", "shuffle()", "emit n, few"],
    "shard": ["shard()", "emit n"],
    "each": [*RAGGED, "each(seq)", "u ~ uniform(0, 1)", "emit seq, n, u"],
    "each and batch": [*RAGGED, "each(seq)", "batch(8)", "emit seq, n"],
    "batch": ["batch(8)", "emit n, x"],
    "batch whole": ["batch(8, whole=true)", "emit n, x: f32[8, 3]"],
    "batch of one": ["batch(1)", "emit n, x"],
    "batch larger than all": ["batch(100)", "emit n"],
    "batch, then a line": ["shuffle()", "batch(8)", "z = [x[b, j] * 2 for b, j]", "total = sum(n[b] for b)", "emit z, total, n"],
    "batch, then a draw": ["batch(8, whole=true)", "place ~ permutation(8)", "x = x[place]", "emit x, n, place"],
    "batch padded": [*RAGGED, "batch(8, pad=true)", "seq = seq ?? -1", "emit seq, n, size"],
    "batch padded with a mask": [*RAGGED, "batch(8, pad=true)", "gap = missing(seq)", "seq = seq ?? 0", "emit seq, gap"],
    "batch by edges": [*RAGGED, "shuffle()", "batch(4, by=size, edges=[2, 5, 7], pad=true)", "seq = seq ?? -1", "emit seq, size"],
    "batch by budget": [*RAGGED, "shuffle()", "batch(budget=20, by=size, pad=true)", "seq = seq ?? -1", "emit seq, size"],
    "share and batch": ["y = x * 2", "share()", "batch(8)", "emit n, y"],
    "share, a line, batch": ["share()", "y = [x[j] * n for j]", "batch(8)", "emit n, y"],
    "share, where, batch": ["share()", "where n % 2 == 0", "batch(8)", "emit n"],
    "share, a draw, batch, a draw": ["share()", "u ~ uniform(0, 1)", "batch(8)", "v ~ uniform(0, 1)", "emit n, u, v"],
    "share of ragged fields": [*RAGGED, "share()", "batch(8, pad=true)", "seq = seq ?? -1", "emit seq, n"],
    "batch and share and a line": ["batch(8)", "share()", "y = [x[b, j] + n[b] for b, j]", "emit y"],
    "each and take": [*RAGGED, "each(seq)", "take(9)", "emit seq, n"],
    "each and repeat": [*RAGGED, "each(seq)", "repeat(2)", "u ~ uniform(0, 1)", "emit seq, u"],
    "batch and take": ["batch(4)", "take(3)", "emit n"],
    "batch, where and take": ["batch(4)", "where n[0] % 8 == 0", "take(2)", "emit n"],
    "share and take": ["share()", "take(11)", "batch(4)", "emit n"],
    "batch by an expression": [*RAGGED, "batch(budget=20, by=size + 1, pad=true)", "seq = seq ?? -1", "emit seq"],
    "sample and shuffle": ["where n % 2 == 0", "o ~ sample(plain)", "oy = o.y", "shuffle()", "emit n, oy"],
    "sample and repeat": ["o ~ sample(plain)", "oy = o.y", "repeat(2)", "u ~ uniform(0, 1)", "emit n, oy, u"],
    "sample and take": ["o ~ sample(plain)", "oy = o.y", "take(5)", "emit n, oy"],
    "sample": ["o ~ sample(plain)", "oy = o.y", "emit n, oy"],
    "sample in a line": ["o ~ sample(plain)", "m = o.y + n", "emit m"],
    "sample many": ["o ~ [sample(plain) for i < 3]", "m = [o.y[i] + n for i]", "emit m, n"],
    "check that holds": ["check(n >= 0)", "emit n"],
    "skip_bad covers rows of each": ["skip_bad(at_most=1)", *RAGGED, "each(seq)", "check(seq % 5 != 0)", "emit seq, n"],
    "skip_bad covers batches": ["skip_bad(at_most=0.9)", "batch(8)", "total = sum(n[b] for b)", "check(total % 3 != 0)",
                                "emit total"],
    "skip_bad covers samples": ["skip_bad(at_most=0.9)", "o ~ sample(plain)", "m = o.y + n", "check(m % 3 != 0)", "emit m"],
    "each, take and repeat": [*RAGGED, "each(seq)", "take(9)", "repeat(2)", "repeat(2)", "u ~ uniform(0, 1)", "emit seq, u"],
    "window": ["window(8)", "emit n, x"],
    "window, dropped rest": ["window(8, rest=\"drop\")", "u ~ uniform(0, 1)", "emit n: i64[8], x, u"],
    "window, overlapping": ["window(9, stride=8)", "emit n"],
    "window, far apart": ["window(3, stride=5)", "s = sum(n[i] for i)", "emit n, s"],
    "window, padded": ["window(8, pad=true)", "gap = missing(n)", "n = n ?? -1", "x = x ?? 0", "emit n, gap, x"],
    "window larger than all": ["window(100)", "emit n"],
    "window of one size, shuffled": ["window(8, stride=7, rest=\"drop\")", "shuffle()", "u ~ uniform(0, 1)", "emit n, u"],
    "window of a shuffle": ["shuffle()", "window(8)", "emit n, x"],
    "window of lines": ["u ~ uniform(0, 1)", "y = x * u", "window(8)", "v ~ uniform(0, 1)", "emit y, n, v"],
    "window of lines, padded and shuffled": ["y = n * 2", "window(8, pad=true)", "y = y ?? -1", "shuffle()", "emit y"],
    "window of ragged fields": [*RAGGED, "window(4, pad=true)", "seq = seq ?? -1", "emit seq"],
    "window, taken, repeated": ["window(4)", "take(5)", "repeat(2)", "u ~ uniform(0, 1)", "emit n, u"],
    "window of taken records": ["take(30)", "window(8)", "emit n"],
    "window of repeated records": ["repeat(2)", "window(8)", "emit n"],
    "window, where": ["window(4)", "where n[0] % 8 == 0", "emit n"],
    "window, where, take": ["window(4)", "where n[0] % 8 == 0", "take(3)", "emit n"],
    "window after where": ["where n % 2 == 0", "window(4, stride=3)", "u ~ uniform(0, 1)", "emit n, u"],
    "window after where, padded": ["where n % 2 == 0", "window(5, pad=true)", "n = n ?? -1", "emit n"],
    "window after where, blocks": ["where n % 2 == 0", "window(3)", "shuffle(window=4)", "emit n"],
    "windows of windows": ["window(4, rest=\"drop\")", "window(3)", "emit n"],
    "windows in batches": ["window(8, rest=\"drop\")", "shuffle()", "batch(3)", "emit n"],
    "pack": [*SIZED, "pack(10, by=k)", "seq = seq ?? -1", "s = segment ?? 0", "q = position ?? 0", "emit seq, s, q, k"],
    "pack, empty ones": ["seq: i64[k] = [n + i for i < size // 3]", "pack(5, by=k)", "seq = seq ?? -1", "s = segment ?? 0",
                         "q = position ?? 0", "emit seq, s, q"],
    "pack by a column": ["seq = [n + i for i < size]", "pack(10, by=size)", "seq = seq ?? -1", "emit seq, size"],
    "pack by a column below 0": ["seq = [n + i for i < size - 2]", "pack(10, by=size - 2)", "seq = seq ?? -1", "emit seq, n"],
    "pack, few open": [*SIZED, "shuffle()", "pack(9, by=k, open=2)", "seq = seq ?? -1", "u ~ uniform(0, 1)", "emit seq, n, u"],
    "pack, two fields": [*SIZED, "two: f32[k, 3] = [x[j] + i for i < k, j]", "pack(12, by=k)", "two = two ?? 0", "emit two, x"],
    "mix in turns, first": ["from mix(a, b, c, until=\"first\")", "u ~ uniform(0, 1)", "emit n, y, u"],
    "mix in turns, all": ["from mix(a, b, c, until=\"all\")", "emit n, y"],
    "mix in turns, a number": ["from mix(a, b, c, until=70)", "u ~ uniform(0, 1)", "emit n, y, u"],
    "mix by weights, first": ["from mix(a, b, c, weights=[0.6, 0.3, 0.1], until=\"first\")", "emit n, y"],
    "mix by weights, all": ["from mix(a, b, c, weights=[0.6, 0.3, 0.1], until=\"all\")", "u ~ uniform(0, 1)", "emit n, y, u"],
    "mix by weights, a number": ["from mix(a, b, weights=[3, 1], until=200)", "where n % 3 > 0", "batch(16)", "emit n, y"],
    "mix, taken and repeated": ["from mix(a, b, until=\"first\")", "take(10)", "repeat(2)", "u ~ uniform(0, 1)", "emit n, u"],
    "mix of streams in turns": ["from mix(w, a, b, until=\"all\")", "u ~ uniform(0, 1)", "emit n, y, u"],
    "mix of streams by weights": ["from mix(w, a, weights=[0.2, 0.8], until=\"all\")", "u ~ uniform(0, 1)", "emit n, y, u"],
    "mix of streams, first": ["from mix(w, a, until=\"first\")", "u ~ uniform(0, 1)", "take(30)", "emit n, y, u"],
    "mix of a mix": ["from mix(mixed, c, weights=[0.9, 0.1], until=\"all\")", "u ~ uniform(0, 1)", "emit n, y, u"],
    "mix of a mix of streams": ["from mix(streams, c, until=90)", "u ~ uniform(0, 1)", "emit n, y, u"],
    "mix of windows": ["from mix(win(5), win(3), weights=[0.5, 0.5], until=\"all\")", "u ~ uniform(0, 1)", "emit n, x, u"],
    "zip": ["from zip(l=a, r=c)", "d = l.n - r.n", "u ~ uniform(0, 1)", "emit d, l, r, u"],
    "zip of streams": ["from zip(l=a, r=w)", "d = l.n - r.n", "emit d, l"],
    "zip of windows": ["from zip(l=win(5), r=win(3))", "d = (l.n[0] ?? 0) - (r.n[0] ?? 0)", "shuffle()", "emit d, l"],
}


@pytest.mark.parametrize("name", BODIES)
def test_compiled_is_interpreted(tmp_path, numbers, name):
    assert_compiled_is_interpreted(program(tmp_path, numbers, BODIES[name]), run="p")


def all_numbers(batches, name="n"):
    return [int(v) for batch in batches for v in np.ravel(batch[name])]


@pytest.mark.parametrize("name", ["shuffle", "shuffle chunks", "shuffle windows", "batch", "batch larger than all",
                                  "share and batch", "shard", "batch padded", "share of ragged fields"])
def test_every_record_once(tmp_path, numbers, name):
    for epoch in (0, 1):
        found = all_numbers(delivered(program(tmp_path, numbers, BODIES[name]), epoch, "p"))
        assert sorted(found) == list(range(COUNT))


@pytest.mark.parametrize("name", ["batch by edges", "batch by budget"])
def test_batches_by_length_lose_nothing(tmp_path, numbers, name):
    sizes = np.load(numbers)["size"]
    batches = delivered(program(tmp_path, numbers, BODIES[name]), 0, "p")
    assert sorted(all_numbers(batches, "size")) == sorted(sizes.tolist())
    if name == "batch by budget":
        assert all(batch["seq"].size <= 20 for batch in batches)


def test_balance_is_even(tmp_path, numbers):
    counts = Counter(all_numbers(delivered(program(tmp_path, numbers, BODIES["balance"]), 0, "p"), "few"))
    assert len(counts) == 4 and max(counts.values()) - min(counts.values()) <= 1


@pytest.mark.parametrize("name", ["repeat and shuffle", "share, a draw, batch, a draw", "where on a draw", "batch by budget"])
def test_any_number_of_threads_gives_the_same(tmp_path, numbers, name):
    path = program(tmp_path, numbers, BODIES[name])
    once, more = (delivered(path, 0, "p", threads=t) for t in (1, 4))
    assert len(once) == len(more)
    for a, b in zip(once, more):
        assert all(np.array_equal(a[k], b[k]) for k in a)


# --- bad records ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """30 photos, of which numbers 3, 11 and 20 are cut, foreign and empty."""
    root, rng = tmp_path_factory.mktemp("photos"), np.random.default_rng(2)
    members = []
    for k in range(30):
        data = encoded(picture(rng, 40, 50), "JPEG")
        data = {3: data[: len(data) // 2], 11: b"not an image", 20: b""}.get(k, data)
        members += [(f"{k:03d}.jpg", data), (f"{k:03d}.cls", str(k).encode())]
    write_tar(root / "a.tar", members)
    return root / "a.tar"


def photo_program(tmp_path, photos, *lines):
    path = tmp_path / "photos.pipe"
    path.write_text("".join(f"{line}\n" for line in (
        "schema Photo", "  jpg: bytes", "  cls: i64", "pipeline p", f'  from tar("{photos}") as Photo',
        *(f"  {line}" for line in lines))))
    return path


READ = ("image = resize(decode_image(jpg), [0, 0, 20, 20], 8, 8)", "emit image, cls")


def test_a_bad_record_stops_the_run_and_is_named(tmp_path, photos):
    with pytest.raises(DataError) as error:
        delivered(photo_program(tmp_path, photos, *READ))
    assert error.value.code == "E0801" and error.value.record == "003 of a.tar" and error.value.position == 3
    assert error.value.where is not None and "skip_bad" in " ".join(error.value.notes)


def test_what_came_before_a_bad_record_is_delivered(tmp_path, photos):
    from pipec.runtime.opening import open as open_loader

    with open_loader(str(photo_program(tmp_path, photos, *READ)), as_="numpy", workers="threads") as loader:
        seen = []
        with pytest.raises(DataError):
            for record in loader:
                seen.append(int(record.cls))
    assert seen == [0, 1, 2]


def test_skip_bad_leaves_out_and_counts(tmp_path, photos):
    path = photo_program(tmp_path, photos, "skip_bad(at_most=0.1)", *READ)
    reference = interpreted(path)
    assert [int(r["cls"]) for r in reference] == [k for k in range(30) if k not in (3, 11, 20)]
    assert_compiled_is_interpreted(path, epochs=(0,))


def test_too_many_bad_records_stop_the_run(tmp_path, photos):
    path = photo_program(tmp_path, photos, "skip_bad(at_most=0.05)", *READ)
    with pytest.raises(DataError) as error:
        delivered(path)
    assert error.value.code == "E0806" and error.value.record == "011 of a.tar"
    assert "003 of a.tar" in " ".join(error.value.notes)


def test_bad_means_needed(tmp_path, photos):
    """Nothing emitted needs the pixels, so a cut photo isn't bad."""
    path = photo_program(tmp_path, photos, "image = decode_image(jpg)", "emit cls")
    assert [int(r["cls"]) for r in delivered(path)] == list(range(30))


def test_where_decides_before_a_later_line_fails(tmp_path, photos):
    path = photo_program(tmp_path, photos, "where cls > 20", *READ)
    assert [int(r["cls"]) for r in delivered(path)] == list(range(21, 30))


def test_check_makes_a_record_bad(tmp_path, photos):
    path = photo_program(tmp_path, photos, "skip_bad(at_most=0.5)", "check(cls % 3 > 0)", "emit cls")
    assert [int(r["cls"]) for r in delivered(path)] == [k for k in range(30) if k % 3]
    assert_compiled_is_interpreted(path, epochs=(0,))


def test_too_many_bad_rows_below_each_stop_the_run(tmp_path, numbers):
    path = program(tmp_path, numbers, ["skip_bad(at_most=0.05)", *RAGGED, "each(seq)", "check(seq % 5 != 0)", "emit seq, n"])
    with pytest.raises(DataError) as error:
        delivered(path, run="p")
    assert error.value.code == "E0806" and "more than `at_most=0.05` allows" in error.value.title
    with pytest.raises(DataError) as defined:
        interpreted(path, run="p")
    assert (defined.value.code, defined.value.title) == (error.value.code, error.value.title)
