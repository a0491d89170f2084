"""The ring in one process: a writer and one reader, threads at most."""
from __future__ import annotations

import itertools
import os
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from pipec.runtime.consumer import Consumer
from pipec.runtime.errors import DataError
from pipec.runtime.extension import handover
from pipec.runtime.layout import plan_layout
from pipec.runtime.plan import Column

sys.path.insert(0, str(Path(__file__).parent))
from fakes import until
from pair import Pair, array, pattern


def fill(columns, epochs, rows, chunk, drop=lambda row: False):
    """A producer of `epochs` epochs of `rows` patterned rows."""
    sizes = {c.name: c.dims[0] for c in columns if None not in c.dims}

    def produce(writer):
        for epoch in range(epochs):
            for start in range(0, rows, chunk):
                stop = min(rows, start + chunk)
                reservation = writer.reserve(stop - start)
                if reservation is None:
                    return
                keep = [row for row in range(start, stop) if not drop(row)]
                for name, size in sizes.items():
                    out = array(reservation.address[name], (stop - start, size), np.uint8)
                    for k, row in enumerate(keep):
                        out[k] = pattern(epoch * rows + row, size)
                ids = array(reservation.address["_id"], (stop - start,), np.uint64)
                ids[: len(keep)] = keep
                array(reservation.address["_next"], (stop - start,), np.int64)[: len(keep)] = np.array(keep) + 1
                array(reservation.address["_skip"], (stop - start,), np.int64)[:] = 0
                writer.commit(reservation, len(keep), {})
            writer.end_epoch(epoch)

    return produce


