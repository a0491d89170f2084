"""What the fifteen rules of the language say, shown by values that compiled programs deliver, beside plain NumPy and Python."""
import numpy as np
import pytest
from pipec.compiler.check import check
from pipec.dsl.problems import PipeError
from pipec.runtime.errors import DataError
from pipec.runtime.opening import open as open_loader
from running import assert_same, delivered, fields_of

WORDS = {"uint8": "u8", "int8": "i8", "float32": "f32", "float64": "f64", "float16": "f16", "int64": "i64", "int32": "i32",
         "bool": "bool"}
N = 40


@pytest.fixture
def write(tmp_path):
    """Writes a program over records of these arrays and gives its path."""

    def written(body, head="", name="p", **arrays):
        arrays = arrays or {"n": np.arange(N)}
        np.savez(tmp_path / "d.npz", **arrays)
        columns = [f"  {k}: {WORDS[str(a.dtype)]}" + (f"[{', '.join(map(str, a.shape[1:]))}]" if a.ndim > 1 else "")
                   for k, a in arrays.items()]
        path = tmp_path / f"{name}.pipe"
        path.write_text("\n".join(["seed 17", "schema S", *columns, *head.strip("\n").split("\n"), "pipeline p",
                                   f'  from npz("{tmp_path}/d.npz") as S',
                                   *(f"  {line.strip()}" for line in body.strip("\n").split("\n")), ""]))
        return path

    return written


@pytest.fixture
def run(write):
    """One array per emitted field: all records, stacked."""

    def values(body, head="", epoch=0, threads=2, **arrays):
        batches = delivered(write(body, head, **arrays), epoch, "p", threads=threads)
        return {k: np.stack([b[k] for b in batches]) for k in batches[0]}

    return values


def codes(path, **overrides):
    with pytest.raises(PipeError) as error:
        check(str(path), overrides, "p")
    return [p.code for p in error.value.problems]


# --- 1 and 2: draws -------------------------------------------------------------------------------


def test_1_equals_is_pure_and_tilde_draws(write):
    assert codes(write("u = uniform(0, 1)\nemit u")) == ["E0301"]


def test_2_a_draw_depends_on_seed_epoch_record_and_path(run):
    plain = run("u ~ uniform(0, 1)\nemit u, n")["u"]
    assert plain.dtype == np.float32 and ((plain >= 0) & (plain <= 1)).all() and len(set(plain)) == N
    for threads in (1, 4):                                   # … not on workers
        assert (run("u ~ uniform(0, 1)\nemit u", threads=threads)["u"] == plain).all()
    moved = run("v ~ normal()\nk = n * 2\nu ~ uniform(0, 1)\nwhere n % 3 == 0\nemit u, n, k, v")
    assert (moved["u"] == plain[moved["n"]]).all()           # … not on neighbours, nor on who else is there
    shuffled = run("shuffle()\nu ~ uniform(0, 1)\nemit u, n")
    assert (shuffled["n"] != np.arange(N)).any() and (shuffled["u"] == plain[shuffled["n"]]).all()   # … not on order
    batched = run("u ~ uniform(0, 1)\nbatch(8)\nemit u")["u"].reshape(-1)
    assert (batched == plain).all()
    assert (run("u ~ uniform(0, 1)\nemit u", epoch=1)["u"] != plain).all()
    assert (run("w ~ uniform(0, 1)\nemit w")["w"] != plain).all()                                     # the path
    assert (run("repeat(2)\nu ~ uniform(0, 1)\nemit u")["u"].reshape(2, N)[1] != plain).all()         # the turn


def test_2_the_path_goes_from_the_pipeline_to_the_primitive(run):
    from pipec.kernels import random

    key = random.draw_key(17, "p/u.uniform", 0)
    expected = [random.DRAWS["uniform"].ref(key, k, 0, np.float32(0), np.float32(1)) for k in range(N)]
    assert run("u ~ uniform(0, 1)\nemit u")["u"].tolist() == [float(e) for e in expected]


