"""One loader in a process of its own: `python -m benchmarks.measure WORKLOAD PEER THREADS SECONDS` prints JSON.

`--there PEER …` prints which of these peers are installed.

Time to the first batch counts from before the loader is imported. CPU seconds are those of the whole process tree,
PSS its largest sum (shared pages counted once).
"""
from __future__ import annotations

import json
import os
import sys
import threading
import time

for _library in ("OMP", "OPENBLAS", "MKL"):   # before anything loads them: threads of theirs would fight with the loader's
    os.environ.setdefault(f"{_library}_NUM_THREADS", "1")


def main(workload: str, peer: str, threads: int, seconds: float) -> None:
    import psutil

    from .peers import PEERS

    started = time.perf_counter()
    epochs = PEERS[workload][peer](workload, threads)
    process, peak, over = psutil.Process(), [0], threading.Event()
    watching = [0.0]   # CPU seconds that looking at memory took, which aren't the loader's

    def watch() -> None:
        while not over.wait(0.3):
            peak[0] = max(peak[0], _pss(process))
            watching[0] = time.thread_time()

    watcher = threading.Thread(target=watch, daemon=True)
    first, epoch, records = 0.0, 0, 0
    begin = cpu = 0.0
    end = float("inf")
    shape: list[int] = []
    dtype = ""
    while time.perf_counter() < end:
        for batch in epochs(epoch):
            now = time.perf_counter()
            image = batch[0]
            if not first:
                first, shape, dtype = now - started, [int(n) for n in image.shape], str(image.dtype).rpartition(".")[2]
                watcher.start()
            elif not begin and now - started > first + 1.0:   # warm-up: one second after the first batch
                begin, cpu, end = now, _cpu(process) - watching[0], now + seconds
            elif begin:
                records += len(image)
            if now > end:
                break
        epoch += 1
    took, spent = time.perf_counter() - begin, _cpu(process) - watching[0] - cpu
    over.set()
    result = {"records": records, "seconds": took, "cpu": spent, "first": first, "pss": peak[0], "shape": shape,
              "dtype": dtype}
    print(json.dumps(result), flush=True)
    for child in process.children(recursive=True):
        child.kill()
    os._exit(0)   # without the clean-up of loaders whose workers are gone


def _cpu(process: object) -> float:
    import psutil

    assert isinstance(process, psutil.Process)
    total = 0.0
    for p in (process, *process.children(recursive=True)):
        try:
            times = p.cpu_times()
            total += times.user + times.system
        except psutil.Error:
            continue
    return total


def _pss(process: object) -> int:
    import psutil

    assert isinstance(process, psutil.Process)
    total = 0
    for p in (process, *process.children(recursive=True)):
        try:
            with open(f"/proc/{p.pid}/smaps_rollup") as file:
                total += sum(int(line.split()[1]) for line in file if line.startswith("Pss:"))
        except (OSError, psutil.Error):
            continue
    return total * 1024


if __name__ == "__main__":
    if sys.argv[1] == "--there":
        import psutil  # noqa: F401 (without it nothing is measured)

        from .peers import there

        print("\n".join(filter(there, sys.argv[2:])))
        sys.exit()
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4]))
