"""The compile cache: nothing unverified is linked, several processes may build, a process that loads needs no numba."""
from __future__ import annotations

import ctypes
import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pipec.compiler import native, optimise
from pipec.compiler.loops import Argument, Buffer, Builder, Const, Kernel
from pipec.runtime import objects

OUT = Buffer("out", "f32", (Const(1, "i64"),))


def kernel(value: float) -> Kernel:
    k = Builder()
    k.put(OUT, 0, Const(value, "f32"))
    return Kernel("one", (Argument("data", "out", "f32", "out"),), tuple(k.body))


def result(run: Any) -> float:
    out, status, arena = np.zeros(1, "f4"), np.zeros(1, np.int64), np.zeros(4, np.int64)
    table = np.array([out.ctypes.data], np.int64)
    run(1, table.ctypes.data, status.ctypes.data, arena.ctypes.data)
    return float(out[0])


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PIPEC_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("PIPEC_KEY", raising=False)
    monkeypatch.setattr(objects, "_linked", {})
    objects.target.cache_clear()   # what it knows is kept in the folder, too
    return tmp_path / "cache"


def entry(cache: Path) -> Path:
    (found,) = cache.glob("*.o")
    return found


def test_build_then_load(cache: Path) -> None:
    texts = native.build([kernel(1.5)])
    assert result(objects.load(texts)["one"]) == 1.5
    assert stat.S_IMODE((cache / "key").stat().st_mode) == 0o600
    assert stat.S_IMODE(entry(cache).stat().st_mode) == 0o600


