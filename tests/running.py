"""Runs a program compiled and interpreted and compares what they deliver, bit for bit."""
import numpy as np
from pipec.compiler.check import check
from pipec.compiler.evaluate import evaluate
from pipec.runtime.loader import open as open_loader


def delivered(path, epoch=0, run=None, workers="threads", threads=2, **params):
    """One epoch of the compiled program: a list of dicts of arrays."""
    with open_loader(str(path), as_="numpy", workers=workers, threads=threads, run=run, allow_extern=True, **params) as loader:
        loader.set_epoch(epoch)
        return [{name: kept(value) for name, value in batch._asdict().items()} for batch in loader]


def kept(value):
    return [kept(v) for v in value] if isinstance(value, list) else np.array(value) if not isinstance(value, bytes | str) else value


def interpreted(path, epoch=0, run=None, **params):
    return [dict(record) for record in evaluate(check(str(path), params, run), epoch=epoch)]


def assert_same(compiled, reference):
    """The same records with the same fields, dtypes, shapes and bits."""
    assert len(compiled) == len(reference)
    for place, (one, other) in enumerate(zip(compiled, reference)):
        assert list(one) == list(other)
        for name in other:
            _assert_equal(one[name], other[name], f"{name} of batch {place}")


def _assert_equal(one, other, what):
    if isinstance(other, list | bytes | str) or getattr(np.asarray(other), "dtype", None) == object:
        assert list(one) == list(other), what
        return
    one, other = np.asarray(one), np.asarray(other)
    assert (one.dtype, one.shape) == (other.dtype, other.shape), what
    assert one.tobytes() == other.tobytes(), f"{what}: {np.argwhere(one != other)[:5].tolist()}"


def assert_compiled_is_interpreted(path, epochs=(0, 1), run=None, **params):
    for epoch in epochs:
        reference = interpreted(path, epoch, run, **params)
        assert reference, "the program delivers nothing"
        assert_same(delivered(path, epoch, run, **params), reference)
