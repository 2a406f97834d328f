"""What actors cost, and what they hide: microseconds of each firing, and a loader's stages at the same time.

    python benchmarks/actors.py

(a) A chain of 4 lanes with 2 actors each and 2000 indices, acts that do nothing: the whole is the runtime's own cost.
(b) A loader of four stages. Decoding and the copy to the device wait (a sleep stands for the disk and for the link),
augmentation is numpy work, the computation waits for a device. Time for a step as actors, compared with the slowest
stage alone and with all stages one after the other; each measured in turns, in this process.
"""

import statistics
import sys
import time
from collections.abc import Callable

import numpy as np

from sbp_jax.actors import Actor, ActorGraph, Runtime

LANES, ACTORS, FIRINGS, ROUNDS = 4, 2, 2000, 7
MOST_MICROSECONDS, MOST_RATIO = 100.0, 1.05
STEPS, LOADER_ROUNDS = 100, 5


def chain(registers: int) -> ActorGraph:
    """Actors one after the other, ``ACTORS`` neighbours on each lane."""
    first = Actor("a0", lambda k: k, registers=registers, lane="lane 0", count=FIRINGS)
    rest = (
        Actor(f"a{i}", lambda k, x: x, (f"a{i - 1}",), registers, f"lane {i // ACTORS}")
        for i in range(1, LANES * ACTORS)
    )
    return ActorGraph((first, *rest))


def overhead() -> bool:
    """Print (a); whether it is within its bound."""
    n = LANES * ACTORS * FIRINGS
    print(f"(a) {LANES} lanes x {ACTORS} actors x {FIRINGS} firings that do nothing; median of {ROUNDS} runs")
    print(f"{'registers':>9} {'µs a firing':>12} {'fastest':>8} {'slowest':>8} {'of the bound':>13}")
    is_good = True
    for registers in (1, 2, 8):
        seconds = []
        with Runtime(chain(registers)) as runtime:
            runtime.run()
            for _ in range(ROUNDS):
                start = time.perf_counter()
                runtime.run()
                seconds.append((time.perf_counter() - start) / n * 1e6)
        middle = statistics.median(seconds)
        is_good &= middle < MOST_MICROSECONDS
        print(
            f"{registers:9} {middle:12.1f} {min(seconds):8.1f} {max(seconds):8.1f} {middle / MOST_MICROSECONDS:13.2f}"
        )
    return is_good


def stages() -> dict[str, Callable[..., object]]:
    """The four stages of the loader, by name."""
    images = np.random.default_rng(0).random((16, 112, 112, 3), dtype=np.float32)

    def decode(k: int) -> np.ndarray:
        time.sleep(0.008)
        return images

    def augment(k: int, x: np.ndarray) -> np.ndarray:
        flipped = x[:, :, ::-1] * 0.5 + 0.5 if k % 2 else x - x.mean()
        return np.tanh(flipped)

    def to_device(k: int, x: np.ndarray) -> np.ndarray:
        time.sleep(0.003)
        return x

    def compute(k: int, x: np.ndarray) -> float:
        time.sleep(0.012)
        return float(x[0, 0, 0, 0])

    return {"decode": decode, "augment": augment, "to_device": to_device, "compute": compute}


def _each_alone(acts: dict[str, Callable[..., object]]) -> tuple[dict[str, float], float]:
    """Seconds of a step in each stage alone, and in all of them one after the other, without threads."""
    alone, x = {}, None
    for name, act in acts.items():
        start = time.perf_counter()
        for k in range(STEPS):
            y = act(k) if name == "decode" else act(k, x)
        alone[name] = (time.perf_counter() - start) / STEPS
        x = y
    start = time.perf_counter()
    for k in range(STEPS):
        x = acts["decode"](k)
        for name in list(acts)[1:]:
            x = acts[name](k, x)
    return alone, (time.perf_counter() - start) / STEPS


def loader() -> bool:
    """Print (b); whether it is within its bound."""
    acts = stages()
    names = list(acts)
    actors = [
        Actor(name, acts[name], tuple(names[i - 1 : i]), registers=2, count=STEPS if i == 0 else None)
        for i, name in enumerate(names)
    ]
    rows = []
    with Runtime(ActorGraph(tuple(actors))) as runtime:
        runtime.run()
        for _ in range(LOADER_ROUNDS):
            alone, serial = _each_alone(acts)
            record = runtime.run()
            # From the end of the first step: what the pipeline takes to fill is no cost of a step.
            ends = [span.end_seconds for span in record.lane_spans("compute")]
            step = (ends[-1] - ends[0]) / (STEPS - 1)
            rows.append((alone, serial, step, record.makespan_seconds / STEPS, record.bubble_fraction("compute")))
    slowest = statistics.median(max(alone.values()) for alone, *_ in rows)
    serial, step, filled, bubble = (statistics.median(row[i] for row in rows) for i in (1, 2, 3, 4))
    ratio = statistics.median(row[2] / max(row[0].values()) for row in rows)
    print(f"(b) a loader of 4 stages, {STEPS} steps, 2 registers each; median of {LOADER_ROUNDS} rounds")
    for name in names:
        print(f"{name:>28} alone {statistics.median(alone[name] for alone, *_ in rows) * 1e3:8.2f} ms")
    print(f"{'one after the other':>34} {serial * 1e3:8.2f} ms, {serial / slowest:.2f} of the slowest stage")
    print(f"{'as actors':>34} {step * 1e3:8.2f} ms, {ratio:.3f} of the slowest stage (bound {MOST_RATIO})")
    print(f"{'as actors, filling included':>34} {filled * 1e3:8.2f} ms, {filled / slowest:.3f} of the slowest stage")
    print(f"{'time that compute stands idle':>34} {bubble:8.1%}; {serial / step:.2f} times as fast as in a row")
    return ratio <= MOST_RATIO


def main() -> int:
    """Print both tables; 1 when a bound does not hold."""
    results = [overhead(), loader()]
    return int(not all(results))


if __name__ == "__main__":
    sys.exit(main())
