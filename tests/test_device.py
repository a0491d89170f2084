"""What runs below `share()` on a device equals what runs on the CPU, on a device made of host memory and real CUDA texts."""
from __future__ import annotations

import sys

import fake_cupy
import numpy as np
import pytest
from cuda_host import needs_compiler
from fake_device import Array, FakeDevice, collected
from generated_data import COLUMNS, write_data
from pipec.compiler.check import check
from pipec.compiler.compile import _with_kernels, lowered
from pipec.compiler.native import build
from pipec.compiler.place import placed
from pipec.runtime.device import OnDevice
from pipec.runtime.errors import DataError
from pipec.runtime.loader import Loader
from pipec.runtime.objects import load
from pipec.runtime.placement import first_on_device
from running import assert_same, fields_of, kept

pytestmark = needs_compiler

HEAD = "seed 3\nschema Row\n" + "".join(f"  {name}: {text}\n" for name, (text, _) in COLUMNS.items())
PIPELINE = 'pipeline p\n  from npz("{data}") as Row\n'
PROGRAMS = {   # name → (lines, kernels run on the device)
    "widened": (["share()", "image = [(f32(img[y, x, c]) - 120) / 58.5 for c, y, x]", "batch(4)", "emit image, n"], True),
    "moved below": (["image = [(f32(img[y, x, c]) - 120) / 58.5 for c, y, x]", "batch(1000)", "emit image, n"], True),
    "whole": (["share()", "image = [f16(img[y, x, c]) / 255 for c, y, x]", "batch(5, whole=true)", "emit image, n"], True),
    "handed on": (["share()", "batch(4)", "emit img, n, h, mask, big, b"], False),
    "all dtypes": (["share()", "t = bf16(x)", "o = h + 0.5", "z = not flag", "y = i8(b / 3)", "batch(3)",
                    "emit t, o, z, y"], True),
    "drawn": (["share()", "u ~ normal()", "k ~ integers(0, 10)", "y = v[0] * u + f32(k)", "batch(4)", "emit y, n"], True),
    "mixed": (["share()", "image = [f32(img[y, x, c]) for c, y, x]", "batch(6)", "lam ~ beta(0.4, 0.4)",
               "mixed ~ mixup(image, v, lam)", "im = mixed.images", "t = mixed.labels", "emit im, t"], True),
    "summed": (["share()", "batch(4)", "s = sum(x[i] for i)", "r = [v[i, j] - s for i, j]", "emit s, r"], True),
    "a size that the data tells": (["share()", "batch(4)", "k = max(0, sum(i64(few[i]) for i))", "t = [3 * i for i < k]",
                                    "emit t, n"], True),
    "constants": (["share()", "one = [1, 2, 3]", "batch(4)", "emit one, n"], False),
    "epochs": (["share()", "y = x * f32(epoch)", "batch(4)", "emit y"], True),
    "padded": (["m3 = [marks[i] ?? 0 for i < max(0, i64(size))]", "share()", "batch(4, pad=true)",
                "y = [m3[i, j] ?? -1 for i, j]", "emit y, n"], False),
    "a library's spectrum": (["share()", "s = spectrogram(v, 2, 1)", "t = [log1p(s[i, j] ?? 0.5) for j < 2, i < 5]",
                             "batch(4)", "emit t"],
                             True),
    "single rows": (["share()", "y = v[0] * 2", "emit y, n"], False),
}


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    data = tmp_path_factory.mktemp("device") / "d.npz"
    write_data(str(data))
    made = {}
    for name, lines in {**{n: lines for n, (lines, _) in PROGRAMS.items()}, **FAILING}.items():
        text = HEAD + (PIPELINE + "".join(f"  {line}\n" for line in lines)).replace("{data}", str(data))
        c = lowered(check("p.pipe", text=text), on_device=name == "moved below")
        made[name] = _with_kernels(c.plan, build(c.kernels))
    kernels = [k for plan in made.values() for k in plan.device]
    return made, [FakeDevice(kernels, backwards) for backwards in (False, True)]


def on(device, plan):
    return Loader(plan, as_="cupy", workers="threads", threads=1, below=OnDevice(plan, load(plan.kernels), None, False, device))


def got(value):
    if isinstance(value, Array):
        return value.get()
    return [got(v) for v in value] if isinstance(value, list) else kept(value)


def read(batch):
    return {name: got(value) for name, value in batch._asdict().items()}


