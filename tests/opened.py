"""Sources opened by themselves, without a program: what every record holds, and what opening one says."""
import numpy as np
import pytest
from pipec.kernels.ops import BadRecord
from pipec.kernels.sources import SourceError, open_source
from pipec.kernels.words import Coded

BIG = 2**53 + 1


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("PIPEC_CACHE", str(tmp_path_factory.mktemp("cache")))


def opened(kind, path, *columns, **options):
    """A source; a column is "field: type" or "field: type from name"."""
    triples = []
    for column in columns:
        field, _, rest = column.partition(": ")
        text, _, names = rest.partition(" from ")
        stacked = [n.split("|") for n in (names or field).split("+")]
        triples.append((field, tuple(map(tuple, stacked)), text))
    paths = path if isinstance(path, tuple) else (str(path),)
    return open_source(kind, paths, options, triples)


def plain(value):
    """A value as Python's, None for what is missing."""
    if isinstance(value, np.ma.MaskedArray):
        out = np.array(value.data, object)
        out[np.ma.getmaskarray(value)] = None
        return out.tolist()
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def all_of(source):
    """Every record as Python values, a bad one as its reason; `read_many` in any order says the same as `read`."""
    out = []
    for index in range(len(source)):
        try:
            out.append({f: plain(v) for f, v in source.read(index).items()})
        except BadRecord as bad:
            out.append(bad.reason)
    if hasattr(source, "read_many"):
        for order in (np.arange(len(source)), np.random.default_rng(3).permutation(len(source))):
            fields, bad = source.read_many(order)
            fields = {f: v.array if isinstance(v, Coded) else v for f, v in fields.items()}
            for place, index in enumerate(order.tolist()):
                if isinstance(out[index], str):
                    assert bad[place].reason == out[index]
                else:
                    assert place not in bad
                    found = {f: plain(np.ma.getdata(v)[place]) if not isinstance(v, list | np.ma.MaskedArray) else
                             None if v[place] is np.ma.masked else plain(v[place]) for f, v in fields.items()}
                    assert repr(found) == repr(out[index])
    return out


def column(source, field):
    return [r if isinstance(r, str) else r[field] for r in all_of(source)]


def refused(code, kind, path, *columns, **options):
    with pytest.raises(SourceError) as error:
        opened(kind, path, *columns, **options)
    assert error.value.code == code
    return " | ".join((error.value.title, *error.value.notes))