def test_2_a_path_twice_is_an_error_and_indexes_join_it(write, run):
    assert codes(write("u ~ uniform(0, 1)\nu ~ uniform(0, 1)\nemit u")) == ["E0303"]
    made = run("u ~ [uniform(0, 1) for i < 5]\nemit u")["u"]
    assert made.shape == (N, 5) and len(set(made.reshape(-1))) == 5 * N


def test_2_after_batch_the_id_is_the_first_records(run):
    one = run("u ~ uniform(0, 1)\nemit u")["u"]
    assert (run("batch(8)\nu ~ uniform(0, 1)\nemit u")["u"] == one[::8]).all()


# --- 3 to 6: shapes and indexes -------------------------------------------------------------------

X = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)
M = np.arange(6 * 2 * 3).reshape(6, 2, 3)


def test_3_only_scalars_broadcast(write, run):
    assert codes(write("y = m + x\nemit y", m=M, x=X)) == ["E0203"]
    square = "fn square(a: f32) -> f32\n  a * a"
    made = run("y = x * 2 + x\nz = if x > 0 then x else -1\ns = square(x)\nemit y, z, s", square, x=X)
    assert (made["y"] == X * 2 + X).all() and (made["s"] == X * X).all()
    assert (made["z"] == np.where(X > 0, X, np.float32(-1))).all()


