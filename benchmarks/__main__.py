"""`python -m benchmarks W1 [W1u8 W2 …] [--against dali,albumentations]`: interleaved runs, medians, ratios to each peer.

Every round runs each loader once, in a process of its own. Peers may live in another environment (`--python PATH`); those
that aren't there are named and left out. `python -m benchmarks busy` and the like measure what isn't a loader's speed.
"""
from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from . import image_peers
from .peers import BATCH, DIFFERS, PEERS, PREPARE

ROOT = Path(__file__).parent.parent
OTHERS = ("busy", "kernel", "share", "start")   # modules with a `main(arguments)` of their own
LIMITS = {"W1": ("full", "region"), "W1u8": (), "W2": (), "W3": ("full", "scaled"), "W3full": ("full", "region")}
Result = dict[str, Any]


def main() -> None:
    if sys.argv[1:2] and sys.argv[1] in OTHERS:
        importlib.import_module(f".{sys.argv[1]}", __package__).main(sys.argv[2:])
        return
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("workloads", nargs="+", choices=sorted(PEERS), metavar=f"{{{','.join(sorted(PEERS))}}}")
    parser.add_argument("--against", metavar="NAME,…", help="peers; default: all that are installed")
    parser.add_argument("--python", default=sys.executable, metavar="PATH", help="the interpreter that has the peers")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--threads", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--no-limits", action="store_true", help="leave out the plain C programs")
    options = parser.parse_args()
    print(machine(options.python))
    for workload in options.workloads:
        PREPARE[workload]()
        names = chosen(workload, options.against, options.python)
        commands = {n: command(workload, n, options) for n in names}
        if not options.no_limits:
            commands |= limits(workload, options)
        results = interleaved(commands, options.rounds, options.seconds)
        print(table(workload, results, options.threads))


def chosen(workload: str, against: str | None, python: str) -> list[str]:
    """pipec and the peers that are asked for and installed; says which aren't."""
    listed = against.split(",") if against else [n for n in PEERS[workload] if n != "pipec"]
    found = ["pipec"]
    for name in listed:
        if name not in PEERS[workload]:
            print(f"  {name}: no such peer for {workload}; there are {', '.join(n for n in PEERS[workload] if n != 'pipec')}")
        elif subprocess.run([python, "-m", "benchmarks.measure", name], cwd=ROOT, capture_output=True).returncode:
            print(f"  {name}: left out, it isn't installed")
        else:
            found.append(name)
    return found


def command(workload: str, name: str, options: argparse.Namespace) -> list[str]:
    python = sys.executable if name == "pipec" else options.python
    return [python, "-m", "benchmarks.measure", workload, name, str(options.threads), str(options.seconds)]


def limits(workload: str, options: argparse.Namespace) -> dict[str, list[str]]:
    """The plain C programs of this workload, if a compiler and libjpeg-turbo are there."""
    modes = LIMITS.get(workload, ())
    if not modes:
        return {}
    folder = Path(tempfile.mkdtemp(prefix="pipec-limit-"))
    compiler = shutil.which("gcc") or shutil.which("cc")
    built = folder / "limit"
    source = str(ROOT / "benchmarks" / "limit.c")
    flags = ["-O3", "-march=native", "-ffast-math", source, "-o", str(built), "-ljpeg", "-lm", "-lpthread"]
    if compiler is None or subprocess.run([compiler, *flags], capture_output=True).returncode:
        print("  plain C: left out, it needs a C compiler and libjpeg-turbo's headers")
        return {}
    (folder / "files").write_text("".join(f"{f}\n" for f in image_peers.files(workload)))
    return {f"plain C, {m}": [str(built), str(folder / "files"), str(options.seconds), str(options.threads), m] for m in modes}


def machine(python: str) -> str:
    """What the figures were measured on."""
    cpu = platform.processor()
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else ():
        if line.startswith("model name"):
            cpu = line.partition(":")[2].strip()
            break
    script = f"import importlib.metadata as m\nfor d in {PACKAGES!r}:\n try: print(d, m.version(d))\n except Exception: pass"
    listed = subprocess.run([python, "-c", script], capture_output=True, text=True).stdout.split("\n")
    decoders = ", ".join(p.name for p in _providers())
    return (f"{os.cpu_count()} cores, {cpu}; Python {platform.python_version()}, pipec {importlib.metadata.version('pipec')} "
            f"(windows of JPEGs: {decoders or 'simplejpeg alone'}); {', '.join(filter(None, listed))}")


PACKAGES = ("torch", "numpy", "numba", "pillow", "simplejpeg", "opencv-python-headless", "albumentations", "torchvision",
            "webdataset", "nvidia-dali-cuda120", "spdl-core", "ffcv", "tensorflow-cpu", "grain", "polars", "pyarrow", "librosa",
            "torchaudio")


def _providers() -> Any:
    from pipec.kernels.jpeg import usable

    return usable()


def interleaved(commands: dict[str, list[str]], rounds: int, seconds: float) -> dict[str, list[Result]]:
    """Results of every loader, one run of each per round; one that fails is reported and left out."""
    results: dict[str, list[Result]] = {name: [] for name in commands}
    for number in range(rounds):
        for name in list(results):
            done = subprocess.run(commands[name], cwd=ROOT, capture_output=True, text=True, timeout=300 + 10 * seconds)
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


def table(workload: str, results: dict[str, list[Result]], threads: int) -> str:
    """Medians, and ours as ratios to each peer."""
    def median(name: str, of: Any) -> float:
        return statistics.median(of(r) for r in results[name])

    rates = {n: median(n, lambda r: r["records"] / r["cpu"]) for n in results}
    runs = min(map(len, results.values()))
    lines = [f"{workload}: batches of {BATCH[workload]}, {threads} threads or workers, medians of {runs}",
             f"{'':16}{'per s':>10}{'CPU s per 1,000':>17}{'ours/it':>9}{'first batch':>13}{'peak PSS':>11}"]
    for name in results:
        ratio = rates["pipec"] / rates[name] if "pipec" in rates else float("nan")
        first, pss = median(name, lambda r: r["first"]), median(name, lambda r: r["pss"]) / 2**20
        speed = median(name, lambda r: r["records"] / r["seconds"])
        start = f"{first:11.2f} s{pss:8,.0f} MiB" if first else ""
        lines.append(f"{name:16}{speed:10,.0f}{1000 / rates[name]:17.4g}{ratio:9.2f}{start}"
                     + (f"   {DIFFERS[name]}" if name in DIFFERS else ""))
    peers = [n for n in results if n != "pipec" and not n.startswith("plain C")]
    if peers and "pipec" in rates:
        best = max(peers, key=lambda n: rates[n])
        lines.append(f"best peer: {best}; pipec delivers {rates['pipec'] / rates[best]:.2f} × its records per CPU second")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
