"""Mistakes in expressions: one message each, at the smallest span, and edits that repair it."""
from __future__ import annotations

import pytest
from pipec.compiler import check
from pipec.dsl.problems import PipeError, Problem
from pipec.dsl.render import apply_edits

HEAD = """\
seed 1

let MEAN = [0.485, 0.456, 0.406]

param reach = 4

schema S
  image: u8[32, 32, 3]
  label: u8
  flag: bool
  name: text
  wave: f32[n]
  spot: f32[n]
  counts: i32?[13]
  row: f32[8, 4]
  data: bytes

fn flip(img: u8[h, w, c]) -> u8[h, w, c]
  turn ~ bernoulli(0.5)
  [img[y, if turn then w - 1 - x else x, k] for y, x, k]

fn plain(img: u8[h, w, c]) -> u8[h, w, c]
  [img[h - 1 - y, x, k] for y < h, x, k]

"""


def program(lines: str, more: str = "", tail: str = "") -> str:
    body = "".join(f"  {line}\n" for line in lines.strip().splitlines())
    return f'{HEAD}{more}pipeline p\n  from parquet("a.parquet") as S\n  ok = plain(image)\n{body}{tail}  emit label\n'


def problems(text: str) -> tuple[Problem, ...]:
    try:
        check.check("p.pipe", text=text)
    except PipeError as error:
        return error.problems
    return ()


