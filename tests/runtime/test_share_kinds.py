"""Consumers of other libraries at one stream: the same rows for each, which stay as they are while the ring goes on."""
from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))
import fakes
from served import consumer, serving
from test_sharing import together

pytestmark = pytest.mark.usefixtures("runtime")


@pytest.mark.parametrize("kinds", [("numpy", "torch"), ("numpy", "jax")], ids=lambda kinds: kinds[1])
def test_every_kind_of_consumer_gets_the_same(kinds):
    pytest.importorskip(kinds[1])
    rows, width = 400, 30_016                             # of 64 bytes: JAX's arrays may lie over the ring
    with serving(plan=fakes.plan(rows=rows, width=width), most=8, wait_for=2) as server:
        loaders = [consumer(server, 8, as_=kind) for kind in kinds]

        def read(loader):
            kept = list(loader)
            images, labels = (np.concatenate([np.asarray(getattr(b, name)) for b in kept]) for name in ("image", "label"))
            loader.close()
            return type(kept[0].image).__module__.split(".")[0], images, labels

        for kind, images, labels in together([lambda loader=loader: read(loader) for loader in loaders]):
            assert kind in ("numpy", "torch", "jaxlib", "jax") and labels.tolist() == list(range(rows))
            assert all((images[k] == fakes.content(0, k, width)).all() for k in range(rows))
