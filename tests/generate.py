"""Many generated programs, machine code against the reference: `python tests/generate.py 20000 --log generated.log`.

Programs come in blocks, each with a seed of its own, so that a run can be split and repeated (`--first`). What differs
is shrunk to a short program and written to the log; the run goes on with the next block. With `--cuda` kernels are CUDA texts
on the host, and what differs isn't shrunk.
"""
from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path

BLOCK = 50


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("count", type=int, help="programs to run, in blocks of 50")
    parser.add_argument("--first", type=int, default=0, help="number of the first block")
    parser.add_argument("--log", type=Path, default=Path("generated.log"))
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no block after this time")
    parser.add_argument("--cuda", action="store_true", help="kernels as CUDA texts on the host")
    options = parser.parse_args()
    started, failed, ran, words = time.monotonic(), 0, 0, Counter[str]()
    with tempfile.TemporaryDirectory() as folder, options.log.open("a", encoding="utf-8") as log:
        os.environ["PIPEC_CACHE"] = folder
        from generated_data import write_data

        data = Path(folder) / "d.npz"
        write_data(str(data))
        for number in range(options.first, options.first + -(-options.count // BLOCK)):
            if time.monotonic() - started > options.seconds:
                break
            failure = (on_host if options.cuda else block)(number, data, words)
            ran += BLOCK
            failed += failure is not None
            if failure is not None:
                print(f"=== block {number} differs\n{failure}", file=log, flush=True)
            told = f"{ran:,} programs, {failed} blocks with a difference, {time.process_time():,.0f} CPU s"
            print(f"block {number}: {told}", file=log, flush=True)
            print(told, file=sys.stderr)
        print("stages and functions met: " + ", ".join(f"{w} {n}" for w, n in words.most_common()), file=log, flush=True)
    return 1 if failed else 0


def block(number: int, data: Path, words: Counter[str]) -> str | None:
    """Run one block; the shrunk program and what went wrong, None where all agree."""
    from hypothesis import HealthCheck, Phase, given, seed, settings
    from programs import cases, programs
    from test_generated import compare

    last = {}

    @seed(number)
    @settings(max_examples=BLOCK, deadline=None, database=None, print_blob=False, report_multiple_bugs=False,
              phases=(Phase.generate, Phase.shrink), suppress_health_check=list(HealthCheck))
    @given(text=programs(), case=cases())
    def run(text: str, case: object) -> None:
        last["said"] = f"{case}\n{text}"
        words.update(set(re.findall(r"\b([a-z_]+)\(", text)))
        compare(text, data, case)

    try:
        run()
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        return f"{last['said']}\n{told(error)}"
    return None


def told(error: BaseException) -> str:
    """Where it went wrong, and what was said."""
    return "".join(traceback.format_tb(error.__traceback__)[-3:]) + f"{type(error).__name__}: {str(error)[:2000]}"


def on_host(number: int, data: Path, words: Counter[str]) -> str | None:
    """Run one block with kernels that are CUDA texts; the first program that differs and what went wrong."""
    import pytest
    from hypothesis import HealthCheck, Phase, given, seed, settings
    from programs import programs
    from test_cuda import compare_on_host
    from test_cuda import on_host as made

    texts: list[str] = []

    @seed(number)
    @settings(max_examples=BLOCK, deadline=None, database=None, phases=(Phase.generate,), suppress_health_check=list(HealthCheck))
    @given(text=programs())
    def draw(text: str) -> None:
        texts.append(text)

    draw()
    text = "\n".join(texts)
    try:
        for text, (program, compiled, host) in zip(texts, made(texts, data), strict=True):
            words.update(set(re.findall(r"\b([a-z_]+)\(", text)))
            with pytest.MonkeyPatch.context() as patch:
                compare_on_host(program, compiled, host, patch)
    except Exception as error:
        return f"{text}\n{told(error)}"
    return None


if __name__ == "__main__":
    sys.exit(main())