# lines of the pipeline, code, text under the span, does its first fix repair everything
CASES = [
    # names
    ("a = lable", "E0101", "lable", True),
    ("a = qqqqq", "E0101", "qqqqq", False),
    ("a = flipp(image)", "E0102", "flipp", False),
    ("a = plian(image)", "E0102", "plian", True),
    ("a = sort(image)", "E0102", "sort", False),
    ("a = linspace(0, 1, 5)", "E0126", "linspace", True),
    ("a = normalize(f32(image) / 255, MEAN, MEAN)", "E0201", "f32(image) / 255", False),
    ("a = sqrt", "E0125", "sqrt", False),
    ("a = label(3)", "E0125", "label", False),
    ("a = clamp(label, hi=3, low=0)", "E0121", "hi", True),
    ("a = clamp(label, 0)", "E0122", "clamp(label, 0)", False),
    ("a = sqrt(1.0, 2.0)", "E0123", "2.0", True),
    ("a = clamp(label, 0, 3, low=1)", "E0123", "low=1", True),
    ("a: f33 = 1.5", "E0124", "f33", True),
    ("a: float32 = 1.5", "E0124", "float32", True),
    ('a = "{nix}.bin"', "E0101", "nix", False),
    ('a = "{label}.bin"', "E0212", "label", False),
    ('a = "{1 +}.bin"', "E0128", "1 +", False),
    ("a = clamp(label for i < 3)", "E0120", "clamp", False),
    # types
    ("a: f32 = label", "E0201", "label", True),
    ("a: u8 = label + 1", "E0201", "label + 1", True),
    ("a = flag + 1", "E0202", "flag", True),
    ("a = name + 1", "E0202", "name", False),
    ("a = not label", "E0202", "label", True),
    ("a = label and flag", "E0202", "label", True),
    ("a = label == 1 or 2", "E0202", "2", True),
    ("a = if label then 1 else 2", "E0202", "label", True),
    ('a = if flag then 1 else "x"', "E0202", 'if flag then 1 else "x"', False),
    ("a = name < 3", "E0202", "name < 3", False),
    ('a = [1, "x"]', "E0202", '[1, "x"]', False),
    ("a = sqrt(flag)", "E0202", "flag", True),
    ("a = any(row)", "E0202", "row", False),
    ("a = image / 255 - MEAN", "E0203", "image / 255 - MEAN", True),
    ("a = (image / 255 - MEAN) / MEAN", "E0203", "image / 255 - MEAN", True),
    ("a = image + row", "E0203", "image + row", False),
    ("a: f32[h, w] = wave", "E0204", "wave", False),
    ("a: f32[9, 4] = row", "E0204", "row", True),
    ("a: f32[k, k] = row", "E0204", "row", True),
    ("a = plain(row)", "E0201", "row", False),
    ("a = plain(image[0])", "E0204", "image[0]", False),
    ("a = counts[0] + 1", "E0205", "counts[0]", True),
    ("a = [log1p(max(counts[i], 0)) for i]", "E0205", "counts[i]", True),
    ("a = counts * 2", "E0205", "counts", True),
    ("a = max(wave) + 1", "E0205", "max(wave)", True),
    ("a: u8 = 300", "E0206", "300", True),
    ("c = decode_audio(data)\na = c + 1", "E0207", "c", False),
    ("c = decode_audio(data)\na = c.rat + 1", "E0207", "rat", True),
    ("a = label.sum", "E0207", ".sum", False),
    ("a = row[0, 1, 2]", "E0208", "2", True),
    ("a = label[0]", "E0208", "label[0]", False),
    ("a = sum(label)", "E0208", "label", True),
    ("a = argmax(row)", "E0208", "row", False),
    ("a = [wave[:i] for i < n]", "E0211", "wave[:i]", False),
    # draws
    ("image = flip(image)", "E0301", "=", True),
    ("a = uniform(0, 1)", "E0301", "=", True),
    ("a = 1 + uniform(0, 1)", "E0301", "uniform", True),
    ("where uniform(0, 1) < 0.5", "E0301", "uniform", True),
    ("a = [uniform(0, 1) for i < 3]", "E0301", "=", True),
    ("a ~ plain(image)", "E0302", "~", True),
    ("a ~ sqrt(2.0)", "E0302", "~", True),
    ("image ~ flip(image)\nimage ~ flip(image)", "E0303", "image", True),
    ("a ~ integers(3, 3)", "E0304", "integers(3, 3)", True),
    ("a ~ uniform(1, 0)", "E0304", "uniform(1, 0)", True),
    # indexes
    ("a = wave[0]", "E0401", "0", True),
    ("a = row[8, 0]", "E0401", "8", True),
    ("dy ~ integers(-reach, reach + 1)\na = [image[y + dy, x, c] for y < 32, x, c]", "E0401", "y + dy", True),
    ("a = MEAN[label]", "E0401", "label", True),
    ("a = wave[2:5]", "E0401", "5", True),
    ("a = row[indices(wave > 0)]", "E0401", "indices(wave > 0)", True),
    ("a = image[0] ?? 0", "E0402", "?? 0", True),
    ("a = label ?? 0", "E0402", "?? 0", True),
    ("a = missing(label)", "E0402", "missing(label)", True),
    ("a = row[-1]", "E0403", "-1", True),
    ("a = wave[-1]", "E0403", "-1", False),
    ("a = row[0, -2]", "E0403", "-2", True),
    ("a = [1 for i]", "E0404", "i", True),
    ("a = [row[7 - i, 0] for i]", "E0404", "i", True),
    ("a = [row[i, 0] + MEAN[i] for i]", "E0404", "i", True),
    ("a = sum(wave[i] * spot[i] for i)", None, "", False),
    ("a = 7 // label", "E0405", "label", True),
    ("a = 7 % 0", "E0405", "0", False),
    ("a = label % reach", None, "", False),
    ("a = row[0.5]", "E0406", "0.5", False),
    ("a = row[f32(label)]", "E0406", "f32(label)", False),
    ("a = wave[wave > 0]", "E0406", "wave > 0", False),
    ("a = [1 for i < 2.5]", "E0406", "2.5", True),
    # habits
    ("a = row.shape", "E0126", "row.shape", True),
    ("a = row.shape[0]", "E0126", "row.shape[0]", True),
    ("a = wave.shape[0]", "E0126", "wave.shape[0]", True),
    ("a = row.T", "E0126", "row.T", True),
    ("a = len(row)", "E0126", "len", True),
    ("a = int(label)", "E0126", "int", True),
    ("a = float(label)", "E0126", "float", True),
    ("a = randint(0, 3)", "E0126", "randint", False),
    ("a = mean(row, dim=0)", "E0121", "dim=0", True),
    ("a = mean(row, axis=-1)", "E0121", "axis=-1", True),
    ("a = zeros(4)", "E0126", "zeros", True),
    ("a = np.pi", "E0126", "np.pi", False),
]


