"""Functions for test_workers.py: slow, wrong and deadly ones."""
import ctypes
import os
import time

import numpy as np


def together(x):
    """Holds the interpreter until another process is here, for two minutes at most: how many there are."""
    folder = os.environ["PIPEC_TEST_FOLDER"]
    open(os.path.join(folder, str(os.getpid())), "w").close()
    hold = ctypes.PyDLL(None).usleep
    for _ in range(24_000):
        if len(os.listdir(folder)) > 1:
            break
        hold(5000)
    return np.int64(len(os.listdir(folder)))


def first_waits(x):
    """At 0, until 40 others are done, for two minutes at most: how many are."""
    folder = os.environ["PIPEC_TEST_FOLDER"]
    if int(x):
        open(os.path.join(folder, str(int(x))), "w").close()
        return np.int64(0)
    for _ in range(24_000):
        if len(os.listdir(folder)) >= 40:
            break
        time.sleep(0.005)
    return np.int64(len(os.listdir(folder)))


def tripled(x):
    return np.int64(3 * x)


def shaped(x):
    return np.arange(int(x) % 5, dtype=np.float32) + np.float32(x)


def named(x):
    return f"record {int(x)}"


def where(x):
    return np.int64(os.getpid())


def wrong_at_seven(x):
    if int(x) == 7:
        raise ValueError("seven")
    return np.int64(x)


def deadly_at_seven(x):
    if int(x) == 7:
        os._exit(3)
    return np.int64(x)


def deadly_once(x):
    """The first process that comes to 7 ends."""
    if int(x) == 7:
        try:
            os.close(os.open(os.environ["PIPEC_TEST_ONCE"], os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return np.int64(x)
        os.kill(os.getpid(), 9)
    return np.int64(x)


def endless(x):
    if int(x) == 15:
        open(os.environ["PIPEC_TEST_ONCE"], "w").close()
        time.sleep(3600)
    return np.int64(x)
