"""Artifacts: opened without a compiler where they are signed, compiled again or refused where not, whatever their bytes."""
from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fake_cupy
import msgspec
import numpy as np
import pipec
import pytest
from cuda_host import needs_compiler
from pipec.cli import main
from pipec.compiler import native
from pipec.compiler.artifact import compile_file, program_at
from pipec.compiler.check import check, outline
from pipec.compiler.graphtext import parse_graph, print_graph
from pipec.compiler.retype import check_graph
from pipec.dsl.problems import PipeError
from pipec.runtime import artifact as artifacts
from pipec.runtime import objects
from pipec.runtime.device import OnDevice
from pipec.runtime.errors import DataError
from pipec.runtime.plan import Plan
from pipec.runtime.sharing import share_key

PROGRAM = """
param data: path
param gain: f32 = 1.0       # of the picture
param shift: f32[2] = [0, 1]
param size: i64 = 6
seed 3

schema Sample
  image: u8[8, 8]
  label: i64

pipeline train
  from npz(data) as Sample
  shuffle()
  top ~ integers(0, 3)
  part = [image[top + i, j] for i < size, j < size]
  share()
  bright = f32(part) * gain + shift[1]
  emit bright, label
"""
Members = dict[str, bytes]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PIPEC_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("PIPEC_KEY", raising=False)
    monkeypatch.setattr(artifacts, "build", lambda: "this one")   # of a checkout that others may be editing
    return tmp_path / "cache"


@pytest.fixture
def made(tmp_path: Path) -> Path:
    images = np.random.default_rng(0).integers(0, 256, (20, 8, 8), dtype=np.uint8)
    np.savez(tmp_path / "data.npz", image=images, label=np.arange(20))
    (tmp_path / "train.pipe").write_text(PROGRAM)
    compile_file(str(tmp_path / "train.pipe"), {"data": str(tmp_path / "data.npz")}, None, str(tmp_path / "train.pipec"))
    return tmp_path / "train.pipec"


def values(path: Path, **given: Any) -> list[np.ndarray]:
    with pipec.open(path, as_="numpy", threads=1, workers="threads", **given) as loader:
        return [np.copy(record.bright) for record in loader]


def same(a: list[np.ndarray], b: list[np.ndarray]) -> bool:
    return len(a) == len(b) == 20 and all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


def members(path: Path) -> Members:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def write(path: Path, content: Members, seal: bool = False, hashes: bool = True) -> Path:
    """An artifact of these members, its hashes set right, signed by this user where `seal`."""
    if hashes:
        manifest = json.loads(content["manifest.json"])
        manifest["hashes"] = {n: artifacts.digest(c) for n, c in content.items() if n not in ("manifest.json", "seal")}
        content = content | {"manifest.json": json.dumps(manifest).encode()}
    if seal:
        content = content | {"seal": artifacts.seal_of(content["manifest.json"])}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in content.items():
            archive.writestr(name, text)
    return path


