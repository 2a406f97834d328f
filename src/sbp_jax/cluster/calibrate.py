"""Measuring the machine at hand: matrix products, memory, the smallest op, collectives. Gives a ``Cluster``.

Everything runs on all devices at once, as a training step does: what they share (a host's memory, a power budget)
then counts. A time is what a long chain of equal steps takes above a short one, each in one program and the best of
several runs, by the steps between them: what it takes to start a program and to hear of its end is in both, also what
of that a GPU hides behind its kernels. Collectives are fitted to the model's own formula, startup + steps * latency +
bytes / rate, by least squares of the relative errors, none below zero; ``Calibration.worst_error`` says how far off the
fit is.
"""

import functools
import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from scipy.optimize import nnls

from ..errors import SbpError
from .base import ASYNC, Cluster
from .collectives import KINDS
from .device import device
from .levels import Level
from .presets import FILL_SECONDS, GPU_TILES, preset_of

_AXIS = "x"
_CHAIN, _LONGER = 4, 3  # steps of the short chain, and how many times as many the long one has
_RUNS = 5
_MOST_STEPS = 64  # of a short chain: longer ones take long to compile


@dataclass(frozen=True, slots=True)
class Measurement:
    """One figure: what was run, on how much, how long a step took, and the rate that makes."""

    what: str
    size: str
    seconds: float
    rate: str = ""

    def __str__(self) -> str:
        micro = self.seconds * 1e6
        return f"{self.what:<24} {self.size:>14}  {micro:>12.{1 if micro >= 1 else 3}f} us  {self.rate}".rstrip()


@dataclass(frozen=True, slots=True)
class Calibration:
    """The cluster, and what it was made from. ``worst_error``: of the collectives' fit, relative."""

    cluster: Cluster
    measurements: tuple[Measurement, ...]
    notes: tuple[str, ...]
    worst_error: float


@dataclass(frozen=True, slots=True)
class Effort:
    """How much to measure: sides of square products, bytes on each device for memory and for collectives."""

    sides: tuple[int, ...]
    stream_bytes: int
    collective_bytes: tuple[int, ...]
    dtypes: tuple[str, ...] = ("float32", "bfloat16")


# On a host's cores a product of 1,024 takes tens of milliseconds; on a GPU, less than its launch.
SMALL = Effort((256, 512, 1024), 1 << 25, (1 << 12, 1 << 17, 1 << 20, 1 << 22))
LARGE = Effort((1024, 2048, 4096, 8192), 1 << 29, (1 << 12, 1 << 17, 1 << 22, 1 << 26, 1 << 28),
               ("float32", "bfloat16", "float16"))  # fmt: skip