def test_3_a_scalar_condition_runs_one_branch(run):
    made = run("y = if n > 3 then [12 // n, 7][0] else n\nemit y", n=np.arange(1, 9))["y"]
    assert made.tolist() == [n if n <= 3 else 12 // n for n in range(1, 9)]


def test_3_reduces_of_nothing(run):
    size = np.arange(4)
    made = run("""
        s = sum(i + 1 for i < size)
        pr = prod(i + 2 for i < size)
        a = any(i >= 0 for i < size)
        b = all(i < 0 for i < size)
        m = max(i for i < size) ?? -7
        g = missing(argmax(i for i < size))
        mean = mean(f32(i) for i < size) ?? -1
        emit s, pr, a, b, m, g, mean""", size=size)
    assert made["s"].tolist() == [0, 1, 3, 6] and made["pr"].tolist() == [1, 2, 6, 24]
    assert made["a"].tolist() == [False, True, True, True] and made["b"].tolist() == [True, False, False, False]
    assert made["m"].tolist() == [-7, 0, 1, 2] and made["g"].tolist() == [True, False, False, False]
    assert made["mean"].tolist() == [-1, 0, 0.5, 1]


def test_4_an_index_is_proven_or_has_a_default(write, run):
    assert codes(write("y = x[n]\nemit y", n=np.arange(6), x=X)) == ["E0401"]
    made = run("y = x[n - 1] ?? 9\nz = if 0 <= n < 3 then x[n] else 0\nemit y, z", n=np.arange(6), x=X)
    assert made["y"].tolist() == [9, *(X[k, k - 1] for k in (1, 2, 3)), 9, 9]       # -1 doesn't wrap
    assert made["z"].tolist() == [*(X[k, k] for k in range(3)), 0, 0, 0]
    kept = run("where 0 <= n < 3\ny = x[n]\nemit y", n=np.arange(6), x=X)["y"]
    assert kept.tolist() == [X[k, k] for k in range(3)]


def test_5_a_missing_value_needs_a_default(write, run):
    assert codes(write("y = x[n] + 1\nemit y", n=np.arange(6), x=X))[0] in ("E0401", "E0205")
    assert codes(write("y = first([x[j] > 0 for j])\nemit y", x=X)) == ["E0205"]
    made = run("f = first([x[j] > 0 for j])\ny = f ?? -1\nm = missing(f)\nz = 2 * x[n] ?? 1\nemit y, m, z", n=np.arange(6), x=X)
    expected = [next((j for j in range(3) if row[j] > 0), -1) for row in X]
    assert made["y"].tolist() == expected and made["m"].tolist() == [e < 0 for e in expected]
    assert made["z"].tolist() == [2 * (X[k, k] if k < 3 else 1) for k in range(6)]   # `??` binds tighter than `*`


def test_6_a_binders_range_is_what_it_indexes(write, run):
    made = run("y = [m[i, j] * 10 + j for j, i]\nz = [i for i < 4]\nemit y, z", m=M)
    assert (made["y"] == (M * 10 + np.arange(3)).transpose(0, 2, 1)).all() and made["z"][0].tolist() == [0, 1, 2, 3]
    assert codes(write("y = [m[i, i] for i]\nemit y", m=M)) == ["E0404"]


# --- 7: share -------------------------------------------------------------------------------------

ABOVE = "u ~ uniform(0, 1)\ny = u * n\n{share}\nbatch(size)\nz = [y[b] + n[b] for b]\nemit n, y, z"


def test_7_share_moves_no_value(write):
    lines = ["u ~ uniform(0, 1)", "y = [u * n + j for j < 3]", "batch(6)", "z = [y[b, j] + n[b] for b, j]", "emit n, y, z"]
    without = delivered(write("\n".join(lines)), run="p")
    for place in range(len(lines)):
        assert_same(delivered(write("\n".join([*lines[:place], "share()", *lines[place:]]), name=f"p{place}"), run="p"), without)


def test_7_below_share_params_are_the_consumers(write):
    path = write("share()\nbatch(size)\nemit n", "param size = 4")
    assert [len(b["n"]) for b in delivered(path, run="p", size=16)] == [16, 16, 8]
    assert [len(b["n"]) for b in delivered(path, run="p")] == [4] * 10


# --- 8: numbers -----------------------------------------------------------------------------------


def test_8_casts_round_half_to_even_and_saturate(run):
    x = np.array([-1.5, -0.5, 0.5, 1.5, 2.5, 254.5, 255.5, 1e9, -1e9, np.nan, np.inf, 3.7, -3.7], np.float32)
    made = run("u = u8(x)\ni = i8(x)\nt = i64(x)\nemit u, i, t", x=x)
    assert made["u"].tolist() == [0, 0, 0, 2, 2, 254, 255, 255, 0, 0, 255, 4, 0]
    assert made["i"].tolist() == [-2, 0, 0, 2, 2, 127, 127, 127, -128, 0, 127, 4, -4]
    assert made["t"].tolist()[:9] == [-1, 0, 0, 1, 2, 254, 255, 10**9, -(10**9)] and made["t"].tolist()[-2:] == [3, -3]
    assert made["u"].dtype == np.uint8 and made["i"].dtype == np.int8


def test_8_integers_are_exact_whatever_their_width(run):
    b = np.array([250, 255, 3], np.uint8)
    made = run("""
        s = b + 10
        d = b - 251
        c = b * b * b
        q = u8(b + 10)
        f = -7 // 2 + 0 * b
        r = -7 % 3 + 0 * b
        h = b / 2
        emit s, d, c, q, f, r, h""", b=b)
    assert made["s"].tolist() == [260, 265, 13] and made["d"].tolist() == [-1, 4, -248]
    assert made["c"].tolist() == [250**3, 255**3, 27] and made["q"].tolist() == [255, 255, 13]
    assert made["f"][0] == -4 and made["r"][0] == 2 and made["h"].dtype == np.float32 and made["h"].tolist() == [125, 127.5, 1.5]
    big = np.array([2**62 - 1, -(2**62), 3])
    assert run("y = n + n\nemit y", n=big)["y"].tolist() == [2**63 - 2, -(2**63), 6]


@pytest.mark.parametrize("line", ["n + 1", "n * 3", "-(-n - 1) + 1", "n ^ 2", "sum(n for k < 2)", "shift_left(n, 1)"])
def test_8_past_i64_is_an_error(write, line):
    with pytest.raises(DataError) as error:
        delivered(write(f"y = {line}\nemit y", n=np.array([2**63 - 1])), run="p")
    assert error.value.code == "E0802" and error.value.where is not None


def test_8_weak_numbers_take_the_dtype_they_meet(run):
    h, d = np.array([0.5, 3], np.float16), np.array([0.1, 0.7])
    lines = "a = h * 0.1\nb = d * 0.1\nc = 0.1 * scale\nw = i32(n)\ne = w * 2\nemit a, b, c, e"
    made = run(lines, "param scale = 2", h=h, d=d, n=np.arange(2))
    assert (made["a"] == h * np.float16(0.1)).all() and made["a"].dtype == np.float16
    assert (made["b"] == d * 0.1).all() and made["b"].dtype == np.float64
    assert made["c"].dtype == np.float32 and made["e"].dtype == np.int64


def lanes(x):
    """A sum in the language's order: 16 lanes, then a tree."""
    lanes = np.zeros(16, np.float32)
    for start in range(0, len(x), 16):
        part = x[start:start + 16]
        lanes[: len(part)] = lanes[: len(part)] + part
    while len(lanes) > 1:
        lanes = lanes[: len(lanes) // 2] + lanes[len(lanes) // 2:]
    return lanes[0]


def test_8_sums_have_one_order(run):
    rng = np.random.default_rng(3)
    x = (rng.normal(size=(5, 1000)) * 10.0 ** rng.integers(-6, 6, (5, 1000))).astype(np.float32)
    made = run("y = sum(x[i] for i)\nemit y", x=x)["y"]
    assert made.tolist() == [float(lanes(row)) for row in x]
    assert any(made != x.sum(1))                       # another order would tell


def test_8_floats_are_not_reassociated(run):
    x = np.array([1e8, 1.0, 3e-8, np.inf], np.float32)
    made = run("a = (x + 1) - x\nb = x * 0\nc = x / 3 * 3\nd = x * x - x * x\nemit a, b, c, d", x=x)
    with np.errstate(invalid="ignore"):
        assert np.array_equal(made["a"], (x + np.float32(1)) - x, equal_nan=True)
        assert np.array_equal(made["b"], x * np.float32(0), equal_nan=True) and np.isnan(made["b"][3])
        assert np.array_equal(made["c"], x / np.float32(3) * np.float32(3), equal_nan=True)
        assert np.array_equal(made["d"], x * x - x * x, equal_nan=True)


def test_8_integers_of_a_draw_are_half_open(run):
    made = run("k ~ integers(-2, 3)\nemit k", n=np.arange(300))["k"]
    assert set(made.tolist()) == {-2, -1, 0, 1, 2}


# --- 9: order -------------------------------------------------------------------------------------


def test_9_positions_count_what_where_leaves_out(run):
    every = run("shuffle()\nemit n")["n"].tolist()
    assert run("shuffle()\nwhere n % 3 == 0\nemit n")["n"].tolist() == [n for n in every if n % 3 == 0]
    assert run("where n % 3 == 0\nshuffle()\nemit n")["n"].tolist() == [n for n in every if n % 3 == 0]
    assert sorted(every) == list(range(N)) and run("shuffle()\nemit n", epoch=1)["n"].tolist() != every
    assert sorted(run("take(7)\nshuffle()\nemit n")["n"].tolist()) == list(range(7))


def test_9_lines_about_one_record_stand_on_either_side(run):
    one, other = run("y = n * 2\nu ~ normal()\nshuffle()\nemit n, y, u"), run("shuffle()\ny = n * 2\nu ~ normal()\nemit n, y, u")
    assert all((one[k] == other[k]).all() for k in one)


def test_9_a_windowed_shuffle_stays_inside_its_blocks(run):
    made = run("shuffle(window=8)\nemit n")["n"]
    assert (made // 8 == np.arange(N) // 8).all() and (made != np.arange(N)).any()


def test_9_each_may_not_stand_above_shuffle(write):
    assert codes(write("each(x)\nshuffle()\nemit x", x=X)) == ["E0504"]


# --- 10 to 12: bad records, batches, padding ------------------------------------------------------


def test_10_bad_records_are_left_out_and_counted(write):
    lines = "check(n % 10 != 3)\nbatch(8)\nemit n"
    with pytest.raises(DataError) as error:
        delivered(write(lines), run="p")
    assert (error.value.code, error.value.position) == ("E0805", 3)
    for threads in (1, 4):
        path = str(write("skip_bad(at_most=0.1)\n" + lines))
        with open_loader(path, as_="numpy", workers="threads", threads=threads) as loader:
            kept = [int(v) for b in loader for v in b.n]
            assert kept == [n for n in range(N) if n % 10 != 3] and loader.stats()["bad_records"] == 4
    with pytest.raises(DataError) as error:
        delivered(write("skip_bad(at_most=0.05)\n" + lines), run="p")
    assert (error.value.code, error.value.position) == ("E0806", 23)


def test_11_a_smaller_last_batch_is_kept(write):
    assert [len(b["n"]) for b in delivered(write("batch(16)\nemit n"), run="p")] == [16, 16, 8]
    assert [len(b["n"]) for b in delivered(write("batch(16, whole=true)\nemit n"), run="p")] == [16, 16]
    assert codes(write("batch(16)\nemit n: i64[16]")) == ["E0515"]


def test_12_padding_is_missing(write):
    made = delivered(write("s = [n * 10 + i for i < n % 4]\nbatch(4, pad=true)\ngap = missing(s)\ns = s ?? -100\nemit s, gap",
                           n=np.arange(8)), run="p")
    for k, batch in enumerate(made):
        rows = [[n * 10 + i for i in range(n % 4)] for n in range(4 * k, 4 * k + 4)]
        assert batch["s"].tolist() == [row + [-100] * (3 - len(row)) for row in rows]
        assert (batch["gap"] == (batch["s"] == -100)).all()
    assert codes(write("s = [i for i < n]\nbatch(4)\nemit s")) == ["E0502"]


# --- 13 to 15 -------------------------------------------------------------------------------------


def test_13_parts_gathers_and_slices(run):
    k = np.random.default_rng(5).integers(0, 2, (6, 4))
    made = run("""
        row = m[1]
        pair = [m[0], m[1]]
        taken = row[[2, 0, 2]]
        cut = row[1:3]
        wide = row[-1:4] ?? -5
        where_ = first([row[j] > 20 for j]) ?? 99
        joined = concat(row, cut)
        emit row, pair, taken, cut, wide, where_, joined""", m=M, k=k)
    row = M[:, 1]
    assert (made["row"] == row).all() and (made["pair"] == M).all() and (made["taken"] == row[:, [2, 0, 2]]).all()
    assert (made["cut"] == row[:, 1:3]).all() and (made["joined"] == np.concatenate([row, row[:, 1:3]], 1)).all()
    assert (made["wide"] == np.pad(row, ((0, 0), (1, 1)), constant_values=-5)).all()
    assert made["where_"].tolist() == [next((j for j in range(3) if r[j] > 20), 99) for r in row]


def test_13_indices_of_a_mask(write):
    made = delivered(write("i = indices(x > 0)\nemit i", x=X), run="p")
    assert [b["i"].tolist() for b in made] == [np.flatnonzero(row > 0).tolist() for row in X]


def test_14_a_size_of_the_data_is_a_number(write):
    path = write("half: f32[h] = [x[i] for i < w // 2]\nbatch(4)\nemit half, wide", x=X)
    text = path.read_text().replace("x: f32[3]", "x: f32[w]").replace("batch(4)", "wide = w * 10 + h\nbatch(6)")
    path.write_text(text.replace("batch(6)\n", "").replace("half, wide", "half, wide"))
    made = delivered(path, run="p")
    assert [b["half"].tolist() for b in made] == [[float(r[0])] for r in X] and {int(b["wide"]) for b in made} == {31}


def test_14_epoch_is_a_number(run):
    body = "y = [n * (i + 1) for i < min(1 + epoch, 4)]\nbatch(8)\nemit y"
    for epoch in (0, 2, 9):
        made = run(body, epoch=epoch)["y"].reshape(N, -1)
        assert (made == np.arange(N)[:, None] * np.arange(1, 1 + min(1 + epoch, 4))).all()


def test_15_functions_and_values_do_not_meet(run):
    made = run("mean = n * 2\nsum = mean + sum(k for k < 4)\ny = mirror(n)\nemit mean, sum, y", "fn mirror(a: i64) -> i64\n  -a")
    assert made["sum"].tolist() == [2 * n + 6 for n in range(N)] and made["y"].tolist() == [-n for n in range(N)]


def test_15_a_field_may_replace_a_field_not_a_param(write, run):
    assert run("n = n + 1\nn = n * 10\nemit n")["n"].tolist() == [10 * (n + 1) for n in range(N)]
    assert codes(write("size = n\nemit size", "param size = 3")) == ["E0114"]


# --- what must hold bit for bit -------------------------------------------------------------------

LINES = ["shuffle()", "u ~ uniform(-1, 1)", "y = [exp(u * x[j]) for j]", "k ~ integers(0, 3)", "z = y[k]",
         "w = sum(x[j] * u for j)"]
TAIL = ["share()", "batch(7)", "other ~ permutation(3)", "mixed = [y[b, other[j]] * z[b] for b, j < 3]", "emit n, y, z, w, mixed"]
MORE = {"n": np.arange(N), "x": np.random.default_rng(9).normal(size=(N, 3)).astype(np.float32)}


def test_moving_an_independent_line_changes_nothing(write):
    first = delivered(write("\n".join(LINES + TAIL), **MORE), run="p")
    for order in ([1, 3, 0, 2, 4, 5], [1, 5, 2, 3, 4, 0], [3, 1, 5, 0, 2, 4]):
        assert_same(delivered(write("\n".join([LINES[i] for i in order] + TAIL), **MORE), run="p"), first)


def test_every_number_of_threads_delivers_the_same(write):
    path = write("\n".join(LINES + TAIL), **MORE)
    first = delivered(path, run="p", threads=1)
    for threads in (2, 3, 8):
        assert_same(delivered(path, run="p", threads=threads), first)


BY_LENGTH = ["size = n % 5", "s = [n + i for i < size]", "batch(4, by=size, edges=[2, 5], pad=true)", "s = s ?? -1", "emit s, n"]
RESUMED = {
    "plain": LINES + TAIL,
    "where": [*LINES, "where n % 3 > 0", *TAIL],
    "each": [*LINES[1:3], "each(y)", "batch(5)", "v ~ uniform(0, 1)", "emit n, y, v"],
    "batch above": [*LINES, "batch(7)", "v ~ normal()", "share()", "t = [y[b, 0] + v for b]", "emit n, t"],
    "padded": ["shuffle()", "s = [n + i for i < n % 5]", "batch(6, pad=true)", "s = s ?? -1", "emit s, n"],
    "by length": ["shuffle()", *BY_LENGTH],
    "by length below share": ["shuffle()", "share()", *BY_LENGTH],
    "take": ["where n % 2 == 0", "take(13)", "u ~ normal()", "emit n, u"],
    "take below share": ["share()", "where n % 2 == 0", "take(13)", "u ~ normal()", "emit n, u"],
    "repeat": ["shuffle()", "repeat(2)", "u ~ normal()", "batch(9)", "emit n, u"],
    "bad": ["skip_bad(at_most=0.5)", "shuffle()", "check(n % 4 > 0)", "batch(5)", "emit n"],
}


@pytest.mark.parametrize("name", RESUMED)
def test_a_run_goes_on_where_it_stopped(write, name):
    path = write("\n".join(RESUMED[name]), **MORE)
    options = {"as_": "numpy", "workers": "threads", "run": "p"}
    with open_loader(str(path), threads=2, **options) as loader:
        loader.set_epoch(1)
        whole, states = [], [loader.state_dict()]
        for batch in loader:
            whole.append(fields_of(batch))
            states.append(loader.state_dict())
    with open_loader(str(path), threads=1, **options) as other:
        for k in sorted({0, 1, 2, len(whole) // 2, len(whole) - 1}):
            other.load_state_dict(states[k])
            assert_same([fields_of(batch) for batch in other], whole[k:])