@pytest.mark.parametrize(("lines", "code", "under", "repaired"), CASES, ids=[c[0].splitlines()[-1] for c in CASES])
def test_one_message(lines: str, code: str | None, under: str, repaired: bool) -> None:
    text = program(lines)
    found = problems(text)
    if code is None:
        assert not found
        return
    assert [p.code for p in found] == [code], [p.title for p in found]
    problem = found[0]
    assert text[problem.span.start : problem.span.end] == under
    assert problem.title[0].islower() or problem.title[0] in "`…" or problem.title[0].isdigit()
    if repaired:
        assert problem.fixes
    for fix in problem.fixes:
        left = [p.code for p in problems(apply_edits(text, fix.edits))]
        assert code not in left, fix
        if repaired:
            assert not left, (fix, apply_edits(text, fix.edits)[len(HEAD) :])


BELOW_BATCH = [
    ("a = mean(row)", "E0209", "mean(row)"),
    ("a = sum(label)", "E0209", "sum(label)"),
    ("a = one_hot(label, 10)", "E0204", "label"),
]


@pytest.mark.parametrize(("line", "code", "under"), BELOW_BATCH)
def test_below_batch(line: str, code: str, under: str) -> None:
    text = program("r = row", tail=f"  batch(8)\n  {line.replace('row', 'r')}\n").replace("emit label", "emit label, a")
    found = problems(text)
    assert [p.code for p in found] == [code]
    assert text[found[0].span.start : found[0].span.end] == under.replace("row", "r")
    for fix in found[0].fixes:
        assert not problems(apply_edits(text, fix.edits))


FUNCTIONS = [
    ("fn loop(x: f32) -> f32\n  loop(x)\n\n", "E0127", "loop"),
    ("fn a(x: f32) -> f32\n  b(x)\n\nfn b(x: f32) -> f32\n  a(x)\n\n", "E0127", "a"),
    ("fn bad(x: f32[n]) -> f32[n]\n  x + y\n\n", "E0101", "y"),
    ("fn bad(x: f32[h, w]) -> f32[h]\n  x\n\n", "E0204", "x"),
    ("fn bad(x: f32) -> u8\n  x * 2\n\n", "E0201", "x * 2"),
    ("fn bad(x: f32) -> (lo: f32, hi: f32)\n  lo = x\n\n", "E0122", "hi"),
    ("fn fine(img: u8[h, w, c]) -> f32[c, h, w]\n  [img[y, x, k] / 255 - MEAN[k] for k, y, x]\n\n", None, ""),
    ("fn fine(x: f32[n], i: i64) -> f32\n  x[i]\n\n", None, ""),
    ("fn fine(x: f32[n]) -> f32\n  max(x) ?? 0\n\n", None, ""),
    ("fn bad(img: u8[h, w, c]) -> f32[c, h, w]\n  (img / 255 - MEAN) / MEAN\n\n", "E0203", "img / 255 - MEAN"),
]


@pytest.mark.parametrize(("declared", "code", "under"), FUNCTIONS)
def test_functions_alone(declared: str, code: str | None, under: str) -> None:
    text = program("a = 1", more=declared)
    found = problems(text)
    assert [p.code for p in found] == ([] if code is None else [code]), [p.title for p in found]
    if found:
        assert text[found[0].span.start : found[0].span.end] == under
        for fix in found[0].fixes:
            assert not problems(apply_edits(text, fix.edits)), fix


def test_a_failed_line_gives_one_message() -> None:
    found = problems(program("a = lable + 1\nb = a * 2\nc = [b[i] for i]\nd: f32[k, 3] = c\ne = d[k - 1, 0]"))
    assert [p.code for p in found] == ["E0101"]


