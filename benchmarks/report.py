"""What a run says: on which machine, with which versions, each workload's figures, and one table of ratios at the end."""
from __future__ import annotations

import importlib.metadata
import os
import platform
import statistics
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from .peers import BATCH, DIFFERS

Result = dict[str, Any]
Results = dict[str, list[Result]]
PACKAGES = ("torch", "numpy", "numba", "pillow", "simplejpeg", "opencv-python-headless", "albumentations", "torchvision",
            "webdataset", "nvidia-dali-cuda120", "spdl-core", "ffcv", "tensorflow-cpu", "tensorsocket", "grain", "polars",
            "pyarrow", "pandas", "librosa", "soxr", "soundfile", "torchaudio")


def machine(pythons: Sequence[str]) -> str:
    """What the figures were measured on: cores, system, our version, and the packages of each interpreter."""
    cpu = platform.processor()
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else ():
        if line.startswith("model name"):
            cpu = line.partition(":")[2].strip()
            break
    from pipec.kernels.jpeg import usable

    decoders = ", ".join(p.name for p in usable()) or "simplejpeg alone"
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    lines = [f"{cores} cores, {cpu}, {platform.system()} {platform.release()}; pipec {importlib.metadata.version('pipec')}, "
             f"parts of JPEGs by {decoders}"]
    lines += [f"  {python}: {versions(python)}" for python in pythons]
    return "\n".join(lines)


def versions(python: str) -> str:
    script = ("import importlib.metadata as m, platform\nprint('Python', platform.python_version())\n"
              f"for d in {PACKAGES!r}:\n try: print(d, m.version(d))\n except Exception: pass")
    return ", ".join(subprocess.run([python, "-c", script], capture_output=True, text=True).stdout.splitlines())


def median(results: Sequence[Result], of: Callable[[Result], float]) -> float:
    return statistics.median(of(r) for r in results)


def per_cpu(result: Result) -> float:
    return float(result["records"]) / float(result["cpu"])


def per_second(result: Result) -> float:
    return float(result["records"]) / float(result["seconds"])


def table(workload: str, results: Results, threads: int) -> str:
    """Medians of one workload, and ours as ratios to each."""
    runs = min(map(len, results.values()))
    lines = [f"{workload}: batches of {BATCH[workload]}, {threads} threads or workers, medians of {runs}",
             f"{'':16}{'per s':>11}{'CPU s per 1,000':>17}{'ours/it, per CPU s':>20}{'per s':>8}{'first batch':>13}"
             f"{'peak PSS':>11}"]
    for name, found in results.items():
        cpu, wall = ratio(results, name, per_cpu), ratio(results, name, per_second)
        first, pss = median(found, lambda r: r["first"]), median(found, lambda r: r["pss"]) / 2**20
        start = f"{first:11.2f} s{pss:7,.0f} MiB" if first else ""
        lines.append(f"{name:16}{median(found, per_second):11,.0f}{1000 / median(found, per_cpu):17.4g}{cpu:20.2f}"
                     f"{wall:8.2f}{start}")
    for name in results:
        for unlike in (DIFFERS[workload].get(name), other_batches(results, name)):
            if unlike:
                lines.append(f"  {name}: {unlike}")
    return "\n".join(lines)


def ratio(results: Results, name: str, of: Callable[[Result], float]) -> float:
    return median(results["pipec"], of) / median(results[name], of) if "pipec" in results else float("nan")


def other_batches(results: Results, name: str) -> str:
    """Says so where a peer's batches have another dtype or shape than ours; lengths that differ by batch aren't meant."""
    ours, its = results.get("pipec"), results[name][0]
    if not ours or not its.get("dtype"):
        return ""
    mine = ours[0]
    ends = [(len(shape), shape[0], shape[-1]) for shape in (mine["shape"], its["shape"])]
    if ends[0] == ends[1] and mine["dtype"] == its["dtype"]:
        return ""
    return f"its batches are {its['dtype']}{its['shape']}, ours {mine['dtype']}{mine['shape']}"


def summary(found: dict[str, Results], options: Any, heading: str) -> str:
    """One table for the whole run: machine, versions, rounds, and our ratio to each peer, the best peer first."""
    lines = ["", heading, f"{options.rounds} rounds of {options.seconds:g} s, interleaved, every loader in a process of its own, "
             f"{options.threads} threads or workers; medians; ours divided by the peer's (first batch, PSS: less is better)",
             f"{'work':8}{'peer':18}{'per CPU second':>15}{'per second':>12}{'first batch':>13}{'peak PSS':>10}"]
    for workload, results in found.items():
        peers = sorted((n for n in results if n != "pipec"), key=lambda n: -median(results[n], per_cpu))
        for name in peers if "pipec" in results else ():
            ratios = f"{ratio(results, name, per_cpu):15.2f}{ratio(results, name, per_second):12.2f}"
            if median(results[name], lambda r: r["first"]):
                ratios += f"{ratio(results, name, lambda r: r['first']):13.2f}{ratio(results, name, lambda r: r['pss']):10.2f}"
            lines.append(f"{workload:8}{name:18}{ratios}")
    return "\n".join(lines)