def calibrate(
    name: str = "measured", devices: int | None = None, effort: Effort | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Calibration:  # fmt: skip
    """Measure ``devices`` of this process's devices (None: all). With several processes, all of them must call it.

    Raises ``SbpError`` where there are fewer devices.
    """
    local = jax.local_devices()
    if devices is not None and not 1 <= devices <= len(local):
        raise SbpError(
            f"calibrate on {devices} devices: this process has {len(local)} ({local[0].device_kind}); possible: 1 to "
            f"{len(local)}. Devices can be simulated on a host: JAX_PLATFORMS=cpu JAX_NUM_CPU_DEVICES={devices}"
        )
    local = local[:devices]
    effort = effort or (SMALL if local[0].platform == "cpu" else LARGE)
    mesh = Mesh(np.array(local), (_AXIS,))
    progress("matrix products")
    rates, found = _products(mesh, effort)
    progress("memory")
    memory_rate, streamed = _streaming(mesh, effort)
    floor = _chain_seconds(_add_one, mesh, 8, jnp.float32, steps=32)
    found += [streamed, Measurement("smallest op", "8 elements", floor)]
    notes: list[str] = []
    chip = device(local[0].device_kind, rates, _memory_bytes(local, notes), memory_rate, *_tiling(local[0]))
    progress("collectives")
    levels, measured, error = _levels(mesh, effort, notes, progress)
    cpu = local[0].platform == "cpu"
    cluster = Cluster(
        name, chip, levels, op_seconds_floor=floor, overlaps=frozenset() if cpu else ASYNC, library="generic"
    )
    return Calibration(cluster, (*found, *measured), tuple(notes), error)


def _products(mesh: Mesh, effort: Effort) -> tuple[dict[str, float], list[Measurement]]:
    """The best FLOP/s of square products by dtype, and all of them."""
    best: dict[str, float] = {}
    found = []
    for dtype in effort.dtypes:
        for side in effort.sides:
            seconds = _chain_seconds(_product, mesh, side * side, jnp.dtype(dtype), steps=2)
            rate = 2.0 * side**3 / seconds
            best[dtype] = max(best.get(dtype, 0.0), rate)
            found.append(Measurement(f"matmul {dtype}", f"{side}^3", seconds, f"{rate:.3g} FLOP/s"))
    return best, found


def _product(x: jax.Array) -> jax.Array:
    side = math.isqrt(x.size)
    square = x.reshape(side, side)
    return (square @ square).ravel()


def _streaming(mesh: Mesh, effort: Effort) -> tuple[float, Measurement]:
    """Bytes per second of reading one array and writing another."""
    size = effort.stream_bytes
    seconds = _chain_seconds(_add_one, mesh, size // 4, jnp.float32)
    rate = 2.0 * size / seconds
    return rate, Measurement("read and write", _human(size), seconds, f"{rate:.3g} bytes/s")


def _add_one(x: jax.Array) -> jax.Array:
    return x + 1


def _collective(kind: str, p: int, shift: int = 1) -> Callable[[jax.Array], jax.Array]:
    """A step that runs one collective on an array and gives back one of the same shape that depends on it."""

    def run(x: jax.Array) -> jax.Array:
        if kind == "all_reduce":
            y = lax.psum(x, _AXIS)
        elif kind == "all_gather":
            y = lax.all_gather(x, _AXIS, tiled=True)
        elif kind == "reduce_scatter":
            y = lax.psum_scatter(x, _AXIS, tiled=True)
        elif kind == "all_to_all":
            y = lax.all_to_all(x, _AXIS, 0, 0, tiled=True)
        else:
            y = lax.ppermute(x, _AXIS, [(i, (i + shift) % p) for i in range(p)])
        return y if y.shape == x.shape else x.at[0].set(y[-1])

    return run


def _sent(kind: str, held_bytes: float, p: int) -> float:
    """Bytes each device sends when its array has ``held_bytes``."""
    share = (p - 1) / p
    parts = {"all_reduce": 2 * share, "all_gather": p - 1.0, "reduce_scatter": share, "all_to_all": share}
    return held_bytes * parts.get(kind, 1.0)


def _levels(
    mesh: Mesh, effort: Effort, notes: list[str], progress: Callable[[str], None]
) -> tuple[tuple[Level, ...], list[Measurement], float]:
    """The node's level from this process's devices; the network's, with several processes, from all devices."""
    here, everywhere = mesh.devices.size, jax.device_count()
    alone = jax.process_count() == 1
    inner = "shared memory" if mesh.devices.flat[0].platform == "cpu" else "node"
    found: list[Measurement] = []
    levels: list[Level] = []
    error = 0.0
    if here > 1:
        level, found, error = _fit(inner, None if alone else here, mesh, 1, effort)
        levels.append(level)
    elif alone:
        notes.append("one device: its links cannot be measured; the level's figures are placeholders")
        return (Level(inner, None, 1e9, 1e-5),), found, error
    if not alone:
        progress("collectives between processes")
        if here == 1:
            notes.append("one device in each process: all links count as one level")
        every = Mesh(np.array(jax.devices()), (_AXIS,))
        if everywhere % here or here != jax.local_device_count():
            raise SbpError("calibrate with several processes measures all of their devices: leave `devices` out")
        level, more, worse = _fit("network", None, every, here, effort)
        levels.append(level)
        found, error = found + more, max(error, worse)
    return tuple(levels), found, error


def _fit(
    name: str, devices: int | None, mesh: Mesh, members: int, effort: Effort
) -> tuple[Level, list[Measurement], float]:
    """One level from collectives over ``mesh``, of which ``members`` devices share a unit of the level inside.

    With more than one, only the permute counts, sent from every device to one in the next unit: what the others do in
    between depends on both levels.
    """
    p = mesh.devices.size
    rows, found = [], []
    kinds = KINDS if members == 1 else ("permute",)
    for kind in kinds:
        for size in effort.collective_bytes:
            held = size // (4 * p) * p  # elements, a whole number for each device
            if kind == "all_gather":
                held = max(held // p // p, 1) * p
            seconds = _chain_seconds(_collective(kind, p, members), mesh, max(held, p), jnp.float32)
            sent = _sent(kind, 4.0 * max(held, p), p)
            rows.append((_steps(kind, p), sent, seconds))
            found.append(Measurement(f"{kind} ({name})", _human(sent), seconds, f"{sent / seconds:.3g} bytes/s sent"))
    level, error = fit_level(name, devices, rows)
    return level, found, error


def _steps(kind: str, p: int) -> int:
    """Steps of the "generic" library's best algorithm, as ``collectives`` counts them."""
    halving = math.ceil(math.log2(p))
    return {"permute": 1, "all_to_all": math.ceil((p - 1) / 8), "all_reduce": 2 * min(p - 1, halving)}.get(
        kind, min(p - 1, halving)
    )


def fit_level(name: str, devices: int | None, rows: Sequence[tuple[int, float, float]]) -> tuple[Level, float]:
    """The level that explains ``rows`` of steps, bytes sent and seconds best; the worst relative error.

    Least squares of relative errors over startup, latency and seconds per byte, none negative.
    """
    steps, sent, seconds = (np.array(column, float) for column in zip(*rows, strict=True))
    features = np.stack([np.ones_like(steps), steps, sent], axis=1)
    scale = features.max(axis=0)
    weights = features / scale / seconds[:, None]
    startup, latency, per_byte = map(float, nnls(weights, np.ones_like(seconds))[0] / scale)
    if per_byte <= 0:  # too small or too noisy to tell a rate: the fastest transfer seen is a bound
        per_byte = float((seconds / sent).min())
    predicted = startup + steps * latency + sent * per_byte
    error = float(np.abs(predicted / seconds - 1).max())
    return Level(name, devices, 1 / per_byte, latency, startup_seconds=startup), error


def _chain_seconds(
    step: Callable[[jax.Array], jax.Array], mesh: Mesh, elements: int, dtype: Any, steps: int = _CHAIN
) -> float:
    """Seconds of one ``step`` on an array of ``elements`` on every device of the mesh.

    The array is random, for GPUs are faster on zeros, and of a size that squaring it as a matrix leaves as it is.
    """
    spec = PartitionSpec(_AXIS)
    devices = mesh.devices.flat
    # XLA for CPUs drops barriers before it makes one op of several: there only a loop keeps them apart. On a GPU a
    # loop's counter is a kernel of its own.
    loops = step is _add_one and devices[0].platform == "cpu"

    def make() -> jax.Array:
        return jax.random.normal(jax.random.key(0), (elements * mesh.devices.size,), dtype) / elements**0.25

    x = jax.jit(make, out_shardings=NamedSharding(mesh, spec))()

    def chain(length: int) -> Callable[[], jax.Array]:
        @jax.jit
        @functools.partial(jax.shard_map, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
        def run(x: jax.Array) -> jax.Array:
            if loops:
                return lax.fori_loop(0, length, lambda _, x: step(x), x)
            for _ in range(length):
                x = lax.optimization_barrier(step(x))  # or XLA would make one op of several
            return x

        return functools.partial(run, x)

    # Processes must run the same programs, and each goes by its own clock.
    ours = all(d.process_index == jax.process_index() for d in devices)
    return seconds_each(chain, steps if ours else 4 * steps, grows=ours)


def seconds_each(chain: Callable[[int], Callable[[], Any]], steps: int = _CHAIN, grows: bool = True) -> float:
    """Seconds of one of many equal steps: ``chain(n)`` is a call of a program of n of them.

    Chains get longer, where they may, until a short one takes at least what starting a program takes.
    """
    while True:
        chains = {length: chain(length) for length in (steps, _LONGER * steps)}
        best = dict.fromkeys(chains, math.inf)
        for k in range(_RUNS + 1):  # the first compiles
            for length, run in chains.items():
                start = time.perf_counter()
                jax.block_until_ready(run())
                best[length] = min(best[length], time.perf_counter() - start if k else math.inf)
        short, long = best.values()
        # Two thirds of the long one at best. With less than half, starting a program takes more than the short chain.
        if long - short >= long / 2 or steps >= _MOST_STEPS or not grows:
            return max((long - short) / ((_LONGER - 1) * steps), long / (10 * _LONGER * steps))
        steps *= 4


def _memory_bytes(devices: Sequence[Any], notes: list[str]) -> float:
    """What one device may hold: as its runtime says, else its part of the host's memory."""
    stats = devices[0].memory_stats()
    if stats and "bytes_limit" in stats:
        return float(stats["bytes_limit"])
    host = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    notes.append("the devices do not say how much memory they have: an equal part of the host's is assumed")
    return host / len(devices)


def _tiling(chip: Any) -> tuple[Any, ...]:
    """Units, tiles and filling of a GPU: its preset's, else by its count of multiprocessors; none for others."""
    known = preset_of(chip.device_kind)
    if known is not None:
        d = known.device
        return d.units, d.tiles, d.fill_seconds, d.cache_bytes_per_second, d.stores_between
    units = getattr(chip, "core_count", None)
    return (units, GPU_TILES, FILL_SECONDS) if chip.platform == "gpu" and units else ()


def _human(size: float) -> str:
    for unit in ("B", "KB", "MB", "GB"):
        if size < 1000 or unit == "GB":
            return f"{size:.3g} {unit}"
        size /= 1000
    return ""
