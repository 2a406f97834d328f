"""Many programs one after the other, whatever fails; a run can be stopped and taken up again."""

import argparse
import collections
import contextlib
import datetime
import re
import subprocess
import sys
import threading
import time
import warnings
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path
from typing import TextIO

import jax

from .generate import generate
from .running import Invalid, check

_CLEAR_EVERY = 20
_DONE = re.compile(r"^(?:fine|invalid|FAILED) (\d+)\b")


def outcome(seed: int) -> str:
    """One line: "fine SEED", "invalid SEED why" or "FAILED SEED why"."""
    warnings.simplefilter("ignore")
    try:
        check(seed)
    except Invalid as error:
        return f"invalid {seed} {_short(error)}"
    except Exception as error:
        return f"FAILED {seed} {type(error).__name__}: {_short(error)}"
    finally:
        if seed % _CLEAR_EVERY == 0:
            jax.clear_caches()  # thousands of compiled programs would fill the memory
    return f"fine {seed}"


def _short(error: Exception) -> str:
    return " ".join(str(error).split())[:200]


_worker = threading.local()


def _alone(seed: int) -> str:
    """The outcome in a process of this thread's own, which a program may end."""
    if not hasattr(_worker, "pool"):
        _worker.pool = ProcessPoolExecutor(1, mp_context=get_context("spawn"), max_tasks_per_child=200)
    try:
        line = _worker.pool.submit(outcome, seed).result()
    except BrokenProcessPool:
        line = f"FAILED {seed} the process died"
    if line.startswith("FAILED"):  # an effect that failed fails every program after it in the same process
        _worker.pool.shutdown(wait=False)
        del _worker.pool
    return line


def many(first: int, count: int, processes: int, log: Path | None) -> bool:
    """Run ``count`` seeds from ``first`` on, but for those that ``log`` has. Whether all were right."""
    done = _read(log)
    seeds = [s for s in range(first, first + count) if s not in done]
    start = time.perf_counter()
    print(f"{_now()} commit {_commit()}: seeds {first} to {first + count - 1}, {len(seeds)} of them to run", flush=True)
    found = collections.Counter(line.split()[0] for s, line in done.items() if first <= s < first + count)
    with ThreadPoolExecutor(processes) as threads, _opened(log) as file:
        for k, line in enumerate(threads.map(_alone, seeds), 1):
            found[line.split()[0]] += 1
            if file is not None:
                print(line, file=file, flush=True)
            if not line.startswith("fine"):
                print(line, flush=True)
            if k % 100 == 0:
                print(f"{_now()}: {k} run, {(time.perf_counter() - start) / k:.2f} s each, {dict(found)}", flush=True)
    print(f"{_now()} commit {_commit()}: {sum(found.values())} programs from seed {first} on, {dict(found)}, "
          f"{time.perf_counter() - start:.0f} s", flush=True)  # fmt: skip
    return not found["FAILED"]


def _read(log: Path | None) -> dict[int, str]:
    lines = log.read_text().splitlines() if log is not None and log.exists() else []
    return {int(m[1]): line for line in lines if (m := _DONE.match(line))}


def _opened(log: Path | None) -> contextlib.AbstractContextManager[TextIO | None]:
    if log is None:
        return contextlib.nullcontext()
    log.parent.mkdir(parents=True, exist_ok=True)
    return log.open("a")


def _now() -> str:
    return datetime.datetime.now().isoformat(" ", "minutes")


def _commit() -> str:
    here = Path(__file__).parent
    told = subprocess.run(["git", "-C", here, "describe", "--always", "--dirty"], capture_output=True, text=True)
    return told.stdout.strip() or "unknown"


def main() -> None:
    parser = argparse.ArgumentParser(description=(sys.modules["__main__"].__doc__ or "").split("\n\n")[0])
    parser.add_argument("seed", nargs="*", type=int, help="run these alone and print them")
    parser.add_argument("--from", dest="first", type=int, default=100_000, help="the first of many seeds")
    parser.add_argument("--count", type=int, default=0, help="how many seeds to run")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--log", type=Path, help="a line for each seed; those in it already are not run again")
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    for seed in asked.seed:
        print(generate(seed))
        print(check(seed))
    if asked.count and not many(asked.first, asked.count, asked.processes, asked.log):
        sys.exit(1)
