"""`python -m benchmarks W1 [W1u8 W4] [--rounds 5] [--seconds 6] [--threads 2]`: interleaved, medians, ratios to the best peer."""
from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from . import data
from .peers import BATCH, PEERS

ROOT = Path(__file__).parent.parent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workloads", nargs="+", choices=sorted(PEERS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--threads", type=int, default=min(2, os.cpu_count() or 1))
    options = parser.parse_args()
    print(machine())
    for workload in options.workloads:
        data.cifar() if workload == "W4" else data.images()
        results = interleaved(workload, options.rounds, options.seconds, options.threads)
        print(table(workload, results))


def machine() -> str:
    """What the figures were measured on."""
    cpu = platform.processor()
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else ():
        if line.startswith("model name"):
            cpu = line.partition(":")[2].strip()
            break
    packages = ("pipec", "torch", "numpy", "numba", "pillow", "simplejpeg", "opencv-python-headless")
    versions = []
    for package in packages:
        try:
            versions.append(f"{package} {importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    return f"{os.cpu_count()} cores, {cpu}; Python {platform.python_version()}, {', '.join(versions)}"


def interleaved(workload: str, rounds: int, seconds: float, threads: int) -> dict[str, list[dict[str, Any]]]:
    """Results of every peer, one run of each per round; a peer that fails is reported and left out."""
    results: dict[str, list[dict[str, Any]]] = {name: [] for name in PEERS[workload]}
    for number in range(rounds):
        for name in list(results):
            command = [sys.executable, "-m", "benchmarks.measure", workload, name, str(threads), str(seconds)]
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300 + 10 * seconds)
            try:
                results[name].append(json.loads(done.stdout.strip().splitlines()[-1]))
            except (IndexError, ValueError):
                reason = (done.stderr.strip().splitlines() or ["no output"])[-1]
                print(f"  {name}: left out: {reason}", file=sys.stderr)
                del results[name]
                continue
            last = results[name][-1]
            print(f"  round {number + 1}, {name}: {last['records'] / last['cpu']:,.0f} records per CPU second", file=sys.stderr)
    return results


def table(workload: str, results: dict[str, list[dict[str, Any]]]) -> str:
    """Medians, and ours as ratios to each peer."""
    def median(name: str, of: Any) -> float:
        return statistics.median(of(r) for r in results[name])

    rates = {n: median(n, lambda r: r["records"] / r["cpu"]) for n in results}
    lines = [f"{workload}: batches of {BATCH[workload]}, medians of {min(map(len, results.values()))}",
             f"{'':24}{'per CPU s':>12}{'ours/it':>9}{'per s':>10}{'first batch':>13}{'peak PSS':>11}"]
    for name in results:
        ratio = rates["pipec"] / rates[name] if "pipec" in rates else float("nan")
        lines.append(f"{name:24}{rates[name]:12,.0f}{ratio:9.2f}{median(name, lambda r: r['records'] / r['seconds']):10,.0f}"
                     f"{median(name, lambda r: r['first']):11.2f} s{median(name, lambda r: r['pss']) / 2**20:8,.0f} MiB")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