def test_an_artifact_is_its_program(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program = values(made.with_name("train.pipe"), data=str(made.with_name("data.npz")))
    assert same(values(made), program)
    assert same(values(made, gain=2.0), [2 * (v - 1) + 1 for v in program])
    assert same(values(made, shift=[0, 3]), [v + 2 for v in program])
    assert capsys.readouterr().err == ""


LOOK = """
import sys, threading
def look(modules): return [m for m in ("numba", "lark", "pipec.compiler", "pipec.dsl.parse") if m in modules]
class Spy:
    def __init__(self, plan, threads, kernels, allow_extern=False):
        from pipec.runtime.engine import Engine
        self.engine = Engine(plan, threads, kernels, allow_extern)
    def __getattr__(self, name):
        return getattr(self.engine, name)
    def run(self, *args):
        self.engine.run(*args)
        print("producer", look(sys.modules), file=sys.stderr, flush=True)
if __name__ == "__main__":
    from pipec.runtime import artifact, loader
    artifact.build = lambda: "this one"
    loader.ENGINE = "look:Spy"
    opened = loader.Loader(artifact.plan_of(sys.argv[1]), as_="numpy", threads=1, engine="look:Spy")
    with opened:
        print(len(list(opened)), look(sys.modules))
"""


def test_neither_trainer_nor_producer_loads_a_compiler(made: Path, tmp_path: Path) -> None:
    (tmp_path / "look.py").write_text(LOOK)
    done = subprocess.run([sys.executable, str(tmp_path / "look.py"), str(made)], capture_output=True, text=True, timeout=240)
    assert done.stdout.split("\n")[0] == "20 []", done.stderr
    assert "producer []" in done.stderr
    assert "again" not in done.stderr


def test_what_is_open_and_what_is_fixed(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = str(made.with_name("data.npz"))
    assert main(["compile", str(made.with_name("train.pipe")), f"data={data}", "gain=2", "-o", str(made)]) == 0
    out = capsys.readouterr().out
    assert "open: gain, shift\n" in out and f"fixed: seed=3, data={data}, size=6\n" in out
    for given, code, text in ((dict(size=5), "E0712", "`size` is fixed: this artifact was compiled with size=6"),
                              (dict(seed=4), "E0712", "`seed` is fixed"), (dict(gian=1), "E0703", "no param `gian`"),
                              (dict(gain="x"), "E0704", "`gain` is f32"), (dict(shift=[1]), "E0704", "holds 2 values, not 1")):
        with pytest.raises(PipeError) as failed:
            values(made, **given)
        assert failed.value.problems[0].code == code and text in failed.value.problems[0].title
    assert len(values(made, size=6, seed=3)) == 20   # what they are already


def recompiled(path: Path, capsys: pytest.CaptureFixture[str], why: str, **given: Any) -> list[np.ndarray]:
    """The values of an artifact whose machine code isn't used, for the reason `why`; the second time without a note."""
    capsys.readouterr()
    found = values(path, **given)
    said = capsys.readouterr().err
    assert why in said and "compiled again from its graph" in said and said.count("\n") == 1
    assert same(values(path, **given), found)
    assert capsys.readouterr().err == ""
    return found


def test_another_key_build_version_or_cpu(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str],
                                          monkeypatch: pytest.MonkeyPatch) -> None:
    good = values(made)
    monkeypatch.setenv("PIPEC_KEY", "another team's")
    assert same(recompiled(made, capsys, "isn't signed with your key"), good)
    assert same(values(made, trust=True), good) and capsys.readouterr().err == ""
    monkeypatch.delenv("PIPEC_KEY")
    content = members(made)
    unsigned = write(tmp_path / "a.pipec", {n: c for n, c in content.items() if n != "seal"})
    assert same(recompiled(unsigned, capsys, "isn't signed"), good)
    system, cpu, _ = artifacts.machine().split(" ")
    elsewhere = (f"{system} i386 +x", f"{system} {cpu} +more")
    for key, value, why in (("version", "9.9", "was made by pipec 9.9, and this is"),
                            ("build", "x", "was made by other code of pipec"),
                            ("machine", "t i386 +x", "was made for another system (t, and this is"),
                            ("machine", elsewhere[0], "was made for another CPU (i386, and this is"),
                            ("machine", elsewhere[1], "was made for a CPU with other features (with more, without ")):
        manifest = json.loads(content["manifest.json"]) | {key: value}
        other = write(tmp_path / f"{key}.pipec", content | {"manifest.json": json.dumps(manifest).encode()}, seal=True)
        assert same(recompiled(other, capsys, why), good)


def test_code_that_the_seal_does_not_cover_is_never_linked(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str],
                                                           monkeypatch: pytest.MonkeyPatch) -> None:
    good, content = values(made), members(made)
    shaken = {n: (bytes([c[0] ^ 255]) + c[1:] if n.startswith("objects/") else c) for n, c in content.items()}
    linked: list[bytes] = []
    kernels = dict(objects._linked)
    monkeypatch.setattr(objects, "link", lambda key, code, symbol: (linked.append(code), kernels[key][1])[1])
    monkeypatch.setattr(objects, "_linked", {})
    monkeypatch.setenv("PIPEC_CACHE", str(tmp_path / "empty"))
    (tmp_path / "empty").mkdir(mode=0o700)
    (tmp_path / "empty" / "key").write_bytes((tmp_path / "cache" / "key").read_bytes())
    (tmp_path / "empty" / "key").chmod(0o600)
    assert same(recompiled(write(tmp_path / "a.pipec", shaken, hashes=False), capsys, "isn't what the manifest says"), good)
    assert same(recompiled(write(tmp_path / "b.pipec", shaken), capsys, "isn't signed with your key"), good)
    damaged = [c for n, c in shaken.items() if n.startswith("objects/")]
    assert linked and not any(code in damaged for code in linked)


