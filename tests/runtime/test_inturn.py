"""Tasks on threads are delivered in order, whatever ends first; what goes wrong is raised in its turn."""
from __future__ import annotations

import threading

import pytest
from pipec.runtime.inturn import InTurn

LONG = 60


def run(threads, count, work, deliver=None):
    """What was delivered of tasks 0 … count - 1, in a list that is there if it raises, too."""
    tasks, got = iter(range(count)), []

    def delivered(task, result):
        got.append((task, result))
        if deliver is not None:
            deliver(task)

    return InTurn(threads, lambda: next(tasks, None), work, delivered), got


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("count", [0, 1, 3, 200])
def test_all_in_order(threads, count):
    turn, got = run(threads, count, lambda task: task * task)
    turn.run()
    assert got == [(k, k * k) for k in range(count)]


def test_the_first_ends_last():
    others = threading.Semaphore(0)

    def work(task):
        if task == 0:
            for _ in range(5):                            # 1 to 5: as many as may be drawn beside it with two threads
                assert others.acquire(timeout=LONG)
        else:
            others.release()
        return task

    turn, got = run(2, 40, work)
    turn.run()
    assert [task for task, _ in got] == list(range(40))


def test_few_are_ahead():
    most, turn, lock = [0], None, threading.Lock()

    def work(task):
        with lock:
            most[0] = max(most[0], turn.drawn - turn.delivered)

    turn, got = run(3, 300, work)
    turn.run()
    assert len(got) == 300 and most[0] <= turn.most


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("where", ["draw", "work", "deliver"])
def test_an_error_comes_in_its_turn(threads, where):
    tasks, got = iter(range(100)), []

    def met(place, task):
        if place == where and task == 20:
            raise KeyError(place)
        return task

    def deliver(task, result):
        met("deliver", task)
        got.append(result)

    with pytest.raises(KeyError, match=where):
        InTurn(threads, lambda: met("draw", next(tasks, None)), lambda task: met("work", task), deliver).run()
    assert got == list(range(20))


def test_who_waits_for_a_task_is_not_waited_for():
    """A draw that waits for room, which nobody will make after an error."""
    waits, go_on, drawn = threading.Event(), threading.Event(), iter(range(3))

    def draw():
        task = next(drawn)
        if task == 1:
            waits.set()
            assert go_on.wait(LONG)
        return task

    def work(task):
        assert waits.wait(LONG)
        raise KeyError("bad")

    turn = InTurn(2, draw, work, lambda task, result: None)
    with pytest.raises(KeyError, match="bad"):
        turn.run()
    assert not go_on.is_set()
    go_on.set()
    assert turn.drawing.acquire(timeout=LONG)             # it has let go of what it got
    assert turn.drawn == 1
