"""Streams of tokens: windows, packing, mixing. Compiled = interpreted, nothing lost or doubled, resumed exactly."""
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from pipec.runtime.opening import open as open_loader
from pipec.runtime.order import FOREVER
from pipec.runtime.schedule import BLOCK, InTurns, Weighted
from running import assert_compiled_is_interpreted, delivered, fields_of

EXAMPLE = Path(__file__).parent.parent / "examples" / "tokens.pipe"


def write(tmp_path, text):
    path = tmp_path / "p.pipe"
    path.write_text(text)
    return path


@pytest.fixture
def corpora(tmp_path):
    """Two corpora of documents of random lengths, each in two files, an end token after every document."""
    rng = np.random.default_rng(1)
    for name, count in (("web", 300), ("books", 110)):
        (tmp_path / name).mkdir()
        tokens = rng.integers(0, 50256, count).astype(np.uint16)
        tokens[rng.random(count) < 0.1] = 50256
        tokens[: count // 3].tofile(tmp_path / name / "0.bin")
        tokens[count // 3 :].tofile(tmp_path / name / "1.bin")
    return {"web": f"{tmp_path}/web/*.bin", "books": f"{tmp_path}/books/*.bin", "length": 8, "batch_size": 4}


def test_the_example(corpora):
    assert_compiled_is_interpreted(EXAMPLE, run="train", **corpora)


def test_any_number_of_threads_gives_the_same(corpora):
    one, four = (delivered(EXAMPLE, 1, "train", threads=t, **corpora) for t in (1, 4))
    assert len(one) == len(four) > 10
    for a, b in zip(one, four):
        assert all(np.array_equal(a[k], b[k]) for k in a)


# --- windows --------------------------------------------------------------------------------------


def token_program(tmp_path, tokens, *lines, kind="npy"):
    path = tmp_path / f"t.{kind}"
    np.save(path, tokens) if kind == "npy" else tokens.tofile(path)
    body = "".join(f"  {line}\n" for line in lines)
    return write(tmp_path, f'schema Token\n  id: u16\npipeline p\n  from {kind}("{path}") as Token\n{body}')


JOINED = np.array([1, 2, 3, 0, 4, 5, 0, 6, 7, 8, 9, 0], np.uint16)   # documents, 0 after each


@pytest.mark.parametrize("kind", ["npy", "bin"])
def test_fixed_windows_over_joined_documents(tmp_path, kind):
    path = token_program(tmp_path, JOINED, "window(4)", "emit id", kind=kind)
    assert [b["id"].tolist() for b in delivered(path)] == [[1, 2, 3, 0], [4, 5, 0, 6], [7, 8, 9, 0]]
    path = token_program(tmp_path, JOINED, "window(5, stride=4, rest=\"drop\")", "emit id", kind=kind)
    assert [b["id"].tolist() for b in delivered(path)] == [[1, 2, 3, 0, 4], [4, 5, 0, 6, 7]]


def test_segments_and_positions_inside_windows(tmp_path):
    path = token_program(
        tmp_path, JOINED, "window(4, rest=\"drop\")", "ends = id == 0", "segment = cumsum(i32(ends)) - i32(ends) + 1",
        "start = cummax([if i > 0 and id[i - 1] == 0 then i else 0 for i < 4])", "position = [i - start[i] for i]",
        "emit segment, position")
    found = delivered(path)
    assert [b["segment"].tolist() for b in found] == [[1, 1, 1, 1], [1, 1, 1, 2], [1, 1, 1, 1]]
    assert [b["position"].tolist() for b in found] == [[0, 1, 2, 3], [0, 1, 2, 0], [0, 1, 2, 3]]


def test_the_tail(tmp_path):
    tokens = np.arange(10, dtype=np.uint16)
    assert len(delivered(token_program(tmp_path, tokens, "window(4, rest=\"drop\")", "emit id"))) == 2
    kept = delivered(token_program(tmp_path, tokens, "window(4)", "emit id"))
    assert [b["id"].tolist() for b in kept] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    padded = delivered(token_program(tmp_path, tokens, "window(4, pad=true)", "mask = not missing(id)", "emit mask"))
    assert [b["mask"].tolist() for b in padded] == [[True] * 4, [True] * 4, [True, True, False, False]]


@pytest.mark.parametrize(("n", "stride", "count"), [(1, 1, 13), (4, 4, 13), (4, 4, 12), (5, 4, 13), (5, 4, 12), (2, 5, 13),
                                                    (3, 7, 9), (20, 3, 13), (3, 1, 3)])
def test_windows_end_alike(tmp_path, n, stride, count):
    for options in ("", ", pad=true", ', rest="drop"'):
        fill = "id = id ?? 0" if "pad" in options else "where true"
        window = f"window({n}, stride={stride}{options})"
        path = token_program(tmp_path, np.arange(count, dtype=np.uint16), window, fill, "emit id")
        if count >= n or "drop" not in options:
            assert_compiled_is_interpreted(path, epochs=(0,))
        else:
            assert delivered(path) == []


# --- packing --------------------------------------------------------------------------------------

DOCUMENTS = """
seed 1
schema Doc
  length: i64
  n: i64
pipeline p
  from npz("{path}") as Doc
  doc: i64[k] = [n for i < length]
"""


def documents(tmp_path, lengths, *lines):
    path = tmp_path / "d.npz"
    np.savez(path, length=np.array(lengths), n=np.arange(len(lengths)))
    return write(tmp_path, DOCUMENTS.format(path=path) + "".join(f"  {line}\n" for line in lines))


PACKED = ("doc = doc ?? -1", "segment = segment ?? 0", "position = position ?? 0", "emit doc, segment, position, n")


def test_lengths_1_to_9_in_rows_of_6(tmp_path):
    path = documents(tmp_path, [1, 2, 3], "pack(6, by=k)", *PACKED)
    (row,) = delivered(path)
    assert row["segment"].tolist() == [1, 2, 2, 3, 3, 3] and row["position"].tolist() == [0, 0, 1, 0, 1, 2]


def test_documents_of_no_tokens(tmp_path):
    path = documents(tmp_path, [0, 1, 0, 3, 0], "pack(4, by=k)", *PACKED)
    rows = delivered(path)
    assert sum(row["n"].size for row in rows) == 5
    assert_compiled_is_interpreted(path, epochs=(0,))


def test_a_record_longer_than_a_row(tmp_path):
    from pipec.runtime.errors import DataError

    with pytest.raises(DataError) as error:
        delivered(documents(tmp_path, [2, 7, 3], "pack(6, by=k)", *PACKED))
    assert error.value.code == "E0805" and "7" in error.value.title and "6" in error.value.title


@pytest.mark.parametrize("turn", range(4))
def test_pack_loses_and_doubles_nothing(tmp_path, turn):
    rng = np.random.default_rng(turn)
    lengths = rng.integers(0, 17, int(rng.integers(1, 150)))
    path = documents(tmp_path, lengths, "shuffle()", f"pack(16, by=k, open={[1, 2, 5, 64][turn]})", *PACKED)
    seen, tokens = Counter(), Counter()
    for row in delivered(path, turn):
        seen.update(row["n"].tolist())
        tokens.update(row["doc"][row["segment"] > 0].tolist())
        documents_of = [document for document in row["n"].tolist() if lengths[document]]   # empty ones have no number
        assert row["segment"].max(initial=0) == len(documents_of)
        for k, document in enumerate(documents_of, 1):
            mine = row["segment"] == k
            assert row["position"][mine].tolist() == list(range(lengths[document]))
            assert (row["doc"][mine] == document).all()
    assert seen == Counter(range(len(lengths)))
    assert +tokens == +Counter(dict(enumerate(lengths.tolist())))
    assert_compiled_is_interpreted(path, epochs=(turn,))


@pytest.mark.parametrize("turn", range(4))
@pytest.mark.parametrize("rule", ["batch(5, by=k, edges=[2, 5, 11], pad=true)", "batch(budget=40, by=k, pad=true)"])
def test_batches_lose_and_double_nothing(tmp_path, turn, rule):
    rng = np.random.default_rng(10 + turn)
    lengths = rng.integers(0, 17, int(rng.integers(1, 150)))
    path = documents(tmp_path, lengths, "shuffle()", rule, "mask = missing(doc)", "doc = doc ?? -1", "emit doc, mask, n")
    seen = Counter()
    for batch in delivered(path, turn):
        seen.update(batch["n"].tolist())
        for k, document in enumerate(batch["n"].tolist()):
            assert batch["doc"][k][~batch["mask"][k]].tolist() == [document] * lengths[document]
    assert seen == Counter(range(len(lengths)))


# --- mixing ---------------------------------------------------------------------------------------

THREE = """
seed {seed}
schema Number
  n: i64
pipeline numbers(file: path)
  from npy(file) as Number
pipeline train
  from mix(numbers("{root}/a.npy"), numbers("{root}/b.npy"), numbers("{root}/c.npy"), {options})
"""


def mixed(tmp_path, options, lengths=(3, 4, 5), seed=1):
    for name, first, count in zip("abc", (0, 10, 20), lengths):
        np.save(tmp_path / f"{name}.npy", np.arange(first, first + count))
    path = write(tmp_path, THREE.format(seed=seed, root=tmp_path, options=options))
    return [int(b["n"]) for b in delivered(path, run="train")]


def test_mix_in_turns(tmp_path):
    assert mixed(tmp_path, 'until="first"') == [0, 10, 20, 1, 11, 21, 2, 12, 22]
    assert mixed(tmp_path, 'until="all"') == [0, 10, 20, 1, 11, 21, 2, 12, 22, 0, 13, 23, 1, 10, 24]
    assert mixed(tmp_path, "until=4") == [0, 10, 20, 1]


def test_mix_by_weights():
    weights = (0.7, 0.2, 0.1)
    schedule = Weighted([FOREVER] * 3, 100_000, weights, 1234, 0)
    which, nth = schedule.at(np.arange(100_000))
    counts = np.bincount(which)
    assert (abs(counts - np.array([70_000, 20_000, 10_000])) <= [580, 506, 380]).all()
    for b in range(3):
        assert np.array_equal(nth[which == b], np.arange(counts[b]))


@pytest.mark.parametrize("until", ["first", "all", 7, 3 * BLOCK])
def test_schedules_are_what_counting_one_by_one_says(until):
    for lengths in ([3, 4, 5], [0, 4, 5], [1, 1, 1], [0, 0, 0], [40_000, 9, 1], [5, 20_000, 3]):
        for weights in ((), (0.5, 0.3, 0.2), (0.9, 0.1, 0.0)):
            if until == "all" and weights and weights[2] == 0 and all(lengths):
                continue   # never ends
            schedule = Weighted(lengths, until, weights, 99, 3) if weights else InTurns(lengths, until)
            length = schedule.length
            which, nth = schedule.at(np.arange(length + 1))
            given, place = [0, 0, 0], 0
            while place != until:
                seen = [given[b] >= lengths[b] for b in range(3)]
                if until == "all" and all(seen):
                    break
                b = int(which[place])
                if (until == "first" and seen[b]) or lengths[b] == 0:
                    break
                assert nth[place] == given[b]
                given[b] += 1
                place += 1
            assert place == length


def test_endless_mixes():
    assert Weighted([5, FOREVER], "all", (0.5, 0.5), 1, 0).length == FOREVER
    assert Weighted([5, FOREVER], "first", (0.5, 0.5), 1, 0).length < 100
    assert Weighted([5, 5], "all", (1.0, 0.0), 1, 0).length == FOREVER
    assert InTurns([FOREVER, FOREVER], "first").length == FOREVER


# --- resuming -------------------------------------------------------------------------------------


def resumed_everywhere(path, run, every=3, **params):
    whole = delivered(path, 1, run, **params)
    assert len(whole) > 2
    for stop in range(1, len(whole), every):
        with open_loader(str(path), as_="numpy", workers="threads", threads=2, run=run, **params) as loader:
            loader.set_epoch(1)
            batches = iter(loader)
            for _ in range(stop):
                next(batches)
            state = loader.state_dict()
        with open_loader(str(path), as_="numpy", workers="threads", threads=3, run=run, **params) as loader:
            loader.load_state_dict(state)
            rest = [fields_of(batch) for batch in loader]
        assert len(rest) == len(whole) - stop
        for a, b in zip(rest, whole[stop:]):
            assert all(np.array_equal(a[k], b[k]) for k in b)
        yield state


def test_windows_and_mixes_resume_at_their_place(corpora):
    for state in resumed_everywhere(EXAMPLE, "train", every=9, **corpora):
        assert state["next"] > 0    # no replay from the epoch's start


def test_packs_resume(tmp_path):
    lengths = np.random.default_rng(0).integers(0, 9, 60)
    list(resumed_everywhere(documents(tmp_path, lengths, "shuffle()", "pack(12, by=k, open=3)", *PACKED), None, every=5))


def test_a_mix_of_filtered_streams_resumes(tmp_path):
    np.save(tmp_path / "a.npy", np.arange(40))
    path = write(tmp_path, f"""
seed 1
schema Number
  n: i64
pipeline odd
  from npy("{tmp_path}/a.npy") as Number
  shuffle()
  where n % 2 > 0
pipeline every
  from npy("{tmp_path}/a.npy") as Number
  shuffle()
pipeline train
  from mix(odd, every, weights=[0.5, 0.5], until="all")
  u ~ uniform(0, 1)
  batch(7)
  emit n, u
""")
    list(resumed_everywhere(path, "train"))