def test_stored_texts_are_not_run(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = values(made)
    evil = {n: (b"raise SystemExit('run')" if n.startswith("kernels/") else c) for n, c in members(made).items()}
    assert same(recompiled(write(tmp_path / "a.pipec", evil), capsys, "isn't signed"), good)


@needs_compiler
def test_cuda_texts_are_never_the_files(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sealed or trusted: what runs on a device is made from the graph, whatever plan and members say."""
    made.with_name("train.pipe").write_text(PROGRAM.replace("  emit", "  batch(4)\n  emit"))
    compile_file(str(made.with_name("train.pipe")), {"data": str(made.with_name("data.npz"))}, None, str(made))
    with pipec.open(made, as_="numpy", threads=1, workers="threads") as loader:
        good = [np.copy(b.bright) for b in loader]
    content = members(made)
    assert any(n.endswith(".cu") for n in content)
    plan = msgspec.msgpack.decode(content["plan.msgpack"], type=Plan)
    assert not plan.device and not artifacts.plan_of(str(made)).device
    texts = artifacts.plan_of(str(made), on_device=True).device
    assert texts
    evil = tuple(msgspec.structs.replace(k, text="#error never compiled") for k in texts)
    changed = {n: (b"#error never compiled" if n.endswith(".cu") else c) for n, c in content.items()}
    changed["plan.msgpack"] = msgspec.msgpack.encode(msgspec.structs.replace(plan, device=evil))
    monkeypatch.setitem(sys.modules, "cupy", fake_cupy.cupy())
    for path, given in ((write(tmp_path / "sealed.pipec", changed, seal=True), {}),
                        (write(tmp_path / "trusted.pipec", changed), {"trust": True})):
        assert not artifacts.plan_of(str(path), **given).device
        assert artifacts.plan_of(str(path), on_device=True, **given).device == texts
        with pipec.open(path, as_="cupy", threads=1, workers="threads", **given) as loader:
            assert isinstance(loader._below, OnDevice) and loader._below.programs   # a kernel runs there
            assert all(np.array_equal(b.bright.get(), expected) for b, expected in zip(loader, good, strict=True))


SCALED = """seed 3
param data: path
param gain: f32 = 1.0

schema Sample
  image: u8[8, 8]

pipeline train
  from npz(data) as Sample
  scaled = [f32(image[i, j]) / 2 for i, j]
  share()
  batch(512)
  bright = scaled * gain + 1
  emit bright
"""


@needs_compiler
def test_an_artifact_for_devices(made: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """What loaders on a device widen themselves crosses the ring narrow, whoever opens it; without Numba where it is sealed."""
    data = f"data={made.with_name('data.npz')}"
    made.with_name("train.pipe").write_text(SCALED)
    plans = {}
    for device, dtype in (("cpu", "f32"), ("cuda:1", "u8")):
        assert main(["compile", str(made.with_name("train.pipe")), data, "-o", str(made), "--device", device]) == 0
        assert ("cut for loaders on a device" in capsys.readouterr().out) == (dtype == "u8")
        plan = plans[device] = artifacts.plan_of(str(made))
        assert plan.for_device == (dtype == "u8")
        assert [c.dtype for c in plan.rows if c.name == "scaled"] == [dtype]
        assert main(["explain", str(made)]) == 0
        told = capsys.readouterr().out
        assert f"scaled {dtype}[8, 8]" in told and ("compiled for loaders on a device" in told) == (dtype == "u8")
        with pipec.open(made, as_="numpy", threads=1, workers="threads") as loader:
            good = [np.copy(b.bright) for b in loader]
        assert artifacts.plan_of(str(made), for_device=True).rows[0].dtype == "u8"
    assert share_key(plans["cpu"]) != share_key(plans["cuda:1"])
    with monkeypatch.context() as without:
        without.setattr(native, "_compile", lambda missing: pytest.fail("compiled") if missing else None)
        assert artifacts.plan_of(str(made), on_device=True).device
    monkeypatch.setitem(sys.modules, "cupy", fake_cupy.cupy())
    with pipec.open(made, as_="cupy", threads=1, workers="threads") as loader:
        assert isinstance(loader._below, OnDevice) and loader._below.programs
        assert all(np.array_equal(b.bright.get(), expected) for b, expected in zip(loader, good, strict=True))
    with pipec.open(made.with_name("train.pipe"), as_="numpy", threads=1, workers="threads",
                    data=str(made.with_name("data.npz"))) as loader:
        assert all(np.array_equal(b.bright, expected) for b, expected in zip(loader, good, strict=True))


REFUSED: list[tuple[str, Callable[[Members], Members]]] = [
    ("isn't an artifact", lambda m: {"x": b""}),
    ("has no `manifest.json`", lambda m: {n: c for n, c in m.items() if n != "manifest.json"}),
    ("doesn't say so", lambda m: m | {"manifest.json": b"{}"}),
    ("can't be read", lambda m: m | {"manifest.json": b"[" * 100_000}),
    ("aren't those that the manifest names", lambda m: m | {"more": b""}),
    ("aren't those that the manifest names", lambda m: {n: c for n, c in m.items() if n != "graph.txt"}),
    ("odd name", lambda m: m | {"../x": b""}),
    ("odd name", lambda m: m | {"/etc/x": b""}),
    ("`graph.txt` isn't what the manifest says", lambda m: m | {"graph.txt": b"", "seal": b""}),
]


@pytest.mark.parametrize(("said", "change"), REFUSED, ids=[f"{i}: {s}" for i, (s, _) in enumerate(REFUSED)])
def test_refused(said: str, change: Callable[[Members], Members], made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(made, change(members(made)), hashes=False)
    assert main(["run", str(made), "--plain"]) == 1
    shown = capsys.readouterr().err
    assert "E0820" in shown and (said in shown or "has no" in shown) and "Traceback" not in shown


def test_zips_that_are_traps(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = members(made)
    monkeypatch.setattr(artifacts, "LARGEST_TOTAL", 10 << 20)
    with zipfile.ZipFile(tmp_path / "bomb.pipec", "w", zipfile.ZIP_DEFLATED) as archive:
        for n in range(11):
            archive.writestr(f"objects/{n}.o", b"\0" * (1 << 20))
    with zipfile.ZipFile(tmp_path / "twice.pipec", "w") as archive:
        for name, text in content.items():
            archive.writestr(name, text)
        with pytest.warns(UserWarning):
            archive.writestr("graph.txt", b"")
    with zipfile.ZipFile(tmp_path / "large.pipec", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("manifest.json", b" " * (9 << 20))
    for name, folder, kind in (("linked", 0o120777, "no plain file"), ("folded", 0o040755, "no plain file")):
        with zipfile.ZipFile(tmp_path / f"{name}.pipec", "w") as archive:
            info = zipfile.ZipInfo("manifest.json")
            info.external_attr = folder << 16
            archive.writestr(info, content["manifest.json"])
        with pytest.raises(DataError, match=kind):
            artifacts.plan_of(str(tmp_path / f"{name}.pipec"))
    os.mkfifo(tmp_path / "pipe.pipec")                        # nobody writes to it: reading would wait for ever
    (tmp_path / "zero.pipec").symlink_to("/dev/zero")         # and here without end
    with zipfile.ZipFile(tmp_path / "many.pipec", "w") as archive:
        for n in range(6000):
            archive.writestr(f"{n:0500}", b"")
    with zipfile.ZipFile(tmp_path / "said.pipec", "w") as archive:
        archive.writestr("manifest.json", content["manifest.json"])
        archive.comment = b"PK"
    (tmp_path / "short.pipec").write_bytes(made.read_bytes()[:-30])
    (tmp_path / "text.pipec").write_text("not a zip")
    for name, said in (("bomb", "unpacks to more"), ("twice", "two members `graph.txt`"), ("large", "more than"),
                       ("short", "isn't an artifact, or is cut short"), ("text", "isn't an artifact"), ("pipe", "no plain file"),
                       ("zero", "no plain file"), ("many", "more than 4,096 members"), ("said", "isn't an artifact")):
        with pytest.raises(DataError, match=said) as failed:
            artifacts.plan_of(str(tmp_path / f"{name}.pipec"))
        assert failed.value.code == "E0820"
    with pytest.raises(FileNotFoundError):
        artifacts.plan_of(str(tmp_path / "none.pipec"))


HOSTILE: list[tuple[str, str, str]] = [   # what stands in the graph, what instead, what is said
    ("u8[8, 8]", "u8[8, 9]", "delivers a field|gives a field|doesn't follow"),
    ("npz", "npx", "reads from nothing known"),
    ("guard=false", "guard=0", "index"),
    ("ids=(1, 2)", "ids=(1, 3)", "binds|range|uses a name"),
    ('dist="integers"', 'dist="nothing"', "no known distribution"),
    ('key="train/shuffle"', "key=1", "odd `key`"),
    ("gain = param", "gain = const", "needs the attribute"),
    ('name="label"', 'name="nope"', "isn't there"),
    ("emit(", "share(", "isn't what leaves"),
]


@pytest.mark.parametrize(("old", "new", "said"), HOSTILE, ids=[new for _, new, _ in HOSTILE])
def test_graphs_that_no_program_has(old: str, new: str, said: str, made: Path) -> None:
    content = members(made)
    graph = content["graph.txt"].decode()
    assert old in graph, graph
    write(made, content | {"graph.txt": graph.replace(old, new, 1).encode()})
    with pytest.raises(DataError, match=said) as failed:
        artifacts.plan_of(str(made))
    assert failed.value.code == "E0821"


def test_an_index_that_nothing_proves_is_asked_for_at_run_time(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = members(made)
    graph = content["graph.txt"].decode()
    far = graph.replace("draw(0, 3,", "draw(1000, 1000000000000,")
    assert far != graph
    write(made, content | {"graph.txt": far.encode()})
    found = values(made)   # no value means anything, and no memory of others is read
    assert len(found) == 20 and all((v == 1).all() for v in found)


def typed_again(path: Path) -> None:
    """The graph of each pipeline of a program, through its text, is a graph that a program has."""
    told = outline(str(path))
    for run in [told.run] if told.run else told.pipelines:
        program = check(str(path), dict.fromkeys(told.required, "data"), run)
        text = print_graph(program.emit)
        check_graph(parse_graph(text), program.params, program.seed is not None)
        assert print_graph(parse_graph(text)) == text


@pytest.mark.parametrize("name", ["bert", "history", "segment", "speech"])
def test_graphs_of_programs_pass(name: str) -> None:
    typed_again(Path(__file__).parent.parent / "examples" / f"{name}.pipe")


def test_one_pipeline(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(DataError, match="holds the pipeline `train`, not `val`") as failed:
        artifacts.plan_of(str(made), {}, "val")
    assert failed.value.code == "E0822"
    assert artifacts.plan_of(str(made), {}, "train").name == "train"


def test_commands(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(made)]) == 0
    assert "its machine code runs here" in capsys.readouterr().out
    assert main(["dump", str(made), "--after", "check"]) == 0
    assert capsys.readouterr().out.strip() == members(made)["graph.txt"].decode().strip()
    assert main(["show", str(made), "--record", "2", "gain=3"]) == 0
    assert "label" in capsys.readouterr().out
    assert main(["run", str(made), "--interpret", "--plain"]) == 0
    assert main(["compile", str(made)]) == 2 and "is an artifact already" in capsys.readouterr().err
    assert main(["compile", str(made.with_name("train.pipe")), "data=x", "-o", "x.zip"]) == 2
    assert "ends in .pipec" in capsys.readouterr().err


def test_files_of_operators_are_part_of_the_program(tmp_path: Path) -> None:
    table = tmp_path / "t.csv"
    table.write_text("k,v\na,1\n")
    (tmp_path / "words.txt").write_text("a\n")
    source = tmp_path / "p.pipe"
    source.write_text('schema R\n  w: text\n\npipeline p\n  from lines("{words}") as R\n'
                      '  n = lookup(w, "{table}", key="k", column="v") ?? -1\n  emit n\n'
                      .replace("{words}", str(tmp_path / "words.txt")).replace("{table}", str(table)))
    output = tmp_path / "p.pipec"
    compile_file(str(source), {}, None, str(output))
    first = artifacts.plan_of(str(output)).fingerprint
    table.write_text("k,v\na,2\n")
    with pytest.raises(DataError, match="has changed since") as failed:
        artifacts.plan_of(str(output))
    assert failed.value.code == "E0823"
    compile_file(str(source), {}, None, str(output))
    assert artifacts.plan_of(str(output)).fingerprint != first
    table.unlink()
    with pytest.raises(DataError, match="isn't there"):
        artifacts.plan_of(str(output))


def fuzz(path: Path, rounds: int, seed: int) -> dict[str, int]:
    """Change bytes of one member after another, hashes set right and wrong; what comes out, counted."""
    turn = random.Random(seed)
    content, found = members(path), {"refused": 0, "again": 0}
    for number in range(rounds):
        name = sorted(content)[number % len(content)]
        text = bytearray(content[name])
        for _ in range(turn.choice((1, 1, 2, 8))):
            at = turn.randrange(len(text))
            match turn.randrange(4):
                case 0:
                    text[at] = turn.randrange(256)
                case 1:
                    text[at : at + turn.randrange(1, 9)] = b""
                case 2:
                    text[at:at] = turn.choice((b"0", b"99999999999", b"-1", b"(", b",", b" : i64", b"nan"))
                case 3:
                    text[at] = ord(turn.choice("0123456789"))
            text = text or bytearray(b"x")
        write(path, content | {name: bytes(text)}, hashes=bool(turn.randrange(4)) and name != "manifest.json")
        try:
            program_at(str(path), {}, None)
            if name != "graph.txt" or number % 40 == 2:
                artifacts.plan_of(str(path))
            found["again"] += 1
        except (DataError, PipeError) as error:
            assert isinstance(error, PipeError) or error.code in ("E0820", "E0821", "E0822", "E0823"), error
            found["refused"] += 1
    return found


def test_damaged_bytes_of_every_member(made: Path) -> None:
    found = fuzz(made, 45, 1)
    assert found["refused"] > 5 and found["again"] > 5