@pytest.mark.parametrize("batch", [1, 7, 32, 100, 128])
@pytest.mark.parametrize("width", [1, 3 * 17 * 19, 4096, 9001])
def test_every_row_once_in_order(batch, width):
    columns = [Column("image", "u8", (width,))]
    rows = 700
    with Pair(columns) as pair:
        pair.run(fill(columns, 3, rows, 16))
        for epoch in range(3):
            seen = 0
            while (got := pair.reader.take(batch)) is not None:
                assert got.count == min(batch, rows - seen)
                assert got.fields["_id"].tolist() == list(range(seen, seen + got.count))
                assert got.fields["image"].shape == (got.count, width)
                for k in (0, got.count // 2, got.count - 1):
                    assert (got.fields["image"][k] == pattern(epoch * rows + seen + k, width)).all()
                seen += got.count
            assert seen == rows


def test_rows_left_out_leave_no_hole():
    columns = [Column("image", "u8", (3001,))]
    with Pair(columns, most=32) as pair:
        pair.run(fill(columns, 2, 900, 16, drop=lambda row: row % 3 == 0 or 100 < row < 400))
        kept = [row for row in range(900) if row % 3 and not 100 < row < 400]
        for epoch in range(2):
            seen = []
            while (got := pair.reader.take(20)) is not None:
                for k in range(got.count):
                    row = int(got.fields["_id"][k])
                    assert (got.fields["image"][k] == pattern(epoch * 900 + row, 3001)).all()
                    seen.append(row)
            assert seen == kept


@pytest.mark.parametrize("writable", [False, True])
def test_kept_batches_never_change(writable):
    columns = [Column("image", "u8", (5003,))]
    with Pair(columns, most=32, writable=writable) as pair:
        pair.run(fill(columns, 1, 8_000, 16))
        kept, step = {}, 0
        while (got := pair.reader.take(20)) is not None:
            if step % 2 == 0:
                kept[step] = got.fields["image"]
            step += 1
            del got
        assert step == 400 and pair.reader.leases.counts.moved > 100
        for k, image in kept.items():
            assert image.flags.writeable == writable
            for row in (0, 7, 19):
                assert (image[row] == pattern(20 * k + row, 5003)).all()
        del image
        kept.clear()
        pair.reader.release()
        assert pair.reader.leases.private == 0 and len(pair.reader.leases.windows) == 1


def test_what_is_written_in_place_stays_in_its_batch():
    columns = [Column("image", "u8", (5003,))]
    with Pair(columns, most=32, writable=True) as pair:
        pair.run(fill(columns, 1, 6_000, 16))
        step, before = 0, None
        while (got := pair.reader.take(20)) is not None:
            image = got.fields["image"]
            for row in range(20):
                assert (image[row] == pattern(20 * step + row, 5003)).all()
            if step % 3 != 1:
                image[:] = 255
            if before is not None:
                before[:] = 254                      # also after the next one was taken
                assert step % 3 == 1 or (image == 255).all()
            before = image if step % 2 else None
            step += 1
        assert step == 300


def test_arrays_of_numpy_are_read_only():
    columns = [Column("image", "u8", (70_000,)), Column("label", "i64", ())]
    with Pair(columns, most=8) as pair:
        def produce(writer):
            reservation = writer.reserve(8)
            array(reservation.address["label"], (8,), np.int64)[:] = range(8)
            writer.commit(reservation, 8, {})
        pair.run(produce)
        got = pair.reader.take(8)
        assert got.fields["label"].tolist() == list(range(8))
        for name in ("image", "label"):
            with pytest.raises(ValueError):
                got.fields[name][0] = 1
        with pytest.raises(ValueError):
            got.fields["image"].setflags(write=True)


def test_held_past_the_budget():
    columns = [Column("image", "u8", (70_000,))]
    with Pair(columns, most=8, budget=4 << 20) as pair:
        pair.run(fill(columns, 1, 2000, 8))
        kept = []
        with pytest.raises(DataError, match="E0808") as caught:
            while True:
                kept.append(pair.reader.take(8))
        assert "held" in str(caught.value)
        for k, got in enumerate(kept):
            assert (got.fields["image"][3] == pattern(8 * k + 3, 70_000)).all()


RAGGED = [Column("raw", "u8", (None, None, 3)), Column("name", "text", ()), Column("words", "text", (None,)),
          Column("jpg", "bytes", (), True), Column("wave", "f32", (None,)), Column("label", "i32", (2,))]


def ragged_row(row):
    random = np.random.default_rng(row)
    h, w = random.integers(0, 40, 2)
    return {
        "raw": random.integers(0, 255, (h, w, 3)).astype(np.uint8), "name": f"näme{row}" * (row % 5),
        "words": np.array([f"w{k}" for k in range(row % 4)], object), "jpg": None if row % 7 == 0 else bytes([row % 256]) * row,
        "wave": random.normal(size=row % 100).astype(np.float32),
    }


@pytest.mark.parametrize("batch", [1, 7, 64])
def test_values_of_varying_size(batch):
    with Pair(RAGGED, most=64) as pair:
        rows = 1500

        def produce(writer):
            for start in range(0, rows, 10):
                reservation = writer.reserve(10)
                if reservation is None:
                    return
                array(reservation.address["label"], (10, 2), np.int32)[:] = np.arange(start, start + 10)[:, None]
                array(reservation.address["jpg?"], (10,), np.bool_)[:] = [r % 7 == 0 for r in range(start, start + 10)]
                made = [ragged_row(r) for r in range(start, start + 10)]
                writer.commit(reservation, 10, {name: [m[name] for m in made] for name in made[0]})
            writer.end_epoch(0)

        pair.run(produce)
        seen, kept = 0, []
        while (got := pair.reader.take(batch)) is not None:
            kept.append((seen, got.fields))
            seen += got.count
        assert seen == rows and pair.problem is None
        for start, fields in kept:
            for k in range(len(fields["label"])):
                right = ragged_row(start + k)
                assert fields["label"][k].tolist() == [start + k] * 2
                assert fields["jpg?"][k] == ((start + k) % 7 == 0)
                assert fields["jpg"][k] == right["jpg"] and fields["name"][k] == right["name"]
                assert fields["words"][k].tolist() == right["words"].tolist()
                assert fields["raw"][k].shape == right["raw"].shape and (fields["raw"][k] == right["raw"]).all()
                assert fields["wave"][k].dtype == np.float32 and (fields["wave"][k] == right["wave"]).all()


def test_byte_ring_too_small_for_a_batch_is_an_error_not_a_hang():
    columns = [Column("raw", "u8", (None,))]
    with Pair(columns, most=16, memory=3 << 20, chunk=2) as pair:
        def produce(writer):
            while (reservation := writer.reserve(2)) is not None:
                writer.commit(reservation, 2, {"raw": [np.ones(250_000, np.uint8)] * 2})
        pair.run(produce)
        with pytest.raises(DataError):
            pair.attachment.gone = None

            def leave():                                  # when the writer has seen that it can't go on
                until(lambda: pair.problem)
                pair.attachment.gone, pair.attachment.news = "test", True
                os.eventfd_write(pair.attachment.data_fd, 1)

            threading.Thread(target=leave).start()
            pair.reader.take(16)
        assert isinstance(pair.problem, DataError) and pair.problem.code == "E0809"


@pytest.mark.parametrize("native", [True, False])
def test_reservations_of_many_threads(native):
    """Workers fill reservations in any order; a committer delivers them in order."""
    columns = [Column("image", "u8", (601,))]
    with Pair(columns, most=32, native=native) as pair:
        def produce(writer):
            order, done, turn, drawing = [], threading.Condition(), [0], threading.Lock()

            def work():
                while True:
                    with drawing:
                        k = turn[0]
                        turn[0] += 1
                        if k >= 300:
                            return
                        reservation = writer.reserve(10)
                    if reservation is None:
                        return
                    out = array(reservation.address["image"], (10, 601), np.uint8)
                    keep = [r for r in range(10 * k, 10 * k + 10) if r % 3]
                    for j, row in enumerate(keep):
                        out[j] = pattern(row, 601)
                    array(reservation.address["_id"], (10,), np.uint64)[: len(keep)] = keep
                    with done:
                        order.append((k, reservation, len(keep)))
                        order.sort(key=lambda item: item[0])
                        done.notify()

            workers = [threading.Thread(target=work) for _ in range(4)]
            for w in workers:
                w.start()
            for k in range(300):
                with done:
                    while not order or order[0][0] != k:
                        done.wait()
                    _, reservation, rows = order.pop(0)
                writer.commit(reservation, rows, {})
            for w in workers:
                w.join()
            writer.end_epoch(0)

        pair.run(produce)
        seen = []
        while (got := pair.reader.take(30)) is not None:
            for k in range(got.count):
                row = int(got.fields["_id"][k])
                assert (got.fields["image"][k] == pattern(row, 601)).all()
                seen.append(row)
        assert seen == [r for r in range(3000) if r % 3]


@pytest.mark.parametrize("native", [True, False])
def test_wake_ups_are_never_lost(native):
    columns = [Column("label", "i64", ())]
    with Pair(columns, most=1, chunk=1, memory=40_000, native=native) as pair:
        pair.run(fill([], 1, 10_000, 1))
        count = 0
        while (got := pair.reader.take(1)) is not None:
            assert int(got.fields["_id"][0]) == count
            count += 1
        assert count == 10_000


@pytest.mark.skipif(handover() is None, reason="the C extension isn't built")
def test_what_is_as_usual_is_done_by_the_extension():
    """Once all pages are taken, and from the first reservation on after somebody came or went."""
    with Pair([Column("image", "u8", (601,))], most=16, chunk=4) as pair:
        in_python = []
        reserved = pair.writer._reserved
        pair.writer._reserved = lambda rows: in_python.append(pair.writer.at.tail) or reserved(rows)

        def write(count):
            for first in range(0, count, 4):
                write_four(pair, first)
                pair.reader.take(4)
            pair.reader.release()

        write(2 * pair.layout.capacity)
        assert in_python and in_python[-1] < pair.layout.capacity
        in_python.clear()
        other = Consumer(pair.attachment.control_fd, pair.attachment.data_fd, "skip")
        for change in (pair.writer.join, pair.writer.leave):
            change(other)
            write(40)
        assert len(in_python) == 2


def test_who_holds_the_producer_back_is_told():
    with Pair([Column("image", "u8", (601,))], most=16, chunk=4) as pair:
        for _ in range(2):                                # with pages to be taken, and without
            before = pair.writer.waited
            pair.run(lambda writer: [write_four(pair, first) for first in range(0, 2 * pair.layout.capacity, 4)])
            until(lambda: pair.writer.at.tail - pair.writer.readers.least() > pair.layout.capacity - 4)
            for _ in range(pair.layout.capacity // 2):
                pair.reader.take(4)
            pair.thread.join()
            pair.reader.release()
            pair.writer.readers.settle()
            assert pair.writer.waited > before and pair.problem is None
        assert pair.writer.readers.all[0].blocked > 0


def test_memory_too_small_is_refused_with_figures():
    with pytest.raises(DataError, match="E0809") as caught:
        plan_layout([Column("image", "u8", (3, 224, 224))], 256, 1 << 20)
    assert "memory=" in str(caught.value) and "1.0 MB" in str(caught.value)
    with pytest.raises(DataError, match="E0809"):
        plan_layout([Column("image", "u8", (1 << 20,))], 1 << 20, None)


def hold_nobody(pair):
    """The writer waits for no reader."""
    pair.writer.quick = None
    pair.writer.readers.least = lambda: pair.writer.head


def write_four(pair, first):
    """Rows of an empty image whose ids and positions go on from `first`."""
    room = pair.sink.reserve(4)
    rows = np.arange(first, first + 4)
    for name, values in (("image", np.zeros((4, 601), np.uint8)), ("_id", rows.astype(np.uint64)),
                         ("_next", rows + 1), ("_skip", 0 * rows), ("_count", 0 * rows + 1)):
        array(room.address[name], values.shape, values.dtype)[:] = values
    pair.sink.commit(room, 4)


def test_a_batch_larger_than_a_part_of_the_ring_has_no_gap():
    """Who may lose rows and is overtaken while it gathers a batch begins that batch anew, behind the gap."""
    columns = [Column("image", "u8", (601,))]
    with Pair(columns, most=16, chunk=4, when_slow="skip") as pair:
        hold_nobody(pair)
        put = iter(range(0, 10_000, 4))

        def write(count):
            for first in itertools.islice(put, count // 4):
                write_four(pair, first)

        write(pair.layout.capacity // 2)
        keep, pieces = pair.reader._kept, []

        def overtaken(value):
            if not pieces:                                # after the first piece, once
                write(2 * pair.layout.capacity)
            pieces.append(value)
            return keep(value)

        pair.reader._kept = overtaken
        n = pair.reader.most + 5
        got = pair.reader.take(n).fields["_id"].astype(np.int64)
        assert got.tolist() == list(range(int(got[0]), int(got[0]) + n)) and got[0] > pair.layout.capacity
        assert pair.reader.lost == got[0] and pair.reader.rows == n


@pytest.mark.parametrize("target", [3, 500, 990])
@pytest.mark.parametrize("ends", [False, True])
def test_rows_before_a_place_are_not_lost(target, ends):
    """Who may lose rows and is overtaken on the way to its place has lost only what came after that place."""
    with Pair([Column("image", "u8", (601,))], most=16, chunk=4, when_slow="skip") as pair:
        hold_nobody(pair)
        for first in range(0, 1000, 4):
            write_four(pair, first)
        if ends:
            pair.sink.end_epoch(0)
        assert pair.writer.at.intact > 500
        pair.reader.skip_to(target, 0, 1000)
        came = int(pair.reader.take(1).fields["_id"][0])
        assert came >= target and pair.reader.lost == came - target
        if target == 990:
            assert came == target


def test_of_an_epoch_that_is_passed_over_nothing_is_lost():
    with Pair([Column("image", "u8", (601,))], most=16, chunk=4, when_slow="skip") as pair:
        hold_nobody(pair)
        for _ in range(100):
            room = pair.sink.reserve(4)
            pair.sink.commit(room, 4)
        pair.sink.end_epoch(0)
        pair.reader.skip_epoch()
        assert (pair.reader.ends, pair.reader.lost) == (1, 0)
