"""`pipec explain FILE`: lines with their kernels and figures, what was fused and why not, borders, a page of its own."""
from __future__ import annotations

import re
from html.parser import HTMLParser
from itertools import combinations, pairwise
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from pipec.cli import main
from pipec.cli.planpage import page
from pipec.compiler.check import check
from pipec.compiler.compile import lowered
from pipec.compiler.costs import Sizes, call_ns, kernel_ns
from pipec.compiler.lines import Line, Lines, lines_of
from pipec.compiler.loops import Buffer, Builder, Const, Kernel
from pipec.compiler.report import Part, Report, Row, report
from pipec.compiler.signatures import operators
from pipec.runtime.plan import Program

EXAMPLES = Path(__file__).parent.parent / "examples"
SMALL = """seed 1

schema Row
  x: f32[40]
  n: i64

pipeline p
  from npz("{data}") as Row
  where n > 2
  a = [x[i] * 2 for i]
  b = [a[i] + 1 for i]
  total = sum(exp(b[i]) for i)
  r ~ uniform(0, 1)
  c = [b[i] * r / total for i]
  batch(4)
  emit c, n
"""


def explained(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["explain", *arguments]) == 0
    return capsys.readouterr().out


@pytest.fixture
def small(tmp_path: Path) -> Path:
    np.savez(tmp_path / "d.npz", x=np.ones((30, 40), np.float32), n=np.arange(30))
    (tmp_path / "p.pipe").write_text(SMALL.replace("{data}", str(tmp_path / "d.npz")))
    return tmp_path / "p.pipe"


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.pipe")), ids=lambda p: p.stem)
def test_every_line_of_an_example_is_told(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = path.read_text()
    run = re.findall(r"^pipeline (\w+)", source, re.M)[-1]
    told = explained(capsys, f"{path}:{run}")
    last = source[source.rindex("\npipeline ") :].splitlines()
    first = source.count("\n", 0, source.rindex("\npipeline ")) + 1
    for k, line in enumerate(last):
        stated = line.split("#")[0].strip()
        stage = re.match(r"(from|where|batch|shuffle|share|window|each|pack)\b", stated)
        if stage:
            assert f"{path.name}:{first + k}" in told, line
    assert "disk → host" in told and "host → ring" in told
    estimates = [float(n.replace(",", "")) for n in re.findall(r" cpu +~?([\d,]+)", told)]
    assert estimates and max(estimates) < 1e8    # ns of a record


def test_what_is_computed_at_the_first_turn_that_asks_costs_once() -> None:
    def cost(first: bool) -> float:
        k = Builder()
        made = k.let(Const(False, "bool"), "made")
        with k.loop(Const(1000, "i64"), "i") as i, k.when(~made if first else i > 3):
            with k.loop(Const(1000, "i64"), "j") as j, k.when(j > 5):
                k.store(Buffer("x", "i64", (Const(1000, "i64"),)), (j,), j)
            if first:
                k.set(made, Const(True, "bool"))
        return kernel_ns(Kernel("k", (), tuple(k.body)), Sizes(Program((), (), (), (), (), ())))

    assert cost(True) < 2000 + cost(False) / 500


@pytest.mark.parametrize("name", [n for n, o in operators().items() if o.cost is not None])
def test_calls_cost_more_where_there_is_more(name: str) -> None:
    few, many = (call_ns(name, [(n, n, 3)] * 8, [(n, n, 3)] * 2) for n in (10, 500))
    assert 0 < few <= many and (few < many or name == "image_size")


def test_lines_steps_and_reasons(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = explained(capsys, str(small))
    assert re.search(r"p.pipe:8 +from npz.*read npz +cpu", told)
    assert re.search(r"p.pipe:9 +where n > 2", told)
    assert "lines 9–14 are one kernel" in told
    assert re.search(r"host → ring +168 ", told)
    assert "p.pipe:12" in told.split("the same in every epoch")[1], "what total is made of has no draw"
    apart = explained(capsys, str(small), "--without", "fuse")
    assert apart != told


def test_where_the_users_python_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "rows.csv").write_text("x\n1\n2\n")
    text = ('schema Row\n  x: i64\n\nextern fn twice(x: i64) -> i64 from "my:twice"\nextern fn all(x: i64[n]) -> i64[n] from '
            f'"my:all"\n\npipeline train\n  from csv("{tmp_path}/rows.csv") as Row\n  a = twice(x)\n  batch(4)\n  b = all(a)\n'
            '  emit b\n')
    (tmp_path / "a.pipe").write_text(text)
    (tmp_path / "my.py").write_text("")
    told = explained(capsys, str(tmp_path / "a.pipe"), "--allow-extern")
    assert "my:all (line 11) runs in the producer's own process" in told and "my:twice (line 9) runs in" not in told


def test_measured(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = explained(capsys, str(small), "--measure", "--seconds", "0.1")
    assert "measured over 27 rows of the ring" in told
    kernel = re.search(r"above0_0 +cpu +([\d,]+) +([\d,]+)", told)
    assert kernel is not None and int(kernel[2].replace(",", "")) > 0


class Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.said: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [v or "" for k, v in attrs if k in ("src", "href", "xlink:href")]

    def handle_data(self, data: str) -> None:
        self.said.append(data)


def test_page(small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    explained(capsys, str(small), "--html", str(tmp_path / "p.html"))
    reader = Reader()
    text = (tmp_path / "p.html").read_text()
    reader.feed(text)
    assert not reader.links and "url(" not in text and "@import" not in text and "script" not in reader.tags
    assert reader.tags.count("svg") == 1 and reader.tags.count("rect") > 6
    said = " ".join(reader.said)
    assert "total = sum(exp(b[i]) for i)" in said and "where n > 2" in said and "disk → host" in said


def test_the_drawing(tmp_path: Path) -> None:
    """Boxes stand one below the other, and what is written in them stays in them, with a name and lines of any length."""
    line = Line("a-rather-long-name-of-a-program-file.pipe", 12, "x = " + "a + " * 30)
    row = Row("some_module_of_ours:merge_all_classes", "extern", (line, line), "cuda:1", 123_456_789_012.0, 9e9, True)
    frame = Row("batch", "frame", (line,), "cpu", 0.0, 0.0, False)
    made = Report("p", "p.pipe", (Part("above0", "each record", "above", (row, frame)),
                                  Part("below0", "each batch", "below", (row, row), 64)), (), (), (), ())
    text = page(made)
    drawn = text[text.index("<svg"): text.index("</svg>") + 6]
    svg = ElementTree.fromstring(re.sub(r"([\w-]+)=([\w.]+)(?=[ />])", r'\1="\2"', drawn))
    wide, high = map(float, svg.attrib["viewBox"].split()[2:])
    boxes = [[float(r.attrib[k]) for k in ("x", "y", "width", "height")] for r in svg.iter("rect") if r.attrib["class"] == "card"]
    assert len(boxes) == 4 and all(a[1] + a[3] < b[1] for a, b in pairwise(boxes))
    texts = []
    for t in svg.iter("text"):
        size, x, y = 7.83 * len(t.text or ""), float(t.attrib["x"]), float(t.attrib["y"])
        left = x - size if t.get("text-anchor") == "end" else x
        texts.append((left, y - 12, left + size, y + 4))
    assert len(texts) > 12 and all(a >= 0 and c <= wide and d <= high for a, _, c, d in texts)
    assert not any(a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3] for a, b in combinations(texts, 2))
    for x, y, w, h in boxes:
        inside = [t for t in texts if y < t[3] and t[1] < y + h]
        assert inside and all(x < a and y <= b and c < x + w and d <= y + h for a, b, c, d in inside)


def test_wrong_files_and_codes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "E0203"]) == 0
    assert main(["explain", "E9999"]) == 2
    assert main(["explain", str(tmp_path / "none.pipe")]) != 0
    assert main(["explain", str(EXAMPLES / "cifar.pipe"), "--without", "nothing"]) == 2
    assert "there is no pass" in capsys.readouterr().err
    assert main(["explain", str(EXAMPLES / "cifar.pipe"), "--device", "tpu"]) == 2
    assert "there is no device `tpu`: --device is cpu, cuda or cuda:N" in capsys.readouterr().err