def test_every_changed_byte_is_refused_and_built_again(cache: Path) -> None:
    texts = native.build([kernel(2.5)])
    path = entry(cache)
    good = path.read_bytes()
    damaged = [good[:n] for n in (0, 5, 40, 45, len(good) - 1)] + [good + b"x"]
    for at in range(0, len(good), max(1, len(good) // 60)):
        damaged.append(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])
    for content in damaged:
        path.write_bytes(content)
        with pytest.raises(objects.Missing) as missing:
            objects.load(texts)
        assert missing.value.names == ("one",)
    native.build([kernel(2.5)])
    assert result(objects.load(texts)["one"]) == 2.5


def test_an_object_of_another_key_or_text_or_machine_is_refused(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = native.build([kernel(3.5)])
    monkeypatch.setenv("PIPEC_KEY", "another team")
    with pytest.raises(objects.Missing):
        objects.load(texts)
    monkeypatch.delenv("PIPEC_KEY")
    other = native.build([kernel(4.5)])
    mine, theirs = (cache / f"{t[0].key}.o" for t in (texts, other))
    mine.write_bytes(theirs.read_bytes())   # a good object under another's name
    with pytest.raises(objects.Missing):
        objects.load(texts)
    here = objects.target()
    monkeypatch.setattr(objects, "target", lambda: objects.Target(here.triple, "another", here.features, here.makers))
    with pytest.raises(objects.Missing):
        objects.load(other)


def test_what_a_plan_says_about_keys_is_not_believed() -> None:
    texts = native.build([kernel(5.5)])
    other = native.build([kernel(6.5)])
    lying = type(texts[0])("one", texts[0].text, other[0].key)
    assert result(objects.load([lying])["one"]) == 5.5


def test_a_key_file_that_others_can_read_is_refused(cache: Path) -> None:
    native.build([kernel(1.0)])
    (cache / "key").chmod(0o644)
    with pytest.raises(PermissionError, match="mode 0600"):
        native.build([kernel(7.0)])


def test_oldest_entries_go(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = native.build([kernel(10.0)])
    size = entry(cache).stat().st_size
    monkeypatch.setenv("PIPEC_CACHE_LIMIT", str(3 * size + 100))
    os.utime(entry(cache), (1, 1))
    later = [native.build([kernel(11.0 + i)]) for i in range(3)]
    with pytest.raises(objects.Missing):
        objects.load(first)
    for texts in later:
        objects.load(texts)


LOADER = """
import json, sys
import numpy as np
from pipec.runtime import objects
from pipec.runtime.plan import KernelText
run = objects.load([KernelText("one", sys.argv[1], "")])["one"]
out, status, arena = np.zeros(1, "f4"), np.zeros(1, np.int64), np.zeros(4, np.int64)
run(1, np.array([out.ctypes.data]).ctypes.data, status.ctypes.data, arena.ctypes.data)
print(json.dumps([float(out[0]), *(name in sys.modules for name in ("numba", "lark", "llvmlite"))]))
"""


def test_a_process_that_only_loads_needs_no_numba() -> None:
    (text,) = native.build([kernel(8.5)])
    done = subprocess.run([sys.executable, "-c", LOADER, text.text], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [8.5, False, False, False]


def test_what_our_loader_refuses_llvm_links(monkeypatch: pytest.MonkeyPatch) -> None:
    def unfit(code: bytes, names: Any) -> Any:
        raise objects.elf.Unfit("here")

    texts = native.build([kernel(9.25)])
    monkeypatch.setattr(objects.elf, "load", unfit)
    assert result(objects.load(texts)["one"]) == 9.25


def test_what_is_known_of_a_machine(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is kept for this CPU and these tools, under the user's key; whatever else lies there counts as nothing."""
    objects.target.cache_clear()
    first = objects.target()
    (place,) = (cache / "targets").iterdir()
    good, asked = place.read_bytes(), []
    llvm = objects.llvm
    monkeypatch.setattr(objects, "llvm", lambda: asked.append(1) or llvm())

    def again() -> int:
        objects.target.cache_clear()
        asked.clear()
        assert objects.target() == first
        return len(asked)

    assert again() == 0
    for damaged in (b"", good[:31], good[:-1], good[:40] + bytes([good[40] ^ 1]) + good[41:]):
        place.write_bytes(damaged)
        assert again() == 1 and place.read_bytes() == good
    monkeypatch.setattr(objects, "_cpu", lambda: "another")
    assert again() == 1 and again() == 0
    monkeypatch.setattr(objects, "_cpu", lambda: "")
    assert again() == 1 and again() == 1
    assert len(list((cache / "targets").iterdir())) == 2


def test_functions_of_our_own_need_no_cache(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "define i64 @next(i64 %a) {\n  %b = add i64 %a, 1\n  ret i64 %b\n}\n"
    for where in ("/proc/nowhere", str(cache), str(cache)):
        monkeypatch.setenv("PIPEC_CACHE", where)
        _, at = objects.functions(text, ["next"])
        assert ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(at["next"])(41) == 42
    assert len(list(cache.glob("*.o"))) == 1


BUILDER = """
import sys
sys.path.insert(0, sys.argv[1])
import test_native
from pipec.compiler import native, optimise
from pipec.runtime import objects
texts = [native.build([test_native.kernel(20.0 + i)]) for i in range(6)]
assert [test_native.result(objects.load(t)["one"]) for t in texts] == [20.0 + i for i in range(6)]
"""


def test_processes_that_build_at_once(cache: Path) -> None:
    here = str(Path(__file__).parent)
    running = [subprocess.Popen([sys.executable, "-c", BUILDER, here], stderr=subprocess.PIPE) for _ in range(3)]
    for process in running:
        _, errors = process.communicate(timeout=240)
        assert process.returncode == 0, errors.decode()
    assert len(list(cache.glob("*.o"))) == 6
    assert not [p for p in cache.iterdir() if p.name.startswith(".")]


def test_sums_and_products_wrap():
    """What is known of a sum's operands must not make LLVM assume that the sum stays inside i64: hashes pass it."""
    from pipec.compiler.through_numba import module_text

    text = ("def f(table, arena):\n    row = at_i64(table)\n    out = at_i64(row[0])\n    a = at_i64(row[1])\n"
            "    v = mod(a[0], 24)\n    out[0] = (v - 7046029254386353131) * (-4658895280553007687)\n    return 0\n")
    made = [line for line in module_text(text, "f").split("\n") if " mul " in line or " add " in line or " sub " in line]
    assert made and not [line for line in made if "nsw" in line or "nuw" in line]


def test_what_the_process_beside_can_not_do_is_done_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optimise, "CODE", "import sys; sys.stdin.buffer.read(100); sys.stdout.buffer.write(b'12345678more')")
    texts = native.build([kernel(30.5), kernel(31.5)])
    assert [result(objects.load([t])["one"]) for t in texts] == [30.5, 31.5]
    monkeypatch.setattr(sys, "executable", "/nowhere")
    texts = native.build([kernel(32.5), kernel(33.5)])
    assert [result(objects.load([t])["one"]) for t in texts] == [32.5, 33.5]
