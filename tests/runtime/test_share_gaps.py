"""A consumer that may be overtaken: what it gets as one batch follows without a gap, and what it never got is counted."""
from __future__ import annotations

import sys
import threading
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import fakes
from served import consumer, report, serving

pytestmark = pytest.mark.usefixtures("runtime")


def test_a_batch_of_several_pieces_has_no_gap_inside():
    """Batches are larger than what is read at once; between two pieces of the first the stream goes ahead."""
    rows, batch = 1200, 200
    with serving(plan=fakes.plan(rows=rows, width=64), most=8, wait_for=2) as server:
        slow, fast = consumer(server, batch, when_slow="skip"), consumer(server, 8)
        loop = iter(fast)
        rest = threading.Thread(target=lambda: [None for _ in loop])
        assert slow.joined["position"] == 0
        reader = slow._box.reader
        assert batch > reader.most
        whole, pieces = reader.take, []

        def take(n):
            if n <= reader.most:
                pieces.append(n)
                if len(pieces) == 2:                      # the first one is read, and the stream leaves us behind
                    while server.writer.at.intact <= reader.position:
                        next(loop)
                    rest.start()
            return whole(n)

        reader.take = take
        seen = [b.label.tolist() for b in slow]
        rest.join(fakes.PATIENT)
        assert len(pieces) > 2 and all(b == list(range(b[0], b[0] + len(b))) for b in seen)
        lost = slow.stats()["lost"]
        assert lost > 0 and sum(map(len, seen)) + lost == rows == seen[-1][-1] + 1
        assert [m.lost for m in report(server).members] == [lost, 0]