def test_estimates_order_kernels() -> None:
    """More elements and dearer functions cost more; sizes that were seen count."""
    def cost(line: str, seen: dict[str, tuple[float, ...]] | None = None) -> float:
        text = f'schema R\n  x: f32[n]\n  y: f32[64]\npipeline p\n  from npz("d") as R\n  z = {line}\n  emit z\n'
        compiled = lowered(check("p.pipe", text=text))
        program = compiled.plan.above[0].program
        return kernel_ns(compiled.kernels[0], Sizes(program, shapes=seen or {}))

    assert cost("[y[i] + 1 for i]") < cost("[exp(y[i]) for i]") < cost("[exp(exp(y[i])) + j for i, j < 9]")
    assert cost("sum(x)", {"field.x": (100.0,)}) < cost("sum(x)", {"field.x": (10_000.0,)})


def test_a_report_of_every_segment() -> None:
    compiled = lowered(check(str(EXAMPLES / "imagenet.pipe")))
    told = report(compiled)
    assert [p.place for p in told.parts] == ["above", "below", "below"]
    assert told.parts[2].records == 256
    lines = Lines(compiled.program.texts)
    frame = compiled.told["above0"]
    of = lines_of(list(frame.outputs.values()), compiled.program.spans, lines)
    assert {line.number for line in of.values()} >= {24, 25, 26, 27}


def test_what_could_travel_narrow_and_where_devices_are(capsys: pytest.CaptureFixture[str]) -> None:
    path = str(EXAMPLES / "imagenet.pipe")
    told = explained(capsys, path)
    assert re.search(r"image, made by line 27, crosses the ring as 602,112 bytes, not as the 150,528 it is made of", told)
    assert "host → device" not in told and " cuda" not in told
    told = explained(capsys, path, "--device", "cuda")
    assert re.search(r"below1_0 +cuda", told) and re.search(r"above0_0 +cpu", told)
    assert re.search(r"host → device +150,536", told)
    assert "image, made by line 27, crosses the ring as 150,528 bytes instead of 602,112 and is widened below share()" in told
    told = explained(capsys, path, "--device", "cuda", "--without", "cut")
    assert re.search(r"host → device +602,120", told) and "widened" not in told
    told = explained(capsys, path, "--device", "cuda", "--without", "place")
    assert " cuda" not in told and "`place` is left out" in told
