"""`python -m benchmarks W1 [W1u8 W2 …] [--against dali,albumentations]`: interleaved runs, medians, ratios to each peer.

Every round runs each loader once, in a process of its own. Peers may live in other environments (`--python PATH`); those
that aren't there are named and left out. The last table states machine, versions, rounds and ratios.
"""
from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

from .limits import plain_c
from .peers import PEERS, PREPARE
from .report import Results, machine, summary, table

ROOT = Path(__file__).parent.parent
OTHERS = {   # modules with a `main(arguments)` of their own
    "counters": "what the counts that `pipec top` shows cost",
    "busy": "W1's loader beside a busy trainer, each against what it does alone",
    "kernel": "crop, resize, mirror and normalise alone, against Pillow",
    "share": "one stream for k training processes, against tf.data service, TensorSocket and loaders of their own",
    "start": "time to the first batch, compiled and not",
}
WORK = {
    "W1": "JPEG → random-resized-crop 224 → flip → normalise → f32 NCHW, batches of 128", "W1u8": "the same as u8 NHWC",
    "W2": "JPEG → resize 256 → centre crop 224 → normalise", "W3": "W1 on photos 4000 px wide, decoded at a lower scale",
    "W3full": "W3, every pixel decoded", "W4": "CIFAR: shift, flip, normalise, f16, batches of 512",
    "W5": "windows of 1,025 tokens in random order, batches of 64",
    "W6": "Parquet: gaps, logarithms, hashes, buckets, batches of 8,192", "W7": "WAV and FLAC → log-mel 80, padded batches of 32",
}


def main() -> None:
    if sys.argv[1:2] and sys.argv[1] in OTHERS:
        importlib.import_module(f".{sys.argv[1]}", __package__).main(sys.argv[2:])
        return
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", formatter_class=argparse.RawDescriptionHelpFormatter, description=__doc__,
        epilog=listed("workloads", WORK) + "\n\n" + listed("other measurements (each with --help of its own)", OTHERS))
    parser.add_argument("workloads", nargs="+", choices=sorted(PEERS), metavar="W1", help="one or more, see below")
    parser.add_argument("--against", metavar="NAME,…", help="peers; default: all that are installed")
    parser.add_argument("--python", action="append", default=[], metavar="PATH",
                        help="an interpreter that has peers, may be given more than once; a peer runs in the first that has it")
    parser.add_argument("--rounds", type=int, default=5, help="runs of each loader (default: 5)")
    parser.add_argument("--seconds", type=float, default=6.0, help="of each run, after a second of warm-up (default: 6)")
    parser.add_argument("--threads", type=int, default=min(2, os.cpu_count() or 1), help="or workers, of each loader")
    parser.add_argument("--no-limits", action="store_true", help="leave out the plain C programs")
    options = parser.parse_args()
    known = {name for workload in options.workloads for name in PEERS[workload]} - {"pipec"}
    if unknown := set(options.against.split(",") if options.against else ()) - known:
        parser.error(f"no such peer: {', '.join(sorted(unknown))}; there are {', '.join(sorted(known))}")
    options.python = [*dict.fromkeys([*options.python, sys.executable])]
    print(heading := machine(options.python), flush=True)
    found: dict[str, Results] = {}
    for workload in options.workloads:
        PREPARE[workload]()
        commands = {n: command(workload, n, python, options) for n, python in chosen(workload, options).items()}
        if not options.no_limits:
            commands |= plain_c(workload, options.threads, options.seconds)
        found[workload] = interleaved(commands, options.rounds, options.seconds)
        if found[workload]:
            print(table(workload, found[workload], options.threads), flush=True)
    print(summary(found, options, heading))


def listed(title: str, entries: dict[str, str]) -> str:
    return "\n".join([f"{title}:", *(f"  {name:10}{what}" for name, what in entries.items())])


def chosen(workload: str, options: argparse.Namespace) -> dict[str, str]:
    """pipec and the peers that are asked for and installed, each with its interpreter; says which aren't."""
    known = [n for n in PEERS[workload] if n != "pipec"]
    asked = [n for n in options.against.split(",") if n in known] if options.against else known
    has = {python: installed(python, asked) for python in options.python}
    found = {"pipec": sys.executable}
    for name in asked:
        where = next((python for python in options.python if name in has[python]), None)
        if where is None:
            print(f"  {name}: left out, it isn't installed")
        else:
            found[name] = where
    return found


def installed(python: str, names: list[str]) -> list[str]:
    """Which of these peers that interpreter has; says so where it can't measure."""
    done = subprocess.run([python, "-m", "benchmarks.measure", "--there", *names], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        print(f"  {python}: not used: {(done.stderr.strip().splitlines() or ['it failed'])[-1]}")
        return []
    return done.stdout.split("\n")


def command(workload: str, name: str, python: str, options: argparse.Namespace) -> list[str]:
    return [python, "-m", "benchmarks.measure", workload, name, str(options.threads), str(options.seconds)]


def interleaved(commands: dict[str, list[str]], rounds: int, seconds: float) -> Results:
    """Results of every loader, one run of each per round; one that fails is reported and left out."""
    results: Results = {name: [] for name in commands}
    for number in range(rounds):
        for name in list(results):
            try:
                done = subprocess.run(commands[name], cwd=ROOT, capture_output=True, text=True, timeout=120 + 10 * seconds)
                last = json.loads(done.stdout.strip().splitlines()[-1])
            except (IndexError, ValueError, subprocess.TimeoutExpired) as e:
                late = isinstance(e, subprocess.TimeoutExpired)
                reason = "no end in sight" if late else (done.stderr.strip().splitlines() or ["no output"])[-1]
                print(f"  {name}: left out: {reason}", flush=True)
                del results[name]
                continue
            results[name].append(last)
            print(f"  round {number + 1}, {name}: {last['records'] / last['cpu']:,.0f} records per CPU second", file=sys.stderr)
    return results


if __name__ == "__main__":
    main()