def test_a_mistake_inside_a_body_names_the_call() -> None:
    more = "fn third(x: f32[n]) -> f32\n  x[2]\n\n"
    found = problems(program("a = third(MEAN)\nb = third([1.0, 2.0])", more=more))
    assert [p.code for p in found] == ["E0401"]
    assert found[0].notes[-1] == "met in the call `third([1.0, 2.0])`"
    assert "x[2]" in HEAD + more and found[0].fixes


def test_labels_of_an_index_show_the_ranges() -> None:
    text = program("dy ~ integers(-reach, reach + 1)\nm = [image[y + dy, x, c] for y < 32, x, c]")
    (problem,) = problems(text)
    shown = {text[r.span.start : r.span.end]: r.text for r in problem.reasons}
    assert shown == {"32": "0 to 31", "integers(-reach, reach + 1)": "-4 to 4", "y < 32": "0 to 31"}
    assert problem.label == "-4 to 35"
    assert problem.title == "`y + dy` may fall outside `image`"
    assert problem.notes == ("`clamp(y + dy, 0, 31)` repeats the edge instead",)


DIVIDED = [
    ("a = mirror(image, flag + 1)", "E0202", "flag"),
    ("a = normalize(image / 255, MEAN, MEAN)", "E0201", "image / 255"),
    ("a = row[8, 4]", "E0401", "8"),
    ("a = (counts[0]) + 1", "E0205", "counts[0]"),
    ("a = missing((counts), label)", "E0123", "missing((counts), label)"),
    ("a = row[(0), (1), (2)]", "E0208", "2"),
    ("a = (label) ?? (0)", "E0402", "?? (0)"),
    ("a = counts[0] ?? counts[1]", "E0205", "counts[1]"),
]


@pytest.mark.parametrize(("line", "code", "under"), DIVIDED)
def test_edits_respect_brackets(line: str, code: str, under: str) -> None:
    text = program(line)
    found = problems(text)
    assert [p.code for p in found] == [code], [p.title for p in found]
    assert text[found[0].span.start : found[0].span.end] == under
    left = problems(apply_edits(text, found[0].fixes[0].edits))
    assert code not in [p.code for p in left] and not [p for p in left if p.code < "E0100"]


def test_a_program_that_explodes_is_given_up() -> None:
    more = "fn f0(x: f32) -> f32\n  x + 1\n\n"
    for i in range(1, 40):
        more += f"fn f{i}(x: f32) -> f32\n  f{i - 1}(x) + f{i - 1}(2 * x)\n\n"
    assert [p.code for p in problems(program("a = f39(1.0)", more=more))] == ["E0129"]


def test_nested_builds_are_looked_at_in_bounded_time() -> None:
    deep = "wave"
    for i in range(12):
        deep = f"[{deep}[i{i}] for i{i}]"
    assert not problems(program(f"a = {deep}"))


@pytest.mark.parametrize(("written", "said"), [
    ("stack([image, image])", "between brackets"), ("permute(image, [1, 0])", "to_chw"),
    ("reshape(image, [4])", "no function changes a shape"), ("sort(image)", "sorted")])
def test_what_to_do_instead(written, said):
    (problem,) = problems(program(f"a = {written}"))
    assert problem.code == "E0102" and said in problem.notes[0] and not problem.fixes


@pytest.mark.parametrize(("call", "whole"), [("mirror(image, flag)", ""), ("random_crop(image, 8, 8)", ", whole=true")])
def test_a_batch_where_one_is_asked_for(call, whole):
    """Its first dimension would pass for a height."""
    bound = "~" if "random" in call else "="
    lines = f"batch(32{whole})\none = mirror(image[0], true)\nall = [mirror(image[b], true) for b]\na {bound} {call}"
    text = program(lines.replace("flag", "true"))
    (problem,) = problems(text)
    assert problem.code == "E0204" and "a batch of them" in problem.title
    assert not problems(apply_edits(text, problem.fixes[0].edits))
    assert not problems(program("window(4)\na = [mirror(image[s], true) for s]"))


def test_a_number_beside_a_comparison_is_compared_too():
    text = program("a = label == 1 or label == 2 or 3")
    assert "label == 1 or label == 2 or label == 3" in apply_edits(text, problems(text)[0].fixes[0].edits)
