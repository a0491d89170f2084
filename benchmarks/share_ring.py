"""The ring that one writes by hand, as a peer of sharing: four slots of a batch, a semaphore each way for each consumer."""
from __future__ import annotations

import multiprocessing
import multiprocessing.shared_memory
from collections.abc import Iterator
from typing import Any

import numpy as np

from .share import BATCH, SHAPE, Batch, measured

SLOTS = 4


def plain_ring(k: int, seconds: float, copy: bool, pause: float = 0.0) -> list[dict[str, Any]]:
    """Results of k consumers. With `copy` the producer writes each batch into its slot, else it only says that it is there."""
    context = multiprocessing.get_context("spawn")
    memory = multiprocessing.shared_memory.SharedMemory(create=True, size=SLOTS * BATCH * int(np.prod(SHAPE)))
    full, free = [context.Semaphore(0) for _ in range(k)], [context.Semaphore(SLOTS) for _ in range(k)]
    out: Any = context.Queue()
    producer = context.Process(target=_plain_producer, args=(memory.name, full, free, copy), daemon=True)
    consumers = [context.Process(target=_plain_consumer, args=(memory.name, full[j], free[j], seconds, pause, out))
                 for j in range(k)]
    try:
        for process in (producer, *consumers):
            process.start()
        results = [out.get(timeout=60 + seconds) for _ in consumers]
        for process in consumers:
            process.join()
        return results
    finally:
        producer.kill()
        memory.close()
        memory.unlink()


def _slots(name: str) -> tuple[Any, np.ndarray]:
    memory = multiprocessing.shared_memory.SharedMemory(name=name)
    return memory, np.ndarray((SLOTS, BATCH, *SHAPE), np.uint8, memory.buf)


def _plain_producer(name: str, full: list[Any], free: list[Any], copy: bool) -> None:
    _memory, slots = _slots(name)
    source = [np.random.default_rng(k).integers(0, 256, (BATCH, *SHAPE), np.uint8) for k in range(4)]
    slots[:] = 0
    turn = 0
    while True:
        for semaphore in free:
            semaphore.acquire()
        if copy:
            np.copyto(slots[turn % SLOTS], source[turn % 4])
        for semaphore in full:
            semaphore.release()
        turn += 1


def _plain_consumer(name: str, full: Any, free: Any, seconds: float, pause: float,
                    out: Any) -> None:
    _memory, slots = _slots(name)

    def batches() -> Iterator[Any]:
        turn = 0
        while True:
            full.acquire()
            yield Batch(slots[turn % SLOTS])
            free.release()
            turn += 1

    made = batches()
    next(made)
    out.put(measured(made, "image", seconds, pause))
    for _ in range(4 * SLOTS):                            # the producer serves the others without us
        free.release()
