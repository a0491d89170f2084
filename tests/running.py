"""Runs a program compiled and interpreted and compares what they deliver, bit for bit.

All NaNs are one value (their sign and payload are not part of the language), so a NaN only has to meet a NaN.
"""
from contextlib import nullcontext
from itertools import islice
from unittest import mock

import numpy as np
from pipec.compiler.check import check
from pipec.compiler.compile import _with_kernels, lowered
from pipec.compiler.evaluate import evaluate
from pipec.compiler.native import build
from pipec.runtime.errors import DataError
from pipec.runtime.loader import Loader
from pipec.runtime.opening import open as open_loader
from pipec.runtime.streams import Stream


def delivered(path, epoch=0, run=None, workers="threads", threads=2, **params):
    """One epoch of the compiled program: a list of dicts of arrays."""
    with open_loader(str(path), as_="numpy", workers=workers, threads=threads, run=run, allow_extern=True, **params) as loader:
        loader.set_epoch(epoch)
        return [fields_of(batch) for batch in loader]


def fields_of(batch):
    """A batch as a dict of arrays of its own."""
    return {name: kept(value) for name, value in batch._asdict().items()}


def kept(value):
    if isinstance(value, list):
        return [kept(v) for v in value]
    return value if isinstance(value, bytes | str) else np.array(value)


def interpreted(path, epoch=0, run=None, **params):
    return [dict(record) for record in evaluate(check(str(path), params, run), epoch=epoch)]


def until_failure(records):
    """The records of an iterator, and the code of the error that ended it, or None."""
    found = []
    try:
        for record in records:
            found.append(record)
    except DataError as error:
        return found, error.code
    return found, None


def run_compiled(program, without=(), threads=2, epoch=0, chunk=None, resumed=None, on_device=False, narrow=False):
    """What a checked program delivers, compiled without some passes: (records, code of the error that ended it).

    `chunk`: positions per task; `resumed`: another loader goes on from the state after so many deliveries; `on_device`: cut
    for a loader that asks for a device, though run here; `narrow`: what can cross the ring narrow does.
    """
    with mock.patch.multiple("pipec.compiler.widen", LAUNCH=0.0, _suits_a_device=lambda _: True) if narrow else nullcontext():
        compiled = lowered(program, without, on_device=on_device or narrow)
    plan = _with_kernels(compiled.plan, build(compiled.kernels))
    tasks = mock.patch.object(Stream, "chunk", lambda _: chunk) if chunk else nullcontext()
    state, before = None, []
    with tasks:
        if resumed is not None:
            with Loader(plan, as_="numpy", workers="threads", threads=threads, allow_extern=True) as loader:
                loader.set_epoch(epoch)
                before, code = until_failure(fields_of(batch) for batch in islice(loader, resumed))
                state = loader.state_dict()
            if code is not None or len(before) < resumed:
                return before, code
        with Loader(plan, as_="numpy", workers="threads", threads=threads, allow_extern=True) as loader:
            loader.set_epoch(epoch)
            if state is not None:
                loader.load_state_dict(state)
            after, code = until_failure(fields_of(batch) for batch in loader)
            return before + after, code


def run_interpreted(program, epoch=0):
    return until_failure(dict(record) for record in evaluate(program, epoch=epoch))


def assert_same(compiled, reference):
    """The same records with the same fields, dtypes, shapes and bits."""
    assert len(compiled) == len(reference)
    for place, (one, other) in enumerate(zip(compiled, reference)):
        assert list(one) == list(other)
        for name in other:
            _assert_equal(one[name], other[name], f"{name} of batch {place}")


def _assert_equal(one, other, what):
    if isinstance(other, list | bytes | str) or np.asarray(other).dtype.kind == "O":
        assert np.asarray(one, object).tolist() == np.asarray(other, object).tolist(), what
        return
    one, other = np.asarray(one), np.asarray(other)
    assert (one.dtype, one.shape) == (other.dtype, other.shape), what
    if one.tobytes() == other.tobytes():
        return
    words = {2: np.uint16, 4: np.uint32, 8: np.uint64}
    same = one == other
    if one.dtype.kind not in "iub":
        bits = words[one.dtype.itemsize]
        same = (one.reshape(-1).view(bits) == other.reshape(-1).view(bits)).reshape(one.shape) | ((one != one) & (other != other))
    places = [tuple(int(i) for i in p) for p in np.argwhere(~same)[:4]]
    assert not places, f"{what}: {[(p, one[p], other[p]) for p in places]}"


def assert_compiled_is_interpreted(path, epochs=(0, 1), run=None, **params):
    for epoch in epochs:
        reference = interpreted(path, epoch, run, **params)
        assert reference, "the program delivers nothing"
        assert_same(delivered(path, epoch, run, **params), reference)
