"""What the examples share: the devices there are, text to learn from, a plan in few lines, checks."""

import argparse
import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, TypeAlias

import jax
import numpy as np

import sbp_jax as sbp

Batch: TypeAlias = dict[str, Any]  # arrays by name, the batch their first dimension
SIMULATED = "xla_force_host_platform_device_count"


def simulate_cpu_devices(count: int) -> None:
    """Let the CPU stand for ``count`` devices; GPUs are not affected. Before jax's first use only."""
    if SIMULATED not in os.environ.get("XLA_FLAGS", ""):
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --{SIMULATED}={count}".strip()


def mesh_shape(text: str) -> tuple[int, ...]:
    """``2x4`` as (2, 4); a type for ``argparse``."""
    try:
        shape = tuple(int(n) for n in text.lower().split("x"))
    except ValueError:
        shape = ()
    if len(shape) != 2 or min(shape) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no mesh: give two positive numbers, as in 2x4")
    return shape


def choose_mesh(asked: tuple[int, ...] | None) -> tuple[str, tuple[int, ...]]:
    """("cpu" or "gpu", shape): what was asked for, else 2 x n/2 of the devices (1 x n of an odd number, or two)."""
    kind = "gpu" if jax.default_backend() == "gpu" else "cpu"
    if asked is not None:
        return kind, asked
    n = jax.device_count(kind)
    return kind, (2, n // 2) if n % 2 == 0 and n > 2 else (1, n)


def devices(axis_names: Sequence[str], shape: tuple[int, ...] | None = None) -> sbp.Placement:
    """All GPUs, or 8 simulated CPU devices where there are none, as a mesh of one axis or two with these names."""
    simulate_cpu_devices(int(np.prod(shape or (8,))))
    kind, found = choose_mesh(shape)
    found = found if len(axis_names) == 2 else (int(np.prod(found)),)
    return sbp.placement(kind, np.arange(np.prod(found)).reshape(found), axis_names=tuple(axis_names))


def check(true: bool, words: str) -> None:
    """Print what was checked; where it is not true the script ends with exit status 1."""
    if not true:
        raise SystemExit(f"NOT TRUE: {words}")
    print(f"  true: {words}")


def check_equal(losses: Iterable[float], reference: Iterable[float], words: str, tolerance: float = 1e-3) -> float:
    """Check two lists of losses against each other; the largest relative difference."""
    got, want = np.array(list(losses)), np.array(list(reference))
    off = float(np.max(np.abs(got - want) / np.abs(want)))
    check(off <= tolerance, f"{words}: largest relative difference of a loss {off:.1e}, {tolerance:g} is allowed")
    return off


def check_learned(losses: Sequence[float], by: float, last: int = 3, after: int = 15) -> None:
    """Check that the mean of the ``last`` losses is ``by`` below the first. In fewer than ``after`` steps it need only
    be below; in fewer than three there is nothing to see."""
    if len(losses) < 3:
        print(f"  {len(losses)} steps are too few to see whether the loss falls")
        return
    mean = float(np.mean(losses[-last:]))
    check(mean < losses[0] - (by if len(losses) >= after else 0.0), "the loss falls")


def mib(n: float) -> str:
    """Bytes in MiB."""
    return f"{n / 2**20:,.4g} MiB"


def brief(plan: sbp.Plan, *watched: str) -> str:
    """A plan in few lines: what it costs, the signatures of the arguments whose paths match the patterns ``watched``
    (as of ``fnmatch``), and which collectives move how much. ``print(plan)`` says everything."""
    lines = str(plan).splitlines()[:2]
    for pattern in watched:
        found = Counter(str(leaf.signature) for leaf in plan.inputs if fnmatch(leaf.path, pattern))
        if not found:
            raise ValueError(
                f"no argument is called {pattern!r}; there are {', '.join(x.path for x in plan.inputs[:9])} ..."
            )
        said = ", ".join(f"({signature})" + (f" {n} times" if n > 1 else "") for signature, n in found.items())
        lines.append(f"  {pattern}: {said}")
    times: dict[str, int] = defaultdict(int)
    sent: dict[str, float] = defaultdict(float)
    for boxing in plan.boxings():
        for move in boxing.moves:
            if move.is_collective:
                times[move.kind] += round(boxing.times)
                sent[move.kind] += boxing.times * move.bytes
    for kind in sorted(times, key=times.__getitem__, reverse=True):
        lines.append(f"  {kind}: {times[kind]} times a step, {mib(sent[kind])}")
    return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Corpus:
    """Text as bytes, and what it takes to predict them from their frequencies alone."""

    data: np.ndarray
    files: int

    @staticmethod
    def standard_library() -> "Corpus":
        """The top-level modules of the running Python's standard library, in the order of their names."""
        paths = sorted(Path(os.__file__).parent.glob("*.py"))
        return Corpus(np.frombuffer(b"".join(path.read_bytes() for path in paths), np.uint8), len(paths))

    @property
    def entropy(self) -> float:
        """Of the byte frequencies, in nats a byte: the loss of the best model that ignores context."""
        p = np.bincount(self.data, minlength=256) / self.data.size
        return float(-np.sum(p * np.log(p, where=p > 0, out=np.zeros(256))))

    def batch(self, step: int, batch: int, seq: int) -> dict[str, np.ndarray]:
        """Inputs and targets of one step, both (batch, seq) int32; they depend on the step alone."""
        starts = np.random.default_rng((0, step)).integers(0, self.data.size - seq, (batch, 1))
        text = self.data[starts + np.arange(seq + 1)].astype(np.int32)
        return {"inputs": text[:, :-1], "targets": text[:, 1:]}

    def batches(self, steps: int, batch: int, seq: int) -> Iterator[dict[str, np.ndarray]]:
        """The batches of the first ``steps`` steps."""
        return (self.batch(i, batch, seq) for i in range(steps))
