"""What the hardware is: a device, the links between devices by level, and what they make a collective cost."""

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

# The collectives that XLA's GPU backend starts on a stream of their own, beside compute, unless told otherwise: all of
# them. The description of its flag ``xla_gpu_disable_async_collectives`` (openxla/xla, ``debug_options_flags.cc``):
# "By default, this is empty which indicates enabling async execution for all collectives".
KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "permute")
ASYNC: frozenset[str] = frozenset(KINDS)


@dataclass(frozen=True, slots=True)
class Device:
    """One accelerator. ``flops_per_second`` by dtype name, dense; memory in bytes and bytes per second."""

    name: str
    flops_per_second: tuple[tuple[str, float], ...]
    memory_bytes: float
    memory_bytes_per_second: float

    def rate(self, dtype: str) -> float:
        """Peak FLOP/s in ``dtype``; one not listed runs at the rate of float32."""
        rates = dict(self.flops_per_second)
        return rates.get(dtype, rates["float32"])


@dataclass(frozen=True, slots=True)
class Level:
    """One level of links. ``devices`` in one unit of it (8 for a node of 8); None for the outermost.

    ``bytes_per_second`` is what one device can send while it receives as much; ``latency_seconds`` a message's.
    """

    name: str
    devices: int | None
    bytes_per_second: float
    latency_seconds: float


@dataclass(frozen=True, slots=True)
class Link:
    """What a group of devices communicates over."""

    bytes_per_second: float
    latency_seconds: float
    level: str


@dataclass(frozen=True, slots=True)
class Cluster:
    """Devices and the levels of links between them, innermost first. Ranks fill a unit before the next.

    ``matmul_efficiency`` is the part of peak FLOP/s that large matrix products reach, ``memory_efficiency`` the
    part of peak bytes per second that streaming reaches, ``op_seconds_floor`` what the smallest kernel takes.

    ``overlaps`` names the kinds of collectives (as ``collective_seconds`` takes them) that run beside compute where
    the program's order of dependences lets them, each level's on a stream of its own. The planner does not use it:
    its costs add up.
    """

    name: str
    device: Device
    levels: tuple[Level, ...]
    matmul_efficiency: float = 1.0
    memory_efficiency: float = 1.0
    op_seconds_floor: float = 0.0
    overlaps: frozenset[str] = ASYNC

    def op_seconds(self, flops: float, moved_bytes: float, dtype: str) -> float:
        """One op on one device: the longer of arithmetic and memory traffic.

        The roofline model: Williams, Waterman and Patterson, CACM 52(4), 2009.
        """
        arithmetic = flops / (self.device.rate(dtype) * self.matmul_efficiency)
        traffic = moved_bytes / (self.device.memory_bytes_per_second * self.memory_efficiency)
        return max(arithmetic, traffic, self.op_seconds_floor)

    def copy_seconds(self, moved_bytes: float) -> float:
        """Writing ``moved_bytes`` to a device's own memory, having read as much."""
        return 2 * moved_bytes / (self.device.memory_bytes_per_second * self.memory_efficiency)

    def link(self, mesh_shape: Sequence[int], axes: Sequence[int]) -> Link:
        """What groups along ``axes`` of a mesh communicate over.

        Ranks are row-major, so a group lies within ``span`` consecutive devices: it uses the innermost level of
        which one unit holds every group whole, and the slowest group sets the pace.
        """
        span = 1 + sum((mesh_shape[a] - 1) * math.prod(mesh_shape[a + 1 :]) for a in axes)
        for level in self.levels:
            if level.devices is None or _holds(level.devices, span, tuple(mesh_shape), tuple(axes)):
                return Link(level.bytes_per_second, level.latency_seconds, level.name)
        last = self.levels[-1]
        return Link(last.bytes_per_second, last.latency_seconds, last.name)

    def collective_seconds(self, kind: str, sent_bytes: float, mesh_shape: Sequence[int], axes: Sequence[int]) -> float:
        """A collective in which each device sends ``sent_bytes``: latency of its steps, and bandwidth.

        Ring algorithms take p-1 steps (all-reduce twice that), trees 2 log2 p; the library picks the faster:
        Thakur, Rabenseifner and Gropp, IJHPCA 19(1), 2005; NCCL's tuning model does the same.
        """
        p = math.prod(mesh_shape[a] for a in axes)
        if p <= 1:
            return 0.0
        link = self.link(mesh_shape, axes)
        tree = 2 * math.ceil(math.log2(p))
        steps = {"all_reduce": min(2 * (p - 1), tree), "permute": 1}.get(kind, min(p - 1, tree))
        return sent_bytes / link.bytes_per_second + steps * link.latency_seconds


@functools.lru_cache(maxsize=4096)
def _holds(devices: int, span: int, mesh_shape: tuple[int, ...], axes: tuple[int, ...]) -> bool:
    """Whether every group along ``axes`` lies within one unit of ``devices``, wherever the other axes stand."""
    starts = [0]
    for a, n in enumerate(mesh_shape):
        if a not in axes:
            stride = math.prod(mesh_shape[a + 1 :])
            starts = [s + k * stride for s in starts for k in range(n)]
    return all(s // devices == (s + span - 1) // devices for s in starts)


def device(name: str, rates: Mapping[str, float], memory_bytes: float, memory_bytes_per_second: float) -> Device:
    """A ``Device`` from a mapping of rates."""
    return Device(name, tuple(sorted(rates.items())), memory_bytes, memory_bytes_per_second)