FAILING = {
    "a record": ["share()", "y = 9223372036854775792 + n", "batch(4)", "emit y"],
    "a batch": ["share()", "batch(4)", "y = [n[i] * 512409557603043101 for i]", "emit y"],
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_device_is_cpu(compiled, name):
    plans, devices = compiled
    plan, kernels = plans[name], PROGRAMS[name][1]
    with Loader(plan, as_="numpy", workers="threads", threads=1) as loader:
        expected = [[fields_of(b) for b in loader] for _ in range(3)]
    for device in devices:
        launched, fetched = device.launched, device.fetched
        with on(device, plan) as loader:
            held = [[*loader] for _ in range(3)]                      # nothing is waited for until all are made
            assert any(isinstance(v, Array) for v in held[0][0])
            for batches, reference in zip(held, expected):
                assert_same([read(b) for b in batches], reference)
            del held, batches
            assert placed(plan, "cuda").devices.count("cuda") == len(loader._below.programs)   # what `pipec explain` says
        assert (device.launched > launched) == kernels
        shapes = 2 * 2   # of the first and the last batch, in one or two programs
        assert device.fetched - fetched <= (3 * 5 * 2 if "size" in name else shapes)


@pytest.mark.parametrize("name", ["widened", "mixed", "handed on"])
def test_memory_is_let_go(compiled, name):
    plans, devices = compiled
    device = devices[0]
    with on(device, plans[name]) as loader:
        for _ in range(4):
            for batch in loader:
                del batch
        device.finish()
        assert collected(device) == 0


def test_rows_are_uploaded_as_they_are(compiled):
    plans, devices = compiled
    before = devices[0].uploaded
    with on(devices[0], plans["widened"]) as loader:
        rows = sum(len(read(b)["n"]) for b in loader)
    assert devices[0].uploaded - before == rows * (4 * 5 * 3 + 8)   # u8, not f32


@pytest.mark.parametrize("name", FAILING)
def test_failures_are_the_same(compiled, name):
    plans, devices = compiled
    with Loader(plans[name], as_="numpy", workers="threads", threads=1) as loader, pytest.raises(DataError) as cpu:
        list(loader)
    for device in devices:
        with on(device, plans[name]) as loader, pytest.raises(DataError) as there:
            list(loader)
        assert str(there.value) == str(cpu.value) and there.value.where == cpu.value.where


def test_left_early_and_resumed(compiled):
    plans, devices = compiled
    plan, device = plans["mixed"], devices[0]
    with on(device, plan) as loader:
        every = [read(b) for b in loader]
    with on(device, plan) as loader:
        for k, _ in enumerate(loader):
            if k == 1:
                state = loader.state_dict()
                break
    with on(device, plan) as loader:
        loader.load_state_dict(state)
        assert_same([read(b) for b in loader], every[2:])


@pytest.mark.parametrize("name", ["all dtypes", "mixed", "a size that the data tells", "padded"])
def test_through_cupy(compiled, monkeypatch, name):
    """The calls that are made of CuPy."""
    monkeypatch.setitem(sys.modules, "cupy", fake_cupy.cupy())
    plan = compiled[0][name]
    with Loader(plan, as_="numpy", workers="threads", threads=1) as loader:
        expected = [fields_of(b) for b in loader]
    with Loader(plan, as_="cupy", device="cuda:0", workers="threads", threads=1) as loader:
        batches = [{n: v.get() if isinstance(v, fake_cupy.ndarray) else kept(v) for n, v in b._asdict().items()} for b in loader]
    for batch in batches:
        for field, value in batch.items():   # CuPy has no bf16
            batch[field] = value.view(expected[0][field].dtype)
    assert_same(batches, expected)
    with pytest.raises(DataError, match="there is no GPU number 3"):
        Loader(plan, as_="cupy", device="cuda:3", workers="threads", threads=1)
    monkeypatch.setitem(sys.modules, "cupy", fake_cupy.cupy(0))
    with pytest.raises(DataError, match="the driver finds none"):
        Loader(plan, as_="cupy", workers="threads", threads=1)


@pytest.mark.parametrize("name", ["all dtypes", "mixed", "a size that the data tells", "padded"])
def test_tensors_of_torch(compiled, monkeypatch, name):
    """Their memory is torch's own, and what the loop queued in another stream is waited for there."""
    torch = pytest.importorskip("torch")
    waits = []
    monkeypatch.setattr(fake_cupy.Stream, "wait_event", lambda stream, event: waits.append(stream.ptr))
    monkeypatch.setitem(sys.modules, "cupy", fake_cupy.cupy())
    plan = compiled[0][name]
    with Loader(plan, as_="torch", workers="threads", threads=1) as loader:
        expected = list(loader)
    gpu = fake_cupy.Torch(torch)
    monkeypatch.setattr("pipec.runtime.cuda._torch", lambda: gpu)
    found = []
    with Loader(plan, as_="torch", device="cuda:0", workers="threads", threads=1) as loader:
        for batch in loader:
            found.append(batch)
            gpu.stream += 7
    assert len(found) == len(expected) and 7 in waits
    for one, other in zip(found, expected):
        for there, here in zip(one, other, strict=True):
            if not isinstance(here, torch.Tensor):
                assert there == here
                continue
            assert (there.dtype, there.shape) == (here.dtype, here.shape)
            assert torch.equal(there.contiguous().view(torch.uint8), here.contiguous().view(torch.uint8))


def test_code_is_kept(compiled, monkeypatch):
    """NVRTC compiles a text once for all processes of a user."""
    monkeypatch.setitem(sys.modules, "cupy", fake_cupy.cupy())
    plan = compiled[0]["widened"]
    before = len(fake_cupy.COMPILED)
    for _ in range(2):
        with Loader(plan, as_="cupy", workers="threads", threads=1) as loader:
            list(loader)
    assert len(fake_cupy.COMPILED) - before <= len(plan.device)


def test_without_its_compiler(compiled, monkeypatch):
    def absent(*_, **__):
        raise RuntimeError("CuPy failed to load libnvrtc.so.12")

    monkeypatch.setitem(sys.modules, "cupy", fake_cupy.cupy())
    sys.modules["cupy"].cuda.compiler.compile_using_nvrtc = absent
    monkeypatch.setattr("pipec.runtime.objects.fetch", lambda _: None)
    with Loader(compiled[0]["widened"], as_="cupy", workers="threads", threads=1) as loader, \
            pytest.raises(DataError, match=r"kernels can't be compiled \(CuPy failed to load libnvrtc.so.12\)") as error:
        list(loader)
    assert error.value.code == "E0850"


@pytest.mark.parametrize(("name", "field", "launches"), [("widened", "image", False), ("a library's spectrum", "t", False),
                                                          ("mixed", "image", True), ("mixed", "im", False)])
def test_placed_on_the_cpu(compiled, name, field, launches):
    plans, devices = compiled
    plan, device = plans[name], devices[0]
    with Loader(plan, as_="numpy", workers="threads", threads=1) as loader:
        expected = [fields_of(b) for b in loader]
    before = device.launched
    below = OnDevice(plan, load(plan.kernels), None, False, device, {field: "cpu"})
    with Loader(plan, as_="cupy", workers="threads", threads=1, below=below) as loader:
        assert_same([read(b) for b in loader], expected)
    assert (device.launched > before) == launches
    told = placed(plan, "cuda", {field: "cpu"})
    assert told.devices[0] == "cpu" and f"{field} is to be made there" in told.reasons[0]
    assert placed(plan, "cuda").devices[0] == "cuda"


def test_what_cannot_be_placed(compiled):
    plan = compiled[0]["mixed"]
    with pytest.raises(ValueError, match=r"`nope` isn't made below `share.*what can be placed: image, .*im"):
        first_on_device(plan, {"nope": "cpu"})
    with pytest.raises(ValueError, match='kept on the "cpu", not'):
        first_on_device(plan, {"im": "gpu"})
    with pytest.raises(ValueError, match="no device is asked for"):
        Loader(plan, as_="numpy", workers="threads", threads=1, place={"im": "cpu"})


def test_no_device_says_so(compiled):
    plans, _ = compiled
    for options in ({"device": "cuda"}, {"as_": "cupy"}):
        with pytest.raises(DataError, match="no CUDA device") as error:
            Loader(plans["widened"], workers="threads", threads=1, **options)
        assert error.value.code == "E0850"
    with pytest.raises(ValueError, match='"cpu", "cuda" or "cuda:N"'):
        Loader(plans["widened"], workers="threads", threads=1, device="gpu")
    with Loader(plans["widened"], as_="numpy", workers="threads", threads=1, device="cpu") as loader:
        assert isinstance(next(iter(loader)).image, np.ndarray)
